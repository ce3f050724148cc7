"""From messages to prompt pieces, by the model file's own chat template."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from ferrite.chat.messages import Message, Segments, TemplateRefusedError
from ferrite.chat.meter import Meter
from ferrite.chat.sandbox import CompiledTemplate, StrftimeNow
from ferrite.chat.text import Written, written_runs

TEMPLATE_KEY = "tokenizer.chat_template"
EOS_KEY = "tokenizer.ggml.eos_token_id"

FALLBACK = """\
{%- for message in messages %}
{{- message.role | capitalize }}: {{ message.content }}
{%- for call in message.tool_calls %}
{{- "\\n" if message.content or not loop.first }}
{{- call.function.name }} {{ call.function.arguments | tojson }}
{%- endfor %}
{{- "\\n\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}Assistant:{% endif %}"""
"""What a file without a template gets: ``Role: text`` and an empty line per turn, then ``Assistant:``.

A call of the assistant is a line with the function's name and its arguments as JSON. Declared tools
are not shown; ``ChatTemplate.uses_tools`` is false."""


class PromptTokenizer(Protocol):
    """What prompts need of a tokenizer."""

    @property
    def bos_id(self) -> int | None:
        """The beginning-of-sequence id."""

    def token_text(self, token: int, /) -> str:
        """The token as the model file spells it."""

    def split_special(self, text: str, /) -> list[str | int]:
        """Replace the text of special tokens by their ids."""


class TemplateMetadata(Protocol):
    """What prompts need of a model file's metadata; a mapping is one."""

    def get(self, key: str, /) -> object:
        """The value of a key, or None."""


class ChatTemplate:
    """The prompt format of a loaded model; safe to share between threads."""

    __slots__ = (
        "_bos",
        "_compiled",
        "_eos",
        "_maps_developer",
        "_maps_function",
        "_tokenizer",
        "is_fallback",
        "text",
    )

    def __init__(self, text: str | None, tokenizer: PromptTokenizer, *, eos_id: int | None = None) -> None:
        """``text`` None means the role-labelled fallback. Raises ``TemplateRefusedError``."""
        self.is_fallback = text is None
        """whether the file has no template of its own"""
        self.text = FALLBACK if text is None else text
        """the template's source"""
        self._compiled = CompiledTemplate(self.text)
        self._tokenizer = tokenizer
        self._bos = _token(tokenizer, tokenizer.bos_id)
        self._eos = _token(tokenizer, eos_id)
        self._maps_developer = "developer" not in self.text
        self._maps_function = "function" not in self._compiled.compared_roles

    @classmethod
    def from_metadata(cls, metadata: TemplateMetadata, tokenizer: PromptTokenizer) -> "ChatTemplate":
        """Read the template of a GGUF file's metadata, or take the fallback where it has none.

        Raises ``TemplateRefusedError``, one line that names the metadata key.
        """
        text = metadata.get(TEMPLATE_KEY)
        eos_id = metadata.get(EOS_KEY)
        if text is not None and not isinstance(text, str):
            raise TemplateRefusedError(f"{TEMPLATE_KEY}: not a string")
        try:
            return cls(text, tokenizer, eos_id=eos_id if isinstance(eos_id, int) else None)
        except TemplateRefusedError as error:
            raise TemplateRefusedError(f"{TEMPLATE_KEY}: {error}") from None

    @property
    def uses_tools(self) -> bool:
        """Whether declared tools reach the prompt."""
        return self._compiled.reads_tools

    def render_prompt(
        self,
        messages: Sequence[Message],
        *,
        now: datetime,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
    ) -> Segments:
        """Render a conversation; neighbouring text is one piece, empty text none.

        ``now`` is the local time that ``strftime_now`` tells. ``tools`` are OpenAI function declarations.
        Control tokens come only from text the template wrote, never from the messages or the tools.
        Raises ``ChatTemplateError``, whose message is the template's own sentence where it gave one.
        """
        rendered = self._compiled.render(
            {
                "messages": [self._as_template_sees(message) for message in messages],
                "tools": list(tools) if tools else None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                "bos_token": self._bos,
                "eos_token": self._eos,
                "strftime_now": StrftimeNow(now),
            },
            Meter(),
        )
        pieces = (
            piece
            for run, written in written_runs(rendered)
            for piece in (self._tokenizer.split_special(run) if written else (run,))
        )
        return _merged(pieces)

    def _as_template_sees(self, message: Message) -> dict[str, Any]:
        role: str = message.role
        if role == "developer" and self._maps_developer:
            role = "system"
        elif role == "function" and self._maps_function:
            role = "tool"
        # Roles are a closed set, and some templates build control tokens around them: '<|' + role + '|>'.
        seen: dict[str, Any] = {"role": Written(role), "content": message.content or ""}
        if message.reasoning_content:
            # Most templates read the first name, gpt-oss the second.
            seen["reasoning_content"] = seen["thinking"] = message.reasoning_content
        if message.name is not None:
            seen["name"] = message.name
        if message.tool_calls:
            seen["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            seen["tool_call_id"] = message.tool_call_id
        return seen


def _token(tokenizer: PromptTokenizer, token: int | None) -> str:
    return Written("" if token is None else tokenizer.token_text(token))


def _merged(pieces: Iterable[str | int]) -> Segments:
    segments: Segments = []
    text: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            text.append(piece)
            continue
        if text:
            segments.append("".join(text))
            text = []
        segments.append(piece)
    return [*segments, "".join(text)] if text else segments
