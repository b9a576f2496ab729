"""Draws: values, shapes, dtypes, bounds, errors."""

from __future__ import annotations

import math

import pytest
import torch

from tdfunc import TensorDict, random
from tdfunc.errors import OperandError, OptionError, ShapeError
from tests.random import oracle

KEY = random.key(0)
KEYS = random.split(random.key(1), 6).reshape(2, 3, 2)
LIST: list[int] = KEY.tolist()
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
# One draw of a few elements, and one that torch's generator makes.
SIZES = [(), (0,), (7,), (2, 3, 2), (4095,), (4096,), (5, 1000)]

CONTINUOUS = {
    "uniform": random.uniform,
    "normal": random.normal,
    "exponential": random.exponential,
    "gumbel": random.gumbel,
    "truncated_normal": lambda key, *args, **options: random.truncated_normal(
        key, -1.0, 2.0, *args, **options
    ),
}
P = torch.tensor([0.5, 0.0, 2.0, 1.0])
# Everything that takes a shape, by (key, shape).
SHAPED = {
    **CONTINUOUS,
    "randint": lambda key, shape: random.randint(key, shape, -3, 8),
    "randint, wide": lambda key, shape: random.randint(key, shape, -(2**62), 2**62),
    "bernoulli": lambda key, shape: random.bernoulli(key, 0.3, shape),
    "categorical": lambda key, shape: random.categorical(key, P, shape=shape),
    "choice": lambda key, shape: random.choice(key, 5, shape),
    "choice with p": lambda key, shape: random.choice(key, 4, shape, p=P),
    "complex normal": lambda key, shape: random.normal(key, shape, torch.complex64),
    "bfloat16 normal": lambda key, shape: random.normal(key, shape, torch.bfloat16),
    "float64 normal": lambda key, shape: random.normal(key, shape, torch.float64),
}
ORDERS = {
    "permutation": lambda key: random.permutation(key, 9),
    "permutation, many": lambda key: random.permutation(key, 5000),
    "choice without replacement": lambda key: random.choice(key, 9, [2, 2], False),
    "choice without, with p": lambda key: random.choice(key, 4, [3], False, P),
}


# Values


def test_small_draws_are_their_formulas() -> None:
    """Against plain Python: integers exactly, floats to rounding."""

    def close(found: torch.Tensor, expected: list[float], rtol: float) -> None:
        wanted = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(found.double(), wanted, rtol=rtol, atol=rtol)

    f64 = torch.float64
    words = oracle.words(LIST, 9)
    signed = [word - (1 << 64) if word >> 63 else word for word in words]
    assert signed == random.randint(KEY, 9, -(2**63), 2**63).tolist()
    assert [n % 10 - 3 for n in signed] == random.randint(KEY, 9, -3, 7).tolist()
    assert oracle.uniform(LIST, 9, 24) == random.uniform(KEY, 9).tolist()
    assert oracle.uniform(LIST, 9, 53) == random.uniform(KEY, 9, f64).tolist()
    for dtype, digits in ((torch.float16, 11), (torch.bfloat16, 8)):
        found = random.uniform(KEY, 9, dtype).tolist()
        assert oracle.uniform(LIST, 9, digits) == found
    exponential = oracle.exponential(LIST, 9)
    close(random.exponential(KEY, 9), exponential, 1e-6)
    close(random.exponential(KEY, 9, f64), exponential, 1e-14)
    close(random.gumbel(KEY, 9, f64), [-math.log(x) for x in exponential], 1e-13)
    close(random.normal(KEY, 9), oracle.normal(LIST, 9), 2e-6)
    close(random.normal(KEY, 9, f64), oracle.normal_of_float64(LIST, 9), 1e-13)


