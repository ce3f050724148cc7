"""The `llama` architecture (Llama 1 to 3, SmolLM2, TinyLlama, ...): pre-norm, rotary, gated SiLU."""

from math import sqrt

from ferrite.gguf import GGUFFile
from ferrite.models.hparams import HyperParameters, read_hyper_parameters, rope_frequencies
from ferrite.program.builder import ProgramBuilder
from ferrite.program.ops import Program


def trace(file: GGUFFile) -> Program:
    """Trace a llama file. Its q and k rows are permuted so that rotated pairs stand side by side."""
    return trace_decoder(file, "llama", read_hyper_parameters(file, "llama"), adjacent=True)


def trace_decoder(file: GGUFFile, architecture: str, hp: HyperParameters, *, adjacent: bool) -> Program:
    """Trace the plain decoder that llama and qwen2 share; ``adjacent`` is the order of rotated pairs."""
    b = ProgramBuilder(file)
    residual = b.embed("token_embd.weight", hp.n_embd, hp.vocab_size)
    angles = b.angles(rope_frequencies(file, architecture, head_dim=hp.heads.head_dim, default_base=10000.0))
    b.ignore("rope_freqs.weight")
    for layer in range(hp.n_layers):
        block = f"blk.{layer}"
        x = b.norm(residual, f"{block}.attn_norm.weight", hp.rms_eps, out="normed")
        q, k, v = b.linear(
            x,
            [
                (f"{block}.attn_q", "q", hp.q_width),
                (f"{block}.attn_k", "k", hp.kv_width),
                (f"{block}.attn_v", "v", hp.kv_width),
            ],
        )
        b.rope(q, k, v, angles, hp.heads, layer, adjacent=adjacent, q_scale=1 / sqrt(hp.heads.head_dim))
        b.linear_add(b.attention(q, hp.heads, layer), f"{block}.attn_output", residual)

        x = b.norm(residual, f"{block}.ffn_norm.weight", hp.rms_eps, out="normed")
        gate, up = b.linear(x, [(f"{block}.ffn_gate", "gate", hp.n_ff), (f"{block}.ffn_up", "up", hp.n_ff)])
        b.linear_add(b.gate("silu", gate, up), f"{block}.ffn_down", residual)

    output = "output.weight" if b.has("output.weight") else "token_embd.weight"
    b.logits(residual, "output_norm.weight", output, hp.rms_eps, hp.vocab_size)
    return b.program(
        architecture=architecture,
        heads=hp.heads,
        n_layers=hp.n_layers,
        vocab_size=hp.vocab_size,
        context_length=hp.context_length,
    )
