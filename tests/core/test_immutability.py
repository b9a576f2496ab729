"""No way to change a node; every attempt gets the spelling that works."""

from __future__ import annotations

import gc
import inspect
import operator
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc._core.node import PURE_SPELLINGS
from tdfunc._ops import logic, order, reduce, special, unary
from tdfunc.errors import ImmutableError, PureNameError, TdfuncError
from tests.cases import fingerprint, ramp

if TYPE_CHECKING:
    from pathlib import Path


def tree() -> TensorDict:
    return TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2)}, "s": "text"}, 2)


def test_writing_a_key_shows_set() -> None:
    td = tree()
    with pytest.raises(ImmutableError) as caught:
        td["x"] = torch.zeros(2)
    assert isinstance(caught.value, TypeError)
    text = str(caught.value)
    assert "a tree can not be changed" in text
    assert "at td['x']" in text
    assert "to fix: td = td.set('x', value)" in text


def test_writing_a_path_shows_set_with_the_path() -> None:
    td = tree()
    with pytest.raises(ImmutableError, match=re.escape("td.set(('n', 'y'), value)")):
        td["n", "y"] = torch.zeros(2)


@pytest.mark.parametrize(
    "index", [0, slice(None), torch.tensor([True, False]), [0], ..., (0, [1])], ids=str
)
def test_writing_rows_says_how_to_get_a_new_tree(index: Any) -> None:
    td = tree()
    with pytest.raises(ImmutableError, match=r"td = td\.at\[index\]\.set\(value\)"):
        td[index] = 0


def test_writing_into_the_result_of_a_mask_is_not_lost_in_silence() -> None:
    td = tree()
    with pytest.raises(ImmutableError, match=re.escape("td.set('x', value)")):
        td[torch.tensor([True, False])]["x"] = torch.zeros(1, 3)


def test_deleting_a_key_shows_drop() -> None:
    td = tree()
    with pytest.raises(ImmutableError, match=re.escape("td = td.drop('x')")):
        del td["x"]
    with pytest.raises(ImmutableError, match=re.escape("td = td.drop(('n', 'y'))")):
        del td["n", "y"]


@pytest.mark.parametrize("name", ["x", "n", "new", "set", "batch_dims", "_other"])
def test_an_attribute_can_not_be_set_or_deleted(name: str) -> None:
    td = tree()
    with pytest.raises(AttributeError, match=name):
        setattr(td, name, 1)
    with pytest.raises(AttributeError, match=name):
        delattr(td, name)
    assert td.keys() == ("x", "n", "s")


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("batch_size", [1], "td = td.with_batch_size([1])"),
        ("shape", (2, 1), "td = td.reshape((2, 1))"),
        ("names", ["a"], "td = td.with_names(['a'])"),
        ("device", "meta", "td = td.to('meta')"),
    ],
)
def test_setting_a_property_shows_the_pure_call(
    name: str, value: object, fix: str
) -> None:
    td = tree()
    with pytest.raises(PureNameError, match=re.escape(f"to fix: {fix}")):
        setattr(td, name, value)
    assert td.batch_size == (2,)


@pytest.mark.parametrize("name", sorted(PURE_SPELLINGS))
def test_names_of_the_mutable_api_give_the_pure_spelling(name: str) -> None:
    td = tree()
    with pytest.raises(PureNameError) as caught:
        getattr(td, name)
    assert isinstance(caught.value, AttributeError)
    text = str(caught.value)
    assert f"a tree never changes, so there is no {name!r}" in text
    assert f"to fix: {PURE_SPELLINGS[name]}" in text
    assert not hasattr(td, name)


@pytest.mark.parametrize("name", sorted(PURE_SPELLINGS))
def test_pure_spellings_name_methods_that_exist(name: str) -> None:
    text = PURE_SPELLINGS[name]
    for method in re.findall(r"\btd\.(\w+)", text):
        assert hasattr(TensorDict, method), text
    for function in re.findall(r"\btdfunc\.([\w.]+)\(", text):
        operator.attrgetter(function)(tdfunc)
    for function in re.findall(r"\btorch\.([\w.]+)", text):
        operator.attrgetter(function)(torch)


@pytest.mark.parametrize("name", ["add_", "mul_", "squeeze_", "abs_", "detach_", "to_"])
def test_any_other_in_place_name_drops_its_underscore(name: str) -> None:
    with pytest.raises(PureNameError, match=re.escape(f"td = td.{name[:-1]}(...)")):
        getattr(tree(), name)


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="reshap"):
        tree().reshap  # pyright: ignore[reportAttributeAccessIssue]


def test_refused_names_are_not_listed() -> None:
    names = dir(tree())
    assert "add" in names
    assert not [n for n in names if n in PURE_SPELLINGS or n == "add_"]


def test_augmented_assignment_makes_a_new_tree_and_leaves_the_old() -> None:
    td = old = tree()
    before = fingerprint([old["x"], old["n", "y"]])
    td += 1
    td *= 2
    assert td is not old
    assert td["n", "y"].tolist() == [2, 4]
    assert fingerprint([old["x"], old["n", "y"]]) == before