def test_wide_integers_are_exact() -> None:
    words = oracle.words(LIST, 8)
    for low, high in ((-5, 2**40), (-(2**63), 2**63 - 1), (0, 2**63), (1, 2**31 + 2)):
        wanted = [
            low + (((a << 64) + b) * (high - low) >> 128)
            for a, b in zip(words[::2], words[1::2], strict=True)
        ]
        assert wanted == random.randint(KEY, 4, low, high).tolist()
        bounds = torch.tensor([low, min(high, 2**63 - 1)])
        if high < 2**63:
            assert wanted == random.randint(KEY, 4, bounds[0], bounds[1]).tolist()
            assert wanted == random.randint(KEY, 4, low, bounds[1]).tolist()
            assert wanted == random.randint(KEY, 4, bounds[0], high).tolist()
    top = random.randint(KEY, 4, 2**63, 2**64, torch.uint64).tolist()
    assert all(2**63 <= x < 2**64 for x in top)


def test_large_draws_are_torchs_with_the_whole_state_of_the_key() -> None:
    from tdfunc.random._generators import twister

    expected = torch.empty(50, 100).normal_(generator=twister(*LIST))
    assert torch.equal(expected, random.normal(KEY, [50, 100]))
    expected = torch.empty(5000).uniform_(generator=twister(*LIST))
    assert torch.equal(expected, random.uniform(KEY, 5000))


