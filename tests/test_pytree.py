"""Trees as pytrees: torch's Python and C++ ones, optree's, and their contexts."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import optree as typed_optree
import pytest
import torch
from torch.utils import _cxx_pytree as cxx_pytree
from torch.utils import _pytree as torch_pytree

import tdfunc
from tdfunc import NonTensorData, TensorDict
from tdfunc.errors import OptionError
from tests.cases import (
    OBJECT,
    Case,
    cases,
    check,
    fingerprint,
    leaves_of,
    ramp,
    same,
    statics_of,
)

Size = torch.Size
# optree's stubs have no word for a class that is registered at run time.
optree: Any = typed_optree

# One vocabulary over the three, so that each law is written once.
LIBRARIES = {
    "torch": (
        torch_pytree.tree_flatten,
        lambda spec, leaves: torch_pytree.tree_unflatten(leaves, spec),
        torch_pytree.tree_map,
        torch_pytree.tree_structure,
    ),
    "torch C++": (
        cxx_pytree.tree_flatten,
        lambda spec, leaves: cxx_pytree.tree_unflatten(leaves, spec),
        cxx_pytree.tree_map,
        cxx_pytree.tree_structure,
    ),
    "optree": (
        optree.tree_flatten,
        optree.tree_unflatten,
        optree.tree_map,
        optree.tree_structure,
    ),
}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Any:
    return LIBRARIES[request.param]


@cases()
def test_unflatten_of_flatten_is_the_identity(case: Case, library: Any) -> None:
    flatten, unflatten, _, _ = library
    td = case.tree
    leaves, spec = flatten(td)
    back = unflatten(spec, leaves)

    check(back, case.batch, case.leaves, case.statics)
    assert back.keys(True) == td.keys(True)
    assert back.names == td.names
    for path, batch in case.batches.items():
        node = back[path] if path else back
        assert node.batch_size == Size(batch), path


@cases()
def test_the_leaves_are_the_tensors_in_sorted_order(case: Case, library: Any) -> None:
    leaves, _ = library[0](case.tree)
    expected = list(case.leaves.values())
    assert len(leaves) == len(expected)
    for leaf, x in zip(leaves, expected, strict=True):
        assert leaf is x


@cases()
def test_structures_of_equal_trees_are_equal_and_hash_alike(
    case: Case, library: Any
) -> None:
    structure = library[3]
    one, two = structure(case.tree), structure(case.tree)
    assert one == two
    assert hash(one) == hash(two)


@cases()
def test_mapping_an_elementwise_function_is_a_loop(case: Case, library: Any) -> None:
    tree_map = library[2]
    out = tree_map(lambda x: x.clone(), case.tree)
    check(out, case.batch, case.leaves, case.statics)


@cases(lambda case: bool(case.leaves))
def test_mapping_reads_its_inputs_only(case: Case, library: Any) -> None:
    tensors = list(case.leaves.values())
    td = case.tree
    before = fingerprint(tensors)
    library[2](lambda x, y: x if x.dtype == torch.bool else x + y, td, td)
    assert fingerprint(tensors) == before


def test_trees_with_the_same_keys_in_another_order_match(library: Any) -> None:
    _, _, tree_map, structure = library
    a, b = ramp(2), ramp(2) + 5
    one = TensorDict({"b": b, "n": {"y": b, "x": a}, "a": a}, 2)
    two = TensorDict({"a": a, "b": b, "n": {"x": a, "y": b}}, 2)
    assert structure(one) == structure(two)
    assert hash(structure(one)) == hash(structure(two))

    out = tree_map(lambda x, y: x - y, one, two)
    assert all(not x.any() for x in out.values(True, True))
    # The order of keys is that of the first tree.
    assert out.keys() == ("b", "n", "a")
    assert out.keys(True)[2:4] == (("n", "y"), ("n", "x"))


@pytest.mark.parametrize(
    "leaves",
    [
        [object(), None],
        [None, None],
        ["name", 1],
        [torch.zeros(7), torch.zeros(2, 3)],
        [torch.zeros(()), object()],
    ],
    ids=["object", "None", "text", "other shapes", "mixed"],
)
def test_unflatten_takes_any_objects_and_gives_them_back(leaves: list[Any]) -> None:
    # optree and the C++ pytree take None for a node, torch's Python pytree does not:
    # only there it is a leaf that flattens back.
    td = TensorDict({"x": torch.zeros(3, 2), "n": {"y": torch.zeros(3)}}, 3)
    for flatten, unflatten, *_ in LIBRARIES.values():
        _, spec = flatten(td)
        back = unflatten(spec, leaves)
        # In sorted order n.y comes first.
        assert back["n", "y"] is leaves[0]
        assert back["x"] is leaves[1]
        assert isinstance(back.batch_size, torch.Size)
        repr(back)
    _, spec = torch_pytree.tree_flatten(td)
    again, other = torch_pytree.tree_flatten(torch_pytree.tree_unflatten(leaves, spec))
    assert all(x is y for x, y in zip(again, leaves, strict=True))
    assert other == spec


def test_a_tree_mapped_to_other_objects_can_be_read_by_key(library: Any) -> None:
    td = TensorDict({"x": torch.zeros(3, 2), "n": {"y": torch.zeros(3)}}, 3)
    shapes = library[2](lambda x: str(tuple(x.shape)), td)
    assert shapes["x"] == "(3, 2)"
    assert shapes["n"]["y"] == shapes["n", "y"] == "(3,)"
    assert shapes.to_dict() == {"x": "(3, 2)", "n": {"y": "(3,)"}}


def test_the_batch_size_of_non_tensors_is_that_of_the_tensors_among_them() -> None:
    td = TensorDict({"x": torch.zeros(3, 2), "y": torch.zeros(3)}, 3)
    out = torch_pytree.tree_map(lambda x: x if x.dim() == 1 else "gone", td)
    assert out.batch_size == Size((3,))
    assert torch_pytree.tree_map(lambda _: 0, td).batch_size == Size(())


def test_trees_put_in_place_of_leaves_become_nested_nodes(library: Any) -> None:
    td = TensorDict({"a": ramp(3), "s": "outer"}, 3)
    out = library[2](lambda x: TensorDict({"v": x[:, None], "t": "inner"}, 3), td)
    assert out.keys(True) == ("a", ("a", "v"), ("a", "t"), "s")
    assert isinstance(out["a"], TensorDict)
    assert out.batch_size == out["a"].batch_size == Size((3,))
    assert (out["a", "t"], out["s"]) == ("inner", "outer")
    assert same(out["a", "v"], ramp(3, 1))
    assert len(torch_pytree.tree_leaves(out)) == 1


def test_a_tree_in_place_of_one_leaf_leaves_the_others(library: Any) -> None:
    flatten, unflatten, *_ = library
    td = TensorDict({"b": ramp(2, 3), "a": ramp(2), "n": {"c": ramp(2)}}, 2)
    _, spec = flatten(td)
    wide = TensorDict({"z": ramp(2, 4, 5)}, (2, 4))
    out = unflatten(spec, [ramp(2), wide, ramp(2)])
    assert out["b"].batch_size == Size((2, 4))
    assert out.batch_size == Size((2,))
    assert same(out["b", "z"], ramp(2, 4, 5))
    assert same(out["a"], ramp(2))


def test_a_tree_and_other_objects_mix_as_leaves() -> None:
    td = TensorDict({"a": ramp(2), "b": ramp(2)}, 2)
    _, spec = torch_pytree.tree_flatten(td)
    out = torch_pytree.tree_unflatten([TensorDict({"v": ramp(2)}, 2), None], spec)
    assert out["b"] is None
    assert same(out["a", "v"], ramp(2))


def test_the_containers_that_hold_trees_do_not_matter(library: Any) -> None:
    flatten, unflatten, tree_map, _ = library
    td = TensorDict({"x": ramp(2)}, 2)
    nested = {"one": [td, (td, ramp(3))], "two": td}
    leaves, spec = flatten(nested)
    assert len(leaves) == 4
    back = unflatten(spec, leaves)
    assert back["one"][1][0].batch_size == Size((2,))
    assert same(tree_map(lambda x: x + 1, nested)["two"]["x"], ramp(2) + 1)


# The structure: what is compared, and what rides along


def base(**changes: Any) -> TensorDict:
    return TensorDict({"x": ramp(3, 2), "s": "text", "n": {"y": ramp(3)}, **changes}, 3)


def test_structures_differ_by_keys_kinds_and_statics(library: Any) -> None:
    structure = library[3]
    spec = structure(base())
    assert structure(base(z=ramp(3))) != spec
    assert structure(base().drop("x")) != spec
    assert structure(base(x="static")) != spec
    assert structure(base(x={"y": ramp(3)})) != spec
    assert structure(base(s="other")) != spec
    assert structure(base(s="text")) == spec


def test_structures_do_not_differ_by_sizes_ranks_and_names(library: Any) -> None:
    structure = library[3]
    spec = structure(base())
    assert structure(base()[0]) == spec
    assert structure(tdfunc.stack([base(), base()])) == spec
    assert structure(base().with_names(["time"])) == spec
    assert structure(base(x=ramp(3, 5, 6, 7))) == spec
    wide = TensorDict({"y": ramp(3, 2)}, (3, 2))
    assert structure(base(n=wide)) == spec


def test_one_true_and_a_float_are_three_structures_and_nan_is_one(
    library: Any,
) -> None:
    structure = library[3]
    specs = [structure(base(s=NonTensorData(value))) for value in (1, True, 1.0)]
    assert specs[0] != specs[1] != specs[2] != specs[0]
    nan = float("nan")
    assert structure(base(s=NonTensorData(nan))) == structure(
        base(s=NonTensorData(float("nan")))
    )


def test_arrays_and_tensors_as_statics_compare_by_value(library: Any) -> None:
    structure = library[3]

    def spec(value: Any) -> Any:
        return structure(base(s=NonTensorData(value)))

    assert spec(np.arange(3)) == spec(np.arange(3))
    assert spec(np.arange(3)) != spec(np.arange(3) + 1)
    assert spec(np.arange(3)) != spec(np.arange(3.0))
    assert spec(torch.arange(3)) == spec(torch.arange(3))
    assert spec(torch.arange(3)) != spec(torch.arange(4))
    assert spec([np.array([1.0, np.nan])]) == spec([np.array([1.0, np.nan])])
    assert isinstance(hash(spec(np.arange(3))), int)


def test_statics_whose_comparison_raises_are_unequal_and_never_raise() -> None:
    class Angry:
        def __eq__(self, other: object) -> bool:
            raise ValueError

        def __hash__(self) -> int:
            raise ValueError

    spec = torch_pytree.tree_structure
    one, two = Angry(), Angry()
    assert spec(base(s=one)) != spec(base(s=two))
    assert spec(base(s=one)) == spec(base(s=one))
    assert isinstance(hash(spec(base(s=one))), int)


def test_a_static_that_changes_later_is_no_key_of_the_structure() -> None:
    tags = [1, 2]
    td = base(s=NonTensorData(tags))
    spec = torch_pytree.tree_structure(td)
    known, number = {spec: "found"}, hash(spec)
    tags.append(3)
    assert hash(spec) == number
    assert known[spec] == "found"


def test_a_tree_without_leaves_keeps_its_batch_size(library: Any) -> None:
    flatten, unflatten, *_ = library
    td = TensorDict({"n": {}, "s": "text"}, (2, 3))
    leaves, spec = flatten(td)
    assert not leaves
    assert unflatten(spec, leaves).batch_size == Size((2, 3))


def test_names_ride_along_and_stay_with_the_last_dims() -> None:
    td = TensorDict({"x": ramp(2, 3, 4)}, (2, 3), names=("time", "env"))
    tree_map = torch_pytree.tree_map
    assert tree_map(lambda x: x * 2, td).names == ("time", "env")
    assert tree_map(lambda x: x[0], td).names == ("env",)
    assert tree_map(lambda x: x[None], td).names == (None, "time", "env")
    assert tree_map(lambda x: x[0, 0], td).names is None


# Key paths


def test_torch_key_paths_name_keys_and_nested_paths() -> None:
    td = TensorDict({"x": ramp(2), "n": {"m": {"y": ramp(2)}}, "s": "text"}, 2)
    rows = torch_pytree.tree_flatten_with_path(td)[0]
    assert [torch_pytree.keystr(path) for path, _ in rows] == [
        "[('n', 'm', 'y')]",
        "['x']",
    ]
    for path, leaf in rows:
        assert torch_pytree.key_get(td, path) is leaf


@cases(lambda case: bool(case.leaves))
def test_torch_key_paths_lead_to_their_leaves_from_any_container(case: Case) -> None:
    nested = {"a": [case.tree]}
    rows = torch_pytree.tree_flatten_with_path(nested)[0]
    assert len(rows) == len(case.leaves)
    for (path, leaf), x in zip(rows, case.leaves.values(), strict=True):
        assert leaf is x
        assert torch_pytree.key_get(nested, path) is leaf


def test_torch_maps_with_the_path_of_each_leaf() -> None:
    td = TensorDict({"x": ramp(2), "n": {"y": ramp(2)}}, 2)
    out = torch_pytree.tree_map_with_path(
        lambda path, x: x + len(torch_pytree.keystr(path)), td
    )
    assert same(out["x"], ramp(2) + len("['x']"))
    assert same(out["n", "y"], ramp(2) + len("[('n', 'y')]"))


@cases(lambda case: bool(case.leaves))
def test_optree_accessors_and_paths_lead_to_their_leaves(case: Case) -> None:
    td = case.tree
    accessors, leaves, spec = optree.tree_flatten_with_accessor(td)
    paths = optree.treespec_paths(spec)
    rows = zip(accessors, paths, leaves, case.leaves, strict=True)
    for accessor, path, leaf, expected in rows:
        assert accessor(td) is leaf
        (entry,) = path
        assert (entry if isinstance(entry, tuple) else (entry,)) == expected


def test_optree_shows_the_expression_that_reads_a_leaf() -> None:
    td = TensorDict({"x": ramp(2), "n": {"y": ramp(2)}}, 2)
    found = optree.tree_accessors(td)
    assert [a.codify("td") for a in found] == ["td[('n', 'y')]", "td['x']"]


def test_optree_tells_where_two_trees_differ() -> None:
    td = base()
    with pytest.raises(ValueError, match="Mismatch custom node data"):
        optree.tree_map(torch.add, td, td.drop("x"))


# Dumps


@cases(lambda case: OBJECT not in case.statics.values())
def test_treespec_dumps_is_json_and_loads_gives_an_equal_structure(case: Case) -> None:
    td = case.tree
    leaves, spec = torch_pytree.tree_flatten(td)
    text = torch_pytree.treespec_dumps(spec)
    json.loads(text)
    back = torch_pytree.treespec_loads(text)
    assert back == spec
    assert hash(back) == hash(spec)

    out = torch_pytree.tree_unflatten(leaves, back)
    check(out, case.batch, case.leaves)
    assert statics_of(out) == case.statics
    assert out.keys(True) == td.keys(True)
    assert out.names == td.names
    for path, batch in case.batches.items():
        assert (out[path] if path else out).batch_size == Size(batch)


def test_treespec_dumps_names_a_static_that_is_no_json() -> None:
    td = TensorDict({"x": ramp(2), "n": {"o": object()}}, 2)
    spec = torch_pytree.tree_structure(td)
    with pytest.raises(OptionError) as caught:
        torch_pytree.treespec_dumps(spec)
    text = str(caught.value)
    assert "static is no JSON value" in text
    assert "td['n', 'o']" in text
    assert "got object" in text
    assert "td.drop(('n', 'o'))" in text


@pytest.mark.parametrize(
    "value",
    [{1: "int key"}, (1, 2), {"deep": [object()]}, 1j, b"bytes"],
    ids=["int key", "tuple", "object inside", "complex", "bytes"],
)
def test_treespec_dumps_refuses_what_json_would_change(value: Any) -> None:
    td = TensorDict({"s": NonTensorData(value)})
    with pytest.raises(OptionError, match="no JSON value"):
        torch_pytree.treespec_dumps(torch_pytree.tree_structure(td))


@pytest.mark.parametrize(
    "value",
    [None, True, 1, 1.5, "é", [1, ["a", None]], {"a": {"b": [False]}}],
    ids=repr,
)
def test_treespec_dumps_keeps_json_values_with_their_types(value: Any) -> None:
    td = TensorDict({"s": NonTensorData(value)})
    leaves, spec = torch_pytree.tree_flatten(td)
    back = torch_pytree.treespec_loads(torch_pytree.treespec_dumps(spec))
    found = torch_pytree.tree_unflatten(leaves, back)["s"]
    assert found == value
    assert type(found) is type(value)


@cases(lambda case: OBJECT not in case.statics.values())
# torch's own: its structures unpickle by way of a deprecated class.
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_structures_pickle_and_copy(case: Case) -> None:
    spec = torch_pytree.tree_structure(case.tree)
    for again in (
        pickle.loads(pickle.dumps(spec)),
        copy.copy(spec),
        copy.deepcopy(spec),
    ):
        assert again == spec
        assert hash(again) == hash(spec)


def test_trees_stay_equal_through_a_map_that_drops_and_restores_order() -> None:
    td = TensorDict({"b": ramp(2), "a": ramp(2), "c": ramp(2)}, 2)
    for flatten, unflatten, tree_map, _ in LIBRARIES.values():
        leaves, spec = flatten(td)
        assert unflatten(spec, leaves).keys() == ("b", "a", "c")
        assert tree_map(lambda x: x, td).keys() == ("b", "a", "c")


def test_repr_of_a_structure_shows_keys_and_statics() -> None:
    text = repr(torch_pytree.tree_structure(base()))
    for part in ("TensorDict", "x", "n.y", "text"):
        assert part in text


def test_leaves_of_reads_what_the_pytree_flattens() -> None:
    td = base()
    assert [id(x) for x in leaves_of(td).values()] == [
        id(x) for x in torch_pytree.tree_leaves(td)
    ]


def test_the_context_equals_no_other_thing_and_shows_what_it_holds() -> None:
    context = torch_pytree.tree_structure(base()).context
    assert context != "context"
    assert context == torch_pytree.tree_structure(base()).context
    assert "text" in repr(context)
    bare = torch_pytree.tree_structure(TensorDict({"x": ramp(2)}, 2)).context
    assert bare != context
    assert "x" in repr(bare)
