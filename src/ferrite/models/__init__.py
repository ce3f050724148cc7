"""Model architectures: one readable file each, from a GGUF file to a ``Program``."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ferrite.gguf import GGUFFile
from ferrite.gguf.errors import quoted
from ferrite.models import gemma3, llama, qwen2
from ferrite.program.ops import Program

ARCHITECTURES: Mapping[str, Callable[[GGUFFile], Program]] = MappingProxyType(
    {"gemma3": gemma3.trace, "llama": llama.trace, "qwen2": qwen2.trace}
)


def trace_model(file: GGUFFile) -> Program:
    """Trace the file's architecture; an unknown one is refused by name."""
    architecture = file.metadata.string("general.architecture")
    trace = ARCHITECTURES.get(architecture)
    if trace is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise file.metadata.error("general.architecture", f"is {quoted(architecture)}; supported are {known}")
    return trace(file)
