"""``ferrite parity``: the same logits, bit for bit, however the model is run."""

from typing import Annotated

import typer

from ferrite.bench.parity import digest, prompt_set, variants
from ferrite.cli.model import DEFAULT_MODEL, ModelOption, opened


def parity(
    model: ModelOption = DEFAULT_MODEL,
    residual: Annotated[
        bool, typer.Option("--residual", help="Check residual activations, whose bits are their own.")
    ] = False,
) -> None:
    """Run a prompt set every way there is and print one digest of all logits each; exit 1 if any differ."""
    with opened(model, threads=1) as m:
        prompts = prompt_set(m.program.vocab_size)
        positions = sum(map(len, prompts))
        typer.echo(
            f"{model}: {len(prompts)} prompts, {positions} positions, {m.program.vocab_size} logits each"
        )
        typer.echo(f"{'provider':9} {'threads':>7} {'prompts':>9} {'chunk':>5} {'block':>5}  digest")
        digests = []
        for variant in variants(residual=residual):
            digests.append(digest(m.program, m.weights, prompts, variant))
            prompts_run = "together" if variant.together else "alone"
            typer.echo(
                f"{variant.provider:9} {variant.threads:7} {prompts_run:>9} {variant.chunk:5} "
                f"{variant.block_tokens:5}  {digests[-1]}"
            )
    if len(set(digests)) > 1:
        typer.echo(f"ferrite parity: {len(set(digests))} different digests", err=True)
        raise typer.Exit(1)
    typer.echo(f"{len(digests)} equal digests")
