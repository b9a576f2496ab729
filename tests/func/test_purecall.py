"""Calls of modules with other tensors: equal to a loaded copy, and without traces.

The oracle is plain torch: the same module made again, the tensors copied into it.
"""

from __future__ import annotations

import functools
import gc
import threading
import warnings
import weakref
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch.func import grad, hessian, jacrev, jvp, vmap
from torch.nn.utils import parametrizations, parametrize
from torch.utils._pytree import tree_leaves, tree_map

from tdfunc.errors import InvalidLeafError, MissingKeyError, OptionError
from tdfunc.func._purecall import call_pure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Modules that are awkward to call with other tensors. All take [6, 4] float rows.


class Assigning(nn.Module):
    """Assigns attributes, a buffer that was None, and registers a new one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0
        self.register_buffer("total", None)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = self.linear(x)
        self.total = self.last.sum(0).detach()
        self.seen = self.seen + self.calls
        self.register_buffer("mask", torch.ones(4), persistent=False)
        return self.last * self.calls + self.mask


class BoundMethod(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.run = self.linear.forward
        self.forward = self.forward_twice

    def forward_twice(self, x: Tensor) -> Tensor:
        return self.run(self.run(x))


class Containers(nn.Module):
    """Reaches its submodules through plain lists, dicts, sets and tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)
        self.nested = [1, (self.linear, [self.other])]
        self.by_name = OrderedDict(a=self.linear)
        self.names = {self.other: "other"}
        self.groups = defaultdict(list, first={self.linear})
        self.holds_itself: list[Any] = []
        self.holds_itself.append(self.holds_itself)

    def forward(self, x: Tensor) -> Tensor:
        first, (second,) = self.nested[1]
        assert self.names[self.other] == "other"
        assert self.linear in self.groups["first"]
        assert self.groups["no such group"] == []
        return self.by_name["a"](second(first(x)))


class Partial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.run = functools.partial(Partial.scaled, self, scale=2.0)

    def scaled(self, x: Tensor, scale: float) -> Tensor:
        return self.linear(x) * scale

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


class Closure(nn.Module):
    """Lambdas that close over the module, or have it as a default."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = [0]
        calls = self.calls

        def run(x: Tensor, times: int = 2) -> Tensor:
            calls[0] += 1
            return x if times == 0 else run(self.linear(x), times - 1)

        self.run = run
        self.shift = lambda x, linear=self.linear: x + linear.bias

        def scale(x: Tensor, *, linear: nn.Linear = self.linear) -> Any:
            return x * linear.bias if calls else unassigned

        self.scale = scale
        if not calls:
            unassigned = self.linear

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(self.shift(self.run(x)))


class WeakChild(nn.Module):
    def __init__(self, parent: nn.Module) -> None:
        super().__init__()
        self.parent = weakref.ref(parent)
        self.dead = weakref.ref(nn.Linear(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        assert self.dead() is None
        parent: Any = self.parent()
        return parent.linear(x)


class WeakReference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.child = WeakChild(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x)


class Hooked(nn.Module):
    """Gets its result from hooks: a bound method and a plain function."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.register_forward_hook(self.keep)
        self.linear.register_forward_pre_hook(double)

    def keep(self, _module: nn.Module, _args: Any, output: Tensor) -> None:
        self.kept = output

    def forward(self, x: Tensor) -> Tensor:
        self.linear(x)
        return self.kept


