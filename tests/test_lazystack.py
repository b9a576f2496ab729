"""Every function of the library on lazy stacks, against the dense tree.

The result is that of the dense tree when the members are alike, or the documented
error that names `densify`.
"""

from __future__ import annotations

import copy
import operator
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc._core.node import Node
from tdfunc._ops.unary import __all__ as unary_names
from tdfunc.errors import OperandError
from tdfunc.testing import assert_equal, assert_valid

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = (2, 3)


def member(seed: int, size: tuple[int, ...]) -> TensorDict:
    draw = torch.Generator().manual_seed(seed)

    def new(*shape: int) -> torch.Tensor:
        return torch.rand(*size, *shape, generator=draw) * 0.8 + 0.1

    entries = {"x": new(), "y": new(2), "n": {"u": new(1), "m": {"v": new()}}}
    return TensorDict({**entries, "s": "text"}, size)


def pair(dim: int) -> tuple[Any, Any]:
    """Return a lazy stack of batch size `SIZE` and the dense tree of its members."""
    size = tuple(n for i, n in enumerate(SIZE) if i != dim)
    trees = [member(i, size) for i in range(SIZE[dim])]
    return tdfunc.lazy_stack(trees, dim), tdfunc.stack(trees, dim)


def root0() -> tuple[Any, Any]:
    return pair(0)


def root1() -> tuple[Any, Any]:
    return pair(1)


def nested() -> tuple[Any, Any]:
    lazy, dense = pair(0)
    top = {"x": torch.rand(SIZE), "e": {}}
    return (
        TensorDict({**top, "n": {"l": lazy}}, SIZE),
        TensorDict({**top, "n": {"l": dense}}, SIZE),
    )


def surplus() -> tuple[Any, Any]:
    lazy, dense = pair(1)
    top = {"x": torch.rand(2, 4)}
    return TensorDict({**top, "l": lazy}, 2), TensorDict({**top, "l": dense}, 2)


KINDS = [root0, root1, nested, surplus]


def first_of(td: Any) -> Any:
    return td.keys(True, True)[-1]


def last_path(td: Any) -> Any:
    paths = [k for k in td.keys(True) if isinstance(k, tuple)]
    return paths[-1] if paths else td.keys()[0]


def mask(td: Any) -> torch.Tensor:
    return (torch.arange(td.numel()) % 2 == 0).reshape(td.batch_size)


def rows(td: Any) -> torch.Tensor:
    return torch.arange(float(td.numel())).reshape(td.batch_size) + 1


def unary(name: str) -> Callable[[Any], Any]:
    return getattr(tdfunc, name)


def binary(name: str) -> Callable[[Any], Any]:
    def call(td: Any) -> Any:
        fn = getattr(tdfunc, name)
        out = [fn(td, 0.5), fn(td, rows(td)), fn(td, td), fn(td, rows(td)[:1])]
        return tuple([x for x in out if isinstance(x, (Node, torch.Tensor))])

    return call


def ints(name: str) -> Callable[[Any], Any]:
    def call(td: Any) -> Any:
        fn = getattr(tdfunc, name)
        td = td.apply(lambda x: (x * 10).to(torch.int64))
        return fn(td, 3), fn(td, td)

    return call


def along(name: str, *args: Any) -> Callable[[Any], Any]:
    return lambda td: getattr(tdfunc, name)(td, *args, td.batch_dims - 1)


def over(name: str, *args: Any) -> dict[str, Callable[[Any], Any]]:
    def fn(td: Any, *dims: Any, **options: Any) -> Any:
        return getattr(tdfunc, name)(td.filter_non_tensor(), *args, *dims, **options)

    return {
        f"{name} all": fn,
        f"{name} feature": lambda td: fn(td, "feature"),
        f"{name} 0": lambda td: fn(td, 0),
        f"{name} 0 keepdim": lambda td: fn(td, 0, keepdim=True),
        f"{name} -1": lambda td: fn(td, -1),
        f"{name} every": lambda td: fn(td, list(range(td.batch_dims))),
    }


