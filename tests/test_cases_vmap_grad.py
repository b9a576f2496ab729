"""CASES.md, area vmap-grad: what users of other libraries tripped over, one by one."""

# Functions that are transformed have the arguments that the transform wants:

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import tdfunc
from tdfunc import TensorDict
from tests.cases import bytes_of, ramp

if TYPE_CHECKING:
    from collections.abc import Callable

Size = torch.Size


def close(got: torch.Tensor, expected: Any) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype))


def test_b20_batch_sizes_are_transformed_without_patching_torch() -> None:
    td = TensorDict({"x": torch.zeros(1, 2, 3, 4)}, (1, 2, 3, 4))
    for vmap in (tdfunc.vmap, torch.vmap):

        def body(t: TensorDict) -> TensorDict:
            assert t.batch_size == (1, 2, 4)
            return t

        assert vmap(body, in_dims=2, out_dims=2)(td).batch_size == (1, 2, 3, 4)
        rows = TensorDict({"x": torch.zeros(3, 5)}, (3, 5))
        assert vmap(lambda t: t, out_dims=1)(rows).batch_size == (5, 3)

    empty = TensorDict({}, (2, 3))
    seen: list[Any] = []
    out = tdfunc.vmap(lambda t: (seen.append(t.batch_size), t)[1], 1)(empty)
    # It has no tensor to carry the dim, but its batch size is known here.
    assert seen == [Size((2,))]
    assert out.batch_size == (3, 2)


