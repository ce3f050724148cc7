"""``ferrite parity``: the same logits, bit for bit, however the model is run."""

from enum import StrEnum
from typing import Annotated

import typer

from ferrite.bench.parity import digest, prompt_set, variants
from ferrite.bench.served import COMPLETION_TOKENS, request_set, served_digest, services
from ferrite.cli.model import DEFAULT_MODEL, ModelOption, opened


class KvDtypeName(StrEnum):
    """Number formats of the KV cache."""

    f16 = "f16"
    f32 = "f32"
    q8_0 = "q8_0"


def parity(
    model: ModelOption = DEFAULT_MODEL,
    residual: Annotated[
        bool, typer.Option("--residual", help="Check residual activations, whose bits are their own.")
    ] = False,
    kv_dtype: Annotated[
        KvDtypeName, typer.Option("--kv-dtype", help="Number format of the KV cache, whose bits are its own.")
    ] = KvDtypeName.f16,
) -> None:
    """Run a prompt set every way there is, and serve it every way there is; exit 1 if any digest differs."""
    with opened(model, threads=1) as m:
        prompts = prompt_set(m.program.vocab_size)
        positions = sum(map(len, prompts))
        typer.echo(
            f"{model}: {len(prompts)} prompts, {positions} positions, {m.program.vocab_size} logits each"
        )
        typer.echo(f"{'provider':9} {'threads':>7} {'prompts':>9} {'chunk':>5} {'block':>5}  digest")
        run = []
        for variant in variants(residual=residual, kv_dtype=kv_dtype.value):
            run.append(digest(m.program, m.weights, prompts, variant))
            prompts_run = "together" if variant.together else "alone"
            typer.echo(
                f"{variant.provider:9} {variant.threads:7} {prompts_run:>9} {variant.chunk:5} "
                f"{variant.block_tokens:5}  {run[-1]}"
            )
        requests = request_set(prompts, m.program.vocab_size)
        typer.echo(f"{len(requests)} requests through the engine, {COMPLETION_TOKENS} sampled rows each")
        typer.echo(
            f"{'streams':>7} {'prefixes':>9} {'kv':>5} {'block':>5} {'threads':>7} {'chunk':>5}  digest"
        )
        served = []
        for service in services(residual=residual, kv_dtype=kv_dtype.value):
            served.append(served_digest(m.program, m.weights, requests, service))
            prefixes = "hits" if service.cached else "evaluated"
            typer.echo(
                f"{service.streams:7} {prefixes:>9} {service.backend:>5} {service.block_tokens:5} "
                f"{service.threads:7} {service.chunk:5}  {served[-1]}"
            )
    if len(set(run)) > 1 or len(set(served)) > 1:
        different = f"{len(set(run))} and {len(set(served))} different digests, where 1 and 1 were to be"
        typer.echo(f"ferrite parity: {different}", err=True)
        raise typer.Exit(1)
    typer.echo(f"{len(run)} + {len(served)} equal digests")
