"""Options of the chat template that a request may set, above all how much the model shall reason."""

from collections.abc import Mapping

import msgspec

from ferrite.api.errors import invalid
from ferrite.api.model import LoadedModel
from ferrite.api.wire import ChatTemplateOptions, ReasoningEffort

Options = Mapping[str, object]

_NO_THINKING: Options = {"enable_thinking": False}
_NO_REASONING = (("reasoning_effort", "none"), ("enable_thinking", False), ("thinking", False))
"""The ways to ask for no reasoning."""


def template_options(
    written: ChatTemplateOptions | None,
    effort: ReasoningEffort | None,
    model: LoadedModel,
    *,
    effort_param: str = "reasoning_effort",
) -> Options:
    """Return the template's variables that a request sets; raises 400 for one that it does not read.

    ``effort_param``: where the client wrote ``effort``.
    """
    options: dict[str, object] = {}
    for name, value in (msgspec.to_builtins(written) if written else {}).items():
        if value is not None:
            options |= _honoured(name, value, model, f"chat_template_kwargs.{name}")
    if effort is not None:
        if written is not None and written.reasoning_effort not in (None, effort):
            raise invalid(f"`{effort_param}` and `chat_template_kwargs` differ.", effort_param)
        options |= _honoured("reasoning_effort", effort, model, effort_param)
    return options


def _honoured(name: str, value: object, model: LoadedModel, param: str) -> Options:
    problem = model.chat_template.option_problem({name: value})
    if problem is None:
        return {name: value}
    if (name, value) in _NO_REASONING:
        if model.chat_template.option_problem(_NO_THINKING) is None:
            return _NO_THINKING
        if model.answer_format.reasoning is None:
            # It does not reason anyway.
            return {}
    message, _ = problem
    raise invalid(message, param, "unsupported_value")
