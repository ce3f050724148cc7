"""Engines side by side, and peers in processes of their own: real ones are not needed."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ferrite.bench.compare import compare
from ferrite.bench.peers import PEERS, WORKER, PeerError, PeerProcess, find_peers, start_peer
from ferrite.bench.works import Work

PREFILL, DECODE = Work("prefill", 30), Work("decode", 5, streams=2, steps=4)


def clocked(*seconds: float) -> Callable[[Work], float]:
    left = iter(seconds)
    return lambda work: next(left)


def test_ratios_are_taken_round_by_round_and_the_first_round_does_not_count() -> None:
    rests: list[float] = []
    (found,) = compare(
        {"ours": clocked(9, 1, 2, 4), "theirs": clocked(9, 2, 2, 2)}, [DECODE], rounds=3, rest=rests.append
    )
    ours, theirs = found.engines
    assert (found.work, found.depth, found.streams) == ("decode", 5, 2)
    assert (ours.engine, ours.rates, ours.ratios) == ("ours", (8, 4, 2), (1, 1, 1))
    assert (theirs.engine, theirs.rates, theirs.ratios) == ("theirs", (4, 4, 4), (2, 1, 0.5))
    assert (theirs.rate, theirs.ratio, ours.rate) == (4, 1, 4)
    assert len(rests) == 8


def test_engines_take_turns() -> None:
    calls: list[tuple[str, str]] = []

    def engine(name: str) -> Callable[[Work], float]:
        def run(work: Work) -> float:
            calls.append((name, work.kind))
            return 1.0

        return run

    compare({"a": engine("a"), "b": engine("b")}, [PREFILL, DECODE], rounds=1, rest=lambda _: None)
    assert calls == [(name, kind) for kind in ("prefill", "decode") for name in "abab"]


def test_a_python_without_peers_has_none() -> None:
    assert [peer.project for peer in PEERS] == ["llama-cpp-python", "ik-llama-cpp-python"]
    assert find_peers(sys.executable) == []


@pytest.mark.parametrize("python", ["no-such-python", "/", "/bin/false"])
def test_what_is_no_python_is_refused(python: str) -> None:
    with pytest.raises(PeerError, match=f"^{python} is no Python that runs"):
        find_peers(python)


def speaker(*lines: str) -> PeerProcess:
    """A peer that says these lines, whatever it is asked."""
    code = f"import sys\nfor line in {lines!r}:\n    print(line, flush=True)\n    sys.stdin.readline()"
    return PeerProcess("peer", [sys.executable, "-c", code])


def test_a_peer_is_asked_in_the_lines_of_our_own_worker() -> None:
    code = (
        "import sys\n"
        "print('{\"ready\": true}', flush=True)\n"
        "for line in sys.stdin:\n"
        "    print('{\"seconds\": %d.5}' % len(line), flush=True)\n"
    )
    with PeerProcess("peer", [sys.executable, "-c", code]) as peer:
        peer.wait_ready()
        assert peer.run(PREFILL) == len(json.dumps({"op": "prefill", "tokens": 30})) + 1.5
        decode = {"op": "decode", "streams": 2, "steps": 4, "depth": 5}
        assert peer.run(DECODE) == len(json.dumps(decode)) + 1.5


BAD_ANSWERS = {
    "nonsense": "said 'nonsense",
    "[1]": "said '\\[1\\]",
    "{}": "did not say how long it took",
    '{"seconds": 0.0}': "did not say how long it took",
    '{"error": "no\\n  room"}': "^peer: no room$",
}


@pytest.mark.parametrize("line", BAD_ANSWERS)
def test_a_bad_answer_names_the_peer(line: str) -> None:
    with speaker('{"ready": true}', line) as peer:
        peer.wait_ready()
        with pytest.raises(PeerError, match=BAD_ANSWERS[line]):
            peer.run(PREFILL)


def test_a_peer_that_ends_is_quoted() -> None:
    code = "import sys; sys.exit('GGML_ASSERT(S > 0) failed\\nNo stack.')"
    with (
        PeerProcess("peer", [sys.executable, "-c", code]) as peer,
        pytest.raises(PeerError, match=r"peer ended, status 1: GGML_ASSERT\(S > 0\) failed"),
    ):
        peer.wait_ready()


def test_a_peer_that_cannot_be_started_is_named() -> None:
    with pytest.raises(PeerError, match=r"^peer: /no/such: No such file"):
        PeerProcess("peer", ["/no/such"])


FAKE_LLAMA = """
import ctypes, sys
class Options:
    n_gpu_layers = 1