def double_output(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
    return output * 2


def double(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (args[0] * 2,)


class HookedByClosure(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)
        self.linear.register_forward_hook(lambda _m, _a, out: self.other(out))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class HooksItself(nn.Module):
    """Registers a hook for the time of one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        handle = self.linear.register_forward_hook(double_output)
        y = self.linear(x)
        handle.remove()
        return y


class Decorated(nn.Module):
    """Updates a buffer in a method under ``no_grad``, and calls ``super``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        self.mean += x.mean(0)

    def forward(self, x: Tensor) -> Tensor:
        self.update(x)
        return self.linear(x) - self.mean


class DecoratedChild(Decorated):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.first.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class TiedBuffers(nn.Module):
    """Two names of one buffer, written under one, read under the other."""

    a: Tensor
    b: Tensor
    c: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", self.a)
        self.register_buffer("c", torch.zeros(4))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.a += x.sum(0)
        return x * self.scale + self.b + self.c


class Registered(nn.Module):
    """Parameters in lists and dicts, one that is None, and an unused submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.ParameterList([torch.ones(4, 4), torch.eye(4)])
        self.vectors = nn.ParameterDict({"a": torch.ones(4)})
        self.linear = nn.Linear(4, 4, bias=False)
        self.register_module("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        for matrix in self.matrices:
            x = x @ matrix
        vector: Any = self.vectors["a"]
        return self.linear(x) + vector


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x[None]
        return self.attention(x, x, x)[0]


class Recurrent(nn.Module):
    def __init__(self, cls: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.recurrent = cls(4, 3, num_layers=2, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.recurrent(x[:, None])[0]


class Lookup(nn.Module):
    """An embedding whose weight is tied to a layer, with or without `max_norm`."""

    def __init__(self, max_norm: float | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4, max_norm=max_norm)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        rows = self.embedding((x[:, 0].abs() * 3).long().clamp(max=4))
        return self.head(x + rows)


def shared() -> nn.Module:
    block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    return nn.Sequential(OrderedDict(a=block, act=nn.Tanh(), b=block))


def normalised(make: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        with warnings.catch_warnings():
            # weight_norm is deprecated, and still everywhere.
            warnings.simplefilter("ignore", FutureWarning)
            return nn.Sequential(make(nn.Linear(4, 4)), nn.Tanh())

    return build


def lazy() -> nn.Module:
    module = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    module(torch.ones(2, 4))
    return module


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    fullgraph: bool = True  # whether Dynamo can trace it
    maps: bool = True  # whether torch can vmap it


CASES = {
    "linear": Case(lambda: nn.Linear(4, 3)),
    "mlp": Case(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))),
    "batch_norm": Case(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))),
    "instance_norm": Case(
        lambda: nn.Sequential(
            nn.Unflatten(1, (2, 2)),
            nn.InstanceNorm1d(2, affine=True, track_running_stats=True),
        )
    ),
    "assigning": Case(Assigning),
    "bound_method": Case(BoundMethod),
    "containers": Case(Containers),
    "partial": Case(Partial),
    "closure": Case(Closure, fullgraph=False),
    "weak_reference": Case(WeakReference, fullgraph=False),
    "hooked": Case(Hooked),
    "hooked_by_closure": Case(HookedByClosure, fullgraph=False),
    "hooks_itself": Case(HooksItself, fullgraph=False),
    "decorated": Case(Decorated),
    "decorated_child": Case(DecoratedChild),
    "tied": Case(Tied),
    "tied_buffers": Case(TiedBuffers),
    "shared": Case(shared),
    "registered": Case(Registered),
    "attention": Case(Attention),
    "transformer": Case(
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    ),
    "lstm": Case(lambda: Recurrent(nn.LSTM), maps=False),
    "gru": Case(lambda: Recurrent(nn.GRU), maps=False),
    "rnn": Case(lambda: Recurrent(nn.RNN), maps=False),
    "embedding": Case(lambda: Lookup(None)),
    "embedding_max_norm": Case(lambda: Lookup(0.5), maps=False),
    "old_weight_norm": Case(normalised(nn.utils.weight_norm)),
    "old_spectral_norm": Case(normalised(nn.utils.spectral_norm), maps=False),
    "weight_norm": Case(normalised(parametrizations.weight_norm)),
    "spectral_norm": Case(normalised(parametrizations.spectral_norm), maps=False),
    "orthogonal": Case(normalised(parametrizations.orthogonal)),
    "lazy_after_a_call": Case(lazy),
    "graph_module": Case(lambda: torch.fx.symbolic_trace(CASES["mlp"].make())),
}


def cases(**wanted: bool) -> pytest.MarkDecorator:
    names = [
        name
        for name, case in CASES.items()
        if all(getattr(case, key) == value for key, value in wanted.items())
    ]
    return pytest.mark.parametrize("name", names)


modes = pytest.mark.parametrize("mode", ["train", "eval"])
backends = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


@pytest.fixture(autouse=True)
def _fresh_compiler_and_seed() -> Iterator[None]:
    torch.manual_seed(0)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 4)


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict((*module.named_parameters(), *module.named_buffers()))


def other_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return random parameters, and buffers whose values are still possible ones."""
    params = {name: torch.randn_like(p) for name, p in module.named_parameters()}
    buffers = {
        name: b.clone() + (0.5 if "running" in name or name == "seen" else 0)
        for name, b in module.named_buffers()
    }
    return params | buffers


def loaded(name: str, tensors: dict[str, Tensor], mode: str = "train") -> nn.Module:
    """Return the oracle: the module made again, with `tensors` copied into it."""
    module = CASES[name].make().train(mode == "train")
    with torch.no_grad():
        for key, tensor in named_tensors(module).items():
            tensor.copy_(tensors[key])
    return module


class Snapshot:
    """What must not change: every attribute, and the bytes of every tensor."""

    def __init__(self, module: nn.Module, *tensors: Tensor) -> None:
        self.module = module
        self.tensors = [*named_tensors(module).values(), *tensors]
        self.bytes = [t.detach().clone() for t in self.tensors]
        self.versions = [t._version for t in self.tensors]
        self.attributes = self.read()

    def read(self) -> dict[tuple[str, str], object]:
        seen: dict[tuple[str, str], object] = {}
        for path, part in self.module.named_modules():
            for name, value in vars(part).items():
                seen[path, name] = (
                    # Dicts by their items, everything else by identity.
                    {k: id(v) for k, v in value.items()}
                    if isinstance(value, dict)
                    else frozenset(value)
                    if name == "_non_persistent_buffers_set"
                    else id(value)
                )
        return seen

    def check(self) -> None:
        assert self.attributes == self.read()
        assert self.versions == [t._version for t in self.tensors]
        for before, after in zip(self.bytes, self.tensors, strict=True):
            assert torch.equal(before, after)


def assert_equal(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def assert_buffers_equal(got: dict[str, Tensor], module: nn.Module) -> None:
    """The buffers of the oracle after its call, without those forward registered."""
    want = {k: b for k, b in module.named_buffers() if not k.endswith("mask")}
    assert list(got) == list(want)
    assert_equal(got, want)


# Equal to a loaded copy, and nothing else changes.


@cases()
@modes
def test_call_equals_a_loaded_copy(name: str, mode: str, x: Tensor) -> None:
    module = CASES[name].make().train(mode == "train")
    tensors = other_tensors(module)
    oracle = loaded(name, tensors, mode)
    snapshot = Snapshot(module, x, *tensors.values())

    output, buffers = call_pure(module, tensors, (x,))

    snapshot.check()
    assert_equal(output, oracle(x))
    assert_buffers_equal(buffers, oracle)


@cases()
def test_missing_names_are_the_modules_own(name: str, x: Tensor) -> None:
    module = CASES[name].make()
    oracle = loaded(name, named_tensors(module))
    snapshot = Snapshot(module, x)

    output, buffers = call_pure(module, {}, (x,))

    snapshot.check()
    assert_equal(output, oracle(x))
    assert_buffers_equal(buffers, oracle)


@cases()
def test_gradient_equals_autograd_of_a_loaded_copy(name: str, x: Tensor) -> None:
    module = CASES[name].make()
    tensors = other_tensors(module)
    oracle = loaded(name, tensors)
    wanted = dict(oracle.named_parameters())
    want = torch.autograd.grad(oracle(x).square().sum(), list(wanted.values()))
    params = {key: tensors[key] for key in wanted}
    rest = {key: t for key, t in tensors.items() if key not in wanted}
    snapshot = Snapshot(module, *tensors.values())

    def loss(params: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        output, buffers = call_pure(module, params | rest, (x,))
        return output.square().sum(), buffers

    got, buffers = grad(loss, has_aux=True)(params)

    snapshot.check()
    torch.testing.assert_close(
        got, dict(zip(wanted, want, strict=True)), rtol=1e-4, atol=1e-3
    )
    assert_buffers_equal(buffers, oracle)


@cases(maps=True)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("buffers", ["given", "own"])
def test_vmap_equals_a_loop(name: str, buffers: str, x: Tensor) -> None:
    module = CASES[name].make()
    given = [other_tensors(module) for _ in range(3)]
    if buffers == "own":
        named = dict(module.named_parameters())
        given = [{k: t for k, t in one.items() if k in named} for one in given]
    stacked = {k: torch.stack([one[k] for one in given]) for k in given[0]}
    xs = torch.stack([x, x + 1, x * 2])
    want = [call_pure(module, one, (row,)) for one, row in zip(given, xs, strict=True)]
    snapshot = Snapshot(module, *stacked.values())

    got = vmap(lambda tensors, row: call_pure(module, tensors, (row,)))(stacked, xs)

    snapshot.check()
    assert_equal(got, tree_map(lambda *rows: torch.stack(rows), *want))


@cases(fullgraph=True)
# Dynamo looks at the weight that old_weight_norm keeps in an attribute.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@torch._dynamo.config.patch(allow_rnn=True)
def test_compiled_equals_eager(name: str, x: Tensor) -> None:
    module = CASES[name].make()
    tensors = other_tensors(module)
    want = call_pure(module, tensors, (x,))
    snapshot = Snapshot(module, x, *tensors.values())

    @functools.partial(torch.compile, fullgraph=True, backend="eager")
    def call(tensors: dict[str, Tensor], x: Tensor) -> Any:
        return call_pure(module, tensors, (x,))

    for _ in range(2):
        got = call(tensors, x)

        snapshot.check()
        assert_equal(got, want)


@cases(fullgraph=False)
def test_what_can_not_be_traced_runs_in_eager_code(name: str, x: Tensor) -> None:
    module = CASES[name].make()
    tensors = other_tensors(module)
    want = call_pure(module, tensors, (x,))
    snapshot = Snapshot(module, x, *tensors.values())

    def call(tensors: dict[str, Tensor], x: Tensor) -> Any:
        return call_pure(module, tensors, (x,))

    with pytest.raises(Unsupported):
        torch.compile(call, fullgraph=True, backend="eager")(tensors, x)
    got = torch.compile(call, backend="eager")(tensors, x)

    snapshot.check()
    assert_equal(got, want)


# Batch norm: the numbers of CASES.md B26.

ROWS = torch.arange(8.0).view(4, 2)


def test_batch_norm_returns_new_statistics_and_keeps_the_old() -> None:
    norm = nn.BatchNorm1d(2)
    given = {name: b.clone() for name, b in norm.named_buffers()}
    snapshot = Snapshot(norm, *given.values())

    for tensors in ({}, given):
        _, buffers = call_pure(norm, tensors, (ROWS,))

        snapshot.check()
        assert_equal(buffers["running_mean"], torch.tensor([0.3, 0.4]))
        assert_equal(buffers["running_var"], torch.tensor([1.56667, 1.56667]))
        assert buffers["num_batches_tracked"].item() == 1
    assert norm.running_mean is not None
    assert norm.running_mean.tolist() == [0.0, 0.0]
    assert given["running_var"].tolist() == [1.0, 1.0]


def test_batch_norm_under_grad_has_the_same_statistics() -> None:
    norm = nn.BatchNorm1d(2)

    def loss(params: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        output, buffers = call_pure(norm, params, (ROWS,))
        return output.square().sum(), buffers

    _, buffers = grad(loss, has_aux=True)(dict(norm.named_parameters()))

    assert_equal(buffers["running_mean"], torch.tensor([0.3, 0.4]))


@pytest.mark.parametrize("given", ["none", "batched"])
@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_batch_norm_under_vmap_has_statistics_per_member(
    given: str, backend: str | None
) -> None:
    norm = nn.BatchNorm1d(2)
    names = dict(norm.named_buffers()) if given == "batched" else {}
    buffers = {name: torch.stack([b] * 3) for name, b in names.items()}
    rows = torch.stack([ROWS * i for i in (1, 2, 3)])
    snapshot = Snapshot(norm, *buffers.values())

    def members(buffers: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
        return vmap(lambda b, x: call_pure(norm, b, (x,))[1])(buffers, rows)

    if backend is not None:
        members = torch.compile(members, fullgraph=True, backend=backend)
    after = members(buffers, rows)

    snapshot.check()
    mean = torch.tensor([[0.3, 0.4], [0.6, 0.8], [0.9, 1.2]])
    assert_equal(after["running_mean"], mean)
    assert after["num_batches_tracked"].tolist() == [1, 1, 1]


class Transforms:
    """Losses of a small net with batch norm under nested transforms."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.params = {k: p.detach() for k, p in self.net.named_parameters()}
        self.scales = torch.tensor([1.0, 2.0, -1.0])

    def loss(self, scale: Tensor, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        params = {name: p * scale for name, p in self.params.items()}
        output, buffers = call_pure(self.net, params, (x,))
        return output.square().mean(), buffers

    def over_members_and_batches(self, xs: Tensor) -> Any:
        return vmap(lambda s: vmap(lambda x: self.loss(s, x))(xs))(self.scales)

    def gradient_of_members(self, xs: Tensor) -> Any:
        per_member = vmap(grad(self.loss, has_aux=True), (0, None))
        return per_member(self.scales, xs[0])

    def gradient_of_their_sum(self, xs: Tensor) -> Any:
        return grad(lambda s: vmap(self.loss, (0, None))(s, xs[0])[0].sum())(
            self.scales
        )

    def forward_mode(self, xs: Tensor) -> Any:
        one = torch.ones(())
        return jvp(lambda s: self.loss(s, xs[0])[0], (one,), (one,))

    def jacobian(self, xs: Tensor) -> Any:
        return jacrev(lambda s: self.loss(s, xs[0])[0])(torch.ones(()))


TRANSFORMS = [name for name in vars(Transforms) if not name.startswith("_")][1:]


@pytest.mark.parametrize("transform", TRANSFORMS)
@backends
def test_transforms_compile_to_the_same_values(
    transform: str, backend: str, x: Tensor
) -> None:
    transforms = Transforms()
    run = getattr(transforms, transform)
    xs = torch.stack([x, x + 1])
    snapshot = Snapshot(transforms.net)
    want = run(xs)

    got = torch.compile(run, fullgraph=True, backend=backend)(xs)

    snapshot.check()
    assert_equal(got, want)


def test_nested_vmap_equals_loops(x: Tensor) -> None:
    transforms = Transforms()
    xs = torch.stack([x, x + 1])
    rows = [[transforms.loss(s, x) for x in xs] for s in transforms.scales]
    want = tree_map(
        lambda *rows: torch.stack(rows),
        *[tree_map(lambda *cells: torch.stack(cells), *row) for row in rows],
    )

    assert_equal(transforms.over_members_and_batches(xs), want)


def test_vmap_of_grad_equals_a_loop_over_autograd(x: Tensor) -> None:
    transforms = Transforms()
    want = []
    for value in transforms.scales.tolist():
        scale = torch.tensor(value, requires_grad=True)
        loss, _ = transforms.loss(scale, x)
        want.append(torch.autograd.grad(loss, scale)[0])

    got, buffers = transforms.gradient_of_members(x[None])

    assert_equal(got, torch.stack(want))
    assert_equal(transforms.gradient_of_their_sum(x[None]), got)
    assert buffers["1.running_mean"].shape == (3, 3)


def test_hessian_equals_double_backward(x: Tensor) -> None:
    transforms = Transforms()
    # torch's second derivatives of batch norm in training mode are wrong.
    transforms.net.eval()
    scale = torch.ones((), requires_grad=True)
    loss, _ = transforms.loss(scale, x)
    (slope,) = torch.autograd.grad(loss, scale, create_graph=True)
    want = torch.autograd.grad(slope, scale)[0]

    assert_equal(hessian(lambda s: transforms.loss(s, x)[0])(scale.detach()), want)


def test_buffers_keep_dtype_and_may_be_sparse_or_complex(x: Tensor) -> None:
    class Buffers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bfloat", torch.ones(4, dtype=torch.bfloat16))
            self.register_buffer("wide", torch.ones(4, dtype=torch.float64))
            self.register_buffer("wave", torch.ones(4, dtype=torch.complex64))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("graph", torch.eye(4).to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            self.wide += x.sum(0)
            self.wave += x.sum(0)
            self.count += 1
            return x

    module = Buffers()

    def row_buffers(row: Tensor) -> dict[str, Tensor]:
        _, buffers = call_pure(module, {}, (row[None],))
        assert buffers.pop("graph").is_sparse  # which vmap can not return
        return buffers

    buffers = vmap(row_buffers)(x)

    dtypes = [b.dtype for b in buffers.values()]
    assert dtypes == [torch.bfloat16, torch.float64, torch.complex64, torch.int64]
    assert_equal(buffers["wide"], (1 + x).double())
    assert_equal(buffers["wave"], (1 + x).to(torch.complex64))
    assert buffers["count"].tolist() == [1] * 6
    assert buffers["bfloat"].shape == (6, 4)


def test_constants_are_not_copied_per_row_of_vmap(x: Tensor) -> None:
    class Constants(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.ones(4), persistent=False)
            self.frozen = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            is_batched = torch._C._functorch.is_batchedtensor  # pyright: ignore[reportAttributeAccessIssue]
            assert not is_batched(self.table)
            assert not is_batched(self.frozen.running_mean)
            return x

    module = Constants()
    module.frozen.eval()

    vmap(lambda row: call_pure(module, {}, (row,))[0])(x)


# Names: ties, shared submodules, buffers that are None.


def test_tied_names_follow_the_one_that_is_given(x: Tensor) -> None:
    module = Tied()
    weight, other = torch.randn(4, 4), torch.randn(4, 4)

    def output(**tensors: Tensor) -> Tensor:
        named = {name.replace("_", "."): t for name, t in tensors.items()}
        zero = {"first.bias": torch.zeros(4), "second.bias": torch.zeros(4)}
        return call_pure(module, named | zero, (x,))[0]

    assert_equal(output(first_weight=weight), x @ weight.T @ weight.T)
    assert_equal(output(second_weight=weight), x @ weight.T @ weight.T)
    assert_equal(
        output(first_weight=weight, second_weight=other), x @ weight.T @ other.T
    )


def test_tied_buffers_are_one_buffer_unless_given_apart(x: Tensor) -> None:
    module = TiedBuffers()
    zero = torch.zeros(4)
    total = x.sum(0)

    for tensors, tied in (
        ({}, True),
        ({"a": zero}, True),
        ({"b": zero}, True),
        ({"a": zero, "b": zero}, True),
        ({"a": zero, "b": zero.clone()}, False),
        # Equal by chance, and not tied in the module.
        ({"a": zero, "c": zero}, True),
    ):
        output, buffers = call_pure(module, tensors, (x,))

        assert_equal(output, x + total if tied else x)
        assert buffers.keys() == {"a", "b", "c"} & (tensors.keys() | {"c"}) | (
            set() if "b" in tensors else {"a"}
        )
        assert torch.equal(buffers["c"], zero)
    assert torch.equal(zero, torch.zeros(4))


def test_shared_submodules_take_a_tensor_under_any_name(x: Tensor) -> None:
    module = shared()
    tensors = other_tensors(module)
    want, want_buffers = call_pure(module, tensors, (x,))
    renamed = {"b" + name[1:]: t for name, t in tensors.items()}
    snapshot = Snapshot(module, *tensors.values())

    got, buffers = call_pure(module, renamed, (x,))
    both, both_buffers = call_pure(module, tensors | renamed, (x,))

    snapshot.check()
    assert torch.equal(got, want)
    assert torch.equal(both, want)
    assert [*buffers] == ["b" + name[1:] for name in want_buffers]
    assert_equal([*buffers.values()], [*want_buffers.values()])
    assert both_buffers.keys() == want_buffers.keys() | buffers.keys()


def test_buffers_can_be_passed_on_from_call_to_call(x: Tensor) -> None:
    for name in ("batch_norm", "assigning", "tied_buffers", "shared"):
        module = CASES[name].make()
        oracle = loaded(name, named_tensors(module))
        buffers: dict[str, Tensor] = {}

        for _ in range(3):
            _, buffers = call_pure(module, buffers, (x,))
            oracle(x)
            if isinstance(oracle, Assigning):
                oracle.calls = 0  # no tensor: every pure call starts with the same

        assert_buffers_equal(buffers, oracle)


def test_other_names_raise_with_all_of_them_and_the_nearest(x: Tensor) -> None:
    module = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3))
    tensors = {
        "0.wieght": torch.ones(3, 4),
        "0.bias": torch.ones(3),
        "1.running_maen": torch.ones(3),
        "2.weight": torch.ones(3),
        "weight.0.x": torch.ones(3),
        "1.weight": torch.ones(3),
    }

    with pytest.raises(MissingKeyError) as caught:
        call_pure(module, tensors, (x,))

    message = str(caught.value)
    assert message.startswith("Sequential has no such parameters or buffers: ")
    assert "'0.wieght' (one of '0.weight'" in message
    assert "'0.bias' (one of " in message
    assert "'1.running_maen' (one of '1.running_mean'" in message
    assert "'2.weight' (one of " in message
    assert "'weight.0.x' (one of " in message
    assert "'1.weight' (" not in message
    assert isinstance(caught.value, KeyError)


def test_parametrized_tensors_go_by_the_names_of_their_originals(x: Tensor) -> None:
    module = parametrizations.weight_norm(nn.Linear(4, 3))

    with pytest.raises(MissingKeyError, match=r"parametrizations\.weight\.original0"):
        call_pure(module, {"weight": torch.ones(3, 4)}, (x,))


# What is refused.


def test_two_values_for_one_shared_tensor_raise(x: Tensor) -> None:
    with pytest.raises(OptionError, match=r"'a\.0\.bias' and 'b\.0\.bias' are one"):
        call_pure(
            shared(), {"a.0.bias": torch.ones(4), "b.0.bias": torch.ones(4)}, (x,)
        )


def test_what_is_no_module_raises() -> None:
    function: Any = torch.tanh

    with pytest.raises(InvalidLeafError, match=r"expected a torch\.nn\.Module - got"):
        call_pure(function, {}, (torch.ones(1),))


def test_script_modules_raise(x: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Linear(4, 3))

    with pytest.raises(OptionError, match=r"the module is a .*TorchScript"):
        call_pure(scripted, {}, (x,))
    with pytest.raises(OptionError, match=r"submodule '0' is a .*TorchScript"):
        call_pure(nn.Sequential(scripted), {}, (x,))


def test_compiled_modules_raise_and_say_what_to_compile(x: Tensor) -> None:
    in_place = nn.Sequential(nn.Linear(4, 3))
    in_place[0].compile(backend="eager")
    compiled: Any = torch.compile(nn.Linear(4, 3), backend="eager")

    with pytest.raises(OptionError, match=r"the module is compiled.*compile the func"):
        call_pure(compiled, {}, (x,))
    with pytest.raises(TypeError, match="submodule '0' is compiled"):
        call_pure(in_place, {}, (x,))


def test_data_parallel_modules_raise(x: Tensor) -> None:
    with pytest.raises(OptionError, match=r"DataParallel.*its attribute `module`"):
        call_pure(nn.DataParallel(nn.Linear(4, 3)), {}, (x,))


@pytest.mark.parametrize("given", [{}, {"0.weight": torch.ones(3, 4)}], ids=len)
def test_uninitialised_modules_raise(given: dict[str, Tensor], x: Tensor) -> None:
    with pytest.raises(ValueError, match=r"'0\.weight' is not initialised"):
        call_pure(nn.Sequential(nn.LazyLinear(3)), given, (x,))
    with pytest.raises(OptionError, match=r"'running_mean' is not initialised"):
        call_pure(nn.LazyBatchNorm1d(affine=False), {}, (x,))


def test_cached_parametrizations_raise(x: Tensor) -> None:
    module = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)))
    want = module(x)

    with (
        parametrize.cached(),
        pytest.raises(OptionError, match=r"submodule '0' is parametrized while"),
    ):
        call_pure(module, {}, (x,))
    assert_equal(call_pure(module, {}, (x,))[0], want)


# Purity beyond tensors.


def test_what_forward_assigns_stays_on_the_copy(x: Tensor) -> None:
    module = Assigning()
    snapshot = Snapshot(module)

    outputs = vmap(lambda row: call_pure(module, {}, (row[None],))[0])(x)

    snapshot.check()
    assert not hasattr(module, "last")
    assert module.calls == 0
    assert_equal(outputs[:, 0], module.linear(x) + 1)


def test_compiled_code_leaves_attributes_alone_after_a_graph_break(x: Tensor) -> None:
    class Breaking(Assigning):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            torch._dynamo.graph_break()
            return y + super().forward(x)

    module = Breaking()
    tensors = {name: torch.randn_like(p) for name, p in module.named_parameters()}
    want = call_pure(module, tensors, (x,))
    snapshot = Snapshot(module)

    @functools.partial(torch.compile, backend="eager")
    def call(tensors: dict[str, Tensor], x: Tensor) -> Any:
        return call_pure(module, tensors, (x,))

    for _ in range(2):
        assert_equal(call(tensors, x), want)
        snapshot.check()


def test_compiled_code_follows_changes_of_the_module(x: Tensor) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    @functools.partial(torch.compile, fullgraph=True, backend="eager")
    def call(x: Tensor) -> Any:
        return call_pure(module, {}, (x,))

    assert_equal(call(x), call_pure(module, {}, (x,)))
    module.eval()
    assert_equal(call(x), call_pure(module, {}, (x,)))
    module[0] = nn.Linear(4, 3)
    assert_equal(call(x), call_pure(module, {}, (x,)))
    module[0].register_forward_pre_hook(double)
    assert_equal(call(x), call_pure(module, {}, (x,)))


def test_copies_die_with_the_call(x: Tensor) -> None:
    copies: list[weakref.ref[nn.Module]] = []

    class Watched(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            copies.append(weakref.ref(self))
            copies.append(weakref.ref(self[0]))
            return super().forward(x)

    module = Watched(nn.Linear(4, 3), nn.BatchNorm1d(3))
    gc.disable()  # by their reference counts, not by a collection
    try:
        call_pure(module, other_tensors(module), (x,))
        alive = [copy() for copy in copies]
    finally:
        gc.enable()

    assert alive == [None, None]


def test_threads_do_not_see_each_others_tensors(x: Tensor) -> None:
    module = nn.Sequential(nn.Linear(4, 4), Assigning(), nn.BatchNorm1d(4))
    given = [other_tensors(module) for _ in range(3)]
    want = [call_pure(module, tensors, (x,)) for tensors in given]
    snapshot = Snapshot(module, *tree_leaves(given))
    right = [0, 0, 0]
    start = threading.Barrier(3)

    def work(i: int) -> None:
        start.wait()
        for _ in range(300):
            got = call_pure(module, given[i], (x,))
            same = map(torch.equal, tree_leaves(got), tree_leaves(want[i]))
            right[i] += all(same)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert right == [300, 300, 300]
    snapshot.check()


def test_training_mode_of_each_submodule_holds_for_its_copy(x: Tensor) -> None:
    module = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    module[1].eval()

    _, buffers = call_pure(module, {}, (x,))

    assert buffers["0.num_batches_tracked"].item() == 1
    assert buffers["1.num_batches_tracked"].item() == 0


def test_keyword_arguments_and_module_outputs_pass_through(x: Tensor) -> None:
    module = nn.MultiheadAttention(4, 2)

    output, weights = call_pure(
        module, {}, (x, x), {"value": x, "need_weights": False}
    )[0]

    assert_equal(output, module(x, x, x)[0])
    assert weights is None


def test_full_backward_hooks_run_on_the_copy(x: Tensor) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.linear.register_full_backward_hook(self.count)
            self.gradients: list[Tensor] = []

        def count(self, module: nn.Module, _ingoing: Any, outgoing: Any) -> None:
            assert self.linear is module
            self.gradients.append(outgoing[0])

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    module = Counting()
    weight = torch.randn(3, 4, requires_grad=True)

    x.requires_grad_()
    call_pure(module, {"linear.weight": weight}, (x,))[0].sum().backward()

    # The list is an object that the copy shares; the hook is bound to the copy.
    assert_equal(module.gradients, [torch.ones(6, 3)])
    assert_equal(weight.grad, x.sum(0).expand(3, 4))
    assert module.linear.weight.grad is None


# Dropout: random numbers are torch's own.


def test_dropout_in_eval_mode_does_nothing(x: Tensor) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval()

    assert_equal(call_pure(module, {}, (x,))[0], module[0](x))


def test_dropout_draws_as_the_module_itself(x: Tensor) -> None:
    module = nn.Dropout(0.5)
    torch.manual_seed(3)
    want = module(x)
    torch.manual_seed(3)

    assert torch.equal(call_pure(module, {}, (x,))[0], want)


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_dropout_under_vmap_follows_randomness(
    randomness: str, backend: str | None
) -> None:
    module = nn.Dropout(0.5)
    ones = torch.ones(3, 64)

    def rows(ones: Tensor) -> Tensor:
        return vmap(lambda x: call_pure(module, {}, (x,))[0], randomness=randomness)(
            ones
        )

    if backend is not None:
        rows = torch.compile(rows, fullgraph=True, backend=backend)
    first, second, third = rows(ones)

    same = torch.equal(first, second) and torch.equal(first, third)
    assert same == (randomness == "same")
