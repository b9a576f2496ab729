"""Arithmetic is a homomorphism: a tree of results is the result on trees.

Leaf by leaf, what torch does with the operands, dtype promotion and errors included;
only the alignment is the library's own: batch dims with batch dims, the batch dims that
a nested node has of its own with those, and feature dims with feature dims.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

import tdfunc
from property_tests import model as m
from tdfunc import NonTensorData, TensorDict
from tdfunc.errors import TdfuncError
from tdfunc.testing import (
    assert_equal,
    assert_pure,
    assert_valid,
    tensordicts,
    tensors,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings(m.COMPLEX_HALF)

ARITHMETIC = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
}
COMPARISONS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
OPERATORS = ARITHMETIC | COMPARISONS
each_operator = pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS.keys())

# The functions of the facade, with torch's of the same name.
FUNCTIONS = [
    *("add", "sub", "mul", "div", "floor_divide", "remainder", "pow"),
    *("eq", "ne", "lt", "le", "gt", "ge"),
]


def filled(dtype: torch.dtype, shape: Any) -> st.SearchStrategy[torch.Tensor]:
    """Return a strategy for tensors of exactly one shape.

    Integers stay small: the least integer divided by -1 ends the process in torch.
    """
    special = dtype.is_floating_point or dtype.is_complex
    return tensors(shape, dtypes=[dtype], feature_dims=0, special=special)


@st.composite
def operands(draw: st.DrawFn, prefix: Any = ()) -> torch.Tensor:
    """Draw a tensor of any dtype, with up to two feature dims and some negatives."""
    shape = (*prefix, *draw(st.lists(st.integers(0, 3), max_size=2)))
    dtype = draw(st.sampled_from(m.DTYPES))
    x = draw(filled(dtype, shape))
    negative = dtype in {torch.int8, torch.int16, torch.int32, torch.int64}
    return x - 1 if negative else x


def trees(**flags: Any) -> st.SearchStrategy[TensorDict]:
    return tensordicts(leaves=operands, max_leaves=3, **flags)


NUMBERS = st.sampled_from(
    [0, 1, 2, -1, True, False, 0.5, -2.0, 1e30, math.inf, 2j, 1 + 1j]
)


def assert_same_result(
    op: Callable[..., Any],
    expected: Callable[[Any], m.Model],
    found: Callable[[], TensorDict],
) -> None:
    """Assert that both give the same tree, or that both raise.

    Args:
        op: the operator on tensors.
        expected: makes the model, given the operator.
        found: makes the tree.
    """
    kinds: set[type[Exception]] = set()

    def tried(*args: Any) -> torch.Tensor:
        try:
            return op(*args)
        except Exception as error:  # noqa: BLE001 - whatever torch raises
            kinds.add(type(error))
            return torch.empty(0)

    model = expected(tried)
    if kinds:
        with pytest.raises((*kinds, TdfuncError)):
            found()
    else:
        td = found()
        assert_valid(td)
        m.assert_is(model, td)


@each_operator
@given(td=trees(), number=NUMBERS)
def test_number_acts_on_each_leaf(op: Any, td: TensorDict, number: Any) -> None:
    model = m.read(td)

    assert_same_result(
        op,
        lambda op: m.mapped(model, lambda x: op(x, number)),
        lambda: assert_pure(op, td, number),
    )
    assert_same_result(
        op,
        lambda op: m.mapped(model, lambda x: op(number, x)),
        lambda: assert_pure(op, number, td),
    )


@st.composite
def variants(draw: st.DrawFn, shape: Any) -> list[int]:
    """Draw a shape that broadcasts with another: shorter, with ones, or longer."""
    start = draw(st.integers(0, len(shape)))
    out = [
        draw(st.integers(0, 3)) if n == 1 else draw(st.sampled_from([n, 1]))
        for n in shape[start:]
    ]
    if not start and draw(st.booleans()):
        out = [*draw(st.lists(st.integers(0, 3), max_size=1)), *out]
    return out


@each_operator
@given(td=trees(), data=st.data())
def test_tensor_aligns_with_the_batch_dims(
    op: Any, td: TensorDict, data: st.DataObject
) -> None:
    """As if the tree were one tensor of the batch shape."""
    model, dims = m.read(td), td.batch_dims
    shape = data.draw(variants(td.batch_size), label="shape")
    dtype = data.draw(st.sampled_from(m.DTYPES), label="dtype")
    tensor = data.draw(filled(dtype, shape), label="tensor")
    joint = torch.broadcast_shapes(shape, td.batch_size)

    def view(x: torch.Tensor) -> torch.Tensor:
        ones = (1,) * (x.dim() - dims)
        return tensor.reshape((*shape, *ones)) if shape else tensor

    def resize(size: torch.Size) -> tuple[int, ...]:
        return (*joint, *size[dims:])

    assert_same_result(
        op,
        lambda op: m.mapped(model, lambda x: op(x, view(x)), resize),
        lambda: assert_pure(op, td, tensor),
    )
    assert_same_result(
        op,
        lambda op: m.mapped(model, lambda x: op(view(x), x), resize),
        lambda: assert_pure(op, tensor, td),
    )


def partner(draw: Any, model: m.Model, size: list[int], leaf: Any) -> m.Model:
    """Draw a model with the same entries whose every part broadcasts with `model`."""
    entries: dict[str, Any] = {}
    dims = len(model.size)
    for key, value in draw(st.permutations(list(model.entries.items()))):
        if isinstance(value, m.Model):
            own = draw(variants(value.size[dims:])) if value.has_leaves() else []
            entries[key] = partner(draw, value, [*size, *own], leaf)
        elif isinstance(value, torch.Tensor):
            features = draw(variants(value.shape[dims:]))
            entries[key] = draw(leaf((*size, *features)))
        else:
            entries[key] = value
    return m.settled(m.Model(torch.Size(size), entries))


def paired(one: m.Model, two: m.Model, op: Any) -> m.Model:
    """Return the model of `op` on the tensors at each path, aligned level by level."""

    def below(a: m.Model, b: m.Model, sizes: Any, size: torch.Size) -> m.Model:
        entries: dict[str, Any] = {}
        for key, x in a.entries.items():
            y = b.entries[key]
            if isinstance(x, m.Model):
                own = x.size[len(a.size) :], y.size[len(b.size) :]
                joint = torch.Size((*size, *torch.broadcast_shapes(*own)))
                entries[key] = below(x, y, [*sizes, own], joint)
            elif isinstance(x, torch.Tensor):
                features = x.shape[len(a.size) :], y.shape[len(b.size) :]
                left, right = zip(*sizes, features, strict=True)
                entries[key] = op(_padded(x, left, right), _padded(y, right, left))
            else:
                entries[key] = x
        return m.Model(size, entries)

    joint = torch.Size(torch.broadcast_shapes(one.size, two.size))
    return m.settled(below(one, two, [(one.size, two.size)], joint))


def _padded(x: torch.Tensor, mine: Any, theirs: Any) -> torch.Tensor:
    """Return a tensor with dims of size 1 in front of each part that is shorter.

    A tensor without dims stays one: torch gives it less say in the dtype.
    """
    if not x.dim():
        return x
    shape: list[int] = []
    for own, other in zip(mine, theirs, strict=True):
        shape += [1] * (len(other) - len(own))
        shape += own
    return x.reshape(shape)


@each_operator
@given(td=trees(), data=st.data())
def test_trees_pair_by_path_and_level(
    op: Any, td: TensorDict, data: st.DataObject
) -> None:
    model = m.read(td)
    size = data.draw(variants(td.batch_size), label="batch size")
    leaf = lambda shape: st.sampled_from(m.DTYPES).flatmap(  # noqa: E731
        lambda dtype: filled(dtype, shape)
    )
    other = partner(data.draw, model, size, leaf)

    assert_same_result(
        op,
        lambda op: paired(model, other, op),
        lambda: assert_pure(op, td, m.build(other)),
    )
    assert_same_result(
        op,
        lambda op: paired(other, model, op),
        lambda: assert_pure(op, m.build(other), td),
    )


@each_operator
@given(td=trees(), data=st.data())
def test_trees_of_the_same_shape_pair_leaf_by_leaf(
    op: Any, td: TensorDict, data: st.DataObject
) -> None:
    """What most programs do, and what takes torch's multi-tensor kernels."""
    model = m.read(td)
    entries = dict(data.draw(st.permutations(list(model.entries.items()))))

    def recast(x: torch.Tensor) -> torch.Tensor:
        return data.draw(
            filled(data.draw(st.sampled_from([x.dtype, *m.DTYPES])), x.shape)
        )

    other = m.mapped(m.Model(model.size, entries), recast)

    assert_same_result(
        op,
        lambda op: paired(model, other, op),
        lambda: assert_pure(op, td, m.build(other)),
    )


