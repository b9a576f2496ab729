"""Laws of the pytree registrations: torch's two, and optree's."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import optree
import pytest
import torch
import torch.utils._cxx_pytree as cxx_pytree
import torch.utils._pytree as torch_pytree
from hypothesis import given

from property_tests import model as m
from tdfunc import NonTensorData, TensorDict
from tdfunc.testing import assert_equal, assert_valid, keys, tensordicts

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Library:
    """One implementation of pytrees, in the same four words."""

    name: str
    flatten: Callable[[Any], tuple[list[Any], Any]]
    unflatten: Callable[[Any, list[Any]], Any]
    map: Callable[..., Any]
    structure: Callable[[Any], Any]


TORCH = Library(
    "torch",
    torch_pytree.tree_flatten,
    lambda spec, leaves: torch_pytree.tree_unflatten(leaves, spec),
    torch_pytree.tree_map,
    torch_pytree.tree_structure,
)
CXX = Library(
    "torch-cxx",
    cxx_pytree.tree_flatten,
    lambda spec, leaves: cxx_pytree.tree_unflatten(leaves, spec),
    cxx_pytree.tree_map,
    cxx_pytree.tree_structure,
)
OPTREE = Library(
    "optree",
    optree.tree_flatten,
    optree.tree_unflatten,
    optree.tree_map,
    optree.tree_structure,
)

each_library = pytest.mark.parametrize(
    "lib", [TORCH, CXX, OPTREE], ids=lambda lib: lib.name
)


@st.composite
def reordered(draw: st.DrawFn, tds: st.SearchStrategy[TensorDict]) -> Any:
    """Draw a tree, and one that is equal but was written in another order."""
    td = draw(tds)

    def shuffled(model: m.Model) -> m.Model:
        entries = dict(draw(st.permutations(list(model.entries.items()))))
        return m.Model(
            model.size,
            {
                k: shuffled(v) if isinstance(v, m.Model) else v
                for k, v in entries.items()
            },
        )

    return td, m.build(shuffled(m.read(td)))


@each_library
@given(td=tensordicts())
def test_unflatten_of_flatten_is_identity(lib: Library, td: TensorDict) -> None:
    leaves, spec = lib.flatten(td)

    again = lib.unflatten(spec, leaves)

    assert_valid(again)
    assert_equal(td, again, key_order=True, names=True)
    assert all(x is y for x, y in zip(leaves, lib.flatten(again)[0], strict=True))


@each_library
@given(td=tensordicts())
def test_flatten_of_unflatten_is_identity(lib: Library, td: TensorDict) -> None:
    """Whatever the leaves are: a pytree function may put anything there."""
    leaves, spec = lib.flatten(td)
    objects = [object() for _ in leaves]

    found, again = lib.flatten(lib.unflatten(spec, objects))

    assert objects == found
    assert spec == again


@each_library
@given(td=tensordicts())
def test_leaves_are_those_of_the_tree_sorted_by_path(
    lib: Library, td: TensorDict
) -> None:
    rows = sorted(m.leaves(m.read(td)), key=lambda row: row[0])

    leaves, _ = lib.flatten(td)

    assert len(rows) == len(leaves)
    assert all(row[1] is leaf for row, leaf in zip(rows, leaves, strict=True))


@each_library
@given(pair=reordered(tensordicts()))
def test_structures_of_equal_trees_are_equal_in_any_order(
    lib: Library, pair: tuple[TensorDict, TensorDict]
) -> None:
    one, two = map(lib.structure, pair)

    assert one == two
    if lib is not TORCH:  # its specs have no hash of their own
        assert hash(one) == hash(two)


@each_library
@given(
    a=tensordicts(key=st.sampled_from("ab"), max_leaves=2),
    b=tensordicts(key=st.sampled_from("ab"), max_leaves=2),
)
def test_structures_are_equal_only_for_equal_entries(
    lib: Library, a: TensorDict, b: TensorDict
) -> None:
    def entries(td: TensorDict) -> dict[m.Path, Any]:
        return {
            path: "node" if isinstance(value, m.Model) else "tensor"
            for path, value, _ in m.walk(m.read(td))
            if not isinstance(value, NonTensorData)
        }

    def statics(td: TensorDict) -> dict[m.Path, NonTensorData]:
        rows = m.walk(m.read(td))
        return {path: v for path, v, _ in rows if isinstance(v, NonTensorData)}

    same = entries(a) == entries(b) and statics(a) == statics(b)

    assert same == (lib.structure(a) == lib.structure(b))


@each_library
@given(pair=reordered(tensordicts(min_leaves=1)))
def test_two_tree_map_pairs_by_path(
    lib: Library, pair: tuple[TensorDict, TensorDict]
) -> None:
    """The result has the key order of the first."""
    one, two = pair

    both = lib.map(lambda x, y: (x, y), one, two)

    for path, x, _ in m.leaves(m.read(one)):
        assert both[path][0] is x
        assert both[path][1] is two[path]
    assert one.keys(True) == both.keys(True)


@each_library
@given(td=tensordicts(min_leaves=1))
def test_trees_mapped_from_a_tree_match_it(lib: Library, td: TensorDict) -> None:
    """Norms, masks, numbers and None pair with the leaves that they came from."""
    for fn in (
        lambda x: x.to(torch.complex128).abs().sum(),
        lambda x: x == x,  # noqa: PLR0124
        lambda x: x.unsqueeze(0),
        lambda x: x.dim(),
        lambda _: None,
    ):
        other = lib.map(fn, td)
        if lib is OPTREE and None in other._leaves:
            continue  # None is no leaf in optree unless one says so

        pairs = lib.map(lambda x, y: (x, y), td, other)

        assert lib.structure(td) == lib.structure(other)
        for path, x, _ in m.leaves(m.read(td)):
            assert pairs[path][0] is x
            assert pairs[path][1] is other[path]


@each_library
@given(td=tensordicts())
def test_trees_inside_other_pytrees_come_back(lib: Library, td: TensorDict) -> None:
    around = {"a": [td, (td, 1)], "b": {"c": td}}

    leaves, spec = lib.flatten(around)
    again = lib.unflatten(spec, leaves)

    assert 3 * len(lib.flatten(td)[0]) + 1 == len(leaves)
    for found in (again["a"][0], again["a"][1][0], again["b"]["c"]):
        assert_equal(td, found, key_order=True, names=True)


@each_library
@given(td=tensordicts())
def test_map_keeps_what_is_not_a_leaf(lib: Library, td: TensorDict) -> None:
    """Statics, names, key order and batch sizes survive a map that keeps shapes."""
    model = m.read(td)

    mapped = lib.map(lambda x: x.clone(), td)

    assert_valid(mapped)
    m.assert_is(model, mapped)
    assert td.names == mapped.names


@given(tensordicts())
def test_key_paths_of_torch_read_the_leaves(td: TensorDict) -> None:
    pairs, _ = torch_pytree.tree_flatten_with_path(td)

    assert len(pairs) == len(td.keys(True, True))
    for path, leaf in pairs:
        assert torch_pytree.key_get(td, path) is leaf
        shown = "td" + torch_pytree.keystr(path)
        assert eval(shown, {"td": td}) is leaf  # noqa: S307 - our own


@given(tensordicts())
def test_accessors_of_optree_read_the_leaves(td: Any) -> None:
    accessors, leaves, _ = optree.tree_flatten_with_accessor(td)

    for accessor, leaf in zip(accessors, leaves, strict=True):
        assert accessor(td) is leaf
        assert eval(accessor.codify("td"), {"td": td}) is leaf  # noqa: S307 - our own


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(keys(), inner, max_size=2)
    ),
    max_leaves=3,
).map(NonTensorData)


@given(tensordicts(statics=JSON))
def test_dumped_structure_loads(td: TensorDict) -> None:
    leaves, spec = torch_pytree.tree_flatten(td)

    again = torch_pytree.treespec_loads(torch_pytree.treespec_dumps(spec))

    assert spec == again
    rebuilt = torch_pytree.tree_unflatten(leaves, again)
    assert_equal(td, rebuilt, key_order=True, names=True)


# torch warns about its own leaf specs.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning")
@given(tensordicts())
def test_structure_of_torch_pickles(td: TensorDict) -> None:
    leaves, spec = torch_pytree.tree_flatten(td)

    again = pickle.loads(pickle.dumps(spec))

    assert spec == again
    rebuilt = torch_pytree.tree_unflatten(leaves, again)
    assert_equal(td, rebuilt, key_order=True, names=True)


@given(tensordicts())
def test_structure_of_optree_pickles(td: Any) -> None:
    leaves, spec = optree.tree_flatten(td)

    again = pickle.loads(pickle.dumps(spec))

    assert spec == again
    rebuilt: Any = optree.tree_unflatten(again, leaves)
    assert_equal(td, rebuilt, key_order=True, names=True)
