"""``POST /v1/completions``: raw prompts, as text or as token ids."""

from ferrite.api.checks import check_token_ids
from ferrite.api.completion_reply import CompletionBuilder
from ferrite.api.errors import invalid
from ferrite.api.fields import COMPLETION_FIELDS
from ferrite.api.generate import GenerationRoute, Prepared
from ferrite.api.limits import Budget, stop_strings
from ferrite.api.model import LoadedModel, PromptTokenizer
from ferrite.api.prompts import Prompt
from ferrite.api.wire import MAX_PROMPTS, CompletionBody


def check(body: CompletionBody) -> None:
    """Raise 400 for prompts of mixed kinds, empty ones, too many, or several in a stream."""
    written = body.prompt
    if isinstance(written, str):
        return
    for index, item in enumerate(written):
        if type(item) is not type(written[0]):
            raise invalid("`prompt` mixes text and token ids.", f"prompt[{index}]")
        if item == []:
            raise invalid("A prompt has no tokens.", f"prompt[{index}]")
    if isinstance(written[0], int):
        return
    if len(written) > MAX_PROMPTS:
        raise invalid(f"`prompt` has {len(written)} prompts, the limit is {MAX_PROMPTS}.", "prompt")
    if body.stream and len(written) > 1:
        raise invalid("A stream takes exactly one prompt.", "prompt")


def budget(body: CompletionBody, default: int) -> Budget:
    """Return the token budget of each prompt; 0 generates nothing."""
    asked = body.max_tokens
    return Budget(default if asked is None else asked, "max_tokens", given=asked is not None)


def prepare(body: CompletionBody, model: LoadedModel) -> Prepared:
    """Return the prompts; raises 400 for a foreign token."""
    texts = [each if isinstance(each, str) else None for each in _written(body)] if body.echo else None
    return Prepared(_prompts(body, model), lambda options: CompletionBuilder(options, model, texts))


def _written(body: CompletionBody) -> list[object]:
    """Return the prompts as the client wrote them."""
    written = body.prompt
    return [written] if isinstance(written, str) or isinstance(written[0], int) else list(written)


def _prompts(body: CompletionBody, model: LoadedModel) -> list[Prompt]:
    written = _written(body)
    params = ["prompt"] if written[0] is body.prompt else [f"prompt[{i}]" for i in range(len(written))]
    return [_prompt(item, param, model.tokenizer) for item, param in zip(written, params, strict=True)]


def _prompt(written: object, param: str, tokenizer: PromptTokenizer) -> Prompt:
    if isinstance(written, str):
        # Raw prompts do read control-token text: people write whole templates here.
        text = written
        return Prompt(param, len(text), lambda: tokenizer.encode(text, parse_special=True, add_bos=True))
    tokens = _checked_ids(written, param, tokenizer.vocab_size)
    return Prompt(param, 0, lambda: tokens)


def stops(body: CompletionBody, _: LoadedModel) -> tuple[str, ...]:
    """Return the request's stop strings."""
    return stop_strings(body)


def _checked_ids(written: object, param: str, vocab_size: int) -> list[int]:
    if not isinstance(written, list):
        raise invalid("A prompt is text or a list of token ids.", param)
    check_token_ids(written, param, vocab_size)
    return written


ROUTE = GenerationRoute(
    body_type=CompletionBody,
    fields=COMPLETION_FIELDS,
    check=check,
    budget=budget,
    prepare=prepare,
    stops=stops,
    choices=lambda body: body.n or 1,
    logprobs=lambda body: body.logprobs,
    scores_prompt=lambda body: bool(body.echo) and body.logprobs is not None,
)
