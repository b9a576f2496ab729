"""Indexing of batch dims: torch is the oracle, on a dummy and on every leaf."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import InvalidKeyError, MissingKeyError, TreeIndexError
from tests.cases import CASES, Case, cases, check, fingerprint, ramp, same, shown

Size = torch.Size
T = torch.tensor

# Written with the batch that they are meant for. The result is what torch gives.
INDICES: dict[tuple[int, ...], list[Any]] = {
    (3,): [
        *(0, 2, -1, -3, T(1), T(-1), np.int64(1), np.array(2)),
        *(slice(None), slice(1, None), slice(None, None, 2), slice(5, 9), slice(2, 1)),
        *(slice(-2, None), slice(None, -1)),
        *(None, ..., (), (None,), (...,), (None, None), (..., None), (None, ...)),
        *([0, 2], [], [1], [-1, 0, 0], range(2), range(0), T([2, 0]), T([[0, 1]])),
        *(np.array([1, 1]), np.array([[0], [2]]), [[0, 1], [2, 0]], (T([0, 1]),)),
        *(True, False, np.True_, T(True), T(False), (True, 1), (1, True), (None, True)),
        *([True, False, True], T([True, False, True]), np.array([0, 0, 0], bool)),
        *(T([1, 0, 2], dtype=torch.int32)),
        *((0,), (0, ...), (..., 0), (0, None), (None, 0), ([0, 1], None), (..., [1])),
        *((None, [0, 1]), (slice(1, 3), None), ([[0]],), ([True, True, False], None)),
    ],
    (3, 4): [
        *(1, -1, (1, 2), (-1, -1), (T(1), 2), (1, T(2)), (T(0), T(3))),
        *((slice(None), 1), (1, slice(1, 3)), (slice(1, 2), slice(None, None, 3))),
        *((..., 1), (1, ...), (..., None), (None, ..., None), (1, ..., None)),
        *((None, 1, ..., None), (..., slice(None, 2), None, None), (None, None, 0)),
        *(([0, 1], [2, 3]), ((0, 1), (0, 1)), ((0, 1), [0, 1]), ((0, 1), slice(1, 3))),
        *(
            ([0, 1], slice(None)),
            (slice(None), [0, 1, 1]),
            ([0], [1, 2]),
            (T([[0], [1]]), T([0, 1])),
        ),
        *((1, [0, 2]), ([0, 2], 1), (range(2), range(2)), (range(3), 0)),
        *((np.array([0, 2]), np.array([1, 1])), (np.array([[0], [2]]), [0, 1, 2])),
        *(([0, 1], None, [0, 1]), (None, [0, 1], [0, 1]), ([0, 1], [0, 1], None)),
        *(
            ([0, 1], None),
            (None, [0, 1]),
            (slice(0, 2), None, [1, 2]),
            ([1, 2], None, slice(0, 2)),
        ),
        *(
            torch.eye(3, 4) > 0,
            torch.eye(3, 4, dtype=torch.bool).numpy(),
            torch.zeros(3, 4, dtype=torch.bool),
        ),
        *([[True, False, True, False]] * 3,),
        *((T([True, False, True]), 1), (T([True, False, True]), slice(1, 3))),
        *(
            (slice(None), T([True, False, True, True])),
            (1, T([True, False, False, True])),
        ),
        *(
            (T([True, False, True]), T([0, 1])),
            (T([True, True, False]), T([True, False, False, True])),
        ),
        *((..., T([True, False, True, False])), (T([False, True, True]), ...)),
        *((True, 1), (1, True), (False, ..., 1), (T(True), slice(None), 1)),
        *((True, [0, 1]), ([0, 1], True), (slice(None), True, [0, 1])),
        *(
            ([[0, 1], [1, 2]], [[0, 0], [3, 3]]),
            (((0, 1), (1, 2)), 0),
            (((0, 1),), [1, 2]),
        ),
        *(
            (0, None, 1),
            (0, None, ..., 1),
            (slice(None), 0, None),
            (T([], dtype=torch.long), 0),
        ),
    ],
    (5, 3, 4, 6, 7): [
        (slice(2, None), [[[0, 1]]], slice(None, 3), 0),
        ([0, 1], slice(None), [1, 2]),
        (slice(None), [0, 1], slice(None), [2, 3]),
        (0, slice(None), [1, 2]),
        (slice(None), 0, [1, 2]),
        ([1, 2], slice(None), 0),
        ([0], ..., [1, 2]),
        (..., [1, 2], [3, 4]),
        (..., [1, 2], None, [3, 4]),
        (None, [1, 2], None, [0, 1]),
        (0, ..., 0),
        (..., 0, slice(None, None, 2), None),
        (T([[0], [4]]), slice(None), slice(None), T([1, 2, 3])),
        (slice(None), T([True, False, True]), 1),
        (slice(None), torch.eye(3, 4) > 0, [0, 1, 2]),
        (torch.eye(5, 3) > 0,),
        (torch.eye(5, 3) > 0, ..., None, 2),
        (0, 1, 2, 3, 4),
        (0, 1, 2, 3, 4, None),
        (0, [1, 2], [1, 2], [1, 2], 0),
        (slice(None), [1, 2], 0, [1, 2]),
        (True, ..., True),
        (0, True, [0, 1], slice(None), [2, 3]),
        (T(0), slice(None), T(1), slice(None), [1, 2]),
    ],
    (): [
        (),
        ...,
        None,
        (None, None),
        (..., None),
        True,
        False,
        T(True),
        T(False),
        (True, None),
    ],
    (0,): [slice(None), [], None, T([], dtype=torch.bool), range(0), slice(3, 5)],
    (2, 0, 3): [0, (..., 1), (slice(None), [], 0), (0, slice(None), [0, 1]), None],
    (1, 2): [T([[True, False]]), [[True, False]], (0, 1), ([0], [True, False])],
}

PAIRS = [
    pytest.param(batch, index, id=f"{batch}-{i}")
    for batch, indices in INDICES.items()
    for i, index in enumerate(indices)
]


def oracle(index: Any) -> Any:
    """Return an index that torch reads as it is written.

    torch asks of nested tuples and of arrays beside lists whether they are one index
    or several; a tensor each says it.
    """
    if isinstance(index, tuple):
        return tuple(one(item) for item in index)
    return one(index)


def one(item: Any) -> Any:
    if isinstance(item, (list, range, tuple)):
        rows = torch.tensor(list(item))
        return rows.long() if rows.numel() == 0 else rows
    if isinstance(item, np.ndarray):
        return torch.from_numpy(item)
    if isinstance(item, np.bool_):
        return bool(item)
    return item


@pytest.mark.parametrize(("batch", "index"), PAIRS)
def test_the_batch_size_is_that_of_torch_on_a_dummy(
    batch: tuple[int, ...], index: Any
) -> None:
    dummy = torch.empty(batch)[oracle(index)]
    for td in (
        TensorDict({}, batch),
        TensorDict({"x": ramp(*batch)}, batch),
        TensorDict({"x": ramp(*batch, 3), "n": {"y": ramp(*batch)}}, batch),
    ):
        out = td[index]
        assert out.batch_size == dummy.shape
        assert isinstance(out.batch_size, torch.Size)


@pytest.mark.parametrize(("batch", "index"), PAIRS)
def test_every_leaf_is_indexed_in_its_batch_dims_only(
    batch: tuple[int, ...], index: Any
) -> None:
    rows = torch.arange(torch.Size(batch).numel()).reshape(batch)
    picked = rows[oracle(index)]
    # A leaf with features is the table of its rows: which row came where is known.
    features = ramp(max(rows.numel(), 1), 2, 3)
    td = TensorDict(
        {"x": features[rows], "n": {"r": rows, "s": "text"}, "none": None}, batch
    )
    out = td[index]
    expected = {("x",): features[picked], ("n", "r"): picked}
    check(out, picked.shape, expected, {("n", "s"): "text", ("none",): None})


@cases(lambda case: bool(case.batch) and 0 not in case.batch)
def test_every_case_at_its_first_and_last_row_and_at_lists(case: Case) -> None:
    for index in (0, -1, slice(None, None, 2), [0, -1], None, (..., None), (..., 0)):
        expected = case.mapped(lambda x, i=index: x[across(i, case)])
        size = torch.empty(case.batch)[index].shape
        check(case.tree[index], size, expected, case.statics)


def across(index: Any, case: Case) -> Any:
    """Write the slices out for which Ellipsis stands in the batch."""
    if isinstance(index, tuple):
        used = sum(item is not None for item in index[1:])
        return (*[slice(None)] * (len(case.batch) - used), *index[1:])
    return index


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_indexing_changes_nothing_in_the_tree(case: Case) -> None:
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    td = case.tree
    for index in (None, ..., (), True):
        td[index]
    if case.batch and case.batch[0]:
        td[0], td[[0]], td[torch.ones(case.batch, dtype=torch.bool)]
    assert fingerprint(tensors) == before
    assert td.batch_size == Size(case.batch)


def test_ints_slices_and_none_are_views_and_lists_are_copies() -> None:
    x = ramp(3, 4)
    td = TensorDict({"x": x}, (3, 4))
    for index in (1, slice(1, None), None, ..., (1, None), (slice(None), 2)):
        assert (
            td[index]["x"].untyped_storage().data_ptr()
            == x.untyped_storage().data_ptr()
        )
    for index in ([0, 1], x > 3):
        assert (
            td[index]["x"].untyped_storage().data_ptr()
            != x.untyped_storage().data_ptr()
        )


def test_a_tuple_of_tuples_picks_elements_as_torch_does() -> None:
    td = TensorDict({"x": torch.arange(12).view(3, 4)}, (3, 4))
    out = td[(0, 1), (0, 1)]
    assert out.batch_size == Size((2,))
    assert out["x"].tolist() == [0, 5]


def test_ellipsis_stands_for_batch_dims_and_never_reaches_features() -> None:
    td = TensorDict({"x": ramp(2, 3, 5), "y": ramp(2, 3)}, (2, 3))
    out = td[..., 1]
    assert out.batch_size == Size((2,))
    assert same(out["x"], ramp(2, 3, 5)[:, 1])
    assert same(out["y"], ramp(2, 3)[:, 1])


@pytest.mark.parametrize(
    "mask",
    [
        np.array([1, 0, 1], bool),
        [True, False, True],
        T([True, False, True]),
        (T([True, False, True]),),
    ],
    ids=["array", "list", "tensor", "in a tuple"],
)
def test_a_mask_takes_its_rows_in_every_form(mask: Any) -> None:
    td = TensorDict({"x": torch.arange(12).view(3, 4), "y": torch.arange(3)}, (3,))
    out = td[mask]
    assert out["x"].tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert out["y"].tolist() == [0, 2]


def test_a_mask_of_two_dims_joins_them() -> None:
    td = TensorDict({"x": torch.arange(8).view(1, 2, 4)}, (1, 2))
    assert td[[[True, False]]]["x"].tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    "leaves", [{}, {"x": ramp(3)}, {"x": ramp(3), "y": ramp(3, 2)}]
)
def test_a_byte_tensor_is_a_mask_as_in_torch(leaves: dict[str, torch.Tensor]) -> None:
    out = TensorDict(leaves, 3)[T([1, 0, 1], dtype=torch.uint8)]
    check(out, (2,), {(key,): x[[0, 2]] for key, x in leaves.items()})


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16])
def test_an_index_tensor_of_a_dtype_that_torch_refuses_is_an_index_error(
    dtype: torch.dtype,
) -> None:
    for leaves in ({}, {"x": ramp(3)}):
        with pytest.raises(TreeIndexError, match="must be long, int, byte or bool"):
            TensorDict(leaves, 3)[T([0], dtype=dtype)]


def test_a_wider_node_keeps_its_own_dims() -> None:
    inner = TensorDict({"o": ramp(2, 3, 4)}, (2, 3))
    td = TensorDict({"a": inner, "r": ramp(2)}, 2)
    assert td[0]["a"].batch_size == Size((3,))
    assert td[[1, 0, 1]]["a"].batch_size == Size((3, 3))
    assert td[None]["a"].batch_size == Size((1, 2, 3))
    assert same(td[1]["a", "o"], ramp(2, 3, 4)[1])
    # Its surplus dims are no batch dims of the root.
    with pytest.raises(TreeIndexError):
        td[0, 0]


def test_names_follow_their_dims() -> None:
    td = TensorDict({"x": ramp(2, 3, 4)}, (2, 3, 4), names=("t", "env", "agent"))
    for index, names in {
        "0": (td[0], ("env", "agent")),
        "None": (td[None], (None, "t", "env", "agent")),
        "slice": (td[:, 1:], ("t", "env", "agent")),
        "ellipsis": (td[..., 0], ("t", "env")),
        "between": (td[:, None], ("t", None, "env", "agent")),
        "one list": (td[:, [0, 1]], ("t", "env", "agent")),
        "a table of rows": (td[[[0, 1]]], (None, None, "env", "agent")),
        "two lists": (td[[0, 1], [0, 1]], (None, "agent")),
        "a mask of one dim": (td[:, T([True, False, True])], ("t", "env", "agent")),
        "a mask of two dims": (td[torch.ones(2, 3) > 0], (None, "agent")),
        "int and list": (td[0, :, [0, 1]], ("env", "agent")),
        "apart": (td[[0, 1], :, [0, 1]], (None, "env")),
        "together": (td[:, [0, 1], [0, 1]], ("t", None)),
        "all ints": (td[0, 0, 0], None),
    }.values():
        assert index.names == names


def test_names_of_every_mix_of_ints_slices_none_and_one_list() -> None:
    # One list stays in the place of its dim, wherever ints stand: torch selects the
    # ints first. So the names can be read off the index item by item.
    td = TensorDict({"x": ramp(2, 3, 4)}, (2, 3, 4), names=("t", "env", "agent"))
    kinds: list[Any] = [0, slice(None), slice(1, None), [0, 1, 0]]
    for items in itertools.product(kinds, repeat=3):
        if sum(isinstance(item, list) for item in items) > 1:
            continue
        for at in range(4):
            for news in (0, 1, 2):
                index = (*items[:at], *(None,) * news, *items[at:])
                names: list[Any] = []
                left = iter(td.names or ())
                for item in index:
                    name = None if item is None else next(left)
                    if not isinstance(item, int):
                        names.append(name)
                expected = tuple(names) if any(names) else None
                assert td[index].names == expected, index


def test_rows_of_many_kinds_make_a_long_chain_of_the_same_tree() -> None:
    td = TensorDict({"x": ramp(2, 3, 4)}, (2, 3, 4))
    assert same(td[1][2][3]["x"], T(23.0))
    assert td[1][2][3].batch_size == Size(())


# What can not be an index


def test_too_many_dims_say_how_many_the_batch_has() -> None:
    td = TensorDict({"x": ramp(3, 4)}, 3)
    with pytest.raises(TreeIndexError) as caught:
        td[0, 0]
    assert isinstance(caught.value, IndexError)
    text = str(caught.value)
    assert "the index has more dims than the batch" in text
    assert "expected at most 1 for batch_size=[3]" in text
    assert "got 2 in " in text
    assert "to fix: td[key][index]" in text


@pytest.mark.parametrize(
    "index",
    [
        *((0, 0, 0), (slice(None), slice(None), slice(None)), (..., 0, 0, 0)),
        *(torch.ones(3, 4, 2) > 0, (torch.ones(3, 4) > 0, 0), ([0], [0], [0])),
    ],
    ids=str,
)
def test_an_index_never_reaches_feature_dims(index: Any) -> None:
    td = TensorDict({"x": ramp(3, 4, 2)}, (3, 4))
    with pytest.raises(TreeIndexError, match="more dims than the batch"):
        td[index]


def test_a_tree_without_batch_dims_has_no_rows() -> None:
    td = TensorDict({"x": ramp(3)})
    for index in (0, slice(None), [0], T([True])):
        with pytest.raises(TreeIndexError, match=r"at most 0 for batch_size=\[\]"):
            td[index]


@pytest.mark.parametrize("index", [3, -4, (3,), (slice(None), 4), (0, -5), (None, 3)])
def test_a_row_out_of_range_says_the_range(index: Any) -> None:
    td = TensorDict({"x": ramp(3, 4, 2)}, (3, 4))
    with pytest.raises(TreeIndexError, match="out of range for batch dim") as caught:
        td[index]
    text = str(caught.value)
    assert ("-3 to 2" in text) or ("-4 to 3" in text)
    assert "batch_size=[3, 4]" in text


@pytest.mark.parametrize(
    "leaves", [{}, {"x": ramp(3, 4)}, {"x": ramp(3), "y": ramp(3)}]
)
@pytest.mark.parametrize("index", [[0, 3], T([3]), T([-4]), T(3), range(4)])
def test_a_list_out_of_range_is_an_index_error(index: Any, leaves: Any) -> None:
    with pytest.raises(TreeIndexError, match=r"does not fit the batch|out of range"):
        TensorDict(leaves, 3)[index]


@pytest.mark.parametrize(
    "leaves", [{}, {"x": ramp(3, 4)}, {"x": ramp(3), "y": ramp(3)}]
)
@pytest.mark.parametrize(
    "mask", [[True, False], T([True] * 4), np.ones(2, bool), T([True])], ids=str
)
def test_a_mask_of_the_wrong_length_says_both(mask: Any, leaves: Any) -> None:
    with pytest.raises(TreeIndexError) as caught:
        TensorDict(leaves, 3)[mask]
    text = str(caught.value)
    assert "the mask does not have the shape of the dims that it indexes" in text
    assert "expected [3], dims 0 to 0 of batch_size=[3]" in text
    assert f"got [{len(mask)}]" in text


@pytest.mark.parametrize(
    ("index", "kind"),
    [
        (1.5, "float"),
        (T([0.5]), "Tensor"),
        (np.array([1.0]), "ndarray"),
        (np.array(["a"]), "ndarray"),
        ([0.5], "list"),
        ([None], "list"),
        ({0}, "set"),
        (object(), "object"),
        ((0, 1.5), "float"),
        (1j, "complex"),
        (b"x", "bytes"),
    ],
    ids=shown,
)
def test_other_things_can_not_index(index: Any, kind: str) -> None:
    td = TensorDict({"x": ramp(3, 4)}, (3, 4))
    with pytest.raises(TreeIndexError, match="can not index batch dims") as caught:
        td[index]
    assert f"got {kind} in " in str(caught.value)


def test_a_list_of_keys_points_to_select() -> None:
    td = TensorDict({"x": ramp(3), "y": ramp(3)}, 3)
    with pytest.raises(TreeIndexError, match=r"td\.select\(\*keys\)"):
        td[["x", "y"]]  # pyright: ignore[reportArgumentType]


def test_two_ellipses_are_refused() -> None:
    td = TensorDict({"x": ramp(3, 4)}, (3, 4))
    with pytest.raises(TreeIndexError, match="one Ellipsis only"):
        td[..., 0, ...]


def test_lists_that_do_not_broadcast_are_an_index_error() -> None:
    for leaves in ({}, {"x": ramp(3, 4)}):
        with pytest.raises(TreeIndexError, match="does not fit the batch"):
            TensorDict(leaves, (3, 4))[[0, 1], [0, 1, 2]]


def test_strings_are_keys_and_tuples_of_strings_are_paths() -> None:
    x = ramp(2)
    td = TensorDict({"n": {"x": x}}, 2)
    assert td["n", "x"] is x
    assert td[("n", ("x",))] is x  # pyright: ignore[reportArgumentType]
    with pytest.raises(MissingKeyError):
        td["x"]
    with pytest.raises(InvalidKeyError):
        td[""]


@pytest.mark.parametrize("index", [("n", 0), ("n", slice(None)), ("n", [0])], ids=str)
def test_a_path_with_an_index_in_it_is_no_index(index: Any) -> None:
    td = TensorDict({"n": {"x": ramp(2)}}, 2)
    with pytest.raises((TreeIndexError, InvalidKeyError)):
        td[index]


# Transforms


def test_an_index_that_differs_by_row_works_inside_vmap() -> None:
    x, y = ramp(3, 4, 2), ramp(3, 4)
    td = TensorDict({"x": x, "n": {"y": y}, "s": "text"}, (3, 4))
    rows = T([0, 1, 3])
    each = torch.arange(3)
    out = torch.vmap(lambda t, i: t[i])(td, rows)
    check(out, (3,), {("x",): x[each, rows], ("n", "y"): y[each, rows]})
    kept = torch.vmap(lambda t, i: t[i[None]])(td, rows)
    expected = {("x",): x[each, rows][:, None], ("n", "y"): y[each, rows][:, None]}
    check(kept, (3, 1), expected)


def test_masks_and_lists_from_outside_work_inside_vmap() -> None:
    x = ramp(3, 4, 2)
    td = TensorDict({"x": x, "y": x}, (3, 4))
    mask = T([True, False, True, True])
    out = torch.vmap(lambda t: t[mask])(td)
    check(out, (3, 3), {("x",): x[:, mask], ("y",): x[:, mask]})
    out = torch.vmap(lambda t: t[[3, 0], None])(td)
    check(out, (3, 2, 1), {("x",): x[:, [3, 0], None], ("y",): x[:, [3, 0], None]})


def test_gradients_of_rows_taken_twice_add_up() -> None:
    td = TensorDict({"x": ramp(3, 2), "y": ramp(3)}, 3)
    rows = T([2, 0, 2])
    gradient = torch.func.grad(lambda t: t[rows].sum(reduce=True))(td)
    count = T([1.0, 0.0, 2.0])
    check(gradient, (3,), {("x",): count[:, None].expand(3, 2), ("y",): count})


def test_trees_on_the_meta_device_are_indexed_by_masks_of_the_cpu() -> None:
    td = TensorDict({"x": ramp(3, 2), "y": ramp(3)}, 3).to("meta")
    assert td[T([True, False, True])].batch_size == Size((2,))
    with torch.device("meta"):
        # A default device does not reach the index, nor the dummy of an empty tree.
        assert TensorDict({"x": T([1.0, 2.0, 3.0])}, 3)[[0, 1]].batch_size == Size((2,))
        assert TensorDict({"s": "text"}, 3)[[0, 1]].batch_size == Size((2,))


def test_any_object_with_an_index_is_an_int() -> None:
    class Row:
        def __index__(self) -> int:
            return 2

    td = TensorDict({"x": ramp(3, 4), "y": ramp(3)}, 3)
    indices: list[Any] = [Row(), (Row(),), (None, Row())]
    for index in indices:
        assert td[index].batch_size == torch.empty(3)[index].shape
        assert same(td[index]["y"], ramp(3)[index])


def test_a_loader_takes_a_batch_in_one_step() -> None:
    td = TensorDict({"x": ramp(5, 2), "s": "text"}, 5)
    data: Any = td
    loader: Any = torch.utils.data.DataLoader(
        data, batch_size=2, collate_fn=lambda batch: batch
    )
    batches = list(loader)
    assert [batch.batch_size for batch in batches] == [(2,), (2,), (1,)]
    assert same(tdfunc.cat(batches)["x"], ramp(5, 2))
    assert batches[0]["s"] == "text"
    with pytest.raises(TreeIndexError):
        td.__getitems__([5])
