"""Step for step the results of torch.optim, for every option that both have."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tdfunc import TensorDict, optim
from tests.cases import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = 20
DTYPES = [torch.float32, torch.float64]


def start(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"a": (), "b": (3,), "c": (4, 2), "d": (0, 2)}
    return {
        key: torch.randn(shape, generator=generator, dtype=dtype)
        for key, shape in shapes.items()
    }


def gradients(
    params: dict[str, torch.Tensor], seed: int
) -> Iterator[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        yield {
            key: torch.randn(x.shape, generator=generator, dtype=x.dtype)
            for key, x in params.items()
        }


def torch_steps(
    make: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
    params: dict[str, torch.Tensor],
    schedule: Callable[[int], float] | None = None,
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the parameters after every step of torch's optimizer."""
    leaves = {key: x.clone().requires_grad_() for key, x in params.items()}
    optimizer = make(list(leaves.values()), **options)
    for step, grads in enumerate(gradients(params, 1)):
        if schedule is not None:
            optimizer.param_groups[0]["lr"] = schedule(step)
        for key, x in leaves.items():
            x.grad = grads[key].clone()
        optimizer.step()
        yield {key: x.detach().clone() for key, x in leaves.items()}


def our_steps(
    tx: optim.GradientTransformation, params: Any, wrap: Callable[[Any], Any]
) -> Iterator[Any]:
    """Yield the parameters after every step of ours."""
    tree = wrap(params)
    state = tx.init(tree)
    for grads in gradients(params, 1):
        updates, state = tx.update(wrap(grads), state, tree)
        tree = optim.apply_updates(tree, updates)
        yield tree


def check(
    tx: optim.GradientTransformation,
    make: Any,
    options: dict[str, Any],
    dtype: torch.dtype,
    wrap: Callable[[Any], Any] = TensorDict,
    schedule: Callable[[int], float] | None = None,
) -> None:
    params = start(dtype)
    exact = {torch.float32: 2e-6, torch.float64: 1e-13}
    tolerance = exact.get(dtype, 1e-5)
    theirs = torch_steps(make, options, params, schedule)
    for expected, got in zip(theirs, our_steps(tx, params, wrap), strict=True):
        for key, x in expected.items():
            torch.testing.assert_close(got[key], x, rtol=tolerance, atol=tolerance)


def table(**options: list[Any]) -> list[dict[str, Any]]:
    """Return every combination of the options."""
    return [
        dict(zip(options, values, strict=True)) for values in product(*options.values())
    ]


def show(options: Any) -> str:
    if isinstance(options, dict):
        return ",".join([f"{key}={value}" for key, value in options.items()])
    return str(options)


SGD = [
    row
    for row in table(
        momentum=[0.0, 0.9],
        dampening=[0.0, 0.3],
        weight_decay=[0.0, 0.1],
        nesterov=[False, True],
        maximize=[False, True],
    )
    if not row["nesterov"] or (row["momentum"] and not row["dampening"])
]
ADAM = table(
    betas=[(0.9, 0.999), (0.0, 0.5)],
    eps=[1e-8, 1e-3],
    weight_decay=[0.0, 0.1],
    amsgrad=[False, True],
    maximize=[False, True],
)
RMSPROP = table(
    alpha=[0.99, 0.5],
    weight_decay=[0.0, 0.1],
    momentum=[0.0, 0.9],
    centered=[False, True],
    maximize=[False, True],
)
ADAGRAD = table(
    lr_decay=[0.0, 0.1],
    weight_decay=[0.0, 0.1],
    initial_accumulator_value=[0.0, 0.5],
    eps=[1e-10, 1e-2],
    maximize=[False, True],
)

PAIRS = [
    ("sgd", SGD),
    ("adam", ADAM),
    ("adamw", ADAM),
    ("rmsprop", RMSPROP),
    ("adagrad", ADAGRAD),
]
THEIRS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
ROWS = [(name, options) for name, rows in PAIRS for options in rows]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "options"), ROWS, ids=show)
def test_steps_are_those_of_torch(
    name: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    tx = getattr(optim, name)(0.05, **options)

    check(tx, THEIRS[name], {"lr": 0.05, **options}, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "options"), ROWS, ids=show)
def test_steps_without_kernels_are_those_of_torch(
    name: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    """A leaf that requires a gradient makes the update plain arithmetic."""
    lr = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)

    check(
        getattr(optim, name)(lr, **options),
        THEIRS[name],
        {"lr": 0.05, **options},
        dtype,
        lambda tree: {key: x.detach() for key, x in tree.items()},
    )


@pytest.mark.parametrize("name", THEIRS)
def test_defaults_are_those_of_torch(name: str) -> None:
    check(getattr(optim, name)(), THEIRS[name], {}, torch.float64)


@pytest.mark.parametrize("name", THEIRS)
def test_complex_parameters_are_pairs_as_in_torch(name: str) -> None:
    options = {"weight_decay": 0.1}
    tx = getattr(optim, name)(0.05, **options)

    check(tx, THEIRS[name], {"lr": 0.05, **options}, torch.complex128)


