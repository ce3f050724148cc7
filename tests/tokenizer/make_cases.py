"""Recipe of the stored cases: ids that llama.cpp gives for ``texts.TEXTS``.

    PYTHONPATH=src:. python -m tests.tokenizer.make_cases MODEL_DIR

needs llama-cpp-python and gguf, and the three model files of ``MODELS`` in MODEL_DIR. The tiny
vocabularies are cut from the Qwen2.5 one (Apache-2.0): its 256 bytes and first merges, so that cases for
every rule can be checked without a model file.
"""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ferrite.gguf import open_gguf
from tests.tokenizer.texts import TEXTS

MODELS = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "gemma": "gemma-3-270m-q4_k_m.gguf",
}
CASES = Path(__file__).parent / "cases"

TAGS = (
    "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum "
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 "
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 "
    "dbrx smaug-bpe chatglm-bpe glm4 qwen2 stablelm2 megrez deepseek-r1-qwen hunyuan solar-open default"
)
"""Every value of ``tokenizer.ggml.pre`` that Ferrite accepts"""

N_MERGES = 900
DIGIT_MERGES = [
    "1 2",
    "12 3",
    "123 4",
    "2 2",
    "22 2",
    "3 3",
    "33 3",
    "4 4",
    "44 4",
    "5 5",
    "55 5",
    "0 0",
    "Ġ 1",
]
"""Qwen2.5 never merges digits; without some, rules that cut between digits look like rules that do not"""
WHOLE_WORDS = ["Ġjumps", "kebab", "SELECT"]
"""Tokens no merge leads to, which only rules that take whole words find"""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def main(model_dir: Path) -> None:
    """Write all case files."""
    for name, file_name in MODELS.items():
        write(name, real_model(model_dir / file_name))
    qwen = open_gguf(model_dir / MODELS["qwen"]).metadata
    tokens = qwen.strings("tokenizer.ggml.tokens")[:256]
    merges = qwen.strings("tokenizer.ggml.merges")[:N_MERGES]
    write("tiny_bytelevel", tiny_bytelevel(tokens, merges))
    write("tiny_sentencepiece", tiny_sentencepiece(merges))


def real_model(path: Path) -> dict[str, Any]:
    """Return the ids of every text, with control tokens as text and as tokens."""
    llama = open_llama(path)
    texts = [
        {"text": text, "literal": ids(llama, text), "special": ids(llama, text, special=True)}
        for text in TEXTS
    ]
    return {"file": path.name, **version(), "texts": texts}


def tiny_bytelevel(byte_tokens: list[str], merges: list[str]) -> dict[str, Any]:
    """Return a small byte-level vocabulary and the ids each rule gives; equal ids are stored once."""
    merges = [*merges, *DIGIT_MERGES]
    tokens = [*byte_tokens, *dict.fromkeys(merge.replace(" ", "") for merge in merges), *WHOLE_WORDS]
    markers = {
        "<|endoftext|>": CONTROL,
        "<|im_start|>": CONTROL,
        "<|im_end|>": CONTROL,
        "<tool_call>": USER_DEFINED,
    }
    kinds = [NORMAL] * len(tokens) + list(markers.values())
    tokens += markers
    end = len(tokens) - 2
    rules: list[dict[str, Any]] = []
    for tag in TAGS.split():
        llama = tiny_llama("gpt2", tokens, kinds, end, end, merges=merges, pre=tag)
        found = {
            "texts": [ids(llama, text) for text in TEXTS],
            "special": [ids(llama, text, special=True) for text in TEXTS],
        }
        same = next((rule for rule in rules if rule["ids"] == found), None)
        if same:
            same["tags"].append(tag)
        else:
            rules.append({"tags": [tag], "ids": found})
    return {
        **version(),
        "tokens": tokens,
        "token_type": kinds,
        "merges": merges,
        "texts": TEXTS,
        "rules": rules,
    }


def tiny_sentencepiece(merges: list[str]) -> dict[str, Any]:
    """Return a small scored vocabulary with many equal scores, and its ids with and without prefix space."""
    pieces = list(dict.fromkeys(spelt(merges)))
    characters = sorted({character for piece in pieces for character in piece})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\n\n", "<tool_call>"]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, USER_DEFINED, USER_DEFINED]
    scores = [0.0] * len(tokens)
    tokens += [*pieces, *characters]
    kinds += [NORMAL] * (len(pieces) + len(characters))
    scores += [-float(rank // 4) for rank in range(len(pieces) + len(characters))]
    variants = []
    for space_prefix in (True, False):
        llama = tiny_llama("llama", tokens, kinds, 1, 2, scores=scores, space_prefix=space_prefix)
        variants.append(
            {
                "add_space_prefix": space_prefix,
                "texts": [ids(llama, text) for text in TEXTS],
                "special": [ids(llama, text, special=True) for text in TEXTS],
            }
        )
    return {
        **version(),
        "tokens": tokens,
        "token_type": kinds,
        "scores": scores,
        "texts": TEXTS,
        "variants": variants,
    }


def spelt(merges: list[str]) -> Iterator[str]:
    """Respell byte-level merges that make whole ASCII text the way SentencePiece does."""
    for merge in merges:
        piece = merge.replace(" ", "").replace("Ġ", "\u2581")
        if piece.replace("\u2581", "").isascii():
            yield piece


def tiny_llama(
    model: str,
    tokens: list[str],
    kinds: list[int],
    bos: int,
    eos: int,
    *,
    merges: list[str] | None = None,
    scores: list[float] | None = None,
    pre: str = "default",
    space_prefix: bool = False,
) -> Any:
    """Load a file without tensors that holds this vocabulary."""
    gguf = import_module("gguf")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model(model)
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        if merges:
            writer.add_token_merges(merges)
        if scores:
            writer.add_token_scores(scores)
        writer.add_bos_token_id(bos)
        writer.add_eos_token_id(eos)
        writer.add_add_bos_token(False)
        writer.add_add_space_prefix(space_prefix)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return open_llama(path)


def open_llama(path: Path) -> Any:
    """Open only the vocabulary of a model file in llama.cpp."""
    return import_module("llama_cpp").Llama(str(path), vocab_only=True, verbose=False)


def ids(llama: Any, text: str, *, special: bool = False) -> list[int]:
    """Return llama.cpp's ids without BOS."""
    found: list[int] = llama.tokenize(text.encode(), add_bos=False, special=special)
    return found


def version() -> dict[str, str]:
    """Say which llama.cpp the ids are from."""
    return {"llama_cpp_python": import_module("llama_cpp").__version__}


def write(name: str, cases: dict[str, Any]) -> None:
    """Write one case file, a line for each list element of its top level."""
    lines = []
    for key, value in cases.items():
        if isinstance(value, list | tuple) and key in ("texts", "rules", "variants"):
            rows = ",\n".join(json.dumps(row, ensure_ascii=True) for row in value)
            lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=True)}")
    (CASES / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
