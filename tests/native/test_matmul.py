"""Matrix products through the binding: every provider against ``portable``, and against float64."""

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite import _native

Type = gguf.GGMLQuantizationType
FLOATS = (Type.F32, Type.F16, Type.BF16)
TYPES = (*FLOATS, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.Q4_K, Type.Q5_K, Type.Q6_K)
# Where the float16 scales of a block are; every other byte may be anything.
SCALE_BYTES = {Type.Q4_1: (0, 2), Type.Q5_1: (0, 2), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,)}

TEAM = _native.Team(2)
OTHERS = [provider for provider in _native.providers() if provider != "portable"]
EPSILON = float(np.finfo(np.float32).eps) / 2


def random_file(rng: np.random.Generator, type_: Type, rows: int, cols: int) -> npt.NDArray[np.uint8]:
    """A matrix as GGUF stores it, of any quants and scales between 2^-12 and 2^-3."""
    if type_ in FLOATS:
        values = rng.standard_normal((rows, cols)).astype(np.float32)
        return gguf.quants.quantize(values, type_).view(np.uint8).reshape(-1)
    block_cols, block_bytes = gguf.GGML_QUANT_SIZES[type_]
    blocks = rng.integers(0, 256, (rows * cols // block_cols, block_bytes), dtype=np.uint8)
    for at in SCALE_BYTES.get(type_, (0,)):
        scales = np.ldexp(rng.uniform(1, 2, len(blocks)), rng.integers(-12, -3, len(blocks)))
        signed = (scales * rng.choice([-1, 1], len(blocks))).astype("<f2")
        blocks[:, at : at + 2] = signed.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def values(file: npt.NDArray[np.uint8], type_: Type, rows: int, cols: int) -> npt.NDArray[np.float64]:
    return dequantize(file.reshape(rows, -1), type_).reshape(rows, cols).astype(np.float64)


@st.composite
def products(draw: st.DrawFn) -> tuple[Type, int, int, int, int]:
    type_ = draw(st.sampled_from(TYPES))
    block_cols = gguf.GGML_QUANT_SIZES[type_][0]
    cols = (
        draw(st.integers(1, 80)) if block_cols == 1 else block_cols * draw(st.integers(1, 512 // block_cols))
    )
    return type_, draw(st.integers(1, 70)), cols, draw(st.integers(1, 40)), draw(st.integers(0, 2**32))


@given(products())
def test_every_provider_gives_the_portable_bits(product: tuple[Type, int, int, int, int]) -> None:
    type_, rows, cols, tokens, seed = product
    rng = np.random.default_rng(seed)
    weight = _native.Weight.pack(random_file(rng, type_, rows, cols), type_.value, rows, cols, TEAM)
    x = rng.standard_normal((tokens, cols)).astype(np.float32)
    expected = _native.matmul(weight, x, "portable")
    residual = _native.matmul(weight, x, "portable", residual=True)
    for provider in OTHERS:
        assert _native.matmul(weight, x, provider).tobytes() == expected.tobytes(), provider
        assert _native.matmul(weight, x, provider, residual=True).tobytes() == residual.tobytes(), provider


@given(products())
def test_products_are_those_of_the_file(product: tuple[Type, int, int, int, int]) -> None:
    """The error is what int8 activations and float32 accumulation allow, and no more."""
    type_, rows, cols, tokens, seed = product
    rng = np.random.default_rng(seed)
    file = random_file(rng, type_, rows, cols)
    weight = _native.Weight.pack(file, type_.value, rows, cols, TEAM)
    x = rng.standard_normal((tokens, cols)).astype(np.float32)
    w = values(file, type_, rows, cols)
    exact = x.astype(np.float64) @ w.T
    magnitude = np.abs(x).astype(np.float64) @ np.abs(w).T
    for residual, steps in ((False, 127), (True, 127 * 254)):
        if type_ in FLOATS:
            bound = cols * EPSILON * magnitude
        else:
            # An activation is off by half a step at most, a step being a share of its block's largest.
            # What is summed in float32 is d * q and minimum apart, and those do not cancel in the roundings.
            largest = np.abs(x).reshape(tokens, -1, 32).max(axis=2).repeat(32, axis=1).astype(np.float64)
            units = unscaled(file, type_, rows, cols)
            bound = (0.5 / steps) * (largest @ np.abs(w).T) + (cols + 16) * EPSILON * (largest @ units.T)
        for provider in _native.providers():
            got = _native.matmul(weight, x, provider, residual=residual).astype(np.float64)
            assert np.all(np.abs(got - exact) <= bound * (1 + 1e-6)), (provider, residual)


def unscaled(file: npt.NDArray[np.uint8], type_: Type, rows: int, cols: int) -> npt.NDArray[np.float64]:
    """An upper bound of |d * q| + |minimum|: what cancels in a weight and not in its roundings."""
    block_cols, block_bytes = gguf.GGML_QUANT_SIZES[type_]
    blocks = file.reshape(-1, block_bytes)
    factor = {Type.Q4_K: 63 * 15, Type.Q5_K: 63 * 31, Type.Q6_K: 128 * 32, Type.Q8_0: 128}.get(type_, 32)
    largest = np.zeros(len(blocks))
    for at in SCALE_BYTES.get(type_, (0,)):
        largest += factor * np.abs(blocks[:, at : at + 2].copy().view("<f2").reshape(-1).astype(np.float64))
    return np.repeat(largest, block_cols).reshape(rows, cols)


@given(products())
@settings(max_examples=50)
def test_rows_read_back_as_gguf_defines_them(product: tuple[Type, int, int, int, int]) -> None:
    type_, rows, cols, _, seed = product
    file = random_file(np.random.default_rng(seed), type_, rows, cols)
    weight = _native.Weight.pack(file, type_.value, rows, cols, TEAM)
    # Only the order of the additions may differ: one rounding of d * q - minimum.
    expected = values(file, type_, rows, cols)
    bound = EPSILON * 4 * (np.abs(expected) if type_ in FLOATS else unscaled(file, type_, rows, cols))
    for row in range(rows):
        assert np.all(np.abs(weight.row(row) - expected[row]) <= bound[row])


def small_weight() -> _native.Weight:
    return _native.Weight.pack(np.zeros(4 * 6, np.uint8), 0, 2, 3, TEAM)


def test_products_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="width"):
        _native.matmul(small_weight(), np.zeros((1, 4), np.float32), "portable")


def test_an_unknown_provider_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'abacus'"):
        _native.matmul(small_weight(), np.zeros((1, 3), np.float32), "abacus")


@pytest.mark.parametrize(
    "x",
    [
        np.zeros(3, np.float32),
        np.zeros((1, 3, 1), np.float32),
        np.array([["a", "b", "c"]]),
        None,
        "abc",
        [[0.0]],
    ],
)
def test_products_of_what_is_no_matrix_are_refused(x: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        _native.matmul(small_weight(), x, "portable")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n_bytes", "type_number", "rows", "cols"),
    [
        (24, 9, 2, 3),
        (24, 0, 0, 3),
        (24, 0, 2, 0),
        (24, 0, -2, -3),
        (23, 0, 2, 3),
        (28, 0, 2, 3),
        (18, 2, 1, 31),
        (16, 0, 1, 2**62),
        (16, 0, 2**62, 4),
    ],
)
def test_data_that_does_not_fit_its_shape_is_refused(
    n_bytes: int, type_number: int, rows: int, cols: int
) -> None:
    with pytest.raises(ValueError, match=r"weight type|shape"):
        _native.Weight.pack(np.zeros(n_bytes, np.uint8), type_number, rows, cols, TEAM)


def test_arrays_of_another_layout_are_read_right() -> None:
    weight = _native.Weight.pack(np.array([1, 10, 100, -1, 0, 1], "<f4").view(np.uint8), 0, 2, 3, TEAM)
    x = np.array([[1, 2], [3, 4], [5, 6]], np.float64).T[::-1]
    np.testing.assert_array_equal(_native.matmul(weight, x, "portable"), [[642.0, 4.0], [531.0, 4.0]])  # type: ignore[arg-type]


def test_rows_outside_a_weight_are_an_index_error() -> None:
    for row in (-1, 2):
        with pytest.raises(IndexError):
            small_weight().row(row)
