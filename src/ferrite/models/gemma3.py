"""The `gemma3` architecture (text): sandwich norms, q/k norms, five sliding-window layers to one global."""

from math import sqrt

from ferrite.gguf import GGUFFile
from ferrite.models.hparams import read_hyper_parameters, rope_frequencies
from ferrite.program.builder import ProgramBuilder
from ferrite.program.ops import Program

GLOBAL_EVERY = 6
"""Every sixth layer sees the whole context (Gemma 3 technical report, 2025), unless the file says other."""
GLOBAL_ROPE_BASE = 1e6
LOCAL_ROPE_BASE = 1e4
LAYERS_OF_27B = 62
"""The 27B model alone scales queries by its width per head instead of its head size."""


def trace(file: GGUFFile) -> Program:
    """Trace a gemma3 file. Its norm weights already hold the ``1 +`` of the original."""
    meta = file.metadata
    hp = read_hyper_parameters(file, "gemma3")
    window = meta.integer("gemma3.attention.sliding_window")
    if not 1 <= window <= hp.context_length:
        raise meta.error("gemma3.attention.sliding_window", f"is {window}, expected 1 to {hp.context_length}")
    q_columns = hp.n_embd // hp.heads.n_heads if hp.n_layers == LAYERS_OF_27B else hp.heads.head_dim
    pattern_key = "gemma3.attention.sliding_window_pattern"
    global_every = meta.integer(pattern_key, GLOBAL_EVERY)
    if global_every < 1:
        raise meta.error(pattern_key, f"is {global_every}, expected at least 1")
    dim = hp.heads.head_dim

    b = ProgramBuilder(file)
    residual = b.embed("token_embd.weight", hp.n_embd, hp.vocab_size, scale=sqrt(hp.n_embd))
    slow = rope_frequencies(file, "gemma3", head_dim=dim, default_base=GLOBAL_ROPE_BASE)
    fast = rope_frequencies(
        file,
        "gemma3",
        head_dim=dim,
        default_base=LOCAL_ROPE_BASE,
        base_name="rope.freq_base_swa",
        scaled=False,
    )
    seen_globally, seen_locally = b.angles(slow, out="global angles"), b.angles(fast, out="local angles")
    for layer in range(hp.n_layers):
        block = f"blk.{layer}"
        is_global = (layer + 1) % global_every == 0
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
