"""Jinja's immutable sandbox, closed further: only listed methods, metered work, strings with an origin.

This is the one place that compiles and renders templates. A template gets texts, numbers, lists,
dicts, its own macros and namespaces, and the methods listed here; no other Python object has an
attribute it can read or can be called.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from jinja2 import Template, TemplateError, Undefined
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace, pass_context

from ferrite.chat.filters import FILTERS_FOR_PROMPTS, METER, TESTS_FOR_PROMPTS, meter_of
from ferrite.chat.guard import TEXT, GenerationTag, check, compared_roles, rewrite, variables
from ferrite.chat.messages import ChatTemplateError, TemplateRefusedError
from ferrite.chat.meter import MAX_CALL_DEPTH, MAX_TEXT, Meter, size_of
from ferrite.chat.operations import STRING_METHODS, StringMethod, binary
from ferrite.chat.text import concat

MAX_TEMPLATE_BYTES = 64 << 10
_MAX_SENTENCE = 1000
_MAX_TIME_FORMAT = 100
_CALL_UNITS = 8

_READABLE: tuple[tuple[type, frozenset[str]], ...] = (
    (dict, frozenset({"get", "items", "keys", "values"})),
    (list, frozenset({"count", "index"})),
    (tuple, frozenset({"count", "index", "grouper", "list"})),
    (
        LoopContext,
        frozenset(
            (
                *("changed", "cycle", "depth", "depth0", "first", "last", "length"),
                *("index", "index0", "nextitem", "previtem", "revindex", "revindex0"),
            )
        ),
    ),
    (Macro, frozenset({"arguments", "caller", "catch_kwargs", "catch_varargs", "name"})),
    (Cycler, frozenset({"current", "next", "reset"})),
)


def raise_exception(message: object = "") -> None:
    """What templates call to refuse a conversation, in their own words."""
    raise ChatTemplateError(str(message)[:_MAX_SENTENCE])


@dataclass(frozen=True, slots=True)
class StrftimeNow:
    """``strftime_now(format)`` of one rendering: the time is given, never read."""

    now: datetime

    def __call__(self, form: str) -> str:
        """``now`` in the given format."""
        if len(form) > _MAX_TIME_FORMAT:
            raise ChatTemplateError(
                f"the chat template formats time with more than {_MAX_TIME_FORMAT} characters"
            )
        return self.now.strftime(form)


def _range(*bounds: int) -> range:
    made = range(*bounds)
    if len(made) > 100_000:
        raise ChatTemplateError("the chat template counts over more than 100000 numbers")
    return made


@pass_context
def _printed(context: Context, value: Any) -> str:
    return meter_of(context).text(value)


class PromptEnvironment(ImmutableSandboxedEnvironment):
    """The environment of one template."""

    concat = staticmethod(lambda parts: concat(list(parts)))
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Constant folding would run the template's arithmetic while it loads, unmetered.
            optimized=False,
            finalize=_printed,
            cache_size=0,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self._functions = (_range, raise_exception, dict, Namespace, Cycler, Joiner)
        self.globals = dict(
            zip(
                ("range", "raise_exception", "dict", "namespace", "cycler", "joiner"),
                self._functions,
                strict=True,
            )
        )
        self.filters = dict(FILTERS_FOR_PROMPTS)
        self.tests = dict(TESTS_FOR_PROMPTS)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Only what ``_READABLE`` lists, and what a template put into its own namespaces."""
        return super().is_safe_attribute(obj, attr, value) and (
            isinstance(obj, Namespace)
            or any(isinstance(obj, kind) and attr in names for kind, names in _READABLE)
        )

    def getattr(self, obj: Any, attribute: str) -> Any:
        """``obj.attribute``; a text has only the metered methods."""
        if isinstance(obj, str):
            return self._string_attribute(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """``obj[argument]``."""
        if isinstance(obj, str) and isinstance(argument, str):
            return self._string_attribute(obj, argument)
        if isinstance(argument, tuple):
            raise ChatTemplateError("the chat template uses a tuple as a key")
        return super().getitem(obj, argument)

    def _string_attribute(self, text: str, name: str) -> Any:
        if name in STRING_METHODS:
            return StringMethod(text, name)
        if hasattr(str, name):
            return self.unsafe_undefined(text, name)
        return self.undefined(obj=text, name=name)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse at once: Jinja's own answer is a value that prints as nothing."""
        kind = "text" if isinstance(obj, str) else type(obj).__name__
        raise ChatTemplateError(f"the chat template may not read {attribute!r} of a {kind}")

    def is_safe_callable(self, obj: Any) -> bool:
        """Methods that ``is_safe_attribute`` let through, macros, and the functions given to templates."""
        owner = getattr(obj, "__self__", None)
        return (
            isinstance(obj, (Macro, Joiner, Undefined, StrftimeNow))
            or any(obj is function for function in self._functions)
            or any(isinstance(owner, kind) and obj.__name__ in names for kind, names in _READABLE)
        )

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a macro, a method or a function, paid for and at a bounded depth."""
        meter = meter_of(context)
        meter.spend(_CALL_UNITS)
        if isinstance(obj, StringMethod):
            method = partial(STRING_METHODS[obj.name], meter, obj.text)
            return meter.settle(context.call(method, *args, **kwargs))
        if not self.is_safe_callable(obj):
            raise ChatTemplateError("the chat template calls something that is not a template function")
        if not isinstance(obj, (Macro, Undefined)):
            self._pay_call(meter, obj, [*args, *(kwargs[name] for name in kwargs if name[0] != "_")])
        if meter.depth >= MAX_CALL_DEPTH:
            raise ChatTemplateError("the chat template calls itself too deeply")
        meter.depth += 1
        try:
            return meter.settle(context.call(obj, *args, **kwargs))
        finally:
            meter.depth -= 1

    def _pay_call(self, meter: Meter, obj: Any, args: list[Any]) -> None:
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, dict):
            meter.spend(2 * len(owner) if not args else 1)
        elif isinstance(owner, (list, tuple)):
            meter.weigh(owner)
        for value in args:
            if isinstance(value, (list, tuple, dict)):
                meter.weigh(value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic and concatenation."""
        return binary(meter_of(context), operator, left, right)


class CompiledTemplate:
    """A checked template, ready to render; safe to share between threads."""

    __slots__ = ("_template", "compared_roles", "variables")

    def __init__(self, source: str) -> None:
        """Raises ``TemplateRefusedError`` with the line and the reason."""
        environment = PromptEnvironment()
        if size_of(source) > MAX_TEMPLATE_BYTES:
            raise TemplateRefusedError(f"longer than {MAX_TEMPLATE_BYTES} bytes")
        try:
            tree = environment.parse(source)
            check(tree)
            self.compared_roles = compared_roles(tree)
            self.variables = variables(tree)
            constants = rewrite(tree, environment)
            environment.filters[TEXT] = constants.__getitem__
            code = environment.compile(tree)
            self._template = Template.from_code(environment, code, environment.globals)
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            raise TemplateRefusedError(f"line {line}: {error.message}" if line else str(error)) from None
        except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
            if isinstance(error, TemplateRefusedError):
                raise
            # Python's own compiler refuses what is nested too deeply, or numbers of thousands of digits.
            raise TemplateRefusedError("nested too deeply, or holds a number that is too long") from None

    def render(self, variables: Mapping[str, Any], meter: Meter) -> str:
        """Render within ``meter``'s budget; the text knows which characters the template wrote.

        Raises ``ChatTemplateError``.
        """
        context = self._template.new_context({**variables, METER: meter})
        try:
            return concat(list(_limited(self._template.root_render_func(context))))
        except ChatTemplateError:
            raise
        except RecursionError:
            raise ChatTemplateError("the chat template calls itself too deeply") from None
        except Exception as error:
            # A template is foreign code: whatever it runs into is its own failure, told in one sentence.
            reason = str(error).partition("\n")[0][:_MAX_SENTENCE] or type(error).__name__
            raise ChatTemplateError(f"the chat template failed: {reason}") from None


def _limited(pieces: Iterator[str]) -> Iterator[str]:
    size = 0
    for piece in pieces:
        size += size_of(piece)
        if size > MAX_TEXT:
            raise ChatTemplateError("the chat template makes a prompt of more than 16 MiB")
        yield piece
