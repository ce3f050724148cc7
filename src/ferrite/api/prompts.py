"""Prompts on their way to token ids, and the threads that do that work."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

LARGE_BODY_BYTES = 64 * 1024
"""Bodies above this may take tenths of a second to check, and seconds to tokenize."""
_SMALL_WORKERS = 2
"""More would take the cores from inference."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, ready to be tokenized."""

    param: str
    """Where the client wrote it."""
    n_characters: int
    """Of text; 0 for token ids."""
    encode: Callable[[], Sequence[int]]
    """Returns the token ids."""

    def least_tokens(self, longest_token: int | None) -> int:
        """Return a number of tokens that the prompt has at least.

        ``longest_token``: most characters that one token stands for, None when that says nothing.
        """
        return 0 if longest_token is None else -(-self.n_characters // longest_token)


class PromptWorkers:
    """Threads that check, render and tokenize. Large prompts have one of their own, to hold up nobody."""

    def __init__(self) -> None:
        self.small: Executor = ThreadPoolExecutor(_SMALL_WORKERS, thread_name_prefix="ferrite-prompt")
        """For what takes well below a second."""
        self.large: Executor = ThreadPoolExecutor(1, thread_name_prefix="ferrite-large-prompt")
        """For what may take long."""

    def shut_down(self) -> None:
        """Drop what has not begun."""
        for executor in (self.small, self.large):
            executor.shutdown(wait=False, cancel_futures=True)
