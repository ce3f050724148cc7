"""Sampling parameters of one request, already validated by the API layer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What turns logits into a token.

    Order of application: logit bias, repetition, frequency and presence penalties, then (when
    ``temperature`` is above zero) temperature, top-k, top-p, min-p and one draw; at temperature zero
    the highest logit wins, the lowest id among equals.

    The repetition penalty looks at prompt and generated tokens, the other two at generated tokens
    only (the OpenAI API reference; vLLM does the same).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    """None draws a fresh seed when the request is admitted."""
