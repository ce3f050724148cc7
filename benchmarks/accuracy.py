"""Accuracy of Ferrite on one model: divergence from the float32 reference, beside llama.cpp's.

    python -m benchmarks.accuracy smollm2-135m-instruct MODEL.gguf
    python -m benchmarks.accuracy smollm2-135m-instruct MODEL.gguf --ids 504,33059,418

The first argument names a stored run of ``tests/accuracy/data``; without ``--ids`` its text is evaluated and
llama.cpp's stored divergence on the same positions is printed too. Run from the repository root.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from tests.accuracy.divergence import divergence
from tests.accuracy.engine import FERRITE
from tests.accuracy.stored import StoredRun
from tests.reference import Reference


def main() -> None:
    """Print one JSON object: engine → divergence."""
    parser = argparse.ArgumentParser(description="Divergence of Ferrite from the float32 reference.")
    parser.add_argument("name", help="stored run, such as smollm2-135m-instruct")
    parser.add_argument("model", type=Path, help="its GGUF file")
    parser.add_argument("--ids", help="comma-separated token ids to evaluate instead of the stored text")
    options = parser.parse_args()
    stored = StoredRun.load(options.name)
    token_ids = [int(i) for i in options.ids.split(",")] if options.ids else stored.token_ids

    start = time.perf_counter()
    logits = FERRITE(options.model, token_ids)
    seconds = time.perf_counter() - start
    measured = {"ferrite": asdict(divergence(Reference(options.model, token_ids), logits))}
    if not options.ids:
        measured[f"llama-cpp-python {stored.llama_cpp_python}"] = asdict(stored.llama_cpp)
    print(json.dumps({"model": options.name, "seconds": round(seconds, 2), **measured}, indent=1))


if __name__ == "__main__":
    main()
