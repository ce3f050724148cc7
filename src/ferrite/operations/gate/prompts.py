"""Every text that the gate sends."""

SYSTEM = "You are a careful assistant. Answer each question in one short sentence."
QUESTIONS = (
    "What is the capital of France?",
    "Which river flows through it?",
    "Name one famous museum there.",
    "What is a good month to visit, and why?",
    "Which language do people speak there?",
    "Name a dish that visitors should try.",
    "How do people travel inside the city?",
    "What should I pack for a weekend?",
)
END_QUESTIONS = ("Reply with the single word: yes", "Say hello.", "What is two plus two?")
"""Short answers, so that a model is likely to end its turn."""
CONTINUED = "The capital of France is"
"""The request that is repeated to see that the server still answers, and answers the same."""
COUNTING = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,"
"""A text that models continue for long."""


def question(turn: int) -> str:
    """Return what the user says in turn ``turn`` (from 0); later rounds say which turn it is."""
    text = QUESTIONS[turn % len(QUESTIONS)]
    return text if turn < len(QUESTIONS) else f"{text} (This is turn {turn + 1}.)"


def long_prompt(tokens: int) -> list[int]:
    """Return a raw prompt of exactly so many tokens, of ids that every vocabulary has."""
    return [40 + index % 80 for index in range(tokens)]
