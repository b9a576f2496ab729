"""torch's own functions take trees where they have our operation, or say no."""

from __future__ import annotations

import operator
import re
from typing import Any

import pytest
import torch

from tdfunc import TensorDict
from tdfunc.errors import OperandError
from tests.cases import check, leaves_of, ramp, same

Size = torch.Size


def tree() -> TensorDict:
    return TensorDict(
        {"x": ramp(2, 3, 4) + 1, "n": {"y": ramp(2, 3) - 2}, "s": "t"}, (2, 3)
    )


LEAVES = {("x",): ramp(2, 3, 4) + 1, ("n", "y"): ramp(2, 3) - 2}

SHAPES: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    # name: what torch is called with, the same on a leaf, the batch size
    "reshape": (
        lambda t: torch.reshape(t, (6,)),
        lambda x: x.reshape(6, *x.shape[2:]),
        (6,),
    ),
    "unsqueeze": (lambda t: torch.unsqueeze(t, 1), lambda x: x.unsqueeze(1), (2, 1, 3)),
    "squeeze": (lambda t: torch.squeeze(t.unsqueeze(0)), lambda x: x, (2, 3)),
    "squeeze a dim": (lambda t: torch.squeeze(t, 0), lambda x: x, (2, 3)),
    "permute": (
        lambda t: torch.permute(t, (1, 0)),
        lambda x: x.transpose(0, 1),
        (3, 2),
    ),
    "transpose": (
        lambda t: torch.transpose(t, 0, 1),
        lambda x: x.transpose(0, 1),
        (3, 2),
    ),
    "clone": (torch.clone, lambda x: x, (2, 3)),
    "detach": (torch.detach, lambda x: x, (2, 3)),
    "abs": (torch.abs, torch.abs, (2, 3)),
    "neg": (torch.neg, torch.neg, (2, 3)),
    "sum": (torch.sum, torch.sum, ()),
    "sum over a dim": (lambda t: torch.sum(t, 0), lambda x: x.sum(0), (3,)),
    "sum by keyword": (
        lambda t: torch.sum(t, dim=1, keepdim=True),
        lambda x: x.sum(1, keepdim=True),
        (2, 1),
    ),
    "mean": (torch.mean, torch.mean, ()),
    "mean over a dim": (lambda t: torch.mean(t, -1), lambda x: x.mean(1), (2,)),
    "stack": (lambda t: torch.stack([t, t]), lambda x: torch.stack([x, x]), (2, 2, 3)),
    "stack by keyword": (
        lambda t: torch.stack([t, t], dim=-1),
        lambda x: torch.stack([x, x], 2),
        (2, 3, 2),
    ),
    "cat": (lambda t: torch.cat([t, t], dim=1), lambda x: torch.cat([x, x], 1), (2, 6)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_torch_functions_act_as_the_methods_do(name: str) -> None:
    function, on_leaf, batch = SHAPES[name]
    out = function(tree())
    check(out, batch, {path: on_leaf(x) for path, x in LEAVES.items()}, {("s",): "t"})


def test_torch_unbind_gives_the_rows() -> None:
    unbind: Any = torch.unbind
    rows = unbind(tree(), 1)
    assert [row.batch_size for row in rows] == [Size((2,))] * 3
    assert same(rows[2]["x"], (ramp(2, 3, 4) + 1)[:, 2])


BINARY = [
    *("add", "sub", "mul", "div", "true_divide", "floor_divide", "remainder", "pow"),
    *("eq", "ne", "lt", "le", "gt", "ge"),
]


@pytest.mark.parametrize("name", BINARY)
def test_torch_binary_functions_take_trees_on_either_side(name: str) -> None:
    function = getattr(torch, name)
    td = tree()
    weights = ramp(2, 3) + 2
    one, two = weights[..., None], weights
    check(function(td, td), (2, 3), {p: function(x, x) for p, x in LEAVES.items()})
    check(function(td, 2), (2, 3), {p: function(x, 2) for p, x in LEAVES.items()})
    check(
        function(td, weights),
        (2, 3),
        {
            ("x",): function(LEAVES["x",], one),
            ("n", "y"): function(LEAVES["n", "y"], two),
        },
    )
    check(
        function(weights, td),
        (2, 3),
        {
            ("x",): function(one, LEAVES["x",]),
            ("n", "y"): function(two, LEAVES["n", "y"]),
        },
    )


OPERATORS = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
    *(operator.mod, operator.pow, operator.eq, operator.ne, operator.lt, operator.le),
    *(operator.gt, operator.ge),
]


