"""``POST /v1/chat/completions``: from wire messages to the conversation that the template renders."""

from datetime import datetime

import msgspec

from ferrite.api.chat_reply import ChatBuilder
from ferrite.api.errors import invalid
from ferrite.api.fields import CHAT_FIELDS
from ferrite.api.generate import GenerationRoute, Prepared
from ferrite.api.limits import Budget, stop_strings
from ferrite.api.model import LoadedModel
from ferrite.api.prompts import Prompt
from ferrite.api.replies import ReplyOptions
from ferrite.api.structured import json_form
from ferrite.api.template_options import template_options
from ferrite.api.tools import Tools, answer_rules, read_tools
from ferrite.api.wire import (
    AnswerTextPart,
    AssistantMessage,
    ChatBody,
    DeveloperMessage,
    FunctionCall,
    FunctionMessage,
    RefusalPart,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
)
from ferrite.api.wire import Message as WireMessage
from ferrite.chat import ChatTemplateError, Message, ToolCall


def check(body: ChatBody) -> None:
    """Raise 400 for messages and tools that do not fit together."""
    tools_of(body)
    conversation(body)


def tools_of(body: ChatBody) -> Tools:
    """Return the functions and what the model may do with them; raises 400."""
    tools, choice = msgspec.to_builtins((body.tools, body.tool_choice))
    return read_tools(tools, choice, parallel=body.parallel_tool_calls)


def conversation(body: ChatBody) -> list[Message]:
    """Return the messages as the template sees them; raises 400 naming the message that does not fit."""
    messages: list[Message] = []
    call_ids: set[str] = set()
    for index, written in enumerate(body.messages):
        at = f"messages[{index}]"
        if isinstance(written, ToolMessage) and written.tool_call_id not in call_ids:
            raise invalid("No message before this one made a call with this id.", f"{at}.tool_call_id")
        messages.append(_message(written, at))
        call_ids.update(call.id for call in messages[-1].tool_calls)
    return messages


def _message(written: WireMessage, at: str) -> Message:
    content = _text(written.content)
    match written:
        case AssistantMessage():
            calls = _calls(written, at)
            content = written.refusal if content is None else content
            if content is None and not calls:
                raise invalid("An assistant message needs `content` or `tool_calls`.", f"{at}.content")
            return Message(
                "assistant",
                content,
                name=written.name,
                tool_calls=calls,
                reasoning_content=written.reasoning_content,
            )
        case ToolMessage():
            return Message("tool", content, name=written.name, tool_call_id=written.tool_call_id)
        case FunctionMessage():
            return Message("function", content, name=written.name)
        case SystemMessage():
            return Message("system", content, name=written.name)
        case DeveloperMessage():
            return Message("developer", content, name=written.name)
        case UserMessage():
            return Message("user", content, name=written.name)


def _text(content: str | list[TextPart] | list[AnswerTextPart | RefusalPart] | None) -> str | None:
    if content is None or isinstance(content, str):
        return content
    return "".join(part.refusal if isinstance(part, RefusalPart) else part.text for part in content)


def _calls(written: AssistantMessage, at: str) -> list[ToolCall]:
    calls = [
        _call(call.function, call.id, f"{at}.tool_calls[{index}].function.arguments")
        for index, call in enumerate(written.tool_calls or [])
    ]
    if written.function_call is not None:
        calls.append(_call(written.function_call, "", f"{at}.function_call.arguments"))
    return calls


def _call(written: FunctionCall, call_id: str, param: str) -> ToolCall:
    # Clients send "" for calls without parameters.
    try:
        arguments = msgspec.json.decode(written.arguments or "{}", type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        raise invalid("The arguments of a call must be a JSON object.", param) from None
    return ToolCall(call_id, written.name, arguments, written.arguments or None)


def budget(body: ChatBody, default: int) -> Budget:
    """Return the token budget; the newer name wins. Raises 400 for a chat that wants no token."""
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if asked == 0:
        raise invalid(f"`{name}` must be at least 1.", name)
    return Budget(default if asked is None else asked, name, given=asked is not None)


def prepare(body: ChatBody, model: LoadedModel) -> Prepared:
    """Return the rendered conversation, and what its answer follows.

    Raises 400 with what the template said, or with what of a schema cannot be enforced.
    """
    tools = tools_of(body)
    try:
        segments = model.chat_template.render_prompt(
            conversation(body),
            now=datetime.now().astimezone(),
            tools=tools.declarations(),
            options=template_options(body.chat_template_kwargs, body.reasoning_effort, model),
            tools_as_text=model.answer_format.family.told_in_text,
        )
    except ChatTemplateError as error:
        raise invalid(error.message, "messages", "chat_template_error") from error
    rules = answer_rules(
        tools,
        json_form(body.response_format),
        grammars=model.grammar,
        answer_format=model.answer_format,
        prompt=segments,
        token_text=lambda token: model.tokenizer.token_bytes(token).decode(errors="replace"),
    )
    length = sum(len(segment) for segment in segments if isinstance(segment, str))
    prompt = Prompt("messages", length, lambda: model.tokenizer.encode_segments(segments, add_bos=True))

    def make_builder(options: ReplyOptions) -> ChatBuilder:
        return ChatBuilder(
            options, rules, detokenizer=model.detokenizer, token_bytes=model.tokenizer.token_bytes
        )

    return Prepared([prompt], make_builder, rules.constraint)


def logprobs(body: ChatBody) -> int | None:
    """Return how many likeliest tokens to tell of beside each token; None to tell nothing."""
    return (body.top_logprobs or 0) if body.logprobs else None


def stops(body: ChatBody, model: LoadedModel) -> tuple[str, ...]:
    """Return the request's stop strings, and those by which a turn of the fallback template ends."""
    return (*stop_strings(body), *model.turn_stops)


ROUTE = GenerationRoute(
    body_type=ChatBody,
    fields=CHAT_FIELDS,
    check=check,
    budget=budget,
    prepare=prepare,
    stops=stops,
    choices=lambda body: body.n or 1,
    logprobs=logprobs,
)
