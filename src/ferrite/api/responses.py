"""``POST /v1/responses``: what a chat does, in items instead of messages. Nothing is stored."""

import time
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from ferrite.api.errors import invalid
from ferrite.api.fields import RESPONSE_FIELDS
from ferrite.api.generate import GenerationRoute, Prepared
from ferrite.api.limits import Budget, stop_strings
from ferrite.api.model import LoadedModel
from ferrite.api.prompts import Prompt
from ferrite.api.replies import ReplyOptions
from ferrite.api.responses_answers import FunctionToolAnswer, ReasoningAnswer, ResponseAnswer, TextAnswer
from ferrite.api.responses_input import conversation
from ferrite.api.responses_reply import ResponsesBuilder
from ferrite.api.responses_tools import drop_foreign, form_of, tools_of
from ferrite.api.responses_wire import ResponsesBody
from ferrite.api.template_options import template_options
from ferrite.api.tools import Tools, answer_rules
from ferrite.api.wire import TextFormat
from ferrite.chat import ChatTemplateError, Message, Segments
from ferrite.sampling import SamplingParams

LOGPROBS = "message.output_text.logprobs"
"""The value of ``include`` that asks for log-probabilities."""
ENCRYPTED_REASONING = "reasoning.encrypted_content"
"""The value by which clients that keep the conversation ask for reasoning that they can send back.

The official client's tool runner always does. Ours comes as plain text, which goes back as it is.
"""


def check(body: ResponsesBody) -> None:
    """Raise 400 for what the types cannot say."""
    for index, asked in enumerate(body.include or []):
        if asked not in (LOGPROBS, ENCRYPTED_REASONING):
            raise invalid(
                f"`include` is not supported beyond {LOGPROBS!r} and {ENCRYPTED_REASONING!r}.",
                f"include[{index}]",
                "unsupported_value",
            )
    if body.top_logprobs and LOGPROBS not in (body.include or []):
        raise invalid(f"`top_logprobs` needs `include` with {LOGPROBS!r}.", "top_logprobs")
    if body.stream_options is not None and body.stream_options.include_usage is False:
        param = "stream_options.include_usage"
        raise invalid(f"`{param}`: the last event always tells the usage.", param, "unsupported_value")
    tools_of(body)
    conversation(body)


def budget(body: ResponsesBody, default: int) -> Budget:
    """Return the token budget; raises 400 for a response that wants no token."""
    asked = body.max_output_tokens
    if asked == 0:
        raise invalid("`max_output_tokens` must be at least 1.", "max_output_tokens")
    return Budget(default if asked is None else asked, "max_output_tokens", given=asked is not None)


def prepare(body: ResponsesBody, model: LoadedModel) -> Prepared:
    """Return the rendered conversation and what its answer must follow.

    Raises 400 with what the template said, and for a schema that cannot be enforced.
    """
    tools = tools_of(body)
    segments = _rendered(body, tools, model)
    rules = answer_rules(
        tools,
        form_of(body),
        grammars=model.grammar,
        answer_format=model.answer_format,
        prompt=segments,
        token_text=lambda token: model.tokenizer.token_bytes(token).decode(errors="replace"),
    )
    length = sum(len(segment) for segment in segments if isinstance(segment, str))
    prompt = Prompt("input", length, lambda: model.tokenizer.encode_segments(segments, add_bos=True))

    def make_builder(options: ReplyOptions) -> ResponsesBuilder:
        return ResponsesBuilder(
            _response(body, options, tools),
            rules,
            options,
            detokenizer=model.detokenizer(),
            token_bytes=model.tokenizer.token_bytes,
        )

    return Prepared([prompt], make_builder, rules.constraint)


def _rendered(body: ResponsesBody, tools: Tools, model: LoadedModel) -> Segments:
    effort = body.reasoning.effort if body.reasoning else None
    options = template_options(body.chat_template_kwargs, effort, model, effort_param="reasoning.effort")

    def render(messages: Sequence[Message]) -> Segments:
        return model.chat_template.render_prompt(
            messages,
            now=datetime.now().astimezone(),
            tools=tools.declarations(),
            options=options,
            tools_as_text=model.answer_format.family.told_in_text,
        )

    try:
        return render(conversation(body))
    except ChatTemplateError as error:
        raise invalid(error.message, _culprit(body, render), "chat_template_error") from error


def _culprit(body: ResponsesBody, render: Callable[[Sequence[Message]], Segments]) -> str:
    """Return the field without which the template renders: it may know no system role."""
    if not body.instructions:
        return "input"
    try:
        render(conversation(body, with_instructions=False))
    except ChatTemplateError:
        return "input"
    return "instructions"


def _response(body: ResponsesBody, options: ReplyOptions, tools: Tools) -> ResponseAnswer:
    """Return the response as it is before it begins."""
    defaults = SamplingParams()
    text_format = body.text.format if body.text and body.text.format else TextFormat()
    return ResponseAnswer(
        id=f"resp_{options.unique}",
        created_at=int(time.time()),
        status="in_progress",
        model=options.model_id,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        top_logprobs=body.top_logprobs or 0,
        text=TextAnswer(msgspec.to_builtins(text_format)),
        tools=[FunctionToolAnswer(f.name, f.description, f.parameters, f.strict) for f in tools.functions],
        tool_choice=body.tool_choice or "auto",
        parallel_tool_calls=body.parallel_tool_calls is not False,
        metadata=body.metadata or {},
        prompt_cache_key=body.prompt_cache_key,
        safety_identifier=body.safety_identifier,
        user=body.user,
        reasoning=ReasoningAnswer(body.reasoning.effort if body.reasoning else None),
    )


def logprobs(body: ResponsesBody) -> int | None:
    """Return how many likeliest tokens to tell of beside each token; None to tell nothing."""
    return (body.top_logprobs or 0) if LOGPROBS in (body.include or []) else None


def stops(body: ResponsesBody, model: LoadedModel) -> tuple[str, ...]:
    """Return the request's stop strings, and those by which a turn of the fallback template ends."""
    return (*stop_strings(body), *model.turn_stops)


ROUTE = GenerationRoute(
    body_type=ResponsesBody,
    fields=RESPONSE_FIELDS,
    check=check,
    budget=budget,
    prepare=prepare,
    stops=stops,
    choices=lambda _: 1,
    logprobs=logprobs,
    drop=drop_foreign,
)