@pytest.mark.parametrize("name", FUNCTIONS)
@given(td=trees(), data=st.data())
def test_function_is_torchs_of_the_same_name(
    name: str, td: TensorDict, data: st.DataObject
) -> None:
    """Called as the library's, as torch's, or as a method."""
    ours, torchs = getattr(tdfunc, name), getattr(torch, name)
    number = data.draw(NUMBERS)
    tensor = data.draw(operands().filter(lambda x: not x.dim()))
    model = m.read(td)

    for other in (number, tensor, tensor.view(()).clone()):
        for call in (ours, torchs, lambda td, other: getattr(td, name)(other)):
            assert_same_result(
                torchs,
                lambda op, other=other: m.mapped(model, lambda x: op(x, other)),
                lambda call=call, other=other: call(td, other),
            )


@pytest.mark.parametrize("op", [operator.neg, operator.abs], ids=["neg", "abs"])
@given(td=trees())
def test_unary_operator_acts_on_each_leaf(op: Any, td: TensorDict) -> None:
    assert_same_result(
        op, lambda op: m.mapped(m.read(td), op), lambda: assert_pure(op, td)
    )


def exact(size: Any) -> st.SearchStrategy[torch.Tensor]:
    return tensors(size, dtypes=[torch.float64])


def exact_of_shape(shape: Any) -> st.SearchStrategy[torch.Tensor]:
    return filled(torch.float64, shape)


