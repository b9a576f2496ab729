"""Updates inside vmap, grad and compiled code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo.testing
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import TensorDict, optim

if TYPE_CHECKING:
    from collections.abc import Callable

F64 = torch.float64


def schedule(count: Any) -> Any:
    return 0.1 / (1 + count)


def members_only(path: Any, leaf: torch.Tensor) -> bool:
    del leaf
    return path[0] == "n"


# Everything that has a state, or a formula of its own.
TRANSFORMATIONS: dict[str, Callable[[Any], optim.GradientTransformation]] = {
    "sgd": lambda lr: optim.sgd(lr, weight_decay=0.1),
    "sgd, momentum": lambda lr: optim.sgd(lr, 0.9, 0.2),
    "sgd, nesterov": lambda lr: optim.sgd(lr, 0.9, nesterov=True),
    "adam": optim.adam,
    "adam, amsgrad, decay": lambda lr: optim.adam(lr, amsgrad=True, weight_decay=0.1),
    "adam, eps_root": lambda lr: optim.adam(lr, eps_root=1e-4),
    "adamw": lambda lr: optim.adamw(lr, maximize=True),
    "rmsprop": lambda lr: optim.rmsprop(lr, momentum=0.5, centered=True),
    "adagrad": lambda lr: optim.adagrad(lr, lr_decay=0.1),
    "lion": lambda lr: optim.lion(lr, weight_decay=0.1),
    "lamb": lambda lr: optim.lamb(lr, weight_decay=0.1),
    "clip": lambda lr: optim.chain(optim.clip(0.3), optim.scale(lr)),
    "clip by norm": lambda lr: optim.chain(
        optim.clip_by_global_norm(0.5), optim.scale(lr)
    ),
    "schedule": lambda lr: optim.chain(
        optim.scale_by_schedule(schedule), optim.scale(lr)
    ),
    "ema": lambda lr: optim.chain(optim.ema(0.9), optim.scale(lr)),
    "masked": lambda lr: optim.chain(
        optim.masked(optim.adam(lr), members_only), optim.scale(0.1)
    ),
    "multi": lambda lr: optim.multi_transform(
        {"a": optim.adam(lr), "b": optim.sgd(lr, 0.9)}, {"w": "a", "n": "b"}
    ),
    "accumulate": lambda lr: optim.accumulate(optim.adam(lr), 2),
    "flat": lambda lr: optim.flat(optim.adamw(lr)),
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def every() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", TRANSFORMATIONS)


def tree(*batch: int, seed: int = 0) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn((*batch, *shape), generator=generator, dtype=F64)

    return TensorDict(
        {"w": draw(2, 3), "n": {"b": draw(3), "s": draw()}, "name": "net"}, batch
    )


def train(
    tx: optim.GradientTransformation, params: TensorDict, steps: int = 3
) -> TensorDict:
    """Return the parameters after steps down a quartic bowl."""
    state = tx.init(params)
    for _ in range(steps):
        grads = params**3 + 0.5
        updates, state = tx.update(grads, state, params)
        params = optim.apply_updates(params, updates)
    return params


def close(got: TensorDict, expected: TensorDict) -> None:
    assert got.batch_size == expected.batch_size
    for path in expected.keys(True, True):
        torch.testing.assert_close(got[path], expected[path])


@every()
def test_vmap_is_the_loop_with_rates_and_states_of_their_own(name: str) -> None:
    members = tree(4)
    rates = torch.tensor([0.0, 0.01, 0.1, 1.0], dtype=F64)

    def run(params: TensorDict, lr: torch.Tensor) -> TensorDict:
        return train(TRANSFORMATIONS[name](lr), params)

    got = torch.vmap(run)(members, rates)

    alone = [run(members[i], rates[i]) for i in range(4)]
    close(got, tdfunc.stack(alone))
    assert (4,) == got.batch_size
    assert "net" == got["name"]


@every()
def test_stacked_state_is_that_of_the_members(name: str) -> None:
    """Init and update are mapped one by one; a member is cut out and goes on alone."""
    members, tx = tree(3), TRANSFORMATIONS[name](0.1)

    state = torch.vmap(tx.init)(members)
    for _ in range(2):
        updates, state = torch.vmap(tx.update)(members, state, members)
        members = optim.apply_updates(members, updates)

    alone = tree(3)[1]
    own = tx.init(alone)
    for _ in range(2):
        updates, own = tx.update(alone, own, alone)
        alone = optim.apply_updates(alone, updates)
    close(members[1], alone)
    cut = pytree.tree_map(lambda x: x[1], state)
    expected, spec = pytree.tree_flatten(own)
    found, other = pytree.tree_flatten(cut)
    assert spec == other
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
        assert x.dtype == y.dtype


@every()
def test_gradient_through_the_update_is_that_of_finite_differences(name: str) -> None:
    params = tree()
    vector, unravel = tdfunc.ravel(params)

    def objective(flat: torch.Tensor, lr: torch.Tensor) -> torch.Tensor:
        return train(TRANSFORMATIONS[name](lr), unravel(flat)).pow(2).sum(reduce=True)

    lr = torch.tensor(0.05, dtype=F64)
    by_params, by_rate = torch.func.grad(objective, (0, 1))(vector, lr)

    step = 1e-6
    ways = torch.eye(len(vector), dtype=F64) * step
    differences = torch.stack(
        [objective(vector + d, lr) - objective(vector - d, lr) for d in ways]
    )
    torch.testing.assert_close(by_params, differences / 2 / step, rtol=1e-5, atol=1e-5)
    difference = objective(vector, lr + step) - objective(vector, lr - step)
    torch.testing.assert_close(by_rate, difference / 2 / step, rtol=1e-5, atol=1e-5)


@every()
def test_autograd_goes_through_the_update(name: str) -> None:
    params = tree()
    leaf = params["w"].clone().requires_grad_()
    lr = torch.tensor(0.05, requires_grad=True, dtype=F64)
    tx = TRANSFORMATIONS[name](lr)

    out = train(tx, params.set("w", leaf)).pow(2).sum(reduce=True)
    by_leaf, by_rate = torch.autograd.grad(out, (leaf, lr))

    def objective(w: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
        done = train(TRANSFORMATIONS[name](rate), params.set("w", w))
        return done.pow(2).sum(reduce=True)

    expected = torch.func.grad(objective, (0, 1))(leaf.detach(), lr.detach())
    torch.testing.assert_close(by_leaf, expected[0])
    torch.testing.assert_close(by_rate, expected[1])


@pytest.mark.parametrize(
    "name",
    ["adam", "rmsprop", "adagrad", "lamb", "clip by norm", "adam, amsgrad, decay"],
)
def test_dead_units_do_not_make_gradients_nan(name: str) -> None:
    tx = TRANSFORMATIONS[name](0.1)

    def objective(grads: torch.Tensor) -> torch.Tensor:
        updates, _ = tx.update({"w": grads, "n": grads}, tx.init(zero), zero)
        return updates["w"].sum()

    zero = {"w": torch.zeros(3), "n": torch.zeros(3)}
    found = torch.func.grad(objective)(torch.zeros(3))

    assert found.isfinite().all()


@every()
def test_compiled_is_eager_without_a_break(name: str) -> None:
    params = tree()
    tx = TRANSFORMATIONS[name](0.1)

    @torch.compile(fullgraph=True, backend="eager")
    def step(params: TensorDict, state: Any) -> tuple[TensorDict, Any]:
        updates, state = tx.update(params**3, state, params)
        return optim.apply_updates(params, updates), state

    got, state = params, tx.init(params)
    expected, own = params, tx.init(params)
    for _ in range(3):
        got, state = step(got, state)
        updates, own = tx.update(expected**3, own, expected)
        expected = optim.apply_updates(expected, updates)

    close(got, expected)
    assert "net" == got["name"]


def test_init_compiles() -> None:
    for name, make in TRANSFORMATIONS.items():
        torch._dynamo.reset()  # one code, many closures
        tx = make(0.1)
        got = torch.compile(tx.init, fullgraph=True, backend="eager")(tree())
        found, spec = pytree.tree_flatten(got)
        expected, other = pytree.tree_flatten(tx.init(tree()))
        assert spec == other, name
        for x, y in zip(found, expected, strict=True):
            assert x.dtype == y.dtype
            assert torch.equal(x, y)


def test_another_rate_in_a_tensor_does_not_compile_again() -> None:
    counter = torch._dynamo.testing.CompileCounter()

    @torch.compile(fullgraph=True, backend=counter)
    def step(params: TensorDict, state: Any, lr: torch.Tensor) -> tuple[Any, Any]:
        updates, state = optim.adam(lr).update(params, state, params)
        return optim.apply_updates(params, updates), state

    params = tree()
    state = optim.adam().init(params)
    for rate in (0.1, 0.2, 0.3):
        lr = torch.tensor(rate, dtype=F64)
        got, _ = step(params, state, lr)
        updates, _ = optim.adam(rate).update(params, state, params)
        close(got, optim.apply_updates(params, updates))

    assert 1 == counter.frame_count


def test_compiled_vmap_of_grad_of_an_update() -> None:
    members, rates = tree(3), torch.tensor([0.1, 0.2, 0.3], dtype=F64)

    def objective(lr: torch.Tensor, params: TensorDict) -> torch.Tensor:
        return train(optim.adam(lr), params).pow(2).sum(reduce=True)

    run = torch.vmap(torch.func.grad(objective))

    got = torch.compile(run, fullgraph=True, backend="eager")(rates, members)

    torch.testing.assert_close(got, run(rates, members))


def test_ensemble_of_the_case_table() -> None:
    """CASES.md B34: three members with w = 1, 2, 3 and loss w ** 2."""
    members = TensorDict({"w": torch.tensor([1.0, 2.0, 3.0])}, 3)
    for tx, expected in (
        (optim.sgd(0.1), [0.8, 1.6, 2.4]),
        (optim.adam(0.1), [0.9, 1.9, 2.9]),
    ):
        grads = torch.vmap(torch.func.grad(lambda p: p["w"] ** 2))(members)
        state = torch.vmap(tx.init)(members)

        updates, state = torch.vmap(tx.update)(grads, state)
        got = optim.apply_updates(members, updates)

        torch.testing.assert_close(got["w"], torch.tensor(expected))
        assert (3,) == got.batch_size

    as_tree, treedef = tdfunc.from_pytree(state, batch_size=3)
    assert (3,) == as_tree.batch_size
    member = tdfunc.to_pytree(as_tree[1], treedef)
    updates, _ = tx.update(grads[1], member)
    whole, _ = torch.vmap(tx.update)(grads, state)
    torch.testing.assert_close(updates["w"], whole["w"][1])


@every()
def test_other_batch_sizes_compile_twice_in_all(name: str) -> None:
    tx, counter = TRANSFORMATIONS[name](0.1), torch._dynamo.testing.CompileCounter()

    @torch.compile(fullgraph=True, backend=counter)
    def run(params: TensorDict, state: Any) -> TensorDict:
        return optim.step(tx, params, state, params)[0]

    for rows in (3, 4, 5, 6):
        params = tree(rows)
        state = tx.init(params)
        close(run(params, state), optim.step(tx, params, state, params)[0])

    assert counter.frame_count <= 2


def test_tracing_to_a_graph() -> None:
    """Tracers that run Python see arithmetic, and no branch on a value."""
    tx, params = optim.accumulate(optim.adam(0.1), 2), {"w": torch.ones(3)}
    state = tx.init(params)

    def update(grads: Any, state: Any) -> Any:
        return tx.update(grads, state)  # make_fx does not know defaults

    graph = make_fx(update)(params, state)

    _, state = tx.update(params, state)
    got, _ = graph(params, state)
    expected, _ = tx.update(params, state)
    torch.testing.assert_close(got["w"], expected["w"])
    assert got["w"].all()


HYPERPARAMETERS: dict[str, Callable[[Any], optim.GradientTransformation]] = {
    "adam": lambda x: optim.adam(0.1, (x, x**2), x / 100, x, eps_root=x / 1000),
    "adamw": lambda x: optim.adamw(0.1, (x, x), weight_decay=x),
    "sgd": lambda x: optim.sgd(0.1, x, x / 3, x / 2),
    "rmsprop": lambda x: optim.rmsprop(0.1, x, x / 100, x, x / 2),
    "adagrad": lambda x: optim.adagrad(0.1, x, x, eps=x),
    "lion": lambda x: optim.lion(0.1, (0.9, 0.9), weight_decay=x),
    "lamb": lambda x: optim.lamb(0.1, (x, x), weight_decay=x),
    "clip": optim.clip,
    "norm": optim.clip_by_global_norm,
    "ema": optim.ema,
    "trust": lambda x: optim.scale_by_trust_ratio(trust_coefficient=x, eps=x),
}


@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_every_number_can_be_learned_and_mapped(name: str) -> None:
    params = torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=F64)

    def run(number: Any) -> torch.Tensor:
        tx, x = HYPERPARAMETERS[name](number), params
        state = tx.init(x)
        for _ in range(3):
            x, state = optim.step(tx, x**3 + 0.1, state, x)
        return x

    number = torch.tensor(0.7, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(run, number)
    torch.testing.assert_close(run(number).detach(), run(0.7))
    torch.testing.assert_close(run(number.detach()), run(0.7))
    several = torch.tensor([0.3, 0.7], dtype=F64)
    expected = torch.stack([run(float(x)) for x in several])
    torch.testing.assert_close(torch.vmap(run)(several), expected)


def test_tied_weights_stay_tied_alone_and_in_an_ensemble() -> None:
    """CASES.md B37: one leaf for both uses, whose gradient is the sum of both."""

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(2, 2, bias=False)
            self.b = torch.nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    nets = [Tied() for _ in range(3)]
    x, tx = torch.ones(1, 2), optim.sgd(0.1)

    def step(params: TensorDict) -> TensorDict:
        def loss(p: TensorDict) -> torch.Tensor:
            return tdfunc.func.functional_call(nets[0], p, x).sum()

        return optim.step(tx, torch.func.grad(loss)(params), tx.init(params), params)[0]

    got = torch.vmap(step)(tdfunc.from_modules(*nets))

    assert 1 == len(got.keys(True, True))
    for i, net in enumerate(nets):
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        net(x).sum().backward()
        optimizer.step()
        (path,) = got.keys(True, True)
        torch.testing.assert_close(got[path][i], net.b.weight.detach())
