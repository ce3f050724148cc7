"""From messages to prompt pieces, by the model file's own chat template."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from ferrite.chat.messages import Message, Segments, TemplateRefusedError
from ferrite.chat.meter import Meter
from ferrite.chat.sandbox import CompiledTemplate, StrftimeNow
from ferrite.chat.template_options import option_problem
from ferrite.chat.text import Written, written_runs
from ferrite.chat.tools_as_text import told_as_text
from ferrite.chat.turns import seen_turn, style_of

TEMPLATE_KEY = "tokenizer.chat_template"
TOOL_TEMPLATE_KEY = "tokenizer.chat_template.tool_use"
EOS_KEY = "tokenizer.ggml.eos_token_id"

FALLBACK = """\
{%- for message in messages %}
{{- message.role | capitalize }}: {{ message.content }}
{{- "\\n\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}Assistant:{% endif %}"""
"""What a file without a template gets: ``Role: text`` and an empty line per turn, then ``Assistant:``."""


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
    """The prompt format of a loaded model; safe to share between threads.

    A file may carry a second template, ``tool_use``, which then renders every conversation with tools,
    calls or results. Where the template in charge of those shows the model no tools, they are told in
    ordinary turns (``ferrite.chat.tools_as_text``).
    """

    __slots__ = ("_default", "_tokenizer", "_tokens", "_with_tools", "is_fallback")

    def __init__(
        self,
        text: str | None,
        tokenizer: PromptTokenizer,
        *,
        tool_text: str | None = None,
        eos_id: int | None = None,
    ) -> None:
        """``text`` None means the role-labelled fallback, ``tool_text`` None one template for everything.

        Raises ``TemplateRefusedError``.
        """
        self.is_fallback = text is None
        """whether the file has no template of its own"""
        self._tokenizer = tokenizer
        self._tokens = {
            "bos_token": _token(tokenizer, tokenizer.bos_id),
            "eos_token": _token(tokenizer, eos_id),
        }
        self._default = _Format(FALLBACK if text is None else text, self._tokens)
        self._with_tools = self._default if tool_text is None else _Format(tool_text, self._tokens)

    @classmethod
    def from_metadata(cls, metadata: TemplateMetadata, tokenizer: PromptTokenizer) -> "ChatTemplate":
        """Read the templates of a GGUF file's metadata, or take the fallback where it has none.

        Raises ``TemplateRefusedError``, one line that names the metadata key.
        """
        text, tool_text = (_text_under(metadata, key) for key in (TEMPLATE_KEY, TOOL_TEMPLATE_KEY))
        eos_id = metadata.get(EOS_KEY)
        eos_id = eos_id if isinstance(eos_id, int) else None
        try:
            template = cls(text, tokenizer, eos_id=eos_id)
        except TemplateRefusedError as error:
            raise TemplateRefusedError(f"{TEMPLATE_KEY}: {error}") from None
        if tool_text is None:
            return template
        try:
            return cls(text, tokenizer, tool_text=tool_text, eos_id=eos_id)
        except TemplateRefusedError as error:
            raise TemplateRefusedError(f"{TOOL_TEMPLATE_KEY}: {error}") from None

    @property
    def text(self) -> str:
        """The source of the template without tools."""
        return self._default.text

    @property
    def tool_text(self) -> str:
        """The source of the template with tools; most files have one for both."""
        return self._with_tools.text

    @property
    def uses_tools(self) -> bool:
        """Whether the template itself shows declared tools to the model."""
        return self._with_tools.uses_tools

    def option_problem(self, options: Mapping[str, object]) -> tuple[str, str] | None:
        """Message and name of the first template option (``TEMPLATE_OPTIONS``) that is not honoured."""
        read = self._default.compiled.variables | self._with_tools.compiled.variables
        return option_problem(options, read)

    def render_prompt(
        self,
        messages: Sequence[Message],
        *,
        now: datetime,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        options: Mapping[str, object] | None = None,
        tools_as_text: bool = False,
    ) -> Segments:
        """Render a conversation; neighbouring text is one piece, empty text none.

        ``now`` is the local time that ``strftime_now`` tells. ``tools`` are OpenAI function declarations.
        ``options`` are template variables that ``option_problem`` lets through. ``tools_as_text`` tells
        tools, calls and results in ordinary turns, as also happens where the template shows no tools.
        Control tokens come only from text the template wrote, never from what was given.
        Raises ``ChatTemplateError``, whose message is the template's own sentence where it gave one.
        """
        given = list(tools or ())
        history = any(message.tool_calls or message.role in ("tool", "function") for message in messages)
        form = self._with_tools if given or history else self._default
        if (given or history) and (tools_as_text or not form.uses_tools):
            messages = told_as_text(messages, given, system_turn=form.style.system_turn)
            given = []
        rendered = form.compiled.render(
            {
                **(options or {}),
                **self._tokens,
                "messages": [seen_turn(message, form.style) for message in messages],
                "tools": given or None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
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


class _Format:
    """One template: its source, compiled, and how it wants its turns."""

    __slots__ = ("compiled", "style", "text")

    def __init__(self, text: str, tokens: Mapping[str, str]) -> None:
        self.text = text
        self.compiled = CompiledTemplate(text)
        self.style = style_of(text, self.compiled, tokens)

    @property
    def uses_tools(self) -> bool:
        return "tools" in self.compiled.variables


def _text_under(metadata: TemplateMetadata, key: str) -> str | None:
    text = metadata.get(key)
    if text is not None and not isinstance(text, str):
        raise TemplateRefusedError(f"{key}: not a string")
    # Some converted files have an empty one, which would leave out the whole conversation.
    return text if text and not text.isspace() else None


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