@pytest.mark.parametrize("op", OPERATORS)
def test_operators_of_a_tensor_hand_over_to_the_tree(op: Any) -> None:
    weights = ramp(2, 3) + 2
    out = op(weights, tree())
    assert isinstance(out, TensorDict)
    assert same(out["n", "y"], op(weights, LEAVES["n", "y"]))
    assert same(out["x"], op(weights[..., None], LEAVES["x",]))


def test_a_parameter_is_a_tensor_on_the_left_too() -> None:
    weights = torch.nn.Parameter(ramp(2, 3))
    out = weights - tree()
    assert same(out["n", "y"], ramp(2, 3) - LEAVES["n", "y"])
    out["n", "y"].sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    "use",
    [
        torch.fft.fft,
        torch.linalg.norm,
        lambda t: torch.matmul(t, t),
        torch.nn.functional.normalize,
        lambda t: torch.zeros(2, 3).copy_(t),
        lambda t: torch.zeros(2, 3).add_(t),
        torch.rrelu,
    ],
    ids=["fft", "norm", "matmul", "normalize", "copy_", "add_", "torch.rrelu"],
)
def test_other_functions_of_torch_say_that_they_take_no_tree(use: Any) -> None:
    with pytest.raises(TypeError):
        use(tree())


@pytest.mark.parametrize("name", ["add", "stack", "cat", "sum", "unsqueeze"])
def test_out_arguments_are_refused(name: str) -> None:
    td = tree()
    args: dict[str, Any] = {
        "add": (td, 1),
        "stack": ([td, td],),
        "cat": ([td, td],),
        "sum": (td, 0),
        "unsqueeze": (td, 0),
    }[name]
    with pytest.raises(TypeError):
        getattr(torch, name)(*args, out=torch.zeros(2))
    assert list(leaves_of(td)) == sorted(LEAVES)


ALIASES = {
    "absolute": "abs",
    "arccos": "acos",
    "arcsinh": "asinh",
    "negative": "neg",
    "fix": "trunc",
    "arctan": "atan",
}
BINARY_ALIASES = [
    "divide",
    "greater",
    "less_equal",
    "multiply",
    "not_equal",
    "subtract",
]


def test_other_names_of_torchs_functions() -> None:
    td = tree() / 10
    for alias, name in ALIASES.items():
        expected = getattr(td, name)()
        check(getattr(torch, alias)(td), (2, 3), leaves_of(expected))
    for alias in BINARY_ALIASES:
        got = getattr(torch, alias)(td, 2)
        check(
            got,
            (2, 3),
            {p: getattr(torch, alias)(x / 10, 2) for p, x in LEAVES.items()},
        )
    through: Any = torch.equal
    assert through(td, td) is True
    assert through(td, td + 1) is False
    through = torch.is_floating_point
    assert through(td) is True


def test_a_number_may_come_first() -> None:
    for name in ("pow", "sub", "remainder", "bitwise_left_shift"):
        fn: Any = getattr(torch, name)
        leaves = {path: x.to(torch.int64).clamp(0, 5) + 1 for path, x in LEAVES.items()}
        td = TensorDict({"x": leaves["x",], "n": {"y": leaves["n", "y"]}}, (2, 3))
        expected = {p: fn(torch.tensor(7), x) for p, x in leaves.items()}
        check(fn(7, td), (2, 3), expected)


def test_a_refused_function_is_named_so_that_apply_can_call_it() -> None:
    td: Any = TensorDict({"x": torch.ones(2, 3, 3)}, 2)
    one_hot: Any = torch.nn.functional.one_hot
    functions: list[Any] = [torch.linalg.inv, torch.fft.fft, one_hot]
    for fn in functions:
        name = torch.overrides.resolve_name(fn)
        assert name
        with pytest.raises(OperandError, match=rf"td\.apply\({re.escape(name)}\)"):
            fn(td)
        assert eval(name) is fn  # noqa: S307
    with pytest.raises(OperandError, match=r"lambda leaf: torch\.nn\.functional\.one"):
        one_hot(td, 3)


def test_torchs_pad_is_refused_with_the_pairs_turned_around() -> None:
    pad: Any = torch.nn.functional.pad
    td: Any = TensorDict({"x": torch.ones(2, 3, 4)}, (2, 3))
    with pytest.raises(OperandError, match=r"td\.pad\(\[0, 0, 1, 2\], value=3\)"):
        pad(td, (1, 2), value=3)
    assert td.pad([0, 0, 1, 2], value=3).batch_size == (2, 6)
    with pytest.raises(OperandError, match=r"td\.pad\(\[3, 4, 1, 2\]\)"):
        pad(td, pad=(1, 2, 3, 4))
