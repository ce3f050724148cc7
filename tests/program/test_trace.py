"""What a traced program looks like, and what the builder refuses to trace."""

from pathlib import Path
from typing import Any

import pytest

from ferrite.gguf import GGUFError, open_gguf
from ferrite.models import ARCHITECTURES, trace_model
from ferrite.program.builder import LARGEST_DIMENSION, ProgramBuilder
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
from ferrite.program.weights import matrix_names, multiplied_names, vector_names
from tests.models.files import Parts
from tests.reference.tiny import write_tiny_model


def line(op: Op) -> str:
    """One op as an assignment; only what the eye should check."""
    match op:
        case Embed():
            return f"{op.out.name} = {op.scale:g} * {op.table}[token]"
        case SelectRows():
            return f"{op.out.name} = rows({op.source.name})"
        case RmsNorm():
            return f"{op.out.name} = norm({op.source.name}, {op.weight}, {op.eps:.0e})"
        case Linear():
            sign = "+=" if op.accumulate else "="
            bias = {True: " + bias", False: ""}
            products = [
                f"{p.out.name} {sign} {op.source.name} @ {p.weight}{bias[p.bias is not None]}"
                for p in op.pieces
            ]
            return "; ".join(products)
        case Angles():
            return f"{op.out.name} = position * [1 .. {op.frequencies[-1]:.2e}]"
        case Rope():
            norms = f", {op.q_norm}, {op.k_norm}" if op.q_norm else ""
            pairs = "adjacent" if op.adjacent else "halves"
            scaled = f"{op.q.name} * {op.q_scale:g}"
            return f"rope.{op.layer}({scaled}, {op.k.name}, {op.angles.name}, {pairs}{norms})"
        case Attention():
            return f"{op.out.name} = attention.{op.layer}({op.q.name}, window {op.window})"
        case Gate():
            return f"{op.gate.name} = {op.activation}({op.gate.name}) * {op.up.name}"
        case Add():
            return f"{op.target.name} += {op.source.name}"
        case Logits():
            return f"{op.out.name} = {op.source.name} @ {op.weight}"


def traced(path: Path, architecture: Any, **options: Any) -> Program:
    write_tiny_model(path, architecture, with_tokenizer=False, **options)
    with open_gguf(path) as file:
        return trace_model(file)


LLAMA = """
residual = 1 * token_embd.weight[token]
angles = position * [1 .. 1.33e-04]
normed = norm(residual, blk.0.attn_norm.weight, 1e-06)
q = normed @ blk.0.attn_q.weight; k = normed @ blk.0.attn_k.weight; v = normed @ blk.0.attn_v.weight
rope.0(q * 0.125, k, angles, adjacent)
attention = attention.0(q, window 0)
residual += attention @ blk.0.attn_output.weight
normed = norm(residual, blk.0.ffn_norm.weight, 1e-06)
gate = normed @ blk.0.ffn_gate.weight; up = normed @ blk.0.ffn_up.weight
gate = silu(gate) * up
residual += gate @ blk.0.ffn_down.weight
last = rows(residual)
last_normed = norm(last, output_norm.weight, 1e-06)
logits = last_normed @ output.weight
"""

GEMMA3_LAST_LAYER = """
normed = norm(residual, blk.5.attn_norm.weight, 1e-06)
q = normed @ blk.5.attn_q.weight; k = normed @ blk.5.attn_k.weight; v = normed @ blk.5.attn_v.weight
rope.5(q * 0.125, k, global angles, halves, blk.5.attn_q_norm.weight, blk.5.attn_k_norm.weight)
attention = attention.5(q, window 0)
out = attention @ blk.5.attn_output.weight
post = norm(out, blk.5.post_attention_norm.weight, 1e-06)
residual += post
normed = norm(residual, blk.5.ffn_norm.weight, 1e-06)
gate = normed @ blk.5.ffn_gate.weight; up = normed @ blk.5.ffn_up.weight
gate = gelu_tanh(gate) * up
out = gate @ blk.5.ffn_down.weight
post = norm(out, blk.5.post_ffw_norm.weight, 1e-06)
residual += post
last = rows(residual)
last_normed = norm(last, output_norm.weight, 1e-06)
logits = last_normed @ token_embd.weight
"""


def test_a_llama_program_reads_like_the_paper(tmp_path: Path) -> None:
    program = traced(tmp_path / "m.gguf", "llama", n_layers=1)
    assert [line(op) for op in program.ops] == LLAMA.strip().splitlines()
    assert (program.architecture, program.n_layers, program.vocab_size) == ("llama", 1, 271)
    assert program.context_length == 256


def test_a_qwen2_program_is_llamas_with_biases_and_halves(tmp_path: Path) -> None:
    program = traced(tmp_path / "m.gguf", "qwen2", n_layers=1)
    expected = LLAMA.replace("adjacent", "halves")
    for name in ("attn_q", "attn_k", "attn_v"):
        expected = expected.replace(f"{name}.weight", f"{name}.weight + bias")
    assert [line(op) for op in program.ops] == expected.strip().splitlines()