def test_b20_import_leaves_torchs_functions_alone() -> None:
    code = """
import torch._functorch.vmap as m, torch._functorch.eager_transforms as e
before = [dict(vars(m)), dict(vars(e))]
import tdfunc
assert all(vars(x)[k] is v for x, b in zip((m, e), before) for k, v in b.items())
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_b22_chunks_work_on_trees_with_statics() -> None:
    td = TensorDict({"a": torch.arange(10.0), "b": torch.ones(10), "s": "text"}, 10)
    out = tdfunc.vmap(lambda t: t["a"] + t["b"], chunk_size=3)(td)
    close(out, [float(i) for i in range(1, 11)])
    tree = tdfunc.vmap(lambda t: t, chunk_size=3)(td)
    assert tree.batch_size == (10,)
    assert tree["s"] == "text"
    close(tree["a"], [float(i) for i in range(10)])


def test_b23_values_that_are_no_tensors_pass_through() -> None:
    number = tdfunc.NonTensorData(2)
    td = TensorDict({"x": torch.arange(3.0), "tag": "a", "k": number}, 3)
    out = tdfunc.vmap(lambda t: t.set("y", t["x"] * t["k"]))(td)
    close(out["y"], [0.0, 2.0, 4.0])
    assert out["tag"] == "a"
    assert out["k"] == 2
    table = torch.tensor([7.0, 8.0])
    out = tdfunc.vmap(lambda t: t.set("table", table))(td)
    close(out["table"], [[7.0, 8.0]] * 3)
    out = tdfunc.vmap(lambda t: t.set("table", tdfunc.unbatched(table)))(td)
    assert out["table"].shape == (2,)


def test_b25_the_same_noise_is_drawn_by_saying_so() -> None:
    # Of torch's global generator; tdfunc.random takes keys instead.
    td = TensorDict({"x": torch.zeros(3, 2)}, 3)
    noisy = lambda t: t["x"] + torch.randn(2)  # noqa: E731
    with pytest.raises(RuntimeError, match="randomness"):
        tdfunc.vmap(noisy)(td)
    torch.manual_seed(7)
    same = tdfunc.vmap(noisy, randomness="same")(td)
    assert torch.equal(same[0], same[1])
    torch.manual_seed(7)
    assert torch.equal(tdfunc.vmap(noisy, randomness="same")(td), same)
    different = tdfunc.vmap(noisy, randomness="different")(td)
    assert not torch.equal(different[0], different[1])
    before = torch.get_rng_state()
    tdfunc.grad(lambda t: (t["x"] ** 2).sum())(td)
    assert torch.equal(torch.get_rng_state(), before)


def batch_norm() -> tuple[Any, TensorDict, torch.Tensor]:
    net = nn.BatchNorm1d(2).train()
    return net, tdfunc.from_module(net), torch.arange(8.0).view(4, 2)


def test_b26_batch_norm_in_training_writes_nothing() -> None:
    net, params, x = batch_norm()
    call = tdfunc.func.functional_call
    before = {key: bytes_of(params[key]) for key in params.keys()}  # noqa: SIM118

    weights = ["weight", "bias"]
    loss = lambda p: call(net, p, x).pow(3).sum()  # noqa: E731
    grads = tdfunc.grad(loss, wrt=weights)(params)
    assert set(grads.keys()) == set(weights)
    members = torch.stack([x, x * 2, x * 3])
    out = tdfunc.vmap(lambda x: call(net, params, x))(members)
    assert out.shape == (3, 4, 2)
    # Each member is normalised by its own statistics, so all come out alike.
    torch.testing.assert_close(out[0], out[2], rtol=1e-4, atol=1e-5)
    assert {k: bytes_of(params[k]) for k in params.keys()} == before  # noqa: SIM118
    close(net.running_mean, [0.0, 0.0])
    assert net.num_batches_tracked == 0


def test_b28_integers_texts_and_none_do_not_break_grad() -> None:
    p = TensorDict(
        {"w": torch.ones(2), "step": torch.tensor(3), "name": "net", "opt": None}
    )
    loss = lambda p: (p["w"] ** 2).sum() * p["step"]  # noqa: E731
    grads, value = tdfunc.grad_and_value(loss)(p)
    close(grads["w"], [6.0, 6.0])
    assert value == 6
    assert "step" not in grads
    assert grads["name"] == "net"
    assert grads["opt"] is None


def test_b29_ambient_modes_do_not_leak_in() -> None:
    td = TensorDict({"w": torch.tensor([3.0])})
    loss = lambda p: (p["w"] ** 2).sum()  # noqa: E731
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            close(tdfunc.grad(loss)(td)["w"], [6.0])
            assert not torch.is_grad_enabled()

    def cut(p: TensorDict) -> torch.Tensor:
        with torch.no_grad():
            constant = p["w"] ** 2
        return (p["w"] * constant).sum()

    close(tdfunc.grad(cut)(td)["w"], [9.0])


def test_b31_stop_gradient_stops_at_every_level() -> None:
    def quantised(t: TensorDict) -> torch.Tensor:
        x = t["x"]
        return x.tanh() + tdfunc.stop_gradient(x.round() - x.tanh())

    td = TensorDict({"x": torch.tensor(0.5)})
    first = tdfunc.grad(quantised)
    assert first(td)["x"].item() == pytest.approx(0.786448, abs=1e-6)
    second = tdfunc.grad(lambda t: first(t)["x"])(td)
    assert second["x"].item() == pytest.approx(-0.726862, abs=1e-6)
    target = tdfunc.grad(lambda t: (tdfunc.stop_gradient(t)["x"] ** 2).sum())
    assert target(td)["x"] == 0
    assert tdfunc.grad(lambda t: target(t)["x"])(td)["x"] == 0


def test_b32_branching_on_a_value_says_what_to_write() -> None:
    td = TensorDict(
        {"x": torch.tensor([1.0, 2.0]), "flag": torch.tensor([True, False])}, 2
    )
    with pytest.raises(RuntimeError, match=r"torch\.where"):
        tdfunc.vmap(lambda t: t["x"] if t["flag"] else -t["x"])(td)
    out = tdfunc.vmap(lambda t: t.where(t["flag"], t.set("x", -t["x"])))(td)
    close(out["x"], [1.0, -2.0])
    wide = TensorDict({"x": ramp(2, 3)}, 2)
    out = wide.where(td["flag"], wide * -1)
    close(out["x"], [[0.0, 1.0, 2.0], [-3.0, -4.0, -5.0]])
    # One of two functions, too.
    taken = tdfunc.vmap(
        lambda t: tdfunc.cond(t["flag"], lambda t: t["x"], lambda t: -t["x"], (t,))
    )
    close(taken(td), [1.0, -2.0])


def test_b34_an_ensemble_is_trained_by_mapping_its_step() -> None:
    members = TensorDict({"w": torch.tensor([1.0, 2.0, 3.0])}, 3)

    def sgd(p: TensorDict) -> TensorDict:
        return p - 0.1 * tdfunc.grad(lambda p: p["w"] ** 2)(p)

    def adam(p: TensorDict, m: TensorDict, v: TensorDict) -> tuple[TensorDict, ...]:
        g = tdfunc.grad(lambda p: p["w"] ** 2)(p)
        m, v = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
        return p - 0.1 * (m / 0.1) / ((v / 0.001).sqrt() + 1e-8), m, v

    close(tdfunc.vmap(sgd)(members)["w"], [0.8, 1.6, 2.4])
    zeros = members * 0
    step: Callable[..., Any] = tdfunc.vmap(adam)
    params, m, v = step(members, zeros, zeros)
    close(params["w"], [0.9, 1.9, 2.9])
    assert m.batch_size == v.batch_size == (3,)
    alone = adam(members[1], zeros[1], zeros[1])
    assert torch.equal(alone[0]["w"], params[1]["w"])
    assert torch.equal(alone[2]["w"], v[1]["w"])
