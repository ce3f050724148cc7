"""Llama: RMSNorm before each block, rotary grouped-query attention, SwiGLU (arXiv:2302.13971, 2407.21783)."""

import numpy as np

from tests.reference.ops import (
    causal_attention,
    linear,
    position_scale,
    rms_norm,
    rope_angles,
    rope_interleaved,
    silu,
)
from tests.reference.weights import Float32, Weights


def final_states(weights: Weights, token_ids: list[int]) -> Float32:
    """Teacher-forced states [n, d] that the output matrix turns into logits."""
    n = len(token_ids)
    d = weights.integer("llama.embedding_length")
    n_heads = weights.integer("llama.attention.head_count")
    n_kv_heads = weights.integer("llama.attention.head_count_kv", n_heads)
    head_size = weights.integer("llama.attention.key_length", d // n_heads)
    epsilon = weights.number("llama.attention.layer_norm_rms_epsilon")
    angles = rope_angles(
        n,
        head_size,
        base=weights.number("llama.rope.freq_base", 10000.0),
        scale=position_scale(weights),
        factors=weights.tensor("rope_freqs.weight") if "rope_freqs.weight" in weights else None,
    )

    x = weights.rows("token_embd.weight", np.array(token_ids))
    for layer in range(weights.integer("llama.block_count")):
        block = f"blk.{layer}"

        h = rms_norm(x, weights.tensor(f"{block}.attn_norm.weight"), epsilon)
        q = linear(weights, f"{block}.attn_q", h).reshape(n, n_heads, head_size)
        k = linear(weights, f"{block}.attn_k", h).reshape(n, n_kv_heads, head_size)
        v = linear(weights, f"{block}.attn_v", h).reshape(n, n_kv_heads, -1)
        q, k = rope_interleaved(q, angles), rope_interleaved(k, angles)
        attended = causal_attention(q, k, v, scale=head_size**-0.5)
        x = x + linear(weights, f"{block}.attn_output", attended)

        h = rms_norm(x, weights.tensor(f"{block}.ffn_norm.weight"), epsilon)
        gate, up = linear(weights, f"{block}.ffn_gate", h), linear(weights, f"{block}.ffn_up", h)
        x = x + linear(weights, f"{block}.ffn_down", silu(gate) * up)

    return rms_norm(x, weights.tensor("output_norm.weight"), epsilon)
