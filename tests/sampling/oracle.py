"""What sampling means, in float64 NumPy: the tokens a draw may give, by the definition of each step."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ferrite.sampling import SamplingParams

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

ROUNDING = 1e-5
"""Of a probability: about a hundred float32 roundings."""


def adjusted(
    logits: npt.NDArray[np.float32], params: SamplingParams, prompt: Sequence[int], generated: Sequence[int]
) -> Float64Array:
    """Return the logits after bias and penalties."""
    result = logits.astype(np.float64)
    for token, value in params.logit_bias:
        result[token] = -np.inf if value <= -100 else result[token] + value
    for token in {*prompt, *generated}:
        penalty = params.repetition_penalty
        result[token] = result[token] / penalty if result[token] > 0 else result[token] * penalty
        count = generated.count(token)
        result[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    return result


def truncated(logits: Float64Array, params: SamplingParams) -> tuple[Int64Array, Float64Array]:
    """Return the tokens that temperature, top-k, top-p and min-p leave, likeliest first, and their shares.

    A share is a probability in units of the highest one.
    """
    order = np.lexsort((np.arange(len(logits)), -logits)).astype(np.int64)
    if params.top_k:
        order = order[: params.top_k]
    shares = np.exp((logits[order] - logits[order[0]]) / params.temperature)
    if params.top_p < 1:
        reached = np.cumsum(shares) / shares.sum()
        shares = shares[: int(np.searchsorted(reached, params.top_p)) + 1]
    shares = shares[shares >= params.min_p]
    return order[: len(shares)], shares


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox-4x32-10 on four counter words and two key words."""
    mask = 0xFFFFFFFF
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = right >> 32 ^ b ^ k, right & mask, left >> 32 ^ d ^ m, left & mask
        k, m = k + 0x9E3779B9 & mask, m + 0xBB67AE85 & mask
    return [a, b, c, d]


def uniform(seed: int, draw: int) -> float:
    """Return the number in [0, 1) that decides draw ``draw`` of the stream ``seed``."""
    mask = 0xFFFFFFFF
    low, high, _, _ = philox((draw & mask, draw >> 32, 0, 0), (seed & mask, seed >> 32))
    return (high << 32 | low) / 2.0**64


def possible(
    logits: npt.NDArray[np.float32], params: SamplingParams, prompt: Sequence[int], generated: Sequence[int]
) -> set[int]:
    """Return the tokens the next draw may give: one, or a few where rounding to float32 decides.

    Penalties must be exact in float32, so that equal logits stay equal.
    """
    values = adjusted(logits, params, prompt, generated)
    if params.temperature == 0:
        return {int(values.argmax())}
    assert params.seed is not None
    result: set[int] = set()
    for slack in (-ROUNDING, ROUNDING):
        cut = replace(
            params,
            top_p=params.top_p * (1 + slack) if params.top_p < 1 else 1.0,
            min_p=params.min_p * (1 + slack),
        )
        tokens, shares = truncated(values, cut)
        reached = np.cumsum(shares) / shares.sum()
        target = uniform(params.seed, len(generated))
        first = int(np.searchsorted(reached, target - ROUNDING, side="right"))
        last = int(np.searchsorted(reached, target + ROUNDING, side="right"))
        result.update(tokens[first : last + 1].tolist())
    return result
