"""A worker around another engine's Python package: JSON lines in, JSON lines out, as ``serve_worker`` has it.

Run by its path in whatever Python has the package, so it imports nothing of ours:
``PYTHON peer_worker.py PACKAGE MODEL THREADS POSITIONS SEQUENCES``.
"""

import importlib
import json
import os
import random
import sys
import time
from typing import Any

CHUNK = 512
"""Rows the engine takes at once (its ``n_ubatch``), as ours does."""


class Engine:
    """A llama.cpp context, or one of its fork, through the C functions that the package binds."""

    def __init__(self, package: str, model: str, threads: int, positions: int, sequences: int) -> None:
        self._api: Any = importlib.import_module(
            "ik_llama_cpp._ctypes_api" if package == "ik_llama_cpp" else "llama_cpp"
        )
        api = self._api
        api.llama_backend_init()
        options = api.llama_model_default_params()
        options.n_gpu_layers = 0
        # The fork's own layout of the weights, without which it is not at its best.
        if hasattr(options, "repack_tensors"):
            options.repack_tensors = True
        loaded = api.llama_model_load_from_file(model.encode(), options)
        if not loaded:
            raise RuntimeError("the model cannot be loaded")
        settings = api.llama_context_default_params()
        settings.n_ctx = positions
        settings.n_batch = settings.n_ubatch = CHUNK
        settings.n_threads = settings.n_threads_batch = threads
        settings.n_seq_max = sequences
        # The fork's flash attention stops the process at an assertion when rows are of several sequences.
        if package == "ik_llama_cpp":
            settings.flash_attn = False
        if hasattr(settings, "kv_unified"):
            settings.kv_unified = True
        self._context = api.llama_init_from_model(loaded, settings)
        if not self._context:
            raise RuntimeError("no context can be made")
        self._vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded))
        self._random = random.Random(0)  # noqa: S311 - test data
        self._filled = (0, 0)

    def prefill(self, tokens: int) -> float:
        """Return the seconds that a fresh prompt takes, logits after its last token."""
        self._clear()
        ids = self._draw(tokens)
        started = time.perf_counter()
        self._extend(0, ids, 0)
        return time.perf_counter() - started

    def decode(self, streams: int, steps: int, depth: int) -> float:
        """Return the seconds of ``steps`` steps that advance ``streams`` sequences, logits for each."""
        if not self._rewind(streams, depth):
            self._clear()
            for sequence in range(streams):
                self._extend(sequence, self._draw(depth), 0)
            self._filled = (streams, depth)
        started = time.perf_counter()
        for step in range(steps):
            tokens = self._draw(streams)
            self._evaluate([(token, depth + step, line, True) for line, token in enumerate(tokens)])
            self._api.llama_get_logits_ith(self._context, streams - 1)
        return time.perf_counter() - started

    def _rewind(self, streams: int, depth: int) -> bool:
        """Drop what the last decode added, where the package can and the sequences are the same."""
        if self._filled != (streams, depth) or not hasattr(self._api, "llama_memory_seq_rm"):
            return False
        memory = self._api.llama_get_memory(self._context)
        return all(self._api.llama_memory_seq_rm(memory, line, depth, -1) for line in range(streams))

    def _clear(self) -> None:
        self._filled = (0, 0)
        if hasattr(self._api, "llama_memory_clear"):
            memory = self._api.llama_get_memory(self._context)
            self._api.llama_memory_clear(memory, False)  # noqa: FBT003 - as C has it
        else:
            self._api.llama_kv_cache_clear(self._context)

    def _extend(self, sequence: int, ids: "list[int]", start: int) -> None:
        for at in range(0, len(ids), CHUNK):
            part = ids[at : at + CHUNK]
            last = len(part) - 1
            self._evaluate([(token, start + at + i, sequence, i == last) for i, token in enumerate(part)])
            self._api.llama_get_logits_ith(self._context, last)

    def _evaluate(self, rows: "list[tuple[int, int, int, bool]]") -> None:
        """Rows are (token, position, sequence, whether its logits are wanted)."""
        batch = self._api.llama_batch_init(len(rows), 0, 1)
        try:
            batch.n_tokens = len(rows)
            for i, (token, position, sequence, wanted) in enumerate(rows):
                batch.token[i], batch.pos[i] = token, position
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
                batch.logits[i] = wanted
            status = self._api.llama_decode(self._context, batch)
        finally:
            self._api.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode answered {status}")

    def _draw(self, count: int) -> "list[int]":
        return [self._random.randrange(self._vocab_size) for _ in range(count)]


def main() -> None:
    """Answer every line until the input ends."""
    package, model, *numbers = sys.argv[1:]
    # The engine may write to standard output itself; answers go to what that was.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def say(answer: "dict[str, Any]") -> None:
        answers.write(json.dumps(answer) + "\n")

    try:
        engine = Engine(package, model, *map(int, numbers))
        engine.prefill(16)
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            work = getattr(engine, request.pop("op"))
            say({"seconds": work(**request)})
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
