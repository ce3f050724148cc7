"""``ferrite``: every command on a tiny model, wrong uses in one line, and a reader that goes away."""

import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from ferrite import _native
from ferrite.bench.parity import variants
from ferrite.catalogue import CATALOGUE
from ferrite.cli import parity as parity_command
from tests.cli.support import WAIT_SECONDS, Command, process
from tests.models.files import take_apart

COMMANDS = ("run", "bench", "parity", "pull", "inspect")


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_needs_no_model(ferrite: Command, flag: str) -> None:
    done = ferrite(flag)
    assert (done.status, done.out, done.err) == (0, f"ferrite {version('ferrite-server')}\n", "")


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_needs_no_model(ferrite: Command, command: str, flag: str) -> None:
    done = ferrite(*command.split(), flag)
    assert (done.status, done.err) == (0, "")
    assert "Usage: ferrite" in done.out
    if not command:
        assert all(name in done.out for name in COMMANDS)


WRONG_USES = {
    "": "Missing command",
    "nope": "No such command 'nope'",
    "--nope": "No such option: --nope",
    "run": "Missing argument",
    "run hi there": "Got unexpected extra argument",
    "run hi --max-tokens 0": "--max-tokens",
    "run hi --max-tokens x": "--max-tokens",
    "run hi --temperature 2.1": "--temperature",
    "run hi --top-p -1": "--top-p",
    "run hi --seed 9223372036854775808": "--seed",
    "run hi --threads -1": "--threads",
    "run hi --threads 1025": "--threads",
    "bench --nope": "--nope",
    "bench --steps 0": "--steps",
    "bench --rounds 0": "--rounds",
    "bench --prefill 0": "--prefill",
    "bench --prefill 16,x": "--prefill",
    "bench --prefill 131073": "--prefill",
    "bench --streams 17": "--streams",
    "bench --streams ,": "--streams",
    "bench --depth -1": "--depth",
    "bench --kernel-provider riscv": "--kernel-provider",
    "parity hello": "unexpected extra argument",
    "pull": "Missing argument",
    "inspect": "Missing argument",
    "inspect a b": "unexpected extra argument",
}


@pytest.mark.parametrize("use", WRONG_USES)
def test_a_wrong_use_is_one_line_and_status_2(ferrite: Command, use: str) -> None:
    done = ferrite(*use.split())
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith("ferrite")
    assert done.err.count("\n") == 1
    assert WRONG_USES[use] in done.err


@pytest.mark.parametrize("command", ["run hi -m", "bench -m", "parity -m", "inspect", "pull"])
def test_a_model_that_does_not_exist_is_one_line_and_status_1(ferrite: Command, command: str) -> None:
    done = ferrite(*command.split(), "no-such-model")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("ferrite")
    assert done.err.count("\n") == 1
    assert "no-such-model" in done.err
    assert all(name in done.err for name in CATALOGUE)


