"""Dim names filled in and exchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tdfunc import TensorDict
from tdfunc.errors import OptionError
from tests.cases import Case, cases, check, ramp


def tree(*names: str | None) -> TensorDict:
    return TensorDict({"x": ramp(2, 3, 4, 5)}, [2, 3, 4], names=names or None)


@cases()
def test_naming_every_dim_shares_the_leaves(case: Case) -> None:
    names = [f"d{i}" for i in range(len(case.batch))]
    out = case.tree.rename(*names)
    check(out, case.batch, case.leaves, case.statics)
    assert out.names == (tuple(names) or None)
    assert all(out[path] is x for path, x in case.leaves.items())
    assert out.refine_names(...).names == out.names
    assert out.refine_names(*names).names == out.names


def test_refining_fills_what_has_no_name() -> None:
    assert tree().refine_names("a", None, "c").names == ("a", None, "c")
    td = tree("a", None, None)
    assert td.refine_names("a", "b", "c").names == ("a", "b", "c")
    assert td.refine_names(..., "c").names == ("a", None, "c")
    assert td.refine_names("a", ..., "c").names == ("a", None, "c")
    assert td.refine_names("a", "b", ...).names == ("a", "b", None)
    assert td.refine_names("...", "c").names == ("a", None, "c")
    assert td.refine_names("a", "b", "c", ...).names == ("a", "b", "c")
    assert TensorDict({}).refine_names().names is None


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (("z", "b", "c"), ["other names", "['a', None, None]", "td.with_names(["]),
        ((None, "b", "c"), ["other names"]),
        (("a", "b"), ["3 names"]),
        ((..., "b", ...), ["once"]),
        (("a", "b", "c", "d", ...), ["3 names"]),
        (("a", "a", "c"), ["same name"]),
        (("a", "", "c"), ["no name"]),
    ],
)
def test_refining_that_can_not_be_done_raises(names: Any, parts: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        tree("a", None, None).refine_names(*names)
    for part in parts:
        assert part in str(caught.value)


def test_renaming_takes_all_names_or_some() -> None:
    td = tree("a", "b", None)
    assert td.rename(a="z").names == ("z", "b", None)
    assert td.rename(a="b", b="a").names == ("b", "a", None)
    assert td.rename(a=None).names == (None, "b", None)
    assert td.rename("x", None, "z").names == ("x", None, "z")
    assert td.rename(None).names is None


@pytest.mark.parametrize(
    ("names", "mapping", "part"),
    [
        (("x", "y", "z"), {"a": "b"}, "given twice"),
        ((), {"q": "b"}, "no batch dim has this name"),
        ((), {"a": "b"}, "same name"),
        (("x",), {}, "3 names"),
    ],
)
def test_renaming_that_can_not_be_done_raises(
    names: Any, mapping: Any, part: str
) -> None:
    with pytest.raises(OptionError, match=part):
        tree("a", "b", None).rename(*names, **mapping)


def test_names_change_in_compiled_code_and_under_vmap() -> None:
    td = tree("a", "b", None)

    def use(t: TensorDict) -> TensorDict:
        return t.refine_names(..., "c").rename(c="time").sum("time")

    compiled = torch.compile(use, fullgraph=True, backend="eager")
    check(compiled(td), (2, 3), {("x",): ramp(2, 3, 4, 5).sum(2)})
    out = torch.vmap(lambda t: t.rename(b="row").sum("row"))(td)
    check(out, (2, 4), {("x",): ramp(2, 3, 4, 5).sum(1)})


def test_the_peer_names_the_same() -> None:
    peer = pytest.importorskip("tensordict")

    def both(use: Any) -> None:
        entries = {"x": ramp(2, 3)}
        theirs = peer.TensorDict(entries, [2, 3], names=["a", None])
        ours = TensorDict(entries, [2, 3], names=["a", None])
        assert use(ours).names == tuple(use(theirs).names)

    both(lambda td: td.refine_names(..., "y"))
    both(lambda td: td.rename(a="z"))
    both(lambda td: td.rename("p", "q"))