@pytest.mark.parametrize("op", [operator.add, operator.mul], ids=["add", "mul"])
@given(td=tensordicts(leaves=exact, statics=False), data=st.data())
def test_addition_and_multiplication_commute(
    op: Any, td: TensorDict, data: st.DataObject
) -> None:
    """With trees and tensors of any shapes that broadcast: nothing depends on sides."""
    size = data.draw(variants(td.batch_size))
    other = m.build(partner(data.draw, m.read(td), size, exact_of_shape))
    tensor = data.draw(exact_of_shape(size))

    assert_equal(op(td, other), op(other, td))
    assert_equal(op(td, tensor), op(tensor, td))


@each_operator
@given(td=tensordicts(leaves=exact, statics=False), data=st.data())
def test_operators_commute_with_expanding(
    op: Any, td: TensorDict, data: st.DataObject
) -> None:
    """Broadcasting by the operator is expanding first."""
    size = data.draw(variants(td.batch_size))
    other = m.build(partner(data.draw, m.read(td), size, exact_of_shape))
    joint = torch.broadcast_shapes(size, td.batch_size)

    expected = op(td.expand(joint), other.expand(joint))

    assert_equal(expected, op(td, other))


@each_operator
@given(td=tensordicts(leaves=exact, names=True))
def test_names_and_statics_come_from_the_left(op: Any, td: TensorDict) -> None:
    def renamed(model: m.Model) -> m.Model:
        entries = {
            key: renamed(value)
            if isinstance(value, m.Model)
            else NonTensorData("other")
            if isinstance(value, NonTensorData)
            else value
            for key, value in model.entries.items()
        }
        return m.Model(model.size, entries)

    found = op(td, m.build(renamed(m.read(td))))

    assert td.names == found.names
    for path, value, _ in m.walk(m.read(td)):
        if isinstance(value, NonTensorData):
            assert value == NonTensorData(found[path])


@pytest.mark.parametrize("op", ARITHMETIC.values(), ids=ARITHMETIC.keys())
@given(
    td=tensordicts(key=st.sampled_from("ab"), statics=False),
    other=tensordicts(key=st.sampled_from("ab"), statics=False),
)
def test_trees_with_other_entries_are_refused(
    op: Any, td: TensorDict, other: TensorDict
) -> None:
    """All entries must match, and the message names every one that does not."""
    mine, theirs = (
        {path: isinstance(value, m.Model) for path, value, _ in m.walk(m.read(x))}
        for x in (td, other)
    )
    if mine == theirs:
        return

    with pytest.raises(KeyError) as caught:
        op(td, other)

    tops = mine.keys() ^ theirs.keys()
    tops = {path for path in tops if len(path) == 1 or path[:-1] not in tops}
    for path in tops:
        assert tdfunc.errors.show_path(path) in str(caught.value)


@given(tensordicts(), st.sampled_from(["text", None, object(), [1], {"a": 1}]))
def test_other_kinds_are_never_equal_and_can_not_be_added(
    td: TensorDict, other: Any
) -> None:
    assert (td == other) is False
    assert (td != other) is True
    with pytest.raises(TypeError):
        td + other
    with pytest.raises(TypeError):
        other + td


@each_operator
@given(td=tensordicts(leaves=exact), data=st.data())
def test_array_acts_as_the_tensor_with_its_elements(
    op: Any, td: TensorDict, data: st.DataObject
) -> None:
    tensor = data.draw(exact_of_shape(data.draw(variants(td.batch_size))))
    array = np.asarray(tensor)

    assert_equal(op(td, tensor), op(td, array))
    assert_equal(op(tensor, td), op(array, td))


@given(tensordicts(), st.data())
def test_equal_compares_what_the_model_has(td: TensorDict, data: st.DataObject) -> None:
    """One changed value, dtype, static, key or size makes trees unequal."""
    model = m.read(td)
    same = m.mapped(model, torch.clone)
    flipped = m.Model(same.size, dict(reversed(same.entries.items())))

    assert td.equal(m.build(flipped), equal_nan=True)
    assert not td.equal(td.set("a new key", torch.zeros(td.batch_size)))
    if model.entries:
        assert not td.equal(td.drop(data.draw(st.sampled_from(td.keys()))))
    rows = [row for row in m.leaves(model) if row[1].numel()]
    if rows:
        path, x, _ = data.draw(st.sampled_from(rows))
        assert not td.equal(td.set(path, x.to(torch.complex128)), equal_nan=True)
        changed = torch.where(x == 0, torch.ones_like(x), torch.zeros_like(x))
        assert not td.equal(td.set(path, changed), equal_nan=True)