def test_a_tree_has_no_dict_and_takes_no_new_attributes() -> None:
    td = tree()
    assert not hasattr(td, "__dict__")


def test_a_subclass_of_tensor_dict_can_not_be_made() -> None:
    # A subclass could add state that operations would drop.
    assert getattr(TensorDict, "__final__", False)


def test_every_operation_leaves_the_tree_and_its_tensors_as_they_were(
    tmp_path: Path,
) -> None:
    td = tree()
    tensors = [td["x"], td["n", "y"]]
    before = fingerprint(tensors)
    keys, size = td.keys(True), td.batch_size
    arguments: dict[str, tuple[Any, ...]] = {
        "set": ("x", torch.zeros(2)),
        "update": ({"n": {"z": torch.zeros(2)}},),
        "replace": ({"x": torch.zeros(2)},),
        "drop": ("x",),
        "select": ("x",),
        "exclude": ("x",),
        "with_batch_size": ([],),
        "with_names": (["t"],),
        "with_statics": (td,),
        "rename": ("t",),
        "refine_names": ("t",),
        "new_full": (2, 1),
        "update_with": ({"x": torch.neg},),
        "rename_key": ("x", "y"),
        "rename_keys": ({"x": "y"},),
        "split_keys": (["x"],),
        "apply": (lambda x: x + 1,),
        "named_apply": (lambda _, x: x + 1,),
        "to": (torch.float64,),
        "reshape": (2, 1),
        "unsqueeze": (0,),
        "permute": (0,),
        "transpose": (0, 0),
        "expand": (4, 2),
        "broadcast_to": (4, 2),
        "expand_as": (td,),
        "view": (2, 1),
        "unflatten": (0, (1, 2)),
        **dict.fromkeys(("movedim", "moveaxis", "swapaxes", "swapdims"), (0, 0)),
        "narrow": (0, 0, 1),
        "split": (1,),
        "chunk": (2,),
        "tensor_split": (2,),
        "repeat": (2,),
        "repeat_interleave": (2,),
        "roll": (1,),
        "flip": (0,),
        "pad": ((1, 1),),
        "gather": (0, torch.tensor([1, 0])),
        "index_select": (0, torch.tensor([1])),
        "take": (torch.tensor([1]),),
        "masked_select": (torch.tensor([True, False]),),
        "masked_fill": (torch.tensor([True, False]), 1),
        "where": (torch.tensor([True, False]), 0),
        "get": ("x",),
        "stack": ([td, td],),
        "cat": ([td, td],),
        "lazy_stack": ([td, td],),
        "maybe_dense_stack": ([td, td],),
        "save": (tmp_path / "saved",),
        "save_async": (tmp_path / "later",),
        "memmap": (tmp_path / "mapped",),
    }
    one_operand = {"add", "sub", "mul", "div", "floor_divide", "remainder", "pow"}
    one_operand |= {"eq", "ne", "lt", "le", "gt", "ge", "equal"}
    # Math on one dtype or another: property_tests/test_purity.py draws trees for it.
    math = {*unary.__all__, *logic.__all__, *order.__all__, *reduce.__all__, "rsub"}
    math |= {"pack", "ravel", "state_dict", "load_state_dict"}
    # With keywords that have no default, or for machines with a GPU.
    math |= {"cat_tensors", "stack_tensors", "cuda"}
    math |= {"cosine_similarity", "tree_dot", "polyak", *special.__all__}
    # Makers of trees, and conversions with arguments of their own kinds.
    makers = {n for n in dir(td) if n.startswith("from_") or n.endswith("_like")}
    makers |= {"fromkeys", "at", "load", "load_memmap", "load_safetensors"}
    makers |= {n for n in dir(td) if n.startswith("to_")}
    called = 0
    for name, method in inspect.getmembers(td, callable):
        if name.startswith("_") or name in math | makers:
            continue
        args = (td,) if name in one_operand else arguments.get(name, ())
        # A plane has two dims.
        use = getattr(td[None], name) if name in {"fliplr", "rot90"} else method
        use(*args)
        called += 1
        assert fingerprint(tensors) == before, name
        assert (td.keys(True), td.batch_size, td.names) == (keys, size, None), name
        assert td["x"] is tensors[0], name
    assert called > 40


def test_trees_are_hashed_by_identity_and_can_be_referred_to_weakly() -> None:
    import weakref

    td = tree()
    assert hash(td) == hash(td)
    assert len({td, tree(), td}) == 2
    reference = weakref.ref(td)
    del td
    gc.collect()
    assert reference() is None


def test_a_tree_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="no truth value") as caught:
        bool(tree())
    text = str(caught.value)
    for part in ("(a == b).all()", "td.is_empty()", "a.equal(b)"):
        assert part in text
    assert isinstance(caught.value, TdfuncError)
    with pytest.raises(TypeError, match="no truth value"):
        bool(TensorDict({}))