@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize(
    "wrap",
    [TensorDict, dict, lambda tree: {"n": list(tree.values())}],
    ids=["TensorDict", "dict", "nested"],
)
def test_any_pytree_gives_the_same(name: str, wrap: Any) -> None:
    params = start(torch.float64)
    tx = getattr(optim, name)(0.05)
    expected = list(torch_steps(THEIRS[name], {"lr": 0.05}, params))[-1]

    *_, got = our_steps(tx, params, wrap)

    values = got["n"] if "n" in got else [got[key] for key in expected]
    for x, y in zip(values, expected.values(), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("name", THEIRS)
def test_a_schedule_is_the_rate_of_each_step(name: str) -> None:
    tx = getattr(optim, name)(optim.linear(0.1, 0.0, 15))

    def schedule(step: int) -> float:
        return 0.1 * max(0.0, 1 - step / 15)

    check(tx, THEIRS[name], {"lr": 0.1}, torch.float64, schedule=schedule)


@pytest.mark.parametrize("name", THEIRS)
def test_a_rate_in_a_tensor_is_that_number(name: str) -> None:
    lr = torch.tensor(0.05, dtype=torch.float64)

    check(getattr(optim, name)(lr), THEIRS[name], {"lr": 0.05}, torch.float64)


def test_gradients_and_state_may_lie_anyhow_in_memory() -> None:
    """The fused kernel does not look at strides."""
    params = torch.arange(6.0).reshape(2, 3)
    tx = optim.adam(0.1)
    expected, _ = tx.update(params + 1, tx.init(params))
    strange = (params + 1).t().contiguous().t()
    assert not strange.is_contiguous()

    got, state = tx.update(strange, tx.init(strange))

    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(state.mean, 0.1 * (params + 1))
    negative = torch.complex(torch.zeros(3), torch.ones(3)).conj().imag
    assert negative.is_neg()
    updates, _ = tx.update(negative, tx.init(negative))
    torch.testing.assert_close(updates, torch.full((3,), 0.1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_dtype(dtype: torch.dtype) -> None:
    params = TensorDict(
        {"w": torch.ones(3, dtype=dtype), "s": torch.ones((), dtype=dtype)}
    )
    for name in (*THEIRS, "lion", "lamb"):
        tx = getattr(optim, name)(0.1)
        updates, state = tx.update(params, tx.init(params), params)
        assert {dtype} == {updates["w"].dtype, updates["s"].dtype}
        assert dtype == optim.apply_updates(params, updates)["w"].dtype
        leaves = pytree.tree_leaves(state)
        assert {dtype} >= {x.dtype for x in leaves if x.is_floating_point()}


def test_moments_keep_the_dtype_of_the_parameters() -> None:
    params = {"w": torch.ones(3)}
    tx = optim.adam(0.1)

    updates, state = tx.update({"w": torch.ones(3).bfloat16()}, tx.init(params))

    assert torch.float32 == state.mean["w"].dtype == updates["w"].dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("name", "options"),
    [row for row in ROWS if row[0].startswith("adam")],
    ids=show,
)
def test_whole_steps_are_those_of_torch(
    name: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    tx, params = getattr(optim, name)(0.05, **options), TensorDict(start(dtype))
    state = tx.init(params)
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-13}[dtype]
    theirs = torch_steps(THEIRS[name], {"lr": 0.05, **options}, start(dtype))
    for expected, grads in zip(theirs, gradients(start(dtype), 1), strict=True):
        held = [*params.values(), *pytree.tree_leaves(state)]
        before = fingerprint(held)
        params, state = optim.step(tx, TensorDict(grads), state, params)
        assert before == fingerprint(held)
        for key, x in expected.items():
            torch.testing.assert_close(params[key], x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [*THEIRS, "lion", "lamb"])
@pytest.mark.parametrize("kind", ["plain", "requires grad", "complex", "two dtypes"])
def test_a_whole_step_is_update_and_apply(name: str, kind: str) -> None:
    params = start(torch.complex128 if kind == "complex" else torch.float64)
    if kind == "requires grad":
        params = {key: x.requires_grad_() for key, x in params.items()}
    elif kind == "two dtypes":
        params["b"] = params["b"].float()
    tx = getattr(optim, name)(0.1)
    state = tx.init(params)

    got, new = optim.step(tx, params, state, params)

    updates, other = tx.update(params, state, params)
    expected = optim.apply_updates(params, updates)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        pytree.tree_leaves(new), pytree.tree_leaves(other), equal_nan=True
    )


def test_whole_steps_map_differentiate_and_compile() -> None:
    params, tx = torch.linspace(-1, 1, 6, dtype=torch.float64), optim.adamw(0.1)

    def once(x: torch.Tensor) -> torch.Tensor:
        return optim.step(tx, x**3, tx.init(x), x)[0]

    mapped = torch.vmap(once)(params.reshape(3, 2))
    torch.testing.assert_close(mapped.reshape(-1), once(params))
    torch.autograd.gradcheck(once, params.clone().requires_grad_())
    compiled = torch.compile(once, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(params), once(params))