# Written down when they were first drawn. Random streams change only with a line in
# the changelog.
GOLDEN = {
    "key": (lambda: KEY, [-4416092070628386715, 8034964082011408461]),
    "split": (lambda: random.split(KEY)[1], [-1453322492355268351, 638016882906609329]),
    "fold_in": (
        lambda: random.fold_in(KEY, 1),
        [-4451036644006214164, 3437067947411480495],
    ),
    "uniform": (
        lambda: random.uniform(KEY, 2),
        [0.1860001087188721, 0.060889482498169],
    ),
    "uniform, large": (
        lambda: random.uniform(KEY, 4096)[-2:],
        [0.6646827459335327, 0.19679105281829834],
    ),
    "normal": (lambda: random.normal(KEY, 2), [0.1952725648880005, 2.058382987976074]),
    "normal, large": (
        lambda: random.normal(KEY, 4096)[-2:],
        [-1.1269904375076294, 1.531455159187317],
    ),
    "normal, float64": (
        lambda: random.normal(KEY, 2, torch.float64),
        [-1.0666936473677506, -1.4243848070838645],
    ),
    "exponential": (
        lambda: random.exponential(KEY, 2),
        [0.2057950794696808, 0.06282217055559158],
    ),
    "exponential, large": (
        lambda: random.exponential(KEY, 4096)[-2:],
        [0.722184956073761, 0.43859627842903137],
    ),
    "gumbel": (lambda: random.gumbel(KEY, 2), [1.5808744430541992, 2.7674472332000732]),
    "truncated_normal": (
        lambda: random.truncated_normal(KEY, -1, 1, 2),
        [-0.5661803483963013, -0.8408217430114746],
    ),
    "randint": (lambda: random.randint(KEY, 4, 0, 100), [80, 96, 40, 89]),
    "randint, large": (
        lambda: random.randint(KEY, 4096, 0, 100)[-4:],
        [67, 89, 2, 77],
    ),
    "bernoulli": (
        lambda: random.bernoulli(KEY, 0.5, 8).int(),
        [1, 1, 0, 1, 0, 1, 0, 1],
    ),
    "permutation": (lambda: random.permutation(KEY, 8), [2, 6, 4, 1, 0, 7, 5, 3]),
    "choice": (lambda: random.choice(KEY, 8, 4), [4, 0, 0, 5]),
    "choice with p": (
        lambda: random.choice(KEY, 8, 4, p=torch.arange(8.0)),
        [7, 7, 4, 6],
    ),
    "choice without": (
        lambda: random.choice(KEY, 8, 4, False, torch.arange(8.0)),
        [7, 1, 5, 3],
    ),
    "categorical": (
        lambda: random.categorical(KEY, torch.zeros(4), shape=6),
        [1, 3, 1, 3, 2, 2],
    ),
    "normal_like": (
        lambda: random.normal_like(KEY, TensorDict({"a": torch.zeros(2)}))["a"],
        [0.7594237327575684, -0.3096401095390320],
    ),
    "normal_like, nested": (
        lambda: random.normal_like(KEY, TensorDict({"n": {"b": torch.zeros(1)}}))[
            "n", "b"
        ],
        [0.7246469855308533],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_streams_are_frozen(name: str) -> None:
    call, values = GOLDEN[name]
    found = call()

    expected = torch.tensor(values, dtype=found.dtype)
    if found.is_floating_point():
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
    else:
        assert torch.equal(expected, found)


# Shapes, dtypes, devices, batches of keys


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", SHAPED)
def test_batches_of_keys_are_the_loop_over_keys(name: str, size) -> None:
    call = SHAPED[name]

    out = call(KEYS, size)

    assert (2, 3, *size) == out.shape
    assert out.is_contiguous()
    for i in range(2):
        for j in range(3):
            one = call(KEYS[i, j], size)
            assert one.shape == size
            assert torch.equal(one, out[i, j])
            assert torch.equal(one, call(KEYS[i, j].clone(), list(size)))


def test_many_keys_are_the_loop_over_keys() -> None:
    """More than one block of the cache holds."""
    keys = random.split(KEY, 3000)
    for name in ("uniform", "normal", "exponential", "gumbel", "randint"):
        out = SHAPED[name](keys, 37)
        for i in (0, 1, 884, 885, 886, 1771, 2999):
            assert torch.equal(SHAPED[name](keys[i], 37), out[i])


@pytest.mark.parametrize("name", ORDERS)
def test_orders_of_batches_of_keys_are_the_loop(name: str) -> None:
    out = ORDERS[name](KEYS)

    for i in range(2):
        for j in range(3):
            assert torch.equal(ORDERS[name](KEYS[i, j]), out[i, j])


def test_no_keys_draw_nothing() -> None:
    for name, call in SHAPED.items():
        assert (0, 3) == call(KEYS[:0, 0], 3).shape, name
        assert (0, 5000) == call(KEYS[:0, 0], 5000).shape, name


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    for size in (100, 5000):
        out = CONTINUOUS[name](KEY, size, dtype)

        assert out.dtype is dtype
        assert bool(out.isfinite().all())
        assert not out.requires_grad


def test_default_dtype_is_torchs() -> None:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        found = [call(KEY, 2).dtype for call in CONTINUOUS.values()]
    finally:
        torch.set_default_dtype(before)

    assert [torch.float64] * len(CONTINUOUS) == found
    assert torch.float32 is random.normal(KEY, 2).dtype


def test_float32_exponentials_are_rounded_float64_ones() -> None:
    for size in (50, 5000):
        for name in ("exponential", "gumbel", "truncated_normal"):
            wide = CONTINUOUS[name](KEY, size, torch.float64)

            assert torch.equal(wide.float(), CONTINUOUS[name](KEY, size))


def test_complex_normals() -> None:
    out = random.normal(KEY, [3, 4], torch.complex128)

    parts = random.normal(KEY, [3, 4, 2], torch.float64) * math.sqrt(0.5)
    torch.testing.assert_close(torch.view_as_real(out), parts)


@pytest.mark.parametrize("name", [*SHAPED, "permutation"])
def test_devices(name: str) -> None:
    calls = {
        "randint": lambda k, s, **d: random.randint(k, s, 0, 3, **d),
        "randint, wide": lambda k, s, **d: random.randint(k, s, 0, 2**40, **d),
        "bernoulli": lambda k, s, **d: random.bernoulli(k, 0.5, s, **d),
        "categorical": lambda k, s, **d: random.categorical(k, P, shape=s, **d),
        **CONTINUOUS,
    }
    if name in calls:
        for size in (3, 5000):
            assert "meta" == calls[name](KEY, size, device="meta").device.type
            assert "cpu" == calls[name](KEY, size, device="cpu").device.type
    on_meta = torch.empty(2, dtype=torch.int64, device="meta")
    call = SHAPED.get(name) or random.permutation
    assert "meta" == call(on_meta, 3).device.type


# Bounds


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [4000, 100_000])
def test_uniform_lies_in_its_half_open_interval(dtype: torch.dtype, size: int) -> None:
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (3.0, 3.01), (1e-3, 4.0), (-2, -1)):
        keys = random.split(KEY, 5)
        out = random.uniform(keys, size, dtype, low, high)
        bounds = torch.tensor([low, high], dtype=dtype)

        assert bool((out >= bounds[0]).all()), (low, high)
        assert bool((out < bounds[1]).all()), (low, high)


