"""Modules of every kind in `torch.export` and `torch.compile`, against eager calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal

import tdfunc
from tdfunc import TensorDict, random
from tdfunc.nn import (
    CompositeDistribution,
    EnsembleModule,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from tdfunc.testing import assert_equal
from tests.cases import ramp
from tests.nn.nets import mlp

LINEAR = TensorDictModule(nn.Linear(3, 4), ["x"], [("net", "h")])
SEQUENCE = TensorDictSequential(
    LINEAR,
    TensorDictModule(torch.tanh, [("net", "h")], ["t"]),
    TensorDictModule(nn.Linear(4, 2), ["t"], ["y"]),
)
HEADS = TensorDictModule(
    nn.Sequential(nn.Linear(3, 4), NormalParamExtractor()), ["x"], ["loc", "scale"]
)
NORMAL = ProbabilisticTensorDictModule(
    ["loc", "scale"], ["y"], distribution_class=Normal, return_log_prob=True
)
POLICY = ProbabilisticTensorDictSequential(HEADS, NORMAL)
PARTS = ProbabilisticTensorDictSequential(
    TensorDictModule(
        lambda x: (x, x.exp(), x),
        ["x"],
        [("params", *path) for path in (("a", "loc"), ("a", "scale"), ("b", "logits"))],
    ),
    ProbabilisticTensorDictModule(
        ["params"],
        distribution_class=CompositeDistribution,
        distribution_kwargs={"distribution_map": {"a": Normal, "b": Categorical}},
        return_log_prob=True,
    ),
)
CHAIN = ProbabilisticTensorDictSequential(
    HEADS,
    NORMAL,
    ProbabilisticTensorDictModule(
        {"loc": "y", "scale": "scale"},
        ["z"],
        distribution_class=Normal,
        return_log_prob=True,
    ),
)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "module": (TensorDictModule(mlp(), ["x"], ["y"]), {}),
    "sequence": (SEQUENCE, {}),
    "selected": (SEQUENCE.select_out_keys("y"), {}),
    "skipping": (SEQUENCE, {"skip_existing": True}),
    "mode": (POLICY, {"interaction_type": "mode"}),
    "parts": (PARTS, {"interaction_type": "mode"}),
    "chain": (CHAIN, {}),
    "ensemble": (EnsembleModule(SEQUENCE, 3), {}),
    "policies": (EnsembleModule(POLICY, 3), {"interaction_type": "mode"}),
}


def inputs(rows: int) -> TensorDict:
    return TensorDict({"x": ramp(rows, 3) / 7, "other": ramp(rows)}, rows)


def close(expected: Any, found: Any) -> None:
    assert_equal(expected, found, rtol=1e-5, atol=1e-6)


class Call(nn.Module):
    """A call as a module of torch: of parameters and a tree, as trees."""

    def __init__(self, module: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.options = options

    def forward(self, params: Any, td: Any) -> Any:
        return self.module(params, td, **self.options)


@pytest.mark.parametrize("name", CASES)
def test_exported_for_every_number_of_rows(name: str) -> None:
    module, options = CASES[name]
    call = Call(module, options)
    params, td = module.init(random.key(0)), inputs(4)
    rows = torch.export.Dim("rows", min=2)
    shapes = (
        tdfunc.dynamic_shapes(params, {}),
        tdfunc.dynamic_shapes(td, {0: rows}),
    )
    program = torch.export.export(call, (params, td), dynamic_shapes=shapes).module()

    for count in (4, 7):
        close(call(params, inputs(count)), program(params, inputs(count)))
    other = module.init(random.key(1))
    close(call(other, td), program(other, td))


# The others are compiled with the tests of their own files.
@pytest.mark.parametrize("name", ["selected", "skipping", "parts", "policies"])
def test_compiled(name: str) -> None:
    module, options = CASES[name]
    call = Call(module, options)
    params = module.init(random.key(0))
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="eager")

    td = inputs(4)
    close(call(params, td), compiled(params, td))


@pytest.mark.parametrize("name", ["mode", "parts", "chain", "policies"])
def test_compiled_draws_and_their_log_probabilities(name: str) -> None:
    module = CASES[name][0]
    params, td = module.init(random.key(0)), inputs(4)

    def drawn(params: Any, key: torch.Tensor) -> Any:
        out = module(params, td, key=key, interaction_type="random")
        if isinstance(module, EnsembleModule):
            return {"out": out}
        return {"out": out, "log": module.log_prob(params, out)}

    torch._dynamo.reset()
    compiled = torch.compile(drawn, fullgraph=True, backend="eager")
    for key in random.split(random.key(1), 2).unbind(0):
        expected, found = (TensorDict(f(params, key)) for f in (drawn, compiled))
        close(expected, found)
