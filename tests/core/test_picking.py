"""Which leaves a mapping is about: keys, paths, patterns."""

from __future__ import annotations

import time

import pytest
import torch

import tdfunc
from tdfunc import TensorDict, optim
from tdfunc._core.picking import named, picked
from tdfunc.errors import MissingKeyError

PATHS = [
    ("enc", "0", "bias"),
    ("enc", "0", "w"),
    ("enc", "norm", "w"),
    ("head", "bias"),
    ("head*",),
    ("x",),
    ("y/z", "w"),
]


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("enc", "0 1 2"),
        (("enc", "0"), "0 1"),
        ("enc/**", "0 1 2"),
        ("enc/*", "0 1 2"),  # what names a node names all in it
        ("enc/*/w", "1 2"),
        (("enc", "*", "w"), "1 2"),
        (("enc", "**", "w"), "1 2"),
        ("**/bias", "0 3"),
        ("**", "0 1 2 3 4 5 6"),
        ("*", "0 1 2 3 4 5 6"),
        ("**/*/**/w", "1 2 6"),
        ("h*d/*", "3"),
        ("e*n*c", "0 1 2"),
        ("*/*or*", "2"),
        ("head*", "4"),  # a key before a pattern
        (("y/z", "*"), "6"),
        ("enc/*/*/w", ""),
        ("bi*as/**", ""),
        ("enc/n*rmm", ""),
        ("enc/*n*n*", ""),
        ("aa*a", ""),
        ("enc/0", ""),  # no star, so a key
        ("x/**/y", ""),
    ],
)
def test_what_a_name_is_about(name: str | tuple[str, ...], fits: str) -> None:
    found, unused = picked(PATHS, list(named({name: 1})))

    assert [int(i) for i in fits.split()] == [
        i for i, at in enumerate(found) if at == 0
    ]
    assert ([] if fits else [0]) == unused


def test_later_names_win_and_nested_mappings_are_unrolled() -> None:
    rule = {"**": 1, "enc": {"*": {"w": 2}, "0": 3}, "y/z": 4}

    found, unused = picked(PATHS, list(named(rule)))

    assert [3, 3, 2, 1, 1, 1, 4] == [list(named(rule).values())[at] for at in found]
    assert [] == unused


def test_a_pattern_on_a_deep_tree_is_quick() -> None:
    path = tuple("k" * 2000)
    start = time.perf_counter()

    assert [0] == picked([path], [("**/*/**/k/**/k",)])[0]
    assert [-1] == picked([path], [("**/k/**/k/**/j",)])[0]
    assert time.perf_counter() - start < 1.0


def test_patterns_are_the_same_in_partition_masks_and_labels() -> None:
    params = TensorDict(
        enc={"w": torch.ones(2), "bias": torch.ones(2)}, head={"bias": torch.ones(2)}
    )
    rule = {"**/bias": True, "head": False}

    part, rest = tdfunc.partition(params, rule)
    tx = optim.masked(optim.set_to_zero(), rule)
    updates, _ = tx.update(params, tx.init(params))

    assert (("enc", "bias"),) == part.keys(True, True)
    assert 2 == len(rest.keys(True, True))
    assert [0.0, 1.0, 1.0] == [
        updates[path][0].item()
        for path in (("enc", "bias"), ("enc", "w"), ("head", "bias"))
    ]
    later = tdfunc.partition(params, {"enc": {"w": True}, ("enc",): False})[0]
    assert () == later.keys(True, True)
    with pytest.raises(MissingKeyError):
        tdfunc.partition(params, {"**/scale": True})
    with pytest.raises(MissingKeyError):
        optim.masked(optim.adam(), {"dec/**": True}).init(params)


def test_patterns_are_read_while_compiling() -> None:
    params = TensorDict(enc={"w": torch.ones(2), "bias": torch.ones(2)})
    tx = optim.masked(optim.set_to_zero(), {"**/bi*s": True})

    def fn(td: TensorDict) -> TensorDict:
        updates, _ = tx.update(td, tx.init(td))
        part, rest = tdfunc.partition(updates, {"*/w": True})
        return part.set("sum", rest["enc", "bias"] + 2)

    compiled = torch.compile(fn, fullgraph=True, backend="eager")

    assert [1.0, 1.0] == compiled(params)["enc", "w"].tolist()
    assert fn(params).equal(compiled(params))
