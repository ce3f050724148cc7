"""Recipe of the stored llama.cpp values; run once, by hand, from the repository root.

    pip install gguf numpy && CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python
    python -m tests.accuracy.make_llama_cpp tiny
    python -m tests.accuracy.make_llama_cpp real smollm2-135m-instruct=FILE.gguf \
        qwen2.5-coder-0.5b-instruct=FILE.gguf gemma3-270m=FILE.gguf

``tiny`` writes llama.cpp's logits of the tiny variants and its divergence on every tiny quantisation.
``real`` writes, for each model, the ids of the text, llama.cpp's divergence from the reference, and the
reference's likeliest tokens. Every run uses one thread.
"""

import hashlib
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.accuracy.divergence import Divergence, divergence
from tests.accuracy.llama_cpp_oracle import LlamaCpp, Settings
from tests.accuracy.quantised import CASES, TINY_TOKEN_IDS, save_llama_cpp, write_case
from tests.accuracy.stored import TEXT, StoredRun, save_top_tokens, top_tokens
from tests.reference import Reference
from tests.reference.variants import STORED_LOGITS, TOKEN_IDS, VARIANTS

_EXACT = Settings(flash_attention="off", kv_dtype="f32")


def make_variants(folder: Path) -> None:
    """Store llama.cpp's logits of the float32 variants, computed as exactly as it can."""
    logits = {}
    for name, write in VARIANTS.items():
        path = folder / f"{name}.gguf"
        write(path)
        model = LlamaCpp(path)
        logits[name] = model.logits(TOKEN_IDS, _EXACT)
        model.close()
    np.savez_compressed(STORED_LOGITS, allow_pickle=False, **logits)


def make_quantised(folder: Path) -> None:
    """Store llama.cpp's divergence, with its default settings, for each tiny quantised model."""
    measured = {}
    for case in CASES:
        path = folder / f"{case}.gguf"
        write_case(path, case)
        model = LlamaCpp(path)
        measured[case] = divergence(Reference(path, TINY_TOKEN_IDS), model.logits(TINY_TOKEN_IDS, Settings()))
        _report(case, measured[case])
        model.close()
    save_llama_cpp(measured)


def make_real(name: str, path: Path) -> None:
    """Store one real model's run over the text."""
    model = LlamaCpp(path)
    token_ids = model.tokenize(TEXT.read_bytes())
    reference = Reference(path, token_ids)
    run = StoredRun(
        model_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        token_ids=token_ids,
        llama_cpp_python=model.version,
        llama_cpp=divergence(reference, model.logits(token_ids, Settings())),
    )
    run.save(name)
    save_top_tokens(name, top_tokens(reference))
    _report(name, run.llama_cpp)
    model.close()


def _report(name: str, measured: Divergence) -> None:
    sys.stdout.write(f"{name} {measured}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Run the part of the recipe that the first argument names."""
    part, *models = arguments
    if part == "tiny":
        with tempfile.TemporaryDirectory() as folder:
            make_variants(Path(folder))
            make_quantised(Path(folder))
    elif part == "real":
        for model in models:
            name, _, path = model.partition("=")
            make_real(name, Path(path))
    else:
        raise SystemExit(f"{part}: not a part of the recipe (tiny, real)")


if __name__ == "__main__":
    main(sys.argv[1:])