def test_a_gemma3_program_has_five_windows_to_one_global_layer(tmp_path: Path) -> None:
    program = traced(tmp_path / "m.gguf", "gemma3", n_layers=6, tied_output=True)
    lines = [line(op) for op in program.ops]
    assert lines[:3] == [
        "residual = 16 * token_embd.weight[token]",
        "global angles = position * [1 .. 1.54e-06]",
        "local angles = position * [1 .. 1.33e-04]",
    ]
    assert lines[-16:] == GEMMA3_LAST_LAYER.strip().splitlines()
    windows = [op.window for op in program.ops if isinstance(op, Attention)]
    assert windows == [16, 16, 16, 16, 16, 0]
    angles = [op.angles.name for op in program.ops if isinstance(op, Rope)]
    assert angles == ["local angles"] * 5 + ["global angles"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_of_a_file_is_read(tmp_path: Path, architecture: str) -> None:
    path = tmp_path / "m.gguf"
    program = traced(path, architecture, rope_freq_factors=architecture == "llama")
    with open_gguf(path) as file:
        names = set(file.tensors) - {"rope_freqs.weight"}
    assert {*matrix_names(program), *vector_names(program)} == names
    assert set(multiplied_names(program)) == set(matrix_names(program)) - {"token_embd.weight"}


def test_a_tied_output_is_one_matrix_that_every_step_reads(tmp_path: Path) -> None:
    program = traced(tmp_path / "m.gguf", "llama", tied_output=True)
    assert matrix_names(program).count("token_embd.weight") == 1
    assert "token_embd.weight" in multiplied_names(program)


def test_llama3_factors_slow_single_pairs(tmp_path: Path) -> None:
    plain = traced(tmp_path / "plain.gguf", "llama")
    scaled = traced(tmp_path / "scaled.gguf", "llama", rope_freq_factors=True)
    (before,), (after,) = (
        [op.frequencies for op in program.ops if isinstance(op, Angles)] for program in (plain, scaled)
    )
    ratios = [b / a for b, a in zip(before, after, strict=True)]
    assert all(1 <= ratio <= 8 for ratio in ratios)
    assert len(set(ratios)) == len(ratios)


def test_only_the_27b_gemma_scales_queries_by_its_width(tmp_path: Path) -> None:
    sizes = {"n_embd": 64, "n_heads": 2, "n_kv_heads": 1, "head_size": 64, "n_ff": 32}
    for n_layers, scale in ((1, 64**-0.5), (62, 32**-0.5)):
        program = traced(tmp_path / "m.gguf", "gemma3", n_layers=n_layers, **sizes)
        scales = {op.q_scale for op in program.ops if isinstance(op, Rope)}
        assert list(scales) == [pytest.approx(scale)]


def builder(path: Path, **shapes: tuple[int, ...]) -> ProgramBuilder:
    """A builder over a file of zero tensors; ``a_weight`` stands for ``a.weight``."""
    parts = Parts()
    for name, shape in shapes.items():
        parts.set_tensor(name.replace("_", "."), shape)
    return ProgramBuilder(open_gguf(parts.write(path)))


def test_a_buffer_has_one_shape(tmp_path: Path) -> None:
    b = builder(tmp_path / "m.gguf", a_weight=(8, 4), b_weight=(8, 5))
    source = Buffer("x", 8)
    b.linear(source, [("a", "out", 4)])
    with pytest.raises(ValueError, match="buffer out is used with two shapes"):
        b.linear(source, [("b", "out", 5)])
    with pytest.raises(ValueError, match="buffer out is used with two shapes"):
        b.linear(Buffer("y", 8, RowSpace.LOGITS), [("a", "out", 4)])


def test_tensors_must_have_the_shapes_the_ops_need(tmp_path: Path) -> None:
    b = builder(tmp_path / "m.gguf", a_weight=(8, 4), a_bias=(5,), norm=(7,))
    source = Buffer("x", 8)
    with pytest.raises(GGUFError, match=r"tensor 'a\.weight' has shape \[8, 4\], expected \[8, 3\]"):
        b.linear(source, [("a", "out", 3)])
    with pytest.raises(GGUFError, match=r"tensor 'a\.bias' has shape \[5\], expected \[4\]"):
        b.linear(source, [("a", "out", 4)])
    with pytest.raises(GGUFError, match=r"tensor 'norm' has shape \[7\], expected \[8\]"):
        b.norm(source, "norm", 1e-6, out="normed")
    with pytest.raises(GGUFError, match=r"tensor 'missing\.weight' is missing"):
        b.linear_add(source, "missing", source)


def test_a_dimension_is_bounded(tmp_path: Path) -> None:
    b = builder(tmp_path / "m.gguf", a_weight=(1, LARGEST_DIMENSION + 1))
    with pytest.raises(GGUFError, match="above 1048576"):
        b.embed("a.weight", 1, LARGEST_DIMENSION + 1)


def test_a_program_ends_only_when_every_tensor_was_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_tiny_model(path, "llama", n_layers=1, with_tokenizer=False)
    with open_gguf(path) as file:
        b = ProgramBuilder(file)
        b.embed("token_embd.weight", 256, 271)
        heads = next(op.heads for op in trace_model(file).ops if isinstance(op, Rope))
        with pytest.raises(GGUFError, match="is not part of the toy architecture"):
            b.program(architecture="toy", heads=heads, n_layers=0, vocab_size=271, context_length=1)
        for name in file.tensors:
            b.ignore(name)
        program = b.program(architecture="toy", heads=heads, n_layers=0, vocab_size=271, context_length=1)
    assert [line(op) for op in program.ops] == ["residual = 1 * token_embd.weight[token]"]