def test_uniform_takes_tensors_as_bounds() -> None:
    low, high = torch.tensor([[0.0], [10.0]]), torch.tensor([1.0, 2.0, 30.0])

    out = random.uniform(KEY, [4, 2, 3], minval=low, maxval=high + 20)

    u = random.uniform(KEY, [4, 2, 3])
    torch.testing.assert_close(out, low + u * (high + 20 - low))
    u.requires_grad_()
    low.requires_grad_()
    random.uniform(KEY, [4, 2, 3], minval=low, maxval=50.0).sum().backward()
    assert low.grad is not None
    torch.testing.assert_close(low.grad, (1 - u.detach()).sum((0, 2))[:, None])


def test_truncated_normals_keep_to_far_bounds() -> None:
    for low, high in (
        (5, 6),
        (-9, -8),
        (12, math.inf),
        (-math.inf, -20),
        (-0.01, 0.01),
    ):
        for dtype in FLOATS[:2]:
            out = random.truncated_normal(KEY, low, high, 2000, dtype)

            assert bool(((out >= low) & (out <= high)).all()), (low, high)
            assert len(out.unique()) > 1000, (low, high)


def test_truncated_normal_takes_tensors_as_bounds_and_gives_them_gradients() -> None:
    low = torch.tensor([-1.0, 0.5, -3.0], dtype=torch.float64)
    high = torch.tensor([1.0, 2.5, -1.0], dtype=torch.float64)

    def draw(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return random.truncated_normal(KEY, a, b, [4, 3], torch.float64)

    out = draw(low, high)
    assert bool(((out > low) & (out < high)).all())
    assert (3,) == random.truncated_normal(KEY, low, high).shape
    assert (3,) == random.truncated_normal(KEY, low, 9).shape
    assert torch.autograd.gradcheck(
        draw, (low.requires_grad_(), high.requires_grad_()), eps=1e-7, atol=1e-5
    )


def test_randint_takes_tensors_as_bounds() -> None:
    low = torch.tensor([[0], [100]])
    high = torch.tensor([1, 2, 3]) + 100

    out = random.randint(KEY, [50, 2, 3], low, high)

    assert bool(((out >= low) & (out < high)).all())
    assert bool((out[:, 1, 0] == 100).all())
    small = random.randint(KEY, [50], torch.tensor(-2), 3, torch.int8)
    assert torch.int8 is small.dtype
    assert {-2, -1, 0, 1, 2} == set(small.tolist())


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
)
def test_randint_reaches_both_ends_of_a_dtype(dtype: torch.dtype) -> None:
    held = torch.iinfo(dtype)

    out = random.randint(KEY, 4000, held.min, held.max + 1, dtype)

    assert out.dtype is dtype
    if held.bits == 8:
        assert (held.min, held.max) == (out.min().item(), out.max().item())
    assert 0.45 < (out.double() > (held.max + held.min) / 2).double().mean() < 0.55


def test_bernoulli_of_certain_and_of_small_probabilities() -> None:
    assert bool(random.bernoulli(KEY, 1.0, 5000).all())
    assert not bool(random.bernoulli(KEY, 0.0, 5000).any())
    p = torch.tensor([0.0, 1.0, 0.5])
    out = random.bernoulli(KEY, p, [1000, 3])
    assert (0, 1000) == (int(out[:, 0].sum()), int(out[:, 1].sum()))
    assert (3,) == random.bernoulli(KEY, p).shape
    # float32 would find 2**-24 as often as 0.
    keys = random.split(KEY, 200)
    assert not bool(random.bernoulli(keys, 1e-12, 4000).any())


def test_categorical_moves_the_choices_and_spans_batches() -> None:
    logits = torch.log(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))

    assert [0, 2] == random.categorical(KEY, logits).tolist()
    assert [0, 2] == random.categorical(KEY, logits.T, dim=0).tolist()
    assert [[0, 2]] * 4 == random.categorical(KEY, logits, shape=[4, 2]).tolist()
    assert [2, 2] == random.categorical(KEY, logits[1], shape=2).tolist()
    for dtype in (torch.float64, torch.bfloat16):
        assert [0, 2] == random.categorical(KEY, logits.to(dtype)).tolist()
    assert 0 == random.categorical(KEY, torch.tensor([5])).item()


