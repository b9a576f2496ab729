"""Writing rows: torch's own assignment into a clone of every leaf is the oracle."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import (
    ImmutableError,
    MissingKeyError,
    OperandError,
    StructureError,
    TreeIndexError,
)
from tests.cases import Case, cases, check, fingerprint, leaves_of, ramp, same
from tests.ops.test_index import INDICES, PAIRS, across, oracle

if TYPE_CHECKING:
    from collections.abc import Callable

Size = torch.Size
T = torch.tensor

# Indices without repeated rows, so that every operation has one result.
PLAIN: list[Any] = [
    *(0, -1, slice(None, None, 2), [0, -1], None, (..., None), (..., 0), ...),
    *(T([1, 0]), True, False, range(1)),
]
MATH: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "add": operator.add,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "min": lambda x, v: torch.minimum(x, torch.as_tensor(v, dtype=x.dtype)),
    "max": lambda x, v: torch.maximum(x, torch.as_tensor(v, dtype=x.dtype)),
}


def tree() -> TensorDict:
    return TensorDict(
        {"x": ramp(3, 4, 2), "n": {"y": ramp(3, 4) - 5, "s": "text"}}, (3, 4)
    )


def written(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """Return what torch makes of an assignment that can only reach batch dims."""
    out = x.detach().clone()
    out[index] = value
    return out


def has_rows(case: Case) -> bool:
    return bool(case.batch) and all(n > 1 for n in case.batch)


# Every index


@pytest.mark.parametrize(("batch", "index"), PAIRS)
def test_a_number_is_written_where_torch_writes_it(
    batch: tuple[int, ...], index: Any
) -> None:
    x = ramp(*batch) + 1
    features = ramp(*batch, 2) + 1
    td = TensorDict({"x": x, "n": {"y": features, "s": "text"}}, batch)
    out = td.at[index].set(-1)
    where = written(x, oracle(index), -1)
    wide = torch.where((where == -1)[..., None], T(-1.0), features)
    check(out, batch, {("x",): where, ("n", "y"): wide}, {("n", "s"): "text"})
    check(td, batch, {("x",): x, ("n", "y"): features}, {("n", "s"): "text"})


@pytest.mark.parametrize(("batch", "index"), PAIRS)
def test_rows_read_and_written_back_are_the_tree(
    batch: tuple[int, ...], index: Any
) -> None:
    td = TensorDict({"x": ramp(*batch, 2), "n": {"y": ramp(*batch)}}, batch)
    for back in (td.at[index].set(td[index]), td.at[index].set(td[index].to_dict())):
        assert back.equal(td)
    assert td.at[index].get().equal(td[index])
    assert td.at[index].get(fill_value=7).equal(td[index])


@pytest.mark.parametrize(("batch", "index"), PAIRS)
def test_a_transform_writes_what_eager_code_writes(
    batch: tuple[int, ...], index: Any
) -> None:
    td = TensorDict({"x": ramp(*batch, 2), "n": {"y": ramp(*batch)}}, batch)
    value = td[index] * 2 + 1

    def loss(td: TensorDict) -> tuple[torch.Tensor, TensorDict]:
        out = td.at[index].set(value)
        return sum(x.sum() for x in out.values(True, True)), out  # pyright: ignore[reportReturnType]

    _, out = torch.func.grad(loss, has_aux=True)(td)
    # Repeated rows get one of their values; all of them are equal here.
    assert out.equal(td.at[index].set(value))


# Every tree


@cases(has_rows)
def test_rows_of_every_case_are_written_leaf_by_leaf(case: Case) -> None:
    td = case.tree
    before = fingerprint(case.leaves.values())
    for index in PLAIN:
        other = {p: x.detach().flip(0) for p, x in case.leaves.items()}
        values = TensorDict(_nested(other, case), case.batch)[index]
        reach = across(index, case)
        expected = {
            p: written(x, reach, other[p][reach]) for p, x in case.leaves.items()
        }
        out = td.at[index].set(_like(td[index], values))
        check(out, case.batch, expected, case.statics)
        assert out.names == case.names
        assert out.keys(True) == td.keys(True)
        check(
            td.at[index].set(0),
            case.batch,
            case.mapped(lambda x, i=reach: written(x, i, 0)),
            case.statics,
        )
    assert fingerprint(case.leaves.values()) == before


def _nested(leaves: dict[tuple[str, ...], torch.Tensor], case: Case) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for path in case.batches:
        level = root
        for key in path:
            level = level.setdefault(key, {})
    for path, leaf in leaves.items():
        level = root
        for key in path[:-1]:
            level = level[key]
        level[path[-1]] = leaf
    return root


def _like(rows: TensorDict, values: TensorDict) -> TensorDict:
    """Return the tree `rows` with the leaves of `values`, statics and all."""
    for path, leaf in leaves_of(values).items():
        rows = rows.set(path, leaf)
    return rows


@cases(lambda case: has_rows(case) and case.name != "mixed dtypes")
@pytest.mark.parametrize("name", MATH)
def test_arithmetic_on_rows_is_that_of_torch(case: Case, name: str) -> None:
    td = case.tree
    for index in (0, slice(None, None, 2), [0, -1], (..., None)):
        reach = across(index, case)
        expected = case.mapped(
            lambda x, i=reach: written(x, i, MATH[name](x.detach()[i], 2))
        )
        out = getattr(td.at[index], name)(2)
        check(out, case.batch, expected, case.statics)


@cases(has_rows)
def test_apply_gives_the_rows_to_the_function(case: Case) -> None:
    out = case.tree.at[-1].apply(torch.zeros_like)
    expected = case.mapped(lambda x: written(x, -1, 0))
    check(out, case.batch, expected, case.statics)


def test_cost_of_a_row_written_by_hand() -> None:
    td = TensorDict({"a": torch.zeros(3, 2)}, 3)
    assert td.at[1].set(torch.tensor(5.0))["a"].tolist() == [[0, 0], [5, 5], [0, 0]]
    assert td.at[1:].set(T([1.0, 2.0]))["a"].tolist() == [[0, 0], [1, 1], [2, 2]]


# Kinds of values


def test_a_tensor_aligns_with_the_batch_dims() -> None:
    td = tree()
    weights = T([10.0, 20.0])
    out = td.at[0, 1:3].add(weights)
    assert same(out["x"][0, 1:3], ramp(3, 4, 2)[0, 1:3] + weights[:, None])
    assert same(out["n", "y"][0, 1:3], ramp(3, 4)[0, 1:3] - 5 + weights)
    assert td.at[0, 1:3].add(weights.numpy()).equal(out)


def test_a_mapping_writes_what_it_names_and_shares_the_rest() -> None:
    td = tree()
    x = torch.full((4, 2), 9.0)
    for value in (
        {"x": x},
        {("x",): x.numpy()},
        {"x": 9},
        {"x": np.float32(9)},
        {"x": T(9.0)},
    ):
        out = td.at[1].set(value)
        assert same(out["x"], written(ramp(3, 4, 2), 1, 9.0))
        assert out["n", "y"] is td["n", "y"]
    for value in (
        {"n": {"y": T([1.0, 2, 3, 4])}},
        {("n", "y"): T([1.0, 2, 3, 4])},
        {"n": T([1.0, 2, 3, 4])},
        {"n": TensorDict({"y": T([1.0, 2, 3, 4]), "s": "text"}, 4)},
    ):
        out = td.at[1].set(value)
        assert same(out["n", "y"], written(ramp(3, 4) - 5, 1, T([1.0, 2, 3, 4])))
        assert out["x"] is td["x"]
        assert out["n", "s"] == "text"
    assert td.at[0].set({}).equal(td)


def test_written_leaves_share_no_memory_with_the_tree_or_the_values() -> None:
    td = tree()
    for index in (slice(None), ..., True, 0, [0], slice(0, 0), False):
        value = td[index].clone()
        out = td.at[index].set(value)
        for path, x in leaves_of(out).items():
            storage = x.untyped_storage().data_ptr()
            assert storage != td[path].untyped_storage().data_ptr()
            assert storage != value[path].untyped_storage().data_ptr()


def test_an_expanded_leaf_can_be_written() -> None:
    td = TensorDict({"x": torch.zeros(1).expand(3)}, 3)
    assert td.at[1].add(1)["x"].tolist() == [0, 1, 0]


def test_repeated_rows_add_up_and_set_takes_one() -> None:
    td = TensorDict({"x": torch.zeros(3), "y": torch.zeros(3, 2)}, 3)
    out = td.at[[0, 0, 2]].add(T([1.0, 2.0, 4.0]))
    assert out["x"].tolist() == [3, 0, 4]
    assert out["y"].tolist() == [[3, 3], [0, 0], [4, 4]]
    once = td.at[[0, 0, 2]].set(T([1.0, 2.0, 4.0]))
    assert once["x"][0] in (1, 2)
    assert once["x"][1:].tolist() == [0, 4]
    grid = TensorDict({"x": torch.zeros(2, 2)}, (2, 2))
    assert grid.at[0, [1, 1, 1]].add(1)["x"].tolist() == [[0, 3], [0, 0]]


def test_set_casts_to_the_dtype_of_the_leaf_as_torch_does() -> None:
    td = TensorDict({"i": T([1, 2]), "b": T([True, False]), "h": T([1.0, 2]).half()}, 2)
    out = td.at[0].set(0.0)
    assert [x.dtype for x in out.values()] == [x.dtype for x in td.values()]
    assert [x.tolist() for x in out.values()] == [[0, 2], [False, False], [0, 2]]


def test_a_wider_node_keeps_its_dims_b05() -> None:
    row = TensorDict({"ag": TensorDict({"o": torch.rand(8, 3, 4)}, (8, 3))}, (8,))
    buffer = tdfunc.stack([row, row])
    ids = [id(x) for x in leaves_of(buffer).values()]
    new = buffer.at[0].set(row * 2)
    assert row["ag"].batch_size == Size((8, 3))
    assert new["ag"].batch_size == Size((2, 8, 3))
    assert same(new["ag", "o"][0], row["ag", "o"] * 2)
    assert same(new["ag", "o"][1], row["ag", "o"])
    assert [id(x) for x in leaves_of(buffer).values()] == ids
    by_name = buffer.at[0].set({"ag": row["ag"] * 2})
    assert by_name.equal(new)


def test_writing_into_masked_rows_raises_and_at_does_it_b07() -> None:
    td = TensorDict({"a": torch.zeros(3, 2)}, 3)
    mask = T([True, False, True])
    with pytest.raises(ImmutableError, match=r"td\.at\[index\]\.set\(\{'a': value\}\)"):
        td[mask]["a"] = torch.ones(2, 2)
    new = td.at[mask].set(TensorDict({"a": torch.ones(2, 2)}, 2))
    assert new["a"].tolist() == [[1, 1], [0, 0], [1, 1]]


# get


def test_get_fills_rows_that_are_out_of_range() -> None:
    td = TensorDict({"x": ramp(3, 2), "n": {"y": T([1, 2, 3])}, "s": "t"}, 3)
    out = td.at[[0, 3, -1, -4]].get(fill_value=-1)
    expected = T([[0.0, 1], [-1, -1], [4, 5], [-1, -1]])
    check(out, (4,), {("x",): expected, ("n", "y"): T([1, -1, 3, -1])}, {("s",): "t"})
    assert td.at[7].get(fill_value=0)["n", "y"] == 0
    assert td.at[-3].get(fill_value=0)["n", "y"] == 1
    assert td.at[T([[2], [5]])].get(fill_value=9)["n", "y"].tolist() == [[3], [9]]


def test_get_fills_in_several_dims_and_beside_slices_and_masks() -> None:
    x = ramp(3, 4) + 1
    td = TensorDict({"x": x}, (3, 4), names=("a", "b"))
    out = td.at[[0, 3], 1:].get(fill_value=0)
    assert same(out["x"], torch.stack([x[0, 1:], torch.zeros(3)]))
    assert out.names == ("a", "b")
    out = td.at[T([True, False, True]), 4].get(fill_value=0)
    assert out["x"].tolist() == [0, 0]
    assert td.at[[0, 5], [9, 1]].get(fill_value=0)["x"].tolist() == [0, 0]
    assert td.at[..., -5].get(fill_value=2)["x"].tolist() == [2, 2, 2]


def test_get_fills_everything_if_there_are_no_rows() -> None:
    td = TensorDict({"x": torch.zeros(0, 2)}, 0)
    assert td.at[[0, 1]].get(fill_value=3)["x"].tolist() == [[3, 3], [3, 3]]


# Errors


@pytest.mark.parametrize("index", [3, -4, [0, 3], T([5]), (0, 9), (0, 0, 0), "x", 0.5])
def test_an_index_that_does_not_fit_raises(index: Any) -> None:
    with pytest.raises(TreeIndexError):
        tree().at[index].set(0)
    with pytest.raises(TreeIndexError):
        tree().at[index].add(0)


def test_keys_are_no_rows() -> None:
    with pytest.raises(TreeIndexError, match=r"td\.at\[index\]\.set\(\{key: value\}"):
        tree().at["x"]
    with pytest.raises(TreeIndexError, match="not at keys"):
        tree().at["n", "y"]


@pytest.mark.parametrize(
    ("value", "kind", "parts"),
    [
        (torch.zeros(3), OperandError, ["td", "shape [4]", "shape [3]"]),
        (torch.zeros(1), OperandError, ["shape [4]", "shape [1]", "expand"]),
        ({"x": torch.zeros(4)}, OperandError, ["td['x']", "shape [4, 2]", "[4]"]),
        ({"x": {"z": 1}}, OperandError, ["td['x']", "mapping"]),
        ({"z": 1}, MissingKeyError, ["td['z']", "update"]),
        ({"n": {"z": 1}}, MissingKeyError, ["td['n', 'z']"]),
        ({"n": {"s": torch.ones(4)}}, OperandError, ["td['n', 's']", "values"]),
        ({"x": {}}, OperandError, ["td['x']", "mapping"]),
        ({"n": 1, ("n", "y"): 2}, StructureError, ["td['n', 'y']", "two values"]),
        ("text", OperandError, ["number, a tensor", "str"]),
        ({"x": None}, OperandError, ["td['x']", "NoneType"]),
        (TensorDict({"x": torch.zeros(4, 2)}, 4), StructureError, ["td['n']", "miss"]),
        (
            TensorDict({"x": torch.zeros(4, 2), "n": {"y": torch.zeros(4)}}),
            OperandError,
            ["batch size [4]", "got []"],
        ),
        (
            TensorDict(
                {"x": torch.zeros(4, 1), "n": {"y": torch.ones(4), "s": torch.ones(4)}},
                4,
            ),
            StructureError,
            ["td['n', 's'] is a tensor"],
        ),
        (
            TensorDict({"x": torch.zeros(4, 1), "n": {"y": torch.ones(4), "s": ""}}, 4),
            OperandError,
            ["td['x']", "shape [4, 2]", "shape [4, 1]"],
        ),
    ],
)
def test_a_value_that_does_not_fit_raises(
    value: Any, kind: Any, parts: list[str]
) -> None:
    for name in ("set", "add"):
        with pytest.raises(kind) as caught:
            getattr(tree().at[1], name)(value)
        for part in parts:
            assert part in str(caught.value)


def test_results_of_another_kind_of_number_raise() -> None:
    td = TensorDict({"i": T([1, 2])}, 2)
    for do in (
        lambda: td.at[0].add(0.5),
        lambda: td.at[[0]].add(0.5),
        lambda: td.at[0].div(2),
        lambda: td.at[0].set(1j),
        lambda: td.at[0].set(torch.tensor(1j)),
        lambda: td.at[0].apply(torch.sqrt),
    ):
        with pytest.raises(OperandError, match=r"td\['i'\].*torch\.int64"):
            do()
    assert td.at[0].max(2)["i"].tolist() == [2, 2]


def test_a_function_that_returns_something_else_raises() -> None:
    for fn in (torch.sum, lambda _: 0, lambda x: x[None]):
        with pytest.raises(OperandError, match="did not return the rows") as caught:
            tree().at[0].apply(fn)
        assert any("td['n', 'y']" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("value", ["x", None, torch.zeros(2), {}])
def test_a_fill_value_is_a_number(value: Any) -> None:
    with pytest.raises(OperandError, match="filled"):
        tree().at[9].get(fill_value=value)


# Transforms


@pytest.mark.parametrize("index", [1, slice(1, 3), [0, 2], T([2, 0, 0])])
@pytest.mark.parametrize("name", ["set", *MATH])
def test_gradients_reach_the_tree_and_the_values(index: Any, name: str) -> None:
    if name == "set" and isinstance(index, torch.Tensor):
        index = index[:2]
    if name != "add" and isinstance(index, torch.Tensor):
        index = index[:2]
    x = (torch.rand(3, 2, dtype=torch.float64) + 0.5).requires_grad_()
    v = torch.rand_like(x[index]).detach() + 0.5
    v.requires_grad_()

    def write(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        td = TensorDict({"x": x}, 3)
        rows = TensorDict({"x": v}, td[index].batch_size)
        return getattr(td.at[index], name)(rows)["x"]

    assert torch.autograd.gradcheck(write, (x, v))
    # The same inside a transform, where another way is taken.
    eager = torch.autograd.grad(write(x, v).square().sum(), (x, v))
    inside = torch.func.grad(lambda x, v: write(x, v).square().sum(), (0, 1))(
        x.detach(), v.detach()
    )
    for a, b in zip(eager, inside, strict=True):
        torch.testing.assert_close(a, b)


def test_vmap_over_trees_values_and_indices() -> None:
    td = TensorDict({"x": ramp(5, 3, 2), "n": {"y": ramp(5, 3)}}, (5, 3))
    value = TensorDict({"x": -ramp(5, 2) - 1, "n": {"y": -ramp(5) - 1}}, 5)
    rows = T([0, 1, 2, 1, 0])

    def write(td: TensorDict, row: Any, value: Any) -> TensorDict:
        return td.at[row].set(value)

    for dims in ((0, None, None), (0, 0, None), (0, None, 0), (0, 0, 0)):
        args = (td, rows if dims[1] == 0 else 1, value if dims[2] == 0 else -7.0)
        out = torch.vmap(write, in_dims=dims)(*args)
        for i in range(5):
            row = args[1] if dims[1] is None else rows[i]
            new = args[2] if dims[2] is None else value[i]
            assert out[i].equal(td[i].at[row].set(new))
    one = td[0]
    for dims in ((None, 0, None), (None, None, 0), (None, 0, 0)):
        args = (one, rows if dims[1] == 0 else 1, value if dims[2] == 0 else -7.0)
        out = torch.vmap(write, in_dims=dims)(*args)
        for i in range(5):
            row = args[1] if dims[1] is None else rows[i]
            new = args[2] if dims[2] is None else value[i]
            assert out[i].equal(one.at[row].set(new))


@pytest.mark.parametrize("name", MATH)
def test_vmap_over_a_row_for_every_example(name: str) -> None:
    td = TensorDict({"x": ramp(4, 3) + 1}, (4, 3))
    rows = T([[0, 1], [2, 0], [1, 2], [0, 2]])

    out = torch.vmap(lambda t, i: getattr(t.at[i], name)(2))(td, rows)
    assert out.batch_size == Size((4, 3))
    for i in range(4):
        assert out[i].equal(getattr(td[i].at[rows[i]], name)(2))
    got = torch.vmap(lambda t, i: t.at[i].get(fill_value=0))(td, rows * 2)
    for i in range(4):
        assert got[i].equal(td[i].at[rows[i] * 2].get(fill_value=0))


@pytest.mark.parametrize("index", [1, slice(1, 3), [0, 2], T([2, 0]), (..., None)])
def test_compiled_code_writes_the_same(index: Any) -> None:
    td = TensorDict({"x": ramp(3, 2), "n": {"y": ramp(3)}, "s": "text"}, 3)

    def step(td: TensorDict) -> list[TensorDict]:
        rows = td[index]
        return [
            td.at[index].set(rows * 2),
            td.at[index].set(0),
            td.at[index].add(rows),
            td.at[index].mul(3),
            td.at[index].max({"x": 1}),
            td.at[index].apply(torch.exp),
            td.at[index].get(fill_value=5),
        ]

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    for a, b in zip(compiled(td), step(td), strict=True):
        assert a.equal(b)


def test_compiled_code_takes_an_index_as_argument_and_any_size() -> None:
    def step(td: TensorDict, rows: torch.Tensor) -> TensorDict:
        return td.at[rows].add(1)

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    for n in (3, 4, 5):
        td = TensorDict({"x": ramp(n, 2)}, n)
        rows = T([0, n - 1, 0])
        assert compiled(td, rows).equal(step(td, rows))


def test_the_function_is_the_attribute() -> None:
    td = tree()
    assert tdfunc.at(td)[0].set(1).equal(td.at[0].set(1))
    assert isinstance(td.at[0], tdfunc.At)


def test_the_peer_writes_the_same_rows() -> None:
    peer = pytest.importorskip("tensordict")
    for batch, indices in INDICES.items():
        if batch != (3, 4):
            continue
        for index in indices:
            x, y = ramp(*batch, 2), ramp(*batch)
            theirs = peer.TensorDict({"x": x.clone(), "y": y.clone()}, batch)
            ours = TensorDict({"x": x, "y": y}, batch)
            try:
                theirs[index] = 7.0
            except (RuntimeError, TypeError, ValueError, IndexError, UserWarning):
                continue  # it takes fewer kinds of index
            out = ours.at[index].set(7.0)
            assert same(out["y"], theirs["y"]), index
            assert same(out["x"], theirs["x"]), index
