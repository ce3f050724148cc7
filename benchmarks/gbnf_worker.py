"""llama.cpp's JSON Schema converter and grammars, run for ``benchmarks/json_schema.py`` by another Python.

    python benchmarks/gbnf_worker.py MODEL.gguf

Needs llama-cpp-python, whose converter is llama.cpp's own Python one; of the model only the vocabulary is
read. Each line of standard input is ``{"schema": ..., "texts": [...]}``; its answer is a line
``{"refusal": null or why, "allowed": [...]}``.
"""

import ctypes
import importlib
import json
import math
import resource
import sys
from typing import Any

llama_cpp: Any = importlib.import_module("llama_cpp")
llama_grammar: Any = importlib.import_module("llama_cpp.llama_grammar")

MOST_BYTES = 8 << 30
"""Of address space."""


class Vocabulary:
    """Tokens of a model."""

    def __init__(self, path: str) -> None:
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        self.handle = llama_cpp.llama_model_get_vocab(self.model)
        self.end = llama_cpp.llama_vocab_eos(self.handle)

    def tokens(self, text: bytes) -> list[int]:
        """Return the tokens of a text."""
        room = (llama_cpp.llama_token * (len(text) + 8))()
        special = False
        count = llama_cpp.llama_tokenize(self.handle, text, len(text), room, len(room), special, special)
        return list(room[:count])


def allows(vocabulary: Vocabulary, start: object, text: str) -> bool:
    """Whether the grammar, in its first state, has the text: each token, and the end token after them."""
    sampler = llama_cpp.llama_sampler_clone(start)
    try:
        for token in [*vocabulary.tokens(text.encode()), vocabulary.end]:
            candidate = llama_cpp.llama_token_data(token, 1.0, 0.0)
            candidates = llama_cpp.llama_token_data_array(data=ctypes.pointer(candidate), size=1, selected=-1)
            llama_cpp.llama_sampler_apply(sampler, ctypes.byref(candidates))
            if candidate.logit == -math.inf:
                return False
            if token != vocabulary.end:
                llama_cpp.llama_sampler_accept(sampler, token)
        return True
    finally:
        llama_cpp.llama_sampler_free(sampler)


def answer(vocabulary: Vocabulary, schema: object, texts: list[str]) -> dict[str, object]:
    """Return which texts the grammar of the schema has."""
    try:
        grammar = llama_grammar.json_schema_to_gbnf(json.dumps(schema))
    except Exception as error:
        return {"refusal": f"{type(error).__name__}: {error}"[:200], "allowed": []}
    start = llama_cpp.llama_sampler_init_grammar(vocabulary.handle, grammar.encode(), b"root")
    if not start:
        return {"refusal": "its grammar is not accepted", "allowed": []}
    allowed = [allows(vocabulary, start, text) for text in texts]
    llama_cpp.llama_sampler_free(start)
    return {"refusal": None, "allowed": allowed}


def main() -> None:
    """Answer lines until there are no more."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    vocabulary = Vocabulary(sys.argv[1])
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(answer(vocabulary, question["schema"], question["texts"])), flush=True)


if __name__ == "__main__":
    main()