def test_rows_are_of_a_dim_with_a_name() -> None:
    td = TensorDict({"x": torch.arange(6).view(2, 3)}, [2, 3], names=["b", "t"])

    for name, dim in (("b", 0), ("t", 1)):
        for fn in (random.permutation, random.choice):
            got, expected = fn(KEY, td, dim=name), fn(KEY, td, dim=dim)
            assert torch.equal(got["x"], expected["x"])
            assert got.names == expected.names


def test_what_is_said_to_a_tree_without_batch_works() -> None:
    td = TensorDict({"x": torch.arange(5), "y": torch.arange(5)})

    got = td.apply(lambda x: random.permutation(KEY, x))

    assert torch.equal(got["x"], got["y"])
    assert [0, 1, 2, 3, 4] == got["x"].sort().values.tolist()
    assert torch.equal(got["x"], random.permutation(KEY, td["x"]))


def test_permutations() -> None:
    rows = torch.arange(12.0).reshape(4, 3)
    order = random.permutation(KEY, 4)

    assert list(range(4)) == order.sort().values.tolist()
    assert torch.equal(rows[order], random.permutation(KEY, rows))
    order = random.permutation(KEY, 3)
    assert torch.equal(rows[:, order], random.permutation(KEY, rows, 1))
    assert torch.equal(rows[:, order], random.permutation(KEY, rows, -1))
    td = TensorDict({"x": rows, "n": {"y": rows.int()}, "s": "text"}, [4, 3])
    out = random.permutation(KEY, td, -1)
    assert torch.equal(rows[:, order], out["x"])
    assert torch.equal(rows[:, order].int(), out["n", "y"])
    assert ("text", (4, 3)) == (out["s"], out.batch_size)
    assert (0,) == random.permutation(KEY, 0).shape
    assert (0, 3) == random.permutation(KEY, rows[:0]).shape


def test_choices() -> None:
    rows = torch.arange(12.0).reshape(4, 3)
    index = random.choice(KEY, 4, [2, 5])

    assert torch.equal(rows[index], random.choice(KEY, rows, [2, 5]))
    assert (3,) == random.choice(KEY, rows).shape
    index = random.choice(KEY, 3, 2, False)
    assert 2 == len(index.unique())
    assert torch.equal(rows[:, index], random.choice(KEY, rows, 2, False, dim=1))
    td = TensorDict({"x": rows}, [4])
    assert (2, 5) == random.choice(KEY, td, [2, 5]).batch_size
    never = torch.tensor([0.0, 1.0, 0.0, 0.0])
    assert {1} == set(random.choice(KEY, 4, 1000, p=never).tolist())
    some = torch.tensor([0.0, 1e-30, 1.0, 0.0])
    assert [1, 2] == sorted(random.choice(KEY, 4, 2, False, some).tolist())
    assert [0, 1, 2, 3] == sorted(random.choice(KEY, 4, 4, False).tolist())
    assert (0,) == random.choice(KEY, 0, 0).shape


# Errors

