"""``ferrite bench``: its table and JSON, pictures, peers that are not there, and a server on loopback."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from ferrite import _native
from ferrite.cli import bench as bench_command
from tests.bench.support import FixedMachine
from tests.cli.support import Command

SHORT = ("--prefill", "8", "--depth", "4", "--steps", "2", "--rounds", "1", "--threads", "1")


def test_rows_say_the_rate_the_limit_and_where_the_time_went(
    ferrite: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_command, "Machine", lambda *_: FixedMachine())
    done = ferrite("bench", "-m", str(tiny), "--streams", "1,2", *SHORT)
    assert (done.status, done.err) == (0, "")
    title, limits, head, *rows = done.out.splitlines()
    assert title == f"{tiny}, {_native.providers()[0]}, 1 threads; median of 1 rounds"
    assert limits.startswith("read bandwidth 1.0 GB/s, int8 peak 2 G multiply-adds/s")
    assert head.split()[:6] == ["work", "depth", "streams", "tokens/s", "lowest", "highest"]
    assert [row.split()[:3] for row in rows] == [
        ["prefill", "8", "1"],
        ["decode", "4", "1"],
        ["decode", "4", "2"],
    ]
    for row in rows:
        parts = [float(word) for word in row.split("|")[1].split()]
        assert sum(parts) == pytest.approx(100, abs=0.5)


def test_json_has_the_numbers_of_the_table(ferrite: Command, tiny: Path) -> None:
    done = ferrite("bench", "-m", str(tiny), "--streams", "1", "--json", *SHORT)
    report = json.loads(done.out)
    assert (report["model"], report["threads"], len(report["rows"])) == (str(tiny), 1, 2)
    assert report["read_gb_s"] > 0
    assert report["int8_gmac_s"] > 0
    for row in report["rows"]:
        assert row["lowest"] <= row["tokens_per_second"] <= row["highest"]
        assert row["floor_share"] > 0
        assert list(row["time"]) == ["linear", "attention", "norm", "other", "wait", "outside"]
        assert sum(row["time"].values()) == pytest.approx(1)


def test_a_picture_is_written(
    ferrite: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    monkeypatch.setattr(bench_command, "Machine", lambda *_: FixedMachine())
    path = tmp_path / "rates.svg"
    done = ferrite("bench", "-m", str(tiny), "--streams", "1", *SHORT, "--plot", str(path))
    assert (done.status, done.err) == (0, "")
    assert path.read_bytes().startswith(b"<?xml")


def test_without_matplotlib_a_picture_is_refused_with_the_way_to_get_it(
    ferrite: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = ferrite("bench", "-m", "no-such-model", "--plot", str(tmp_path / "a.png"))
    assert done.status == 2
    assert "a.png: pictures need matplotlib" in done.err
    assert "pip install matplotlib" in done.err
    assert done.err.count("\n") == 1


WRONG_USES = {
    "--plot a.pdf": "a.pdf: expected a name that ends in .png or .svg",
    "--plot no/such/folder/a.svg": "a.svg: there is no such folder",
    "--plot a.svg --serve": "not with --serve or --worker",
    "--serve --compare": "only one of --compare, --serve and --worker",
    "--serve --streams 1,2": "one number of streams with --serve",
}


@pytest.mark.parametrize("use", WRONG_USES)
def test_a_wrong_use_is_one_line_before_a_model_is_read(ferrite: Command, use: str) -> None:
    done = ferrite("bench", "-m", "no-such-model", *use.split())
    assert (done.status, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert WRONG_USES[use] in done.err


def test_without_peers_there_is_nothing_to_compare_with(ferrite: Command) -> None:
    done = ferrite("bench", "-m", "no-such-model", "--compare")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        f"ferrite: nothing to compare with: {sys.executable} has none of "
        "llama-cpp-python, ik-llama-cpp-python (see --compare-python)\n"
    )


FAKE = """
class Any:
    def __getattr__(self, name):
        return lambda *arguments: Any()
    def __setitem__(self, key, value): pass
    def __getitem__(self, key): return Any()
def __getattr__(name):
    if name.startswith("__") or name.endswith("seq_rm"):
        raise AttributeError(name)
    return lambda *arguments: Any()
def llama_model_load_from_file(path, options): return 1
def llama_init_from_model(model, settings): return 1
def llama_vocab_n_tokens(vocab): return 100
def llama_batch_init(size, embd, lines):
    batch = Any()
    batch.token = batch.pos = batch.n_seq_id = batch.logits = batch.seq_id = Any()
    return batch
def llama_decode(context, batch): return 0
"""


def test_a_peer_that_is_there_is_compared_and_the_other_one_named(
    ferrite: Command, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "llama_cpp.py").write_text(FAKE)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    flags = ("--compare", "--compare-python", str(python), "--threads", "1", "--rounds", "2", "--steps", "2")
    works = ("--prefill", "8", "--streams", "2", "--depth", "4")
    done = ferrite("bench", "-m", str(tiny), *flags, *works)
    assert done.status == 0, done.err
    assert done.err == f"not compared, since {python} does not have it: ik-llama-cpp-python\n"
    rows = [line.split() for line in done.out.splitlines()[2:]]
    assert [row[:4] for row in rows] == [
        ["prefill", "8", "1", "ferrite"],
        ["prefill", "8", "1", "llama.cpp"],
        ["decode", "4", "2", "ferrite"],
        ["decode", "4", "2", "llama.cpp"],
    ]
    assert all(len(row) == (7 if row[3] == "ferrite" else 10) for row in rows)
    report = json.loads(ferrite("bench", "-m", str(tiny), *flags, *works, "--json").out)
    assert report["missing"] == ["ik-llama-cpp-python"]
    ours, theirs = report["rows"][1]["engines"]
    assert (ours["engine"], theirs["engine"]) == ("ferrite", "llama.cpp")
    assert theirs["ratios"] == [a / b for a, b in zip(ours["rates"], theirs["rates"], strict=True)]


def test_a_server_is_measured_beside_the_engine_alone(ferrite: Command, tiny: Path) -> None:
    flags = ("--serve", "--streams", "2", "--steps", "24", "--rounds", "1", "--threads", "1", "--json")
    before = sys.getswitchinterval()
    done = ferrite("bench", "-m", str(tiny), *flags)
    assert done.status == 0, done.err
    assert sys.getswitchinterval() == before
    report = json.loads(done.out)
    (found,) = report["rounds"]
    assert (report["streams"], report["tokens"]) == (2, 24)
    assert found["http_tokens_per_second"] > 0
    assert found["ratio"] == found["http_tokens_per_second"] / found["alone_tokens_per_second"]
    assert 0 < found["inter_token_p50_ms"] <= found["inter_token_p99_ms"]
    assert found["python_ms"] > 0
    assert 0 < found["python_share"] < 1
