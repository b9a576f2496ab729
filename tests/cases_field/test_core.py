"""Field cases, area core: symptoms that users of such libraries met in public.

Each test has the number of its case, and states what is right here.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import optree
import pytest
import torch
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import NonTensorData, TensorDict
from tdfunc.errors import InvalidKeyError, OperandError, StructureError, TreeIndexError
from tdfunc.testing import assert_equal
from tests.cases import fingerprint, ramp, same

Size = torch.Size


def numbers() -> torch.Tensor:
    return torch.arange(12).view(3, 4)


@pytest.mark.parametrize(
    ("index", "batch"),
    [
        ((1, ..., None), (4, 1)),
        ((None, 1, ..., None), (1, 4, 1)),
        ((..., slice(2), None, None), (3, 2, 1, 1)),
        (((0, 1), (0, 1)), (2,)),
    ],
)
def test_b01_the_indexed_batch_size_is_that_of_the_data(
    index: Any, batch: tuple[int, ...]
) -> None:
    td = TensorDict({"x": numbers()}, (3, 4))

    out = td[index]

    assert out.batch_size == batch
    assert same(out["x"], numbers()[index])


def test_b01_torch_is_the_oracle_where_numpy_differs() -> None:
    batch = (5, 3, 4, 6, 7)
    index: Any = (slice(2, None), [[[0, 1]]], slice(3), 0)

    out = TensorDict({"x": torch.zeros(batch)}, batch)[index]

    assert out.batch_size == torch.zeros(batch)[index].shape == (3, 1, 1, 2, 3, 7)


def test_b02_pieces_have_the_batch_size_of_their_leaves() -> None:
    td = TensorDict({"xs": ramp(3333, 2)}, 3333)

    for pieces, sizes in (
        (td.split(1024), [1024, 1024, 1024, 261]),
        (td.chunk(4), [834, 834, 834, 831]),
    ):
        assert [piece.batch_size[0] for piece in pieces] == sizes
        assert [len(piece["xs"]) for piece in pieces] == sizes
        assert_equal(tdfunc.cat(pieces), td)


def test_b04_a_tensor_aligns_with_the_batch_dims_for_every_operator() -> None:
    td = TensorDict({"x": torch.ones(2, 3), "y": torch.ones(2)}, 2)
    rows = torch.tensor([2.0, 3.0])

    assert (td * rows)["x"].tolist() == [[2, 2, 2], [3, 3, 3]]
    assert (td * rows)["y"].tolist() == [2, 3]
    assert (td + rows)["x"].tolist() == [[3, 3, 3], [4, 4, 4]]
    assert (td - rows)["x"].tolist() == [[-1, -1, -1], [-2, -2, -2]]
    assert (td / rows)["y"].tolist() == [1 / 2, pytest.approx(1 / 3)]
    assert ((td + 1) ** rows)["y"].tolist() == [4, 8]
    assert td.where(rows > 2, 0)["x"].tolist() == [[0, 0, 0], [1, 1, 1]]
    uses: list[Any] = [
        lambda t: td * t,
        lambda t: td + t,
        lambda t: td - t,
        lambda t: td / t,
        lambda t: td**t,
        lambda t: t * td,
        lambda t: td.where(t > 0, 0),
    ]
    for use in uses:
        with pytest.raises(OperandError, match=r"batch size.*\[2\].*\[3\]"):
            use(torch.ones(3))


def test_b05_writing_a_row_leaves_the_row_and_the_buffer_alone() -> None:
    row = TensorDict({"ag": TensorDict({"o": torch.rand(8, 3, 4)}, (8, 3))}, 8)
    buffer = tdfunc.stack([row, row])
    before = fingerprint([row["ag", "o"], buffer["ag", "o"]])

    written = buffer.at[0].set(row)

    assert row["ag"].batch_size == (8, 3)
    assert written["ag"].batch_size == (2, 8, 3)
    assert buffer["ag"].batch_size == (2, 8, 3)
    assert fingerprint([row["ag", "o"], buffer["ag", "o"]]) == before
    assert_equal(written.at[1].set(row), written)


def test_b07_an_update_through_a_mask_is_never_lost() -> None:
    td = TensorDict({"a": torch.zeros(3, 2)}, 3)
    mask = torch.tensor([True, False, True])

    with pytest.raises(TypeError, match=r"td\.at\[index\]\.set"):
        td[mask]["a"] = torch.ones(2, 2)
    with pytest.raises(TypeError, match=r"td\.at\[index\]\.set"):
        td[mask] = 1

    out = td.at[mask].set(TensorDict({"a": torch.ones(2, 2)}, 2))
    assert out["a"].tolist() == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize("leaf", [object(), None, "name", torch.zeros(7)])
def test_b08_rebuilding_validates_nothing(leaf: Any) -> None:
    td = TensorDict({"x": torch.zeros(3, 2)}, 3)

    spec = pytree.tree_structure(td)
    rebuilt = pytree.tree_unflatten([leaf], spec)
    assert rebuilt["x"] is leaf
    if leaf is not None:  # which is no leaf to pytree functions
        assert pytree.tree_leaves(rebuilt)[0] is leaf
    _, own = optree.tree_flatten(td)  # pyright: ignore[reportArgumentType]
    assert optree.tree_unflatten(own, [leaf])["x"] is leaf


def test_b08_the_constructor_validates_and_a_reduced_tree_has_no_batch() -> None:
    td = TensorDict({"x": torch.zeros(3, 2)}, 3)

    assert pytree.tree_map(lambda t: t.sum(), td).batch_size == ()
    with pytest.raises(ValueError, match="does not start with the batch size"):
        TensorDict({"x": torch.zeros(7)}, 3)


ROUTES: dict[str, Any] = {
    "tree_map": lambda td: pytree.tree_map(lambda x: x + 0, td),
    "optree": lambda td: optree.tree_map(lambda x: x + 0, td),
    "vmap": torch.vmap(lambda td: td + 0),
    "compile": torch.compile(lambda td: td + 0, fullgraph=True, backend="eager"),
    "set of a key that is there": lambda td: td.set("a", torch.ones(2)),
    "pickle": lambda td: pickle.loads(pickle.dumps(td)),
    "copy": copy.deepcopy,
    "index": lambda td: td[0],
    "stack": lambda td: tdfunc.stack([td, td]),
    "arithmetic": lambda td: td * 2 + td,
    "dicts": lambda td: TensorDict(td.to_dict(), 2),
    "state dict": lambda td: td.load_state_dict(td.state_dict()),
    "flattened keys": lambda td: td.flatten_keys().unflatten_keys(),
}


@pytest.mark.parametrize("route", ROUTES)
def test_b10_keys_keep_the_order_in_which_they_were_written(route: str) -> None:
    td = TensorDict({key: torch.zeros(2) for key in "bac"}, 2)

    assert ROUTES[route](td).keys() == ("b", "a", "c")


def test_b11_a_key_that_is_no_string_is_named_when_the_tree_is_made() -> None:
    entries: Any = {1: torch.zeros(1), "a": torch.zeros(1)}

    with pytest.raises(InvalidKeyError, match=r"key 1 is not a string.*got int"):
        tdfunc.from_dict(entries)


def test_b11_a_list_of_twelve_comes_back_in_its_order() -> None:
    values = [torch.tensor(i) for i in range(12)]

    td, treedef = tdfunc.from_pytree(values)

    assert set(td.keys()) == {str(i) for i in range(12)}
    back = tdfunc.to_pytree(td, treedef)
    assert [int(x) for x in back] == list(range(12))


def static(value: Any) -> Any:
    """Return the pytree structure of a tree with a static."""
    td = TensorDict({"x": torch.zeros(2), "lut": NonTensorData(value)}, 2)
    return pytree.tree_structure(td)


def test_b13_structures_with_arrays_compare_and_hash() -> None:
    for make in (np.arange, torch.arange):
        first, again, other = static(make(3)), static(make(3)), static(make(3) + 1)
        assert first == again
        assert first != other
        assert hash(first) == hash(again)


def test_b14_a_list_that_changes_leaves_the_structure_usable() -> None:
    tags = [1, 2]
    td = TensorDict({"x": torch.zeros(1), "tags": NonTensorData(tags)})
    spec = pytree.tree_structure(td)
    found = {spec: "found"}
    before = hash(spec)

    tags.append(3)

    assert hash(spec) == before
    assert found[spec] == "found"


def test_b14_numbers_of_different_types_are_different_structures() -> None:
    assert static(1) != static(True)
    assert static(1) != static(1.0)
    assert static(True) != static(1.0)
    assert static(float("nan")) == static(float("nan"))


def test_b16_a_mapping_in_itself_is_refused_with_its_path() -> None:
    entries: dict[str, Any] = {"x": torch.zeros(1)}
    entries["me"] = entries

    with pytest.raises(StructureError, match=r"contains itself.*td\['me'\]"):
        tdfunc.from_dict(entries)


def test_b16_a_chain_of_900_nodes_builds_prints_and_stacks() -> None:
    entries: dict[str, Any] = {"x": torch.zeros(1)}
    for _ in range(900):
        entries = {"n": entries}

    td = tdfunc.from_dict(entries)

    assert td.depth == 900
    assert repr(td).startswith("TensorDict(")
    assert len(td.to_tree_string().splitlines()) > 1
    assert tdfunc.stack([td, td]).batch_size == (2,)
    assert len(td.keys(True, True)) == 1


def test_b17_dim_names_follow_their_dims() -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3), names=("t", "env"))
    inside: list[Any] = []

    def body(row: TensorDict) -> TensorDict:
        inside.append(row.names)
        return row + 1

    assert tdfunc.stack([td, td], 0).names == (None, "t", "env")
    assert td.permute(1, 0).names == ("env", "t")
    assert td[0].names == ("env",)
    assert td[None].names == (None, "t", "env")
    assert torch.vmap(body)(td).names == ("t", "env")
    assert inside == [("env",)]
    other = td.with_names(("t", "row"))
    assert tdfunc.stack([td, other]).names == (None, "t", None)


@pytest.mark.parametrize(
    "mask",
    [
        np.array([1, 0, 1], bool),
        [True, False, True],
        torch.tensor([True, False, True]),
        (..., torch.tensor([True, False, True])),
    ],
    ids=["array", "list", "tensor", "behind an ellipsis"],
)
def test_b19_masks_of_every_kind_give_the_same_rows(mask: Any) -> None:
    td = TensorDict({"x": numbers()}, 3)

    assert same(td[mask]["x"], numbers()[[0, 2]])
    written = td.at[mask].set(-1)["x"]
    assert written[[0, 2]].eq(-1).all()
    assert same(written[1], numbers()[1])


def test_b19_masks_of_two_dims_and_of_a_wrong_length() -> None:
    td = TensorDict({"x": torch.arange(8).view(1, 2, 4)}, (1, 2))

    assert td[[[True, False]]]["x"].tolist() == [[0, 1, 2, 3]]
    mask: Any = np.array([[True, False]])
    assert td[mask]["x"].tolist() == [[0, 1, 2, 3]]
    with pytest.raises(TreeIndexError, match=r"expected \[3\].*got \[2\]"):
        TensorDict({"x": numbers()}, 3)[torch.tensor([True, False])]
