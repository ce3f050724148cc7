"""A traced program as calls to the native executor, op by op."""

from collections.abc import Mapping
from typing import assert_never

from ferrite import _native
from ferrite.program.ops import (
    Add,
    Angles,
    Attention,
    Buffer,
    Embed,
    Gate,
    Linear,
    Logits,
    Op,
    Program,
    RmsNorm,
    Rope,
    RowSpace,
    SelectRows,
)
from ferrite.program.weights import LoadedWeights


def compile_program(
    program: Program,
    weights: LoadedWeights,
    kv: _native.KvStore,
    *,
    team: _native.Team,
    provider: str,
    residual: bool,
) -> _native.Executor:
    """Return an executor that runs ``program``; raises ``ValueError``.

    ``provider``: ``auto`` or a name of ``_native.providers()``. ``residual``: int8 activations have a second
    term for what rounding left.
    """
    executor = _native.Executor(team, provider, kv, residual=residual)
    ids: dict[str, int] = {}

    def buffer(spec: Buffer) -> int:
        if spec.name not in ids:
            ids[spec.name] = executor.buffer(spec.cols, logits=spec.space is RowSpace.LOGITS)
        return ids[spec.name]

    for op in program.ops:
        _append(executor, op, weights, {b.name: buffer(b) for b in _buffers(op)})
    return executor


def _buffers(op: Op) -> tuple[Buffer, ...]:
    match op:
        case Embed() | Angles():
            return (op.out,)
        case SelectRows() | RmsNorm() | Logits():
            return (op.source, op.out)
        case Linear():
            return (op.source, *(piece.out for piece in op.pieces))
        case Rope():
            return (op.q, op.k, op.v, op.angles)
        case Attention():
            return (op.q, op.out)
        case Gate():
            return (op.gate, op.up)
        case Add():
            return (op.target, op.source)
        case _:
            assert_never(op)


def _append(executor: _native.Executor, op: Op, weights: LoadedWeights, ids: Mapping[str, int]) -> None:
    match op:
        case Embed():
            executor.embed(weights.matrix(op.table), ids[op.out.name], op.scale)
        case SelectRows():
            executor.select_rows(ids[op.source.name], ids[op.out.name])
        case RmsNorm():
            executor.norm(ids[op.source.name], weights.vector(op.weight), ids[op.out.name], op.eps)
        case Linear():
            executor.linear(
                ids[op.source.name],
                [weights.matrix(piece.weight) for piece in op.pieces],
                [ids[piece.out.name] for piece in op.pieces],
                [weights.vector(piece.bias) for piece in op.pieces],
                accumulate=op.accumulate,
            )
        case Angles():
            executor.angles(list(op.frequencies), ids[op.out.name])
        case Rope():
            executor.rope(
                q=ids[op.q.name],
                k=ids[op.k.name],
                v=ids[op.v.name],
                angles=ids[op.angles.name],
                heads=op.heads.n_heads,
                kv_heads=op.heads.n_kv_heads,
                head_dim=op.heads.head_dim,
                layer=op.layer,
                adjacent=op.adjacent,
                q_scale=op.q_scale,
                q_norm=weights.vector(op.q_norm),
                k_norm=weights.vector(op.k_norm),
                eps=op.eps,
            )
        case Attention():
            executor.attention(
                q=ids[op.q.name],
                out=ids[op.out.name],
                heads=op.heads.n_heads,
                kv_heads=op.heads.n_kv_heads,
                head_dim=op.heads.head_dim,
                layer=op.layer,
                window=op.window,
            )
        case Gate():
            executor.gate(op.activation, ids[op.gate.name], ids[op.up.name])
        case Add():
            executor.add(ids[op.target.name], ids[op.source.name])
        case Logits():
            executor.logits(ids[op.source.name], weights.matrix(op.weight), ids[op.out.name])
        case _:
            assert_never(op)
