"""Records beside those of tensordict, where the two are to agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tdfunc import TensorClass, TensorDict, interop

if TYPE_CHECKING:
    from collections.abc import Callable

tensordict = pytest.importorskip("tensordict")


class Ours(TensorClass):
    pos: torch.Tensor
    vel: torch.Tensor | None = None
    name: str = "x"


class _Theirs:
    pos: torch.Tensor
    vel: torch.Tensor | None = None
    name: str = "x"


Theirs: Any = tensordict.tensorclass(_Theirs)

POS = torch.arange(12.0).reshape(4, 3)
VEL = torch.arange(4.0)


@pytest.mark.parametrize(
    "operation",
    {
        "index": lambda r: r[1],
        "slice": lambda r: r[1:3],
        "mask": lambda r: r[torch.tensor([True, False, True, True])],
        "stack": lambda r: torch.stack([r, r], 1),
        "cat": lambda r: torch.cat([r, r]),
        "unbind": lambda r: r.unbind(0)[2],
        "reshape": lambda r: r.reshape(2, 2),
        "unsqueeze": lambda r: r.unsqueeze(0),
        "expand": lambda r: r.expand(2, 4),
        "times": lambda r: r * 2,
        "plus": lambda r: r + r,
        "double": lambda r: r.to(torch.float64),
        "zeros": torch.zeros_like,
        "apply": lambda r: r.apply(torch.sin),
        "gather": lambda r: r.gather(0, torch.tensor([0, 0, 3])),
        "vmap": torch.vmap(lambda r: r * 2),
    }.items(),
    ids=lambda item: item[0],
)
@pytest.mark.parametrize("vel", [None, VEL], ids=["without", "with"])
def test_operations_agree(
    operation: tuple[str, Callable[[Any], Any]], vel: torch.Tensor | None
) -> None:
    ours = operation[1](Ours(POS, vel, batch_size=[4]))
    theirs = operation[1](Theirs(POS, vel, batch_size=[4]))

    assert ours.batch_size == theirs.batch_size
    assert (ours.vel is None) == (theirs.vel is None)
    torch.testing.assert_close(ours.pos, theirs.pos)
    if vel is not None:
        torch.testing.assert_close(ours.vel, theirs.vel)
    # The peer makes equal texts a list where it joins or expands: ours stay one.
    assert ours.name == "x"


def test_records_become_plain_trees_of_the_peer() -> None:
    ours = Ours(POS, batch_size=[4])

    for theirs in (
        interop.to_tensordict(ours),
        interop.to_tensordict(TensorDict({"r": ours}, 4))["r"],
    ):
        assert type(theirs) is tensordict.TensorDict
        assert theirs["pos"] is POS
        assert {*theirs.keys()} == {"pos", "name"}
        assert Ours.from_tensordict(interop.from_tensordict(theirs)).equal(ours)


def test_what_a_record_is_agrees() -> None:
    ours, theirs = [cls(POS, batch_size=[4]) for cls in (Ours, Theirs)]

    assert ours.vel is None
    assert theirs.vel is None
    assert {*ours.to_dict()} == {*theirs.to_dict()} == {"pos", "vel", "name"}
    classes: list[Any] = [Ours, Theirs]
    for cls in classes:
        with pytest.raises(TypeError, match="pos"):
            cls()
    for record in (ours, theirs):
        with pytest.raises(AttributeError, match="speed"):
            record.set("speed", POS)
        assert record.get("pos") is POS
        assert record.replace(vel=VEL).vel is not None
        assert record.to_tensordict()["pos"] is POS or torch.equal(
            record.to_tensordict()["pos"], POS
        )
