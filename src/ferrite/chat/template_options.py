"""Template variables that a request may set: a short list, checked by name and value."""

from collections.abc import Mapping

TEMPLATE_OPTIONS: Mapping[str, tuple[object, ...]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "preserve_thinking": (True, False),
    "tools_in_user_message": (True, False),
    "reasoning_effort": ("none", "minimal", "low", "medium", "high", "xhigh"),
}
"""Name → values. Nothing else can be set: what a template writes around a variable's text would count as the
template's own, and its other variables are the server's."""


def option_problem(options: Mapping[str, object], read: frozenset[str]) -> tuple[str, str] | None:
    """Return message and name of the first option not honoured; ``read``: the template's variables."""
    for name, value in options.items():
        values = TEMPLATE_OPTIONS.get(name)
        if values is None:
            return f"Only these template options can be set: {', '.join(TEMPLATE_OPTIONS)}.", name
        if not any(type(value) is type(known) and value == known for known in values):
            return f"`{name}` must be one of {', '.join(map(_shown, values))}.", name
        if name not in read:
            return f"The model's chat template does not read `{name}`.", name
    return None


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'
