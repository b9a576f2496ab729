"""A record is a tree with a class: every operation keeps it, and does the same.

The table of all operations is that of `test_purity`: each runs on a record and on the
`TensorDict` of the same entries.
"""

from __future__ import annotations

import copy
import pickle
import tempfile
from typing import TYPE_CHECKING, Any, get_args

import hypothesis.strategies as st
import optree
import pytest
import torch
from hypothesis import given, settings
from torch.utils import _pytree as torch_pytree

import tdfunc
from property_tests.test_purity import OPERATIONS, OTHERS
from tdfunc import TensorClass, TensorDict
from tdfunc._tensordict import Tree
from tdfunc.testing import assert_equal, assert_pure, assert_valid, batch_sizes, tensors
from tdfunc.typing import FileFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

# Typed for plain trees; the lines of the table read what all trees have.
TABLE: dict[str, Any] = OPERATIONS | OTHERS
ERRORS = (RuntimeError, TypeError, ValueError, KeyError, IndexError)


class Inner(TensorClass):
    x: torch.Tensor
    tag: str | None = None


class Outer(TensorClass):
    b: torch.Tensor
    a: torch.Tensor | None = None
    inner: Inner | None = None
    rest: TensorDict | None = None
    text: str = "text"


# These change which entries there are: a record may refuse what a tree takes.
CHANGE_ENTRIES = {
    *("set", "update", "drop", "select", "exclude", "rename_key", "rename_keys"),
    *("flatten_keys", "unflatten_keys", "split_keys", "filter_empty", "merge"),
    *("filter_non_tensor", "replace", "partition", "combine", "empty"),
    *("cat_tensors", "stack_tensors", "nn.ProbabilisticTensorDictModule"),
}
# These return something else than a tree of the class of what they are given.
OTHER_RESULTS = {
    *("from_dict", "from_any", "from_dataclass", "from_namedtuple", "from_tuple"),
    *("from_schema", "fromkeys", "from_pytree", "to_pytree", "from_numpy"),
    *("from_struct_array", "from_dlpack", "to_tensordict", "construct"),
    *(
        "construct from a mapping",
        "read",
        "items",
        "to_dict",
        "in_dims",
        "dynamic_shapes",
    ),
    *("lazy_stack", "maybe_dense_stack", "to_lazystack"),
    # The table makes a plain tree for it, or asks for no class.
    *("pack", "load"),
}
# Random results, or results that name the class.
DIFFER = {
    *("rand_like", "randn_like", "empty_like", "new_empty"),
    *("repr", "tree string", "html"),
}


@st.composite
def records(draw: st.DrawFn, size: torch.Size | None = None) -> Outer:
    """Draw a record with some of its optional fields."""
    if size is None:
        size = draw(batch_sizes())
    dtypes = draw(st.sampled_from([[torch.float32], [torch.float32, torch.int64]]))

    def leaf() -> torch.Tensor:
        return draw(tensors(size, dtypes=dtypes))

    tag = draw(st.sampled_from([None, "tag"]))
    return Outer(
        leaf(),
        leaf() if draw(st.booleans()) else None,
        Inner(leaf(), tag, batch_size=size) if draw(st.booleans()) else None,
        TensorDict({"y": leaf()}, size) if draw(st.booleans()) else None,
        batch_size=size,
    )


def trees(result: Any) -> Iterator[Any]:
    """Yield the trees of a result: one, or those in a list, a tuple or a named one."""
    if isinstance(result, Tree):
        yield result
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from trees(item)


def plain(value: Any) -> Any:
    """Return an argument with records in it as plain trees."""
    if isinstance(value, Tree):
        return value.to_tensordict()
    if isinstance(value, (list, tuple)):
        kind: Any = type(value)
        items = [plain(item) for item in value]
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    return value


def classes(td: Tree) -> dict[Any, type]:
    """Return the class of every node by path."""
    nodes = {p: v for p, v in td.items(include_nested=True) if isinstance(v, Tree)}
    return {(): type(td)} | {path: type(node) for path, node in nodes.items()}


def outcome(call: tuple[Any, ...]) -> tuple[str, Any]:
    function, *args = call
    torch.manual_seed(0)
    try:
        return "returned", function(*args)
    except ERRORS as error:
        return "raised", error


