"""Modules of records, alone and among modules of trees."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tdfunc import TensorClass, TensorDict, random
from tdfunc.errors import OperandError, OptionError
from tdfunc.nn import (
    EnsembleModule,
    TensorClassModuleBase,
    TensorDictModule,
    TensorDictSequential,
)
from tests.nn.nets import X


class Inner(TensorClass):
    a: torch.Tensor


class In(TensorClass):
    x: torch.Tensor
    inner: Inner
    bias: torch.Tensor | None = None


class Out(TensorClass):
    y: torch.Tensor
    nested: Inner


class Layer(TensorClassModuleBase[In, Out]):
    def init(self, key: torch.Tensor) -> Any:
        return TensorDict({"w": random.normal(key, [3, 2])})

    def forward(self, params: Any, x: In, *, scale: float = 1.0) -> Out:
        y = scale * (x.x @ params["w"])
        if x.bias is not None:
            y = y + x.bias
        return Out(y=y, nested=Inner(a=x.inner.a + 1, batch_size=4), batch_size=4)


PARAMS = Layer().init(random.key(0))
TD = TensorDict({"x": X, "inner": {"a": X, "more": X}, "other": X}, 4)


def record(**more: Any) -> In:
    return In(x=X, inner=Inner(a=X, batch_size=4), batch_size=4, **more)


def test_records_go_in_and_out():
    out = Layer()(PARAMS, record())

    assert type(out) is Out
    assert torch.equal(X @ PARAMS["w"], out.y)
    assert Layer.input_type is In
    assert Layer.output_type is Out
    assert torch.equal(2 * (X @ PARAMS["w"]), Layer()(PARAMS, record(), scale=2.0).y)


def test_as_a_module_of_trees():
    module = Layer().as_td_module()
    out = module(PARAMS, TD)

    assert ("x", "bias", ("inner", "a")) == module.in_keys
    assert ("y", ("nested", "a")) == module.out_keys
    assert type(out) is TensorDict
    assert ("x", "inner", "other", "y", "nested") == out.keys()
    assert torch.equal(X + 1, out["nested", "a"])
    assert module.init(random.key(0)).equal(PARAMS)


def test_fields_with_defaults_may_be_missing():
    layer = Layer().as_td_module()
    seq = TensorDictSequential(layer, partial_tolerant=True)

    assert ("x", ("inner", "a")) == layer.needed_keys
    assert "y" in seq({"0": PARAMS}, TD)
    assert "y" not in seq({"0": PARAMS}, TD.drop("x"))
    nested = TensorDictSequential(seq, EnsembleModule(layer, 2), partial_tolerant=True)
    assert layer.needed_keys == seq.needed_keys == nested.needed_keys
    assert nested.modules[1].needed_keys == layer.needed_keys
    assert "y" in nested[:1]({"0": {"0": PARAMS}}, TD)
    part = seq.select_subsequence(in_keys=["x", ("inner", "a")])
    assert ("0",) == part.names
    with pytest.raises(OptionError, match="no modules are left"):
        seq.select_subsequence(in_keys=["x", "bias"])


def test_what_forward_takes_by_stars_is_what_its_base_takes():
    class Twice(Layer):
        def forward(self, params: Any, x: In, *, times: int = 2, **options: Any) -> Out:
            return super().forward(times * params, x, **options)

    module = Twice().as_td_module()
    out = module(PARAMS, TD, scale=3.0, times=4)

    torch.testing.assert_close(12 * (X @ PARAMS["w"]), out["y"])
    with pytest.raises(OptionError, match="expected scale, skip_existing, times"):
        module(PARAMS, TD, other=1)


@pytest.mark.parametrize(("output", "size"), [("only", ()), ("empty", (4,))])
def test_where_outputs_go(output, size):
    out = Layer().as_td_module(output)(PARAMS, TD)

    assert ("y", "nested") == out.keys()
    assert size == out.batch_size


def test_in_a_sequence_and_compiled():
    seq = TensorDictSequential(
        Layer().as_td_module(), TensorDictModule(abs, ["y"], ["z"])
    )
    params = seq.init(random.key(1))
    expected = (2.0 * (X @ params["0", "w"])).abs()
    compiled = torch.compile(
        lambda p, td: seq(p, td, scale=2.0), fullgraph=True, backend="eager"
    )

    assert torch.equal(expected, seq(params, TD, scale=2.0)["z"])
    assert torch.equal(expected, compiled(params, TD)["z"])


def test_other_records_are_refused():
    class Wrong(TensorClassModuleBase[In, Out]):
        def forward(self, params: Any, x: In) -> Any:
            assert params is None
            return x

    with pytest.raises(OperandError, match=r"as_td_module\(\)"):
        Layer()(PARAMS, TD)  # pyright: ignore[reportArgumentType]
    with pytest.raises(OperandError, match="returned another record"):
        Wrong()(None, record())


def test_classes_that_do_not_say_what_goes_in_are_refused():
    with pytest.raises(OptionError, match=r"TensorClassModuleBase\[In, Out\]"):
        type("Bare", (TensorClassModuleBase,), {})
    with pytest.raises(OptionError, match="got int, Out"):

        class _Numbers(TensorClassModuleBase[int, Out]):
            pass

    class Empty(TensorClassModuleBase[In, Out]):
        pass

    with pytest.raises(OptionError, match="no forward"):
        Empty()(None, record())
