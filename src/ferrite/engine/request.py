"""What the engine is asked to generate."""

from dataclasses import dataclass

from ferrite.sampling import SamplingParams


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

    def __post_init__(self) -> None:
        if not self.prompt_tokens:
            raise ValueError("prompt_tokens is empty")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}, must be at least 1")
        if "" in self.stop:
            raise ValueError("stop holds an empty string")