@pytest.mark.parametrize("command", ["run hi -m", "bench -m", "parity -m", "inspect"])
def test_a_file_that_is_no_model_is_one_line_and_status_1(
    ferrite: Command, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("This is no model.\n")
    done = ferrite(*command.split(), str(path))
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("ferrite")
    assert "not a GGUF file" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", ["run hi -m", "bench -m", "parity -m"])
def test_a_model_without_a_needed_key_is_one_line_and_status_1(
    ferrite: Command, tiny: Path, tmp_path: Path, command: str
) -> None:
    parts = take_apart(tiny)
    del parts.pairs["llama.block_count"]
    done = ferrite(*command.split(), str(parts.write(tmp_path / "m.gguf")))
    assert (done.status, done.out) == (1, "")
    assert "key 'llama.block_count' is missing" in done.err
    assert done.err.count("\n") == 1


def test_a_run_streams_text_and_prints_rates_apart(ferrite: Command, tiny: Path) -> None:
    done = ferrite("run", "Hello there", "-m", str(tiny), "-n", "12", "--threads", "2")
    assert done.status == 0
    assert done.out.endswith("\n")
    rates = r"\[(\d+) prompt tokens, [\d.]+ tokens/s; 12 generated, [\d.]+ tokens/s; length\]\n"
    match = re.fullmatch(rates, done.err)
    assert match is not None
    raw = ferrite("run", "Hello there", "-m", str(tiny), "-n", "12", "--raw")
    raw_match = re.fullmatch(rates, raw.err)
    assert raw_match is not None
    assert int(match[1]) > int(raw_match[1])
    assert ferrite("run", "Hello there", "-m", str(tiny), "-n", "12", "--threads", "1").out == done.out
    assert ferrite("run", "Hello there", "-m", str(tiny), "-n", "12", "--speculate", "ngram").out == done.out


def test_a_run_repeats_with_its_seed(ferrite: Command, tiny: Path) -> None:
    def text(seed: str) -> str:
        return ferrite("run", "Hi", "-m", str(tiny), "-n", "20", "-t", "1.5", "--seed", seed).out

    assert text("5") == text("5")
    assert text("-5") != text("5")


def test_a_run_reads_its_prompt_from_standard_input(tiny: Path) -> None:
    with process("run", "-", "-m", str(tiny), "-n", "3", "--raw") as from_pipe:
        out, err = from_pipe.communicate("Hello", timeout=WAIT_SECONDS)
    with process("run", "Hello", "-m", str(tiny), "-n", "3", "--raw") as from_argument:
        assert from_argument.communicate(timeout=WAIT_SECONDS)[0] == out
    assert (from_pipe.returncode, err.count("\n")) == (0, 1)


def test_a_prompt_that_does_not_fit_or_is_empty_is_one_line_and_status_1(
    ferrite: Command, tiny: Path
) -> None:
    done = ferrite("run", "x" * 600, "-m", str(tiny), "--raw")
    assert (done.status, done.out) == (1, "")
    assert done.err == "ferrite run: 600 prompt tokens do not fit the context of 512\n"
    done = ferrite("run", "", "-m", str(tiny), "--raw")
    assert (done.status, done.out, done.err) == (1, "", "ferrite run: the prompt is empty\n")


def test_a_run_ends_where_the_context_does(ferrite: Command, tiny: Path) -> None:
    done = ferrite("run", "y" * 505, "-m", str(tiny), "--raw", "-n", "100")
    assert done.status == 0
    assert "505 prompt tokens" in done.err
    assert "7 generated" in done.err


def test_parity_lists_equal_digests(ferrite: Command, tiny: Path) -> None:
    done = ferrite("parity", "-m", str(tiny))
    assert (done.status, done.err) == (0, "")
    digests = re.findall(r"(?m)^.* ([0-9a-f]{16})$", done.out)
    found = re.search(r"\n(\d+) \+ (\d+) equal digests\n$", done.out)
    assert found is not None
    n_run, n_served = map(int, found.groups())
    assert n_run >= 12
    assert n_served >= 6
    assert len(digests) == n_run + n_served
    assert len(set(digests[:n_run])) == len(set(digests[n_run:])) == 1


def test_parity_fails_when_one_digest_differs(
    ferrite: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter(["0" * 16] * 3 + ["1" * 16] + ["0" * 16] * 100)
    monkeypatch.setattr(parity_command, "digest", lambda *_: next(digests))
    done = ferrite("parity", "-m", str(tiny))
    assert (done.status, done.err) == (
        1,
        "ferrite parity: 2 and 1 different digests, where 1 and 1 were to be\n",
    )
    assert "equal digests" not in done.out


@pytest.mark.model
def test_parity_of_a_real_model(
    ferrite: Command, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The others run on tiny models: on this one they take minutes.
    some = [way for way in variants() if way.chunk in (7, 512)]
    monkeypatch.setattr(parity_command, "variants", lambda **_: some)
    done = ferrite("parity", "-m", str(smollm2_path))
    assert (done.status, done.err) == (0, "")
    assert re.search(r"(?m)^\d+ \+ 7 equal digests$", done.out)


QUICK = ("--prefill", "16", "--streams", "1,2", "--depth", "8", "--steps", "2", "--rounds", "1")


def test_bench_as_json(ferrite: Command, tiny: Path) -> None:
    done = ferrite("bench", "-m", str(tiny), *QUICK, "--json", "--threads", "1")
    assert (done.status, done.err) == (0, "")
    answer = json.loads(done.out)
    assert answer.keys() == {"model", "threads", "provider", "read_gb_s", "int8_gmac_s", "rows"}
    assert (answer["model"], answer["threads"]) == (str(tiny), 1)
    assert [(row["work"], row["depth"], row["streams"]) for row in answer["rows"]] == [
        ("prefill", 16, 1),
        ("decode", 8, 1),
        ("decode", 8, 2),
    ]
    for row in answer["rows"]:
        assert 0 < row["lowest"] <= row["tokens_per_second"] <= row["highest"]
        assert row["floor_share"] > 0
    assert answer["read_gb_s"] > 0
    assert answer["int8_gmac_s"] > 0


def test_bench_as_a_table(ferrite: Command, tiny: Path) -> None:
    done = ferrite("bench", "-m", str(tiny), *QUICK, "--threads", "2")
    assert (done.status, done.err) == (0, "")
    head, limits, titles, *rows = done.out.splitlines()
    assert head == f"{tiny}, {_native.providers()[0]}, 2 threads; median of 1 rounds"
    assert limits.startswith("read bandwidth ")
    assert [row.split()[0] for row in rows] == ["prefill", "decode", "decode"]
    assert titles.split()[0] == "work"
    assert len({len(line) for line in (titles, *rows)}) == 1


def test_bench_as_a_worker(tiny: Path) -> None:
    with process("bench", "--worker", "-m", str(tiny), "--threads", "1") as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            assert json.loads(worker.stdout.readline()) == {"ready": True}
            for request, key in (
                ({"op": "prefill", "tokens": 32}, "seconds"),
                ({"op": "sing"}, "error"),
                ({"op": "decode", "streams": 2, "steps": 3, "depth": 4}, "seconds"),
                ({"op": "decode", "streams": 2, "steps": 3, "depth": 131072}, "error"),
                ({"op": "prefill", "tokens": 1}, "seconds"),
            ):
                worker.stdin.write(json.dumps(request) + "\n")
                worker.stdin.flush()
                assert json.loads(worker.stdout.readline()).keys() == {key}
            out, err = worker.communicate(timeout=WAIT_SECONDS)
        finally:
            worker.kill()
    assert (worker.returncode, out, err) == (0, "", "")


def test_inspect_shows_metadata_and_tensors(ferrite: Command, tiny: Path) -> None:
    done = ferrite("inspect", str(tiny))
    assert (done.status, done.err) == (0, "")
    assert "llama.block_count = 1" in done.out
    assert "blk.0.attn_q.weight" not in done.out
    assert "blk.0.attn_q.weight" in ferrite("inspect", str(tiny), "--tensors").out


def test_inspect_as_json(ferrite: Command, tiny: Path) -> None:
    done = ferrite("inspect", str(tiny), "--json")
    answer = json.loads(done.out)
    assert answer["architecture"] == "llama"
    assert answer["metadata"]["llama.context_length"] == 512
    assert {tensor["name"] for tensor in answer["tensors"]} >= {"token_embd.weight", "output.weight"}


@pytest.mark.parametrize("command", [("inspect", "{}", "--tensors"), ("run", "hi", "-n", "400", "-m", "{}")])
def test_a_reader_that_goes_away_is_no_error_to_report(tiny: Path, command: tuple[str, ...]) -> None:
    with process(*(word.format(tiny) for word in command)) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        writer.stdout.close()
        err = writer.stderr.read()
        assert writer.wait(WAIT_SECONDS) in (1, 141)
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
