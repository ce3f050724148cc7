"""The `qwen2` architecture (Qwen2, Qwen2.5): llama's decoder with q, k, v biases and NeoX rotation."""

from ferrite.gguf import GGUFFile
from ferrite.models.hparams import read_hyper_parameters
from ferrite.models.llama import trace_decoder
from ferrite.program.ops import Program


def trace(file: GGUFFile) -> Program:
    """Trace a qwen2 file; the biases are picked up where the file has them."""
    return trace_decoder(file, "qwen2", read_hyper_parameters(file, "qwen2"), adjacent=False)