BINARY = (
    *("add", "sub", "rsub", "mul", "div", "floor_divide", "remainder", "pow", "eq"),
    *("ne", "lt", "le", "gt", "ge", "atan2", "fmod", "logical_and", "logical_or"),
    *("logical_xor", "maximum", "minimum", "isclose", "allclose", "clamp_min"),
    *("clamp_max", "copysign", "fmax", "fmin", "float_power", "heaviside", "hypot"),
    *("ldexp", "logaddexp", "logaddexp2", "nextafter", "xlogy"),
)
REDUCTIONS = (
    *("sum", "mean", "all", "any", "amax", "amin", "argmax", "argmin", "logsumexp"),
    *("max", "median", "min", "nanmean", "nansum", "prod", "std", "var"),
    *("aminmax", "std_mean", "var_mean"),
)
MAKES = {"rand_like", "randn_like", "empty_like"}

CALLS: dict[str, Callable[[Any], Any]] = {
    **{
        name: unary(name)
        for name in (
            *("bfloat16", "bool", "bytes", "cpu", "depth", "double", "empty", "float"),
            *("half", "int", "is_contiguous", "is_cpu", "is_cuda", "is_meta", "long"),
            *("is_floating_point", "param_count"),
        )
    },
    "bitwise_left_shift": ints("bitwise_left_shift"),
    "bitwise_right_shift": ints("bitwise_right_shift"),
    **over("count_nonzero"),
    "count_nonzero fold": lambda td: td.count_nonzero(reduce=True),
    **over("nanmedian"),
    **over("nanquantile", 0.5),
    "mode": lambda td: td.filter_non_tensor().mode("feature"),
    "kthvalue": lambda td: td.filter_non_tensor().kthvalue(1, "feature"),
    "new_zeros": lambda td: td.new_zeros(4),
    "new_ones": lambda td: td.new_ones(4),
    "new_full": lambda td: td.new_full([4], 2.0),
    "new_empty": lambda td: td.new_empty(4),
    "refine_names": lambda td: td.refine_names("a", "b"),
    "rename": lambda td: td.with_names(["a", "b"]).rename(a="c"),
    "pad_sequence": lambda td: tdfunc.pad_sequence([td, td]),
    "unpad_sequence": lambda td: tdfunc.unpad_sequence(
        tdfunc.stack([td, td], 1), torch.tensor([1, 2])
    ),
    "global_norm": unary("global_norm"),
    "check_finite": unary("check_finite"),
    "tree_dot": lambda td: td.tree_dot(td * 2),
    "cosine_similarity": lambda td: td.cosine_similarity(td * 2),
    "polyak": lambda td: td.polyak(td * 2, 0.1),
    "tree_where": lambda td: tdfunc.tree_where(mask(td), td, td * 2),
    "cat_tensors": lambda td: td.cat_tensors("x", "x", out_key="y"),
    "stack_tensors": lambda td: td.stack_tensors("x", "x", out_key="y"),
    **{name: binary(name) for name in BINARY},
    **{
        name: ints(name)
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm")
    },
    "igamma": lambda td: td.abs().igamma(td.abs()),
    "igammac": lambda td: td.abs().igammac(1),
    "isin": lambda td: td.isin(torch.tensor([1.0, 2.0])),
    "polygamma": lambda td: td.polygamma(1),
    "mvlgamma": lambda td: (td.abs() + 2).mvlgamma(2),
    **{k: v for name in REDUCTIONS for k, v in over(name).items()},
    **over("norm", 2),
    **over("quantile", 0.5),
    **{
        f"{name} reduce": lambda td, name=name: getattr(tdfunc, name)(
            td.filter_non_tensor(), reduce=True
        )
        for name in ("sum", "mean", "prod", "amax", "amin", "nansum", "logsumexp")
    },
    "norm reduce": lambda td: td.norm(2, reduce=True),
    "std reduce": lambda td: td.std(reduce=True),
    "sum reduce feature": lambda td: td.sum("feature", reduce=True),
    **{name: unary(name) for name in unary_names if name != "bitwise_not"},
    "bitwise_not": lambda td: (td > 0.5).bitwise_not(),
    "neg": unary("neg"),
    "abs": unary("abs"),
    "clamp": lambda td: (td.clamp(0.2, 0.5), td.clamp(td * 0.5, rows(td))),
    "lerp": lambda td: (td.lerp(td * 2, 0.5), td.lerp(td * 2, td)),
    "addcmul": lambda td: td.addcmul(td, rows(td)),
    "addcdiv": lambda td: td.addcdiv(td, 2.0),
    "equal": lambda td: td.equal(td.clone()),
    "not equal": lambda td: td.equal(td + 1),
    "operators": lambda td: (1 - td, td**2, 2**td, -td, 3 // td, td % 2, td == +td),
    # Entries
    "set": lambda td: td.set("new", rows(td)),
    "set text": lambda td: td.set("new", "text"),
    "set inside": lambda td: td.set(last_path(td), torch.ones(SIZE)),
    "set beside": lambda td: td.set((*last_path(td)[:-1], "z"), torch.ones(SIZE)),
    "set node": lambda td: td.set("n", {"z": rows(td)}),
    "update": lambda td: td.update({"x": rows(td), "n": {"z": rows(td)}}, k=rows(td)),
    "update only": lambda td: td.update({"x": rows(td), "y": 1}, only=["x"]),
    "update tree": lambda td: td.update(td * 2),
    "update inside": lambda td: td.update(
        {last_path(td)[0]: {last_path(td)[1]: {"z": torch.ones(SIZE)}}}
    ),
    "replace": lambda td: td.replace({"x": rows(td)}),
    "replace inside": lambda td: td.replace({last_path(td)[0]: td[last_path(td)[0]]}),
    "drop": lambda td: td.drop("x"),
    "drop inside": lambda td: td.drop(last_path(td), "x"),
    "select": lambda td: td.select("x"),
    "select inside": lambda td: td.select(last_path(td), "x"),
    "select loosely": lambda td: td.select(last_path(td), "zzz", strict=False),
    "exclude": lambda td: td.exclude(last_path(td), "zzz", "x"),
    "with_names": lambda td: td.with_names([f"d{i}" for i in range(td.batch_dims)]),
    "with_batch_size": lambda td: td.with_batch_size(td.batch_size),
    "with_batch_size shorter": lambda td: td.with_batch_size(td.batch_size[:1]),
    "with_batch_size none": lambda td: td.with_batch_size(()),
    "auto_batch_size": lambda td: td.auto_batch_size(),
    "auto_batch_size 1": lambda td: td.auto_batch_size(1),
    "rename_key": lambda td: td.rename_key("x", "z"),
    "rename_key inside": lambda td: td.rename_key(
        last_path(td), (*last_path(td)[:-1], "zz")
    ),
    "rename_keys": lambda td: td.rename_keys({"x": ("q", "r")}),
    "flatten_keys": lambda td: td.flatten_keys().unflatten_keys(),
    "unflatten_keys": lambda td: td.flatten_keys("/").unflatten_keys("/"),
    "split_keys": lambda td: td.split_keys(["x"], [last_path(td)]),
    "filter_empty": lambda td: td.filter_empty(),
    "filter_non_tensor": lambda td: td.filter_non_tensor(),
    "merge": lambda td: tdfunc.merge(*td.split_keys(["x"])),
    "update_with": lambda td: td.update_with({"x": lambda x: x + 1}),
    "update_with inside": lambda td: td.update_with({last_path(td): lambda x: x * 2}),
    # Leaves
    "apply": lambda td: (td.apply(lambda x: x + 1), td.apply(torch.add, td)),
    "named_apply": lambda td: td.named_apply(lambda name, x: x * len(name)),
    "to": lambda td: (td.to(torch.float64), td.to("cpu"), td.to(None)),
    "detach": unary("detach"),
    "clone": unary("clone"),
    "consolidate": unary("consolidate"),
    "share": unary("share"),
    "contiguous": unary("contiguous"),
    "with_statics": lambda td: td.with_statics(td.clone()),
    "to_dict": lambda td: TensorDict(td.to_dict(), td.batch_size),
    "to_tensordict": lambda td: td.to_tensordict(),
    "densify": lambda td: td.densify(),
    "to_lazystack": lambda td: td.to_lazystack(td.batch_dims - 1),
    "zeros_like": unary("zeros_like"),
    "ones_like": lambda td: td.ones_like(dtype=torch.int32),
    "full_like": lambda td: td.full_like(3),
    "empty_like": unary("empty_like"),
    "rand_like": unary("rand_like"),
    "randn_like": unary("randn_like"),
    "to_namedtuple": unary("to_namedtuple"),
    "to_numpy": unary("to_numpy"),
    "to_dlpack": unary("to_dlpack"),
    "to_struct_array": lambda td: td.filter_non_tensor().to_struct_array(),
    "pack": lambda td: td.filter_non_tensor().pack()[0],
    "ravel": lambda td: td.filter_non_tensor().ravel()[0],
    "state_dict": lambda td: td.state_dict(),
    "load_state_dict": lambda td: td.load_state_dict({}, strict=False),
    "partition": lambda td: tdfunc.partition(td, "floating"),
    "dynamic_shapes": lambda td: tdfunc.dynamic_shapes(td, {0: "B"}),
    "from_any": lambda td: tdfunc.from_any({"a": td}),
    "from_dict": lambda td: tdfunc.from_dict({"a": td}, batch_size=td.batch_size),
    "from_tuple": lambda td: tdfunc.from_tuple((td, td)),
    "from_list": lambda td: tdfunc.from_list([td, td]),
    "from_pytree": lambda td: tdfunc.to_pytree(*tdfunc.from_pytree([td, {1: td}]))[0],
    "TensorDict": lambda td: TensorDict({"a": td}, td.batch_size[:1]),
    "in_dims": lambda td: tdfunc.in_dims(td, 0).batch_size,
    # Shape
    "reshape": lambda td: (td.reshape(1, *td.batch_size, 1), td.reshape(td.batch_size)),
    "reshape all": lambda td: td.reshape(-1),
    "view": lambda td: td.view(1, *td.batch_size),
    "flatten": lambda td: td.flatten(),
    "flatten one": lambda td: td.flatten(0, 0),
    "unflatten": lambda td: td.unflatten(td.batch_dims - 1, (1, -1)),
    "unflatten 0": lambda td: td.unflatten(0, (-1, 1)),
    "unsqueeze": lambda td: tuple(
        [td.unsqueeze(i) for i in range(-td.batch_dims - 1, td.batch_dims + 1)]
    ),
    "squeeze": lambda td: (td.unsqueeze(1).squeeze(), td.unsqueeze(0).squeeze(0)),
    "permute": lambda td: td.permute(*reversed(range(td.batch_dims))),
    "transpose": lambda td: td.transpose(0, -1),
    "movedim": lambda td: td.movedim(0, -1),
    "expand": lambda td: (
        td.expand(4, *td.batch_size),
        td[:1].expand(5, *td.shape[1:]),
    ),
    "expand_as": lambda td: td.expand_as(torch.zeros(4, *td.batch_size)),
    "broadcast_to": lambda td: td.broadcast_to((1, *td.batch_size)),
    "unbind": lambda td: td.unbind(0) + td.unbind(-1),
    "iterate": tuple,
    "narrow": lambda td: (td.narrow(0, 1, 1), td.narrow(-1, 0, 1)),
    "atleast_1d": unary("atleast_1d"),
    "atleast_2d": unary("atleast_2d"),
    "atleast_3d": unary("atleast_3d"),
    # Pieces
    "split": lambda td: td.split(1, 0) + td.split(2, -1),
    "chunk": lambda td: td.chunk(2, 0) + td.chunk(2, -1),
    "tensor_split": lambda td: td.tensor_split(2, 0) + td.tensor_split([1], -1),
    "tensor_split back": lambda td: td.tensor_split([2, 1], -1)[:1],
    "repeat": lambda td: td.repeat(*range(2, 2 + td.batch_dims)),
    "tile": lambda td: (td.tile(2), td.tile(*[2] * (td.batch_dims + 1))),
    "repeat_interleave": lambda td: (
        td.repeat_interleave(2, 0),
        td.repeat_interleave(torch.arange(td.shape[-1]) + 1, -1),
        td.repeat_interleave(torch.arange(td.shape[0]), 0),
    ),
    "roll": lambda td: (td.roll(1, 0), td.roll(-2, -1), td.roll([1, 1], [0, -1])),
    "flip": lambda td: (td.flip(0), td.flip(-1), td.flip(*range(td.batch_dims))),
    "flipud": unary("flipud"),
    "fliplr": unary("fliplr"),
    "rot90": unary("rot90"),
    "pad": lambda td: td.pad((1, 2), value=3),
    "pad last": lambda td: td.pad((*(0, 0) * (td.batch_dims - 1), 1, 2)),
    "gather": lambda td: td.gather(0, torch.zeros(td.batch_size, dtype=torch.int64)),
    "gather -1": lambda td: td.gather(
        -1, torch.zeros(td.batch_size, dtype=torch.int64)[:1]
    ),
    "take": lambda td: td.take(torch.tensor([0, -1])),
    "index_select": lambda td: (
        td.index_select(0, torch.tensor([1, 0, 1])),
        td.index_select(-1, torch.tensor(1)),
    ),
    "masked_select": lambda td: td.masked_select(mask(td)),
    "masked_fill": lambda td: (
        td.masked_fill(mask(td), 7),
        td.masked_fill(td > 0.5, 7),
    ),
    "where": lambda td: (
        tdfunc.where(mask(td), td, 0.0),
        td.where(td > 0.5, td * 2),
        tdfunc.where(td > 0.5, 1.0, rows(td)),
    ),
    # Rows
    "at set": lambda td: (td.at[0].set(1), td.at[..., 0].set(td[..., 1])),
    "at set rows": lambda td: (td.at[1:].set(rows(td)[1:]), td.at[[0]].set(td[[1]])),
    "at add": lambda td: (td.at[[0, 0, 1]].add(1), td.at[..., [0, 0]].add(2)),
    "at tree": lambda td: td.at[0].mul(td[1]),
    "at mapping": lambda td: td.at[0].set({"x": td["x"][1]}),
    "at path": lambda td: td.at[0].set({last_path(td): 5}),
    "at mask": lambda td: td.at[mask(td)[:, 0] if td.batch_dims > 1 else mask(td)].div(
        3
    ),
    "at whole mask": lambda td: td.at[mask(td)].set(1),
    "at apply": lambda td: td.at[1].apply(torch.exp),
    "at min": lambda td: (td.at[0].min(0.3), td.at[:].max(rows(td)), td.at[0].pow(2)),
    "at get": lambda td: (td.at[0].get(), td.at[...].get()),
    "at fill": lambda td: td.at[[0, 7]].get(fill_value=0),
    "index": lambda td: (
        *(td[0], td[1:], td[None], td[..., 0], td[[1, 0]], td[torch.tensor(1)]),
        *(td[..., [0, 0]], td[::2], td[-1], td[mask(td).flatten()[: len(td)]]),
    ),
    "index mask": lambda td: td[mask(td)],
    "index pairs": lambda td: td[tuple([torch.tensor([0, 1])] * td.batch_dims)],
    # Along
    **{
        name: along(name)
        for name in (
            *("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "softmax"),
            *("log_softmax", "sort", "argsort"),
        )
    },
    "topk": along("topk", 1),
    "cumsum 0": lambda td: td.cumsum(0),
    "sort 0": lambda td: td.sort(0),
    # Joining
    "stack": lambda td: (tdfunc.stack([td, td]), tdfunc.stack([td, td * 2], -1)),
    "cat": lambda td: (tdfunc.cat([td, td]), tdfunc.cat([td, td], -1)),
    "lazy_stack": lambda td: tdfunc.lazy_stack([td, td], 1),
    "maybe_dense_stack": lambda td: tdfunc.maybe_dense_stack([td, td]),
    # Copies
    "copy": lambda td: (copy.copy(td), copy.deepcopy(td)),
    "pickle": lambda td: pickle.loads(pickle.dumps(td)),
    "torch": lambda td: (torch.add(td, td), torch.stack([td, td]), torch.exp(td)),
    "getitem": lambda td: operator.getitem(td, last_path(td)),
    "keys": lambda td: (td.keys(True, True, sort=True), td.keys(True), td.keys()),
    "values": lambda td: td.values(True, True),
    "items": lambda td: dict(td.items(True, True)),
    "contains": lambda td: (last_path(td) in td, "zzz" in td, ("n", "members") in td),
    "len": len,
    "is_empty": lambda td: td.is_empty(),
    "attributes": lambda td: (td.dtype, td.device, td.requires_grad, td.names, td.ndim),
}


def dense(value: Any) -> Any:
    """Return a result with every lazy stack in it as a dense tree."""
    if isinstance(value, Node):
        return tdfunc.densify(value)
    if isinstance(value, tuple):
        return tuple([dense(x) for x in value])
    if isinstance(value, dict):
        return {key: dense(x) for key, x in value.items()}
    return value


def assert_same(got: Any, expected: Any, *, values: bool = True) -> None:
    if isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for x, y in zip(got, expected, strict=True):
            assert_same(x, y, values=values)
    elif isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key, y in expected.items():
            assert_same(got[key], y, values=values)
    elif isinstance(expected, Node):
        assert isinstance(got, Node)
        assert got.batch_size == expected.batch_size
        assert got.names == expected.names
        assert set(got.keys(True)) == set(expected.keys(True))
        if values:
            assert_equal(got, expected, rtol=1e-5)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected, equal_nan=True)
    else:
        assert got == expected


# What the stack dim takes part in, or what wants one block of memory.
ALL = "root0 root1 nested surplus"
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (
            *("to_namedtuple", "to_numpy", "to_dlpack", "to_struct_array", "pack"),
            *("ravel", "state_dict", "load_state_dict", "partition", "at fill"),
            *("dynamic_shapes", "sum reduce feature", "new_zeros", "new_ones"),
            *("new_full", "new_empty"),
        ),
        ALL,
    ),
    **{
        f"{name} {what}": kinds
        for name in (
            *(*REDUCTIONS, "norm", "quantile", "nanquantile", "count_nonzero"),
            "nanmedian",
        )
        for what, kinds in {
            "all": "" if name in {"all", "any"} else ALL,
            "0": "root0 nested",
            "0 keepdim": "root0 nested",
            "-1": "root1",
            "every": "root0 root1 nested",
        }.items()
    },
    **dict.fromkeys(
        (
            *("flatten", "take", "masked_select", "reshape all", "at whole mask"),
            *("index mask", "index pairs"),
        ),
        "root0 root1 nested",
    ),
    **dict.fromkeys(
        (
            *("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "softmax"),
            *("log_softmax", "sort", "argsort", "topk", "pad last", "gather -1"),
            "with_batch_size shorter",
        ),
        "root1",
    ),
    **dict.fromkeys(("pad", "gather", "cumsum 0", "sort 0"), "root0 nested"),
    **dict.fromkeys(
        ("auto_batch_size", "auto_batch_size 1", "with_batch_size none"), "root0 root1"
    ),
}
# A stack inside a tree keeps its batch dims where a dense node would change them.
KEEPS = {
    *("with_batch_size shorter", "with_batch_size none", "auto_batch_size 1"),
    *("flatten_keys", "unflatten_keys"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_lazy_is_dense_or_refused(name: str, kind: Any) -> None:
    lazy, alike = kind()
    call = CALLS[name]
    refused = kind.__name__ in REFUSED.get(name, "").split()
    try:
        expected = dense(call(alike))
    except Exception as error:  # noqa: BLE001 - whatever the dense tree refuses
        with pytest.raises((type(error), OperandError)):
            call(lazy)
        return
    if refused:
        with pytest.raises(OperandError, match="densify"):
            call(lazy)
        return
    got = call(lazy)
    for tree in got if isinstance(got, tuple) else [got]:
        if isinstance(tree, Node):
            assert_valid(tree)
    nested_sizes = name not in KEEPS
    assert_same(dense(got), expected, values=name not in MAKES and nested_sizes)


def test_table_has_every_operation() -> None:
    names = {
        name
        for name in tdfunc.__all__
        if callable(getattr(tdfunc, name))
        and getattr(getattr(tdfunc, name), "__module__", "").startswith("tdfunc._ops")
        and not isinstance(getattr(tdfunc, name), type)
    }
    covered = {word for name in CALLS for word in [name, name.split()[0]]}
    assert names - covered == OTHER


# They take no tree, or are made of what is in the table.
OTHER = {
    *("cuda",),
    *("combine", "from_dataclass", "from_dlpack", "from_namedtuple", "from_numpy"),
    *("from_schema", "from_struct_array", "fromkeys", "moveaxis", "swapaxes"),
    *("swapdims", "to_pytree"),
}