BAD_CALLS = {
    "shape": (lambda: random.normal(KEY, [2, -1]), OptionError, "negative dim"),
    "shape kind": (
        lambda: random.uniform(KEY, "ab"),  # pyright: ignore[reportArgumentType]
        OptionError,
        "shape is not a size",
    ),
    "shape float": (
        lambda: random.gumbel(KEY, 1.5),  # pyright: ignore[reportArgumentType]
        OptionError,
        "shape is not a size",
    ),
    "dtype": (
        lambda: random.normal(KEY, 2, torch.int64),
        OptionError,
        "a floating dtype of 16 to 64 bits - got torch.int64 - to fix: dtype=torch.",
    ),
    "dtype kind": (lambda: random.uniform(KEY, 2, "f4"), OptionError, "got 'f4'"),  # pyright: ignore[reportArgumentType]
    "complex uniform": (
        lambda: random.uniform(KEY, 2, torch.complex64),
        OptionError,
        "a floating dtype",
    ),
    "8 bits": (
        lambda: random.normal(KEY, 2, torch.float8_e4m3fn),
        OptionError,
        "16 to 64 bits - got torch.float8_e4m3fn",
    ),
    "complex halves": (
        lambda: random.normal(KEY, 2, torch.complex32),
        OptionError,
        "16 to 64 bits - got torch.complex32",
    ),
    "device": (lambda: random.normal(KEY, 2, device="nowhere"), OptionError, "device"),
    "uniform order": (
        lambda: random.uniform(KEY, 2, minval=1, maxval=1),
        OptionError,
        "expected minval < maxval - got minval=1, maxval=1 - to fix",
    ),
    "uniform nan": (
        lambda: random.uniform(KEY, 2, minval=math.nan),
        OptionError,
        "minval=nan",
    ),
    "uniform bound": (
        lambda: random.uniform(KEY, 2, minval="0"),  # pyright: ignore[reportArgumentType]
        OperandError,
        "minval is a number or a tensor",
    ),
    "uniform bound shape": (
        lambda: random.uniform(KEY, 3, maxval=torch.ones(2, 3)),
        ShapeError,
        "maxval does not broadcast .* [3] - got shape [2, 3] - to fix: shape=[2, 3]",
    ),
    "truncated order": (
        lambda: random.truncated_normal(KEY, 2, 1),
        OptionError,
        "expected lower < upper - got lower=2, upper=1",
    ),
    "truncated dtype": (
        lambda: random.truncated_normal(KEY, 0, 1, 2, torch.int8),
        OptionError,
        "a floating dtype",
    ),
    "truncated bound shape": (
        lambda: random.truncated_normal(KEY, torch.ones(3), 2, 2),
        ShapeError,
        "lower does not broadcast",
    ),
    "truncated bounds": (
        lambda: random.truncated_normal(KEY, torch.zeros(2), torch.ones(3)),
        ShapeError,
        "the bounds do not broadcast .* [2] - got shape [3] - to fix",
    ),
    "randint order": (
        lambda: random.randint(KEY, 2, 3, 3),
        OptionError,
        "expected minval < maxval - got minval=3, maxval=3",
    ),
    "randint bound": (
        lambda: random.randint(KEY, 2, 0, 2.5),  # pyright: ignore[reportArgumentType]
        OperandError,
        "maxval is an integer .* got 2.5",
    ),
    "randint bound dtype": (
        lambda: random.randint(KEY, 2, torch.tensor(0.0), 2),
        OperandError,
        "minval is an integer .* got torch.float32",
    ),
    "randint dtype": (
        lambda: random.randint(KEY, 2, 0, 2, torch.float32),
        OptionError,
        "an integer dtype - got torch.float32",
    ),
    "randint range": (
        lambda: random.randint(KEY, 2, 0, 300, torch.uint8),
        OptionError,
        "torch.uint8 does not hold .* 0 to 256 - got 0 and 300 - to fix",
    ),
    "randint bound shape": (
        lambda: random.randint(KEY, 2, torch.zeros(3, dtype=torch.int64), 4),
        ShapeError,
        "minval does not broadcast",
    ),
    "bernoulli p": (
        lambda: random.bernoulli(KEY, 1.5),
        OptionError,
        "0 to 1 - got 1.5",
    ),
    "bernoulli negative": (
        lambda: random.bernoulli(KEY, torch.tensor([0.5, -0.5])),
        OptionError,
        "p is no probability - expected 0 to 1 - got -0.5 to 0.5",
    ),
    "bernoulli nan": (
        lambda: random.bernoulli(KEY, torch.tensor(math.nan)),
        OptionError,
        "p is no probability",
    ),
    "bernoulli shape": (
        lambda: random.bernoulli(KEY, torch.tensor([0.5, 0.5]), 3),
        ShapeError,
        "p does not broadcast",
    ),
    "categorical kind": (
        lambda: random.categorical(KEY, [0.0, 1.0]),  # pyright: ignore[reportArgumentType]
        OperandError,
        "logits are a tensor .* got list - to fix",
    ),
    "categorical empty": (
        lambda: random.categorical(KEY, torch.zeros(3, 0)),
        ShapeError,
        "no choices .* shape [3, 0], dim=-1 - to fix",
    ),
    "categorical 0-d": (
        lambda: random.categorical(KEY, torch.tensor(0.0)),
        ShapeError,
        "no choices",
    ),
    "categorical dim": (
        lambda: random.categorical(KEY, torch.zeros(2), dim=1),
        ShapeError,
        "dim=1",
    ),
    "categorical shape": (
        lambda: random.categorical(KEY, torch.zeros(2, 4), shape=3),
        ShapeError,
        "the batch of the logits does not broadcast",
    ),
    "permutation kind": (
        lambda: random.permutation(KEY, [1, 2]),  # pyright: ignore[reportArgumentType]
        OperandError,
        "an int, a tensor or a tree - got list - to fix: random.permutation(",
    ),
    "permutation negative": (
        lambda: random.permutation(KEY, -1),
        OptionError,
        "expected >= 0 - got -1",
    ),
    "permutation 0-d": (
        lambda: random.permutation(KEY, torch.tensor(1)),
        ShapeError,
        "no such dim .* to fix",
    ),
    "permutation dim": (
        lambda: random.permutation(KEY, torch.zeros(2), 1),
        ShapeError,
        "-1 to 0 - got 1",
    ),
    "permutation feature dim": (
        lambda: random.permutation(KEY, TensorDict({"x": torch.zeros(2, 3)}, 2), 1),
        ShapeError,
        "no such dim",
    ),
    "permutation no batch": (
        lambda: random.permutation(KEY, TensorDict({"x": torch.zeros(3)})),
        ShapeError,
        "at least a dim .* td.apply(lambda x: random.permutation(key, x))",
    ),
    "permutation name": (
        lambda: random.permutation(KEY, TensorDict({"x": torch.zeros(3)}, 3), "t"),
        ShapeError,
        "no batch dim is named 't' .* to fix",
    ),
    "permutation name of a tensor": (
        lambda: random.permutation(KEY, torch.zeros(3), "t"),
        ShapeError,
        "no such dim of rows - expected -1 to 0 - got 't'",
    ),
    "choice dim kind": (
        lambda: random.choice(KEY, torch.zeros(3), dim=0.0),  # pyright: ignore[reportArgumentType]
        ShapeError,
        "no such dim of rows .* got 0.0",
    ),
    "choice empty": (
        lambda: random.choice(KEY, 0, 1),
        ShapeError,
        "no rows to choose from - expected at least one row - got 0 - to fix",
    ),
    "choice empty rows": (
        lambda: random.choice(KEY, torch.zeros(0, 2)),
        ShapeError,
        "no rows to choose from",
    ),
    "choice too few": (
        lambda: random.choice(KEY, 3, [2, 2], False),
        ShapeError,
        "at most 3 - got shape [2, 2], which is 4 - to fix: replace=True",
    ),
    "choice p kind": (
        lambda: random.choice(KEY, 2, p=[0.5, 0.5]),  # pyright: ignore[reportArgumentType]
        OperandError,
        "p is a tensor .* got list - to fix: p=torch.tensor(p)",
    ),
    "choice p shape": (
        lambda: random.choice(KEY, 3, p=torch.ones(2)),
        ShapeError,
        "shape [3] - got shape [2]",
    ),
    "choice p negative": (
        lambda: random.choice(KEY, 2, p=torch.tensor([1.0, -1.0])),
        OptionError,
        "not negative - got -1.0 to 1.0",
    ),
    "choice p zero": (
        lambda: random.choice(KEY, 2, p=torch.zeros(2)),
        OptionError,
        "not zero - expected at least 1 - got 0 - to fix: p=torch.ones(2)",
    ),
    "choice p too few": (
        lambda: random.choice(KEY, 3, 2, False, torch.tensor([1.0, 0.0, 0.0])),
        OptionError,
        "expected at least 2 - got 1",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_call_is_refused(name: str) -> None:
    call, error, text = BAD_CALLS[name]

    with pytest.raises(error) as caught:
        call()

    at = 0
    for part in text.split(" .* "):
        assert part in str(caught.value)[at:], str(caught.value)
        at = str(caught.value).index(part, at)