class Settings:
    n_ctx = n_batch = n_ubatch = n_threads = n_threads_batch = n_seq_max = 0
    kv_unified = False
class Batch:
    def __init__(self, size):
        self.token, self.pos, self.n_seq_id, self.logits = ([0] * size for _ in range(4))
        self.seq_id = [[0] for _ in range(size)]
cells = {}
def llama_backend_init(): print("noise on standard output")
def llama_model_default_params(): return Options()
def llama_model_load_from_file(path, options): return path == b"m.gguf" and options.n_gpu_layers == 0
def llama_context_default_params(): return Settings()
def llama_init_from_model(model, settings):
    global limit
    limit = settings.n_ctx
    return (settings.n_threads, settings.n_seq_max, settings.kv_unified) == (3, 2, True)
def llama_model_get_vocab(model): return 1
def llama_vocab_n_tokens(vocab): return 50
def llama_get_memory(context): return 1
def llama_memory_clear(memory, data): cells.clear()
def llama_memory_seq_rm(memory, line, start, end):
    cells[line] = cells[line][:start]
    return True
def llama_batch_init(size, embd, lines): return Batch(size)
def llama_batch_free(batch): pass
def llama_get_logits_ith(context, row): assert wanted[row]
def llama_decode(context, batch):
    global wanted
    wanted = batch.logits
    for i in range(batch.n_tokens):
        line = cells.setdefault(batch.seq_id[i][0], [])
        assert batch.pos[i] == len(line) and 0 <= batch.token[i] < 50
        line.append(batch.token[i])
    print(sorted(map(len, cells.values())), file=sys.stderr)
    return sum(map(len, cells.values())) > limit
"""


def test_the_worker_drives_the_c_functions_and_keeps_the_depth(tmp_path: Path) -> None:
    (tmp_path / "llama_cpp.py").write_text(FAKE_LLAMA)
    requests = [
        {"op": "prefill", "tokens": 600},
        {"op": "decode", "streams": 2, "steps": 2, "depth": 5},
        {"op": "decode", "streams": 2, "steps": 1, "depth": 5},
        {"op": "prefill", "tokens": 1100},
        {"op": "prefill", "tokens": 1},
    ]
    done = subprocess.run(
        [sys.executable, str(WORKER), "llama_cpp", "m.gguf", "3", "1024", "2"],
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
    )
    ready, *answers = map(json.loads, done.stdout.splitlines())
    assert ready == {"ready": True}
    assert [list(answer) for answer in answers] == [["seconds"]] * 3 + [["error"], ["seconds"]]
    assert answers[3] == {"error": "RuntimeError: llama_decode answered True"}
    filled = [[5], [5, 5], [6, 6], [7, 7], [6, 6]]
    assert done.stderr.splitlines() == [
        str(sizes) for sizes in [[16], [512], [600], *filled, [512], [1024], [1100], [1]]
    ]


def test_a_peer_that_cannot_load_the_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "llama_cpp.py").write_text(FAKE_LLAMA)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    assert find_peers(str(python)) == [PEERS[0]]
    with (
        start_peer(PEERS[0], str(python), Path("other.gguf"), threads=3, works=[PREFILL, DECODE]) as peer,
        pytest.raises(PeerError, match=r"^llama.cpp: RuntimeError: the model cannot be loaded$"),
    ):
        peer.wait_ready()
