"""The `gemma3` architecture (text): sandwich norms, q/k norms, five sliding-window layers to one global."""

from math import sqrt

from ferrite.gguf import GGUFFile
from ferrite.models.hparams import read_hyper_parameters, rope_frequencies
from ferrite.program.builder import ProgramBuilder
from ferrite.program.ops import Program

GLOBAL_EVERY = 6
"""Every sixth layer sees the whole context (Gemma 3 technical report, 2025)."""
LOCAL_ROPE_BASE = 10000.0
LAYERS_OF_27B = 62
"""The 27B model alone scales queries by its width per head instead of its head size."""


def trace(file: GGUFFile) -> Program:
    """Trace a gemma3 file. Its norm weights already hold the ``1 +`` of the original."""
    meta = file.metadata
    hp = read_hyper_parameters(file, "gemma3")
    for cap in ("gemma3.final_logit_softcapping", "gemma3.attn_logit_softcapping"):
        if meta.number(cap, 0.0) != 0.0:
            raise meta.error(cap, "is set; logit soft-capping is not supported")
    window = meta.integer("gemma3.attention.sliding_window")
    if not 1 <= window <= hp.context_length:
        raise meta.error("gemma3.attention.sliding_window", f"is {window}, expected 1 to {hp.context_length}")
    q_columns = hp.n_embd // hp.heads.n_heads if hp.n_layers == LAYERS_OF_27B else hp.heads.head_dim
    global_base = meta.number("gemma3.rope.freq_base", 1e6)
    dim = hp.heads.head_dim

    b = ProgramBuilder(file)
    residual = b.embed("token_embd.weight", hp.n_embd, scale=sqrt(hp.n_embd))
    seen_globally = b.angles(
        rope_frequencies(file, "gemma3", base=global_base, head_dim=dim), out="global angles"
    )
    local = rope_frequencies(file, "gemma3", base=LOCAL_ROPE_BASE, head_dim=dim, scaled=False)
    seen_locally = b.angles(local, out="local angles")
    for layer in range(hp.n_layers):
        block = f"blk.{layer}"
        is_global = (layer + 1) % GLOBAL_EVERY == 0
        x = b.norm(residual, f"{block}.attn_norm.weight", hp.rms_eps, out="normed")
        q, k, v = b.linear(
            x,
            [
                (f"{block}.attn_q", "q", hp.q_width),
                (f"{block}.attn_k", "k", hp.kv_width),
                (f"{block}.attn_v", "v", hp.kv_width),
            ],
        )
        b.rope(
            q,
            k,
            v,
            seen_globally if is_global else seen_locally,
            hp.heads,
            layer,
            adjacent=False,
            q_scale=1 / sqrt(q_columns),
            q_norm=f"{block}.attn_q_norm.weight",
            k_norm=f"{block}.attn_k_norm.weight",
            eps=hp.rms_eps,
        )
        attended = b.attention(q, hp.heads, layer, window=0 if is_global else window)
        (out,) = b.linear(attended, [(f"{block}.attn_output", "out", hp.n_embd)])
        b.add(residual, b.norm(out, f"{block}.post_attention_norm.weight", hp.rms_eps, out="post"))

        x = b.norm(residual, f"{block}.ffn_norm.weight", hp.rms_eps, out="normed")
        gate, up = b.linear(x, [(f"{block}.ffn_gate", "gate", hp.n_ff), (f"{block}.ffn_up", "up", hp.n_ff)])
        (out,) = b.linear(b.gate("gelu_tanh", gate, up), [(f"{block}.ffn_down", "out", hp.n_embd)])
        b.add(residual, b.norm(out, f"{block}.post_ffw_norm.weight", hp.rms_eps, out="post"))

    output = "output.weight" if b.has("output.weight") else "token_embd.weight"
    b.logits(residual, "output_norm.weight", output, hp.rms_eps, hp.vocab_size)
    return b.program(
        architecture="gemma3",
        heads=hp.heads,
        n_layers=hp.n_layers,
        vocab_size=hp.vocab_size,
        context_length=hp.context_length,
    )
