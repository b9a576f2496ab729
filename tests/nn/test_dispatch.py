"""Modules and decorated functions called with tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tdfunc import TensorClass, TensorDict, random
from tdfunc.errors import MissingKeyError, OptionError
from tdfunc.nn import (
    ProbabilisticTensorDictModule,
    TensorClassModuleBase,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    WrapModule,
    as_tensordict_module,
    dispatch,
)
from tests.nn.nets import X, chain

ADD = TensorDictModule(torch.add, ["a", ("robot", "joints")], ["y"])
A, B = torch.zeros(3, 5), torch.ones(3, 5)


def test_by_name_by_position_and_mixed():
    assert torch.equal(B, ADD(None, a=A, robot_joints=B))
    assert torch.equal(B, ADD(None, A, B))
    assert torch.equal(B, ADD(None, A, robot_joints=B))
    tree = TensorDict({"a": A, "robot": {"joints": B}})
    assert torch.equal(ADD(None, tree)["y"], ADD(None, A, B))


def test_outputs_come_in_the_order_of_out_keys():
    module = TensorDictModule(lambda x: (x, x + 1, x + 2), ["x"], ["c", "_", "a"])
    c, a = module(None, x=A)

    assert torch.equal(A, c)
    assert torch.equal(A + 2, a)


def test_tensors_need_share_no_shape():
    module = TensorDictModule(lambda a, b: (a.sum(), b.sum()), ["a", "b"], ["s", "t"])

    assert [0.0, 2.0] == [
        x.item() for x in module(None, a=torch.zeros(3, 5), b=torch.ones(2))
    ]


def test_other_keys_are_other_names():
    assert torch.equal(B, ADD.replace(in_keys=["p", "q"])(None, p=A, q=B))


def test_sequences_return_all_outputs():
    seq = chain()
    y, z, h = seq(seq.params(), x=X, mask=torch.ones(4, 3))

    assert torch.equal(seq[0](seq.params()["0"], x=X), y)
    assert torch.equal(y + 1, z)
    assert torch.equal(z, h)


def test_compiled_mapped_and_differentiated():
    module = TensorDictModule(nn.Linear(5, 2), ["x"], ["y"])
    params = module.params()
    compiled = torch.compile(
        lambda p, x: module(p, x=x), fullgraph=True, backend="eager"
    )

    assert torch.equal(module(params, x=B), compiled(params, B))
    assert torch.allclose(module(params, B), torch.vmap(lambda x: module(params, x))(B))
    assert torch.equal(
        torch.full((2,), 3.0),
        torch.func.grad(lambda p: module(p, B).sum())(params)["bias"],
    )


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ADD(None, A, a=A), OptionError, "by position and by name - got a"),
        (lambda: ADD(None, A, B, A), OptionError, "expected a, robot_joints - got 3"),
        (
            lambda: ADD(None, joints=A),
            OptionError,
            "expected a, robot_joints - got joints",
        ),
        (lambda: ADD(None), OptionError, "neither a tree nor a tensor"),
        (lambda: ADD(TensorDict({"a": A})), OptionError, "module(params, td)"),
        (lambda: ADD(None, A), MissingKeyError, "no ('robot', 'joints')"),
    ],
    ids=["twice", "too many", "unknown", "nothing", "no params", "missing"],
)
def test_bad_calls(call, error, text):
    with pytest.raises(error) as caught:
        call()

    assert text in str(caught.value)


class Robot(TensorClass):
    joints: torch.Tensor


class Joined(TensorClass):
    robot: Robot
    robot_joints: torch.Tensor


JOINED = [("robot", "joints"), "robot_joints"]
KEYED = TensorDictModule(torch.neg, [("robot", "joints")], ["robot_joints"])


def _own(**options: Any) -> None:
    class Own(TensorDictModuleBase):
        in_keys, out_keys = JOINED, ("y",)

        @dispatch(**options)
        def forward(self, params: Any, td: Any) -> Any:
            raise NotImplementedError


def _plain_own() -> None:
    class Own(TensorDictModuleBase):
        in_keys, out_keys = JOINED, ("y",)


def _of_records() -> None:
    class Own(TensorClassModuleBase[Joined, Robot]):
        pass

    Own().as_td_module()


@pytest.mark.parametrize(
    "make",
    [
        lambda: TensorDictModule(torch.add, JOINED, ["y"]),
        lambda: TensorDictModule(torch.add, {"a": JOINED[0], "b": JOINED[1]}, ["y"]),
        lambda: ADD.replace(in_keys=JOINED),
        lambda: as_tensordict_module(in_keys=JOINED, out_keys=["y"])(torch.add),
        lambda: WrapModule(lambda _, td: td, JOINED, ["y"]),
        lambda: TensorDictSequential(
            KEYED.replace(out_keys=["y"]), ADD.replace(in_keys=["y", "robot_joints"])
        ),
        lambda: ProbabilisticTensorDictModule(
            {"loc": JOINED[0], "scale": JOINED[1]}, ["y"]
        ),
        lambda: dispatch(source=JOINED, dest=["y"])(lambda _, td: td),
        _own,
        _plain_own,
        _of_records,
    ],
    ids=[
        *("module", "dict", "replaced", "decorated", "wrapped", "sequence"),
        *("probabilistic", "function", "forward", "class", "records"),
    ],
)
def test_two_inputs_of_one_name_are_refused_when_the_module_is_made(make: Any):
    with pytest.raises(OptionError, match="two inputs have the name") as caught:
        make()

    got = str(caught.value).split(" - got ")[1]
    assert "('robot', 'joints')" in got
    assert "'robot_joints'" in got.split(" - to fix")[0]


def test_two_inputs_of_one_name_may_differ_by_another_separator():
    _own(separator=".")
    dispatch(source=JOINED, dest=["y"], separator=".")(lambda _, td: td)


def test_what_is_read_and_what_is_written_may_share_a_name():
    seq = TensorDictSequential(
        KEYED,
        TensorDictModule(torch.neg, ["robot_joints"], ["a"]),
        TensorDictModule(torch.neg, [("robot", "joints")], ["b"]),
    )
    minus, plain, last = seq(None, robot_joints=B)
    assert torch.equal(-B, minus)
    assert torch.equal(B, plain)
    assert torch.equal(-B, last)
    # A part may read both: it is called with trees.
    part = seq[1:]
    td = TensorDict({"robot": {"joints": A}, "robot_joints": B})
    assert torch.equal(-B, part(None, td)["a"])
    with pytest.raises(OptionError, match="two inputs have the name"):
        part(None, A, B)


def test_an_input_that_is_none_stands_in_its_place():
    def second(a: Any, b: Any) -> Any:
        assert a is None
        return b

    module = TensorDictModule(second, ["a", "b"], ["y"])
    assert torch.equal(A, module(None, None, A))
    assert torch.equal(A, module(None, a=None, b=A))

    class Own(TensorDictModuleBase):
        in_keys, out_keys = ("a", "b"), ("y",)

        @dispatch
        def forward(self, params: Any, td: Any) -> Any:
            assert params is td["a"] is None
            return td.set("y", td["b"])

    assert torch.equal(A, Own()(None, None, A))


class TestDecorator:
    def test_of_a_method(self):
        class Own:
            in_keys = (("n", "a"), "b")
            out_keys = ("c", "d")

            @dispatch(separator=".")
            def __call__(self, params: Any, td: TensorDict) -> TensorDict:
                assert (2, 3) == td.batch_size
                return td.update({"c": td["n", "a"] + params, "d": td["b"]})

        c, d = Own()(1, torch.zeros(2, 3), b=torch.ones(2, 3))
        assert torch.equal(torch.ones(2, 3), c)
        assert torch.equal(torch.ones(2, 3), d)
        td = TensorDict({"n": {"a": torch.zeros(2, 3)}, "b": torch.zeros(2, 3)}, (2, 3))
        assert ("n", "b", "c", "d") == Own()(1, td).keys()

    def test_of_the_forward_of_a_module(self):
        class Own(TensorDictModuleBase):
            in_keys, out_keys = ("x",), ("y",)

            @dispatch(auto_batch_size=True)
            def forward(self, params: Any, td: Any) -> Any:
                assert params is None
                return td.set("y", td["x"].new_full(td.batch_size, 1.0))

        assert (3, 5) == Own()(None, x=A).shape
        assert (3, 5) == Own()(None, A).shape
        td = TensorDict({"x": A}, 3)
        assert (3,) == Own()(None, td)["y"].shape
        seq = TensorDictSequential(Own())
        assert (3,) == seq(None, td)["y"].shape

    def test_the_forward_of_a_module_need_not_take_what_every_call_takes(self):
        class Own(TensorDictModuleBase):
            in_keys, out_keys = ("x",), ("y",)

            @dispatch
            def forward(self, params: Any, td: Any) -> Any:
                assert params is None
                return td.set("y", td["x"])

        class Keyed(TensorDictModuleBase):
            in_keys, out_keys = ("x",), ("y",)

            @dispatch
            def forward(self, params: Any, td: Any, *, key: Any = None) -> Any:
                assert params is None
                return td.set("y", td["x"] + key)

        class Reads(TensorDictModuleBase):
            in_keys, out_keys = ("key",), ("y",)

            @dispatch
            def forward(self, params: Any, td: Any) -> Any:
                assert params is None
                return td.set("y", td["key"])

        assert torch.equal(A, Own()(None, A, key=random.key(0), skip_existing=True))
        assert torch.equal(A + 2, Keyed()(None, x=A, key=2, skip_existing=True))
        assert torch.equal(A, Reads()(None, key=A))
        with pytest.raises(OptionError, match="got kye"):
            Own()(None, A, kye=3)

    def test_of_a_function(self):
        @dispatch(source=["x"], dest=["y"], auto_batch_size=False)
        def fn(params: Any, td: Any) -> Any:
            assert () == td.batch_size
            return td.set("y", td["x"] * params)

        assert torch.equal(3 * B, fn(3, B))
        assert torch.equal(3 * B, fn(3, x=B))
        with pytest.raises(OptionError, match="got z"):
            fn(3, z=B)