@pytest.mark.filterwarnings(
    "ignore:var", "ignore:std", "ignore:ComplexHalf", "ignore:Casting complex"
)
@pytest.mark.parametrize("name", [*TABLE])
# Each operation has laws of its own: here half of the usual examples do.
@settings(max_examples=settings().max_examples // 2)
@given(obj=records(), data=st.data())
def test_operation_keeps_the_class_and_does_what_it_does_to_a_tree(
    name: str, obj: Outer, data: st.DataObject
) -> None:
    try:
        call = TABLE[name](data.draw, obj)
    except tdfunc.errors.StructureError:
        assert name == "merge"  # its arguments are parts of the record
        return

    how, got = outcome(call)
    other_how, expected = outcome(tuple(map(plain, call)))

    if name in CHANGE_ENTRIES and how == "raised":
        return  # the tests of records say which of these are refused
    assert how == other_how, (got, expected)
    if how == "raised" or name in OTHER_RESULTS:
        return
    pairs = list(zip(trees(got), trees(expected), strict=True))
    for tree, other in pairs:
        before, after = classes(obj), classes(tree)
        assert after[()] is Outer
        assert all(after[path] is before[path] for path in after if path in before)
        if name not in {"in_dims", "dynamic_shapes"}:
            assert_valid(tree)
        if name not in DIFFER:
            assert_equal(tree.to_tensordict(), other, equal_nan=True)


@given(records())
def test_round_trips(obj: Outer) -> None:
    """Through plain forms, pickles, copies and both pytrees."""
    size, names = obj.batch_size, obj.names
    tree: Any = obj
    leaves, treedef = optree.tree_flatten(tree)
    flat, spec = torch_pytree.tree_flatten(obj)
    copies: tuple[Any, ...] = (
        Outer.from_dict(obj.to_dict(), batch_size=size, names=names),
        Outer.from_dict(obj.to_dict(retain_none=False), batch_size=size, names=names),
        Outer.from_tensordict(obj.to_tensordict()),
        Outer.from_tensordict(obj.to_tensordict(retain_none=True)),
        tdfunc.from_any(obj),
        pickle.loads(pickle.dumps(obj)),
        copy.copy(obj),
        copy.deepcopy(obj),
        treedef.unflatten(leaves),
        torch_pytree.tree_unflatten(flat, spec),
        obj.load_state_dict(obj.state_dict()),
    )
    for again in copies:
        assert classes(again) == classes(obj)
        assert_equal(again, obj, equal_nan=True)


@pytest.mark.parametrize("format", get_args(FileFormat))
@given(obj=records())
def test_files_of_every_format_give_a_record_back(format: Any, obj: Outer) -> None:
    with tempfile.TemporaryDirectory() as folder:
        obj.save(f"{folder}/file", format=format)
        again = Outer.load(f"{folder}/file")
        plain = tdfunc.load(f"{folder}/file")

    assert classes(again) == classes(obj)
    assert_equal(again, obj, equal_nan=True)
    assert type(plain) is TensorDict
    assert_equal(plain, obj.to_tensordict(), equal_nan=True)


@given(records())
def test_partition_and_combine_keep_the_class(obj: Outer) -> None:
    first, rest = tdfunc.partition(obj, "floating")

    assert type(first) is type(rest) is Outer
    assert_equal(tdfunc.combine(first, rest), obj, equal_nan=True)


@given(records())
def test_reading_is_reading_the_entry(obj: Outer) -> None:
    for name in ("a", "b", "inner", "rest", "text"):
        value, entry = getattr(obj, name), obj.get(name)
        if isinstance(value, Tree):
            assert type(value) is type(entry)
            assert value._leaves == entry._leaves or all(
                x is y for x, y in zip(value._leaves, entry._leaves, strict=True)
            )
        else:
            assert value is entry


@given(records())
def test_making_a_record_changes_and_copies_nothing(obj: Outer) -> None:
    fields = {name: obj.get(name) for name in Outer.__match_args__}

    made = assert_pure(Outer, **fields, batch_size=obj.batch_size)

    assert all(x is y for x, y in zip(made._leaves, obj._leaves, strict=True))
    assert made._schema is obj._schema
