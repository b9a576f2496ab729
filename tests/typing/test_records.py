"""What a type checker knows of records: `pyright` checks the asserted types.

A call that must be refused has a comment that ignores the error; pyright complains of
a comment that ignores nothing. The tests also run, so that what is asserted exists.
"""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar, assert_type

import pytest
import torch

import tdfunc
from tdfunc import TensorClass, TensorDict, tensorclass

T = TypeVar("T")


class Inner(TensorClass):
    x: torch.Tensor


class Obs(TensorClass):
    pos: torch.Tensor
    vel: torch.Tensor | None = None
    inner: Inner | None = None
    name: str = "x"
    tags: list[str] = dataclasses.field(default_factory=list)


class Step(Obs, kw_only=True):
    reward: torch.Tensor


class Box(TensorClass, Generic[T]):
    value: T


@tensorclass
class Point:
    x: torch.Tensor


@tensorclass(autocast=True)
class Count:
    n: int = 0


def obs() -> Obs:
    return Obs(torch.zeros(5, 3), batch_size=[5], device=None, names=["time"])


def test_constructor() -> None:
    o = Obs(pos=torch.zeros(5, 3), vel=torch.ones(5), name="y", batch_size=5)
    step = Step(torch.zeros(2), reward=torch.zeros(2), batch_size=torch.Size([2]))

    assert_type(o, Obs)
    assert_type(step.reward, torch.Tensor)
    assert_type(Point(torch.ones(1)), Point)
    assert_type(Count(n=3).n, int)
    assert_type(Obs.from_dict({"pos": torch.ones(2)}), Obs)
    assert_type(Obs.from_tensordict(TensorDict(pos=torch.ones(2))), Obs)


def test_wrong_arguments_are_errors() -> None:
    with pytest.raises(TypeError):
        Obs()  # pyright: ignore[reportCallIssue]
    with pytest.raises(tdfunc.errors.FieldError):
        Obs(torch.ones(1), speed=torch.ones(1))  # pyright: ignore[reportCallIssue]
    with pytest.raises(tdfunc.errors.InvalidLeafError):
        Obs("text")  # pyright: ignore[reportArgumentType]


def test_fields() -> None:
    o = obs()

    assert_type(o.pos, torch.Tensor)
    assert_type(o.vel, torch.Tensor | None)
    assert_type(o.inner, Inner | None)
    assert_type(o.name, str)
    assert_type(o.tags, list[str])
    with pytest.raises(AttributeError):
        o.speed  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError):
        o.pos = torch.ones(1)  # pyright: ignore[reportAttributeAccessIssue]


def test_generics() -> None:
    box = Box(value=torch.ones(2), batch_size=2)
    named = Box[str](value="x")

    assert_type(box, Box[torch.Tensor])
    assert_type(box.value, torch.Tensor)
    assert_type(box[0], Box[torch.Tensor])
    assert_type(named.value, str)


def test_operations_keep_the_class() -> None:
    o = obs()

    assert_type(o[0], Obs)
    assert_type(o[:2], Obs)
    assert_type(o[torch.tensor([0, 1])], Obs)
    assert_type(o * 2, Obs)
    assert_type(o + o, Obs)
    assert_type(-o, Obs)
    assert_type(o.to(torch.float64), Obs)
    assert_type(o.clone(), Obs)
    assert_type(o.apply(torch.sin), Obs)
    assert_type(o.reshape(1, 5), Obs)
    assert_type(o.unbind(0), tuple[Obs, ...])
    assert_type(o.set("name", "y"), Obs)
    assert_type(o.update(name="y"), Obs)
    assert_type(o.replace(name="y"), Obs)
    assert_type(dataclasses.replace(o, name="y"), Obs)
    assert_type(o.select("pos", "name", "tags"), Obs)
    assert_type(tdfunc.stack([o, o]), Obs)
    assert_type(tdfunc.cat([o, o]), Obs)
    assert_type(tdfunc.zeros_like(o), Obs)
    assert_type(o.with_names(None), Obs)


def test_dataclass_functions() -> None:
    assert [f.name for f in dataclasses.fields(Obs)][:2] == ["pos", "vel"]
    assert dataclasses.asdict(obs())["name"] == "x"
