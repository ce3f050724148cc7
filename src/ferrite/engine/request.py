"""What the engine is asked to generate."""

from dataclasses import dataclass

from ferrite.grammar import Constraint
from ferrite.sampling import SamplingParams

MOST_TOP_LOGPROBS = 20
"""As the OpenAI API allows."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and how to continue it. Raises ``ValueError`` naming a bad field.

    The caller has checked the token ids against the vocabulary and prompt plus budget against the
    context.
    """

    request_id: str
    prompt_tokens: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    """Generation ends when the text contains one of these; none of it is ever emitted."""
    end_ids: frozenset[int] = frozenset()
    """Tokens that end the generation; they are never text."""
    ignore_end: bool = False
    """Keep generating after an end token, up to ``max_tokens``."""
    cache_namespace: str = ""
    """Whose cached prefixes may serve this prompt, and whom it serves; empty for nobody's."""
    constraint: Constraint | None = None
    """The grammar that the answer follows. It belongs to this request, whose tokens move it on."""
    top_logprobs: int | None = None
    """Log-probabilities: the chosen token's and that many of the likeliest ones; None for none at all."""
    prompt_logprobs: bool = False
    """Score the prompt's own tokens, with ``top_logprobs`` others each; nothing may be generated then."""

    def __post_init__(self) -> None:
        if not self.prompt_tokens:
            raise ValueError("prompt_tokens is empty")
        least = 0 if self.prompt_logprobs else 1
        if self.max_tokens < least:
            raise ValueError(f"max_tokens is {self.max_tokens}, must be at least {least}")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MOST_TOP_LOGPROBS:
            raise ValueError(
                f"top_logprobs is {self.top_logprobs}, must be between 0 and {MOST_TOP_LOGPROBS}"
            )
        if "" in self.stop:
            raise ValueError("stop holds an empty string")
