"""``ferrite run``: one prompt to text, streamed to the terminal, with its rates."""

import asyncio
import sys
import uuid
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import typer

from ferrite.api import LoadedModel, ModelLoadError, ServerConfig
from ferrite.api.threads import automatic_threads
from ferrite.chat import Message
from ferrite.cli.load import load_model
from ferrite.cli.model import DEFAULT_MODEL, ModelOption, ThreadsOption
from ferrite.engine import Delta, Finished, GenerationRequest
from ferrite.sampling import SamplingParams


class SpeculationName(StrEnum):
    """As ``ServerConfig.speculate``."""

    OFF = "off"
    NGRAM = "ngram"


def run(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to say; '-' reads standard input.")],
    model: ModelOption = DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text itself, without the chat template.")
    ] = False,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=1, help="Most tokens to generate.")
    ] = 256,
    temperature: Annotated[float, typer.Option("--temperature", "-t", min=0, max=2)] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", min=0, max=1)] = 1.0,
    seed: Annotated[int | None, typer.Option("--seed", min=-(2**63), max=2**63 - 1)] = None,
    threads: ThreadsOption = 0,
    speculate: Annotated[
        SpeculationName,
        typer.Option("--speculate", help="Draft from what was said before; same tokens, faster."),
    ] = SpeculationName.OFF,
) -> None:
    """Generate from one prompt; text goes to standard output, rates to standard error."""
    text = sys.stdin.read() if prompt == "-" else prompt
    if not all(_is_unicode(given) for given in (text, system or "")):
        raise _failure("the prompt is not UTF-8 text")
    config = ServerConfig(model=model, threads=threads or automatic_threads(), speculate=speculate.value)
    try:
        loaded = load_model(config)
    except ModelLoadError as error:
        raise _failure(str(error)) from error
    try:
        tokens = _raw_prompt(loaded, text) if raw else _chat_prompt(loaded, text, system)
        room = loaded.context_length - len(tokens)
        if not tokens or room < 1:
            problem = f"{len(tokens)} prompt tokens do not fit the context of {loaded.context_length}"
            raise _failure(problem if tokens else "the prompt is empty")
        request = GenerationRequest(
            request_id=uuid.uuid4().hex,
            prompt_tokens=tuple(tokens),
            max_tokens=min(max_tokens, room),
            sampling=SamplingParams(temperature=temperature, top_p=top_p, seed=seed),
            stop=() if raw else loaded.turn_stops,
            end_ids=loaded.tokenizer.end_ids,
        )
        finished = asyncio.run(_stream(loaded, request))
    finally:
        loaded.engine.stop()
    typer.echo(_rates(finished), err=True)


def _failure(message: str) -> typer.Exit:
    typer.echo(f"ferrite run: {message}", err=True)
    return typer.Exit(1)


def _is_unicode(text: str) -> bool:
    """Return whether no byte of an argument or of standard input had to be smuggled in as a surrogate."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _raw_prompt(loaded: LoadedModel, text: str) -> list[int]:
    return loaded.tokenizer.encode(text, parse_special=True, add_bos=True)


def _chat_prompt(loaded: LoadedModel, text: str, system: str | None) -> list[int]:
    messages = (
        [Message("user", text)] if system is None else [Message("system", system), Message("user", text)]
    )
    segments = loaded.chat_template.render_prompt(messages, now=datetime.now().astimezone())
    return loaded.tokenizer.encode_segments(segments, add_bos=True)


async def _stream(loaded: LoadedModel, request: GenerationRequest) -> Finished:
    generation = loaded.engine.submit(request)
    await generation.admitted()
    async for event in generation:
        match event:
            case Delta():
                typer.echo(event.text, nl=False)
                sys.stdout.flush()
            case Finished():
                typer.echo()
                return event
    raise RuntimeError("the generation ended without a last event")


def _rates(finished: Finished) -> str:
    usage, timings = finished.usage, finished.timings
    prefill = usage.prompt_tokens / timings.prefill_seconds
    line = f"{usage.prompt_tokens} prompt tokens, {prefill:.1f} tokens/s; {usage.completion_tokens} generated"
    if usage.completion_tokens > 1:
        line += f", {(usage.completion_tokens - 1) / timings.decode_seconds:.1f} tokens/s"
    return f"[{line}; {finished.reason}]"
