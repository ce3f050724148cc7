"""Gemma 3 text decoder: local and global layers 5 to 1, norms before and after each block (arXiv:2503.19786).

The file's norm weights already hold the "+ 1" of the published formula.
"""

import numpy as np

from tests.reference.ops import (
    causal_attention,
    gelu,
    linear,
    position_scale,
    rms_norm,
    rope_angles,
    rope_halves,
)
from tests.reference.weights import Float32, Weights

LAYERS_PER_GLOBAL = 6


def final_states(weights: Weights, token_ids: list[int]) -> Float32:
    """Teacher-forced states [n, d] that the output matrix turns into logits."""
    n = len(token_ids)
    d = weights.integer("gemma3.embedding_length")
    n_layers = weights.integer("gemma3.block_count")
    n_heads = weights.integer("gemma3.attention.head_count")
    n_kv_heads = weights.integer("gemma3.attention.head_count_kv", n_heads)
    head_size = weights.integer("gemma3.attention.key_length", d // n_heads)
    window = weights.integer("gemma3.attention.sliding_window")
    epsilon = weights.number("gemma3.attention.layer_norm_rms_epsilon")
    # The 27B model alone (62 layers) scales by d / h, which is not its head size.
    scale = (d / n_heads if n_layers == 62 else head_size) ** -0.5
    global_angles = rope_angles(
        n,
        head_size,
        base=weights.number("gemma3.rope.freq_base", 10000.0),
        scale=position_scale(weights),
    )
    local_angles = rope_angles(n, head_size, base=weights.number("gemma3.rope.freq_base_swa", 10000.0))

    def norm(x: Float32, name: str) -> Float32:
        return rms_norm(x, weights.tensor(f"{name}.weight"), epsilon)

    x = weights.rows("token_embd.weight", np.array(token_ids)) * np.float32(np.sqrt(d))
    for layer in range(n_layers):
        block = f"blk.{layer}"
        is_global = (layer + 1) % LAYERS_PER_GLOBAL == 0
        angles = global_angles if is_global else local_angles

        h = norm(x, f"{block}.attn_norm")
        q = linear(weights, f"{block}.attn_q", h).reshape(n, n_heads, head_size)
        k = linear(weights, f"{block}.attn_k", h).reshape(n, n_kv_heads, head_size)
        v = linear(weights, f"{block}.attn_v", h).reshape(n, n_kv_heads, -1)
        q = rope_halves(norm(q, f"{block}.attn_q_norm"), angles)
        k = rope_halves(norm(k, f"{block}.attn_k_norm"), angles)
        attended = causal_attention(q, k, v, scale=scale, window=None if is_global else window)
        x = x + norm(linear(weights, f"{block}.attn_output", attended), f"{block}.post_attention_norm")

        h = norm(x, f"{block}.ffn_norm")
        gate, up = linear(weights, f"{block}.ffn_gate", h), linear(weights, f"{block}.ffn_up", h)
        x = x + norm(linear(weights, f"{block}.ffn_down", gelu(gate) * up), f"{block}.post_ffw_norm")

    return norm(x, "output_norm")
