"""Running totals, softmax and sorting along a batch dim, against torch on each leaf."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict, ValuesIndices
from tdfunc.errors import ShapeError
from tests.cases import Case, cases, check, fingerprint, ramp, same

Size = torch.Size

TREES = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "logcumsumexp": torch.logcumsumexp,
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "argsort": torch.argsort,
}
PAIRS = {"cummax": torch.cummax, "cummin": torch.cummin, "sort": torch.sort}
ALL: dict[str, Any] = TREES | PAIRS

each_name = pytest.mark.parametrize("name", ALL)


def parts(out: Any) -> tuple[Any, ...]:
    return tuple(out) if isinstance(out, tuple) else (out,)


def batched(case: Case) -> bool:
    return bool(case.batch) and all(x.is_floating_point() for x in case.leaves.values())


@each_name
@cases(batched)
def test_each_leaf_is_torchs_along_the_dim(case: Case, name: str) -> None:
    fn = ALL[name]
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    td, dims = case.tree, len(case.batch)
    for dim in range(dims):
        expected = case.mapped(lambda x, d=dim: parts(fn(x, dim=d)))
        given: list[Any] = [dim, dim - dims]
        if case.names and case.names[dim]:
            given.append(case.names[dim])
        for use in given:
            for i, out in enumerate(parts(getattr(td, name)(dim=use))):
                leaves = {p: x[i] for p, x in expected.items()}
                check(out, case.batch, leaves, case.statics)
                assert out.names == case.names
                for path, batch in case.batches.items():
                    assert (out[path] if path else out).batch_size == Size(batch)
    assert fingerprint(tensors) == before


@cases(batched)
def test_topk_is_torchs_and_shortens_the_dim(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for dim in range(dims):
        for k in {0, min(1, case.batch[dim]), case.batch[dim]}:
            size = [k if i == dim else n for i, n in enumerate(case.batch)]
            expected = case.mapped(lambda x, d=dim, k=k: torch.topk(x, k, d))
            for use in (dim, dim - dims):
                found = td.topk(k, use)
                assert isinstance(found, ValuesIndices)
                for i, out in enumerate(found):
                    leaves = {p: x[i] for p, x in expected.items()}
                    check(out, size, leaves, case.statics)
                    assert out.names == case.names


def test_by_hand() -> None:
    td = TensorDict({"x": torch.tensor([2, 3, 1]), "n": {"y": torch.ones(3, 2)}}, 3)
    assert td.cumsum(0)["x"].tolist() == [2, 5, 6]
    assert td.cumsum(0)["n", "y"].tolist() == [[1, 1], [2, 2], [3, 3]]
    assert td.sort().values["x"].tolist() == [1, 2, 3]
    assert td.argsort()["x"].tolist() == [2, 0, 1]
    assert td.topk(2).values["x"].tolist() == [3, 2]


def test_options_are_torchs() -> None:
    x = torch.tensor([2, 1, 2, 0])
    td = TensorDict({"x": x}, 4)
    for name in ("cumsum", "cumprod", "softmax", "log_softmax"):
        fn = TREES[name]
        got = getattr(td, name)(0, dtype=torch.float64)["x"]
        assert same(got, fn(x, 0, dtype=torch.float64))
    found = td.sort(0, descending=True, stable=True)
    values, indices = torch.sort(x, dim=0, descending=True, stable=True)
    assert same(found.values["x"], values)
    assert same(found.indices["x"], indices)
    assert same(td.argsort(0, True, True)["x"], indices)
    least = td.topk(2, 0, largest=False).values["x"]
    assert same(least, torch.topk(x, 2, 0, largest=False)[0])


@each_name
def test_torchs_functions_take_trees(name: str) -> None:
    x = torch.tensor([[3.0, 1.0], [2.0, 7.0], [5.0, 4.0]])
    td = TensorDict({"x": x}, 3)
    fn = ALL[name]
    for got, wanted in zip(parts(fn(td, dim=0)), parts(fn(x, dim=0)), strict=True):
        check(got, (3,), {("x",): wanted})


def test_softmax_of_networks_and_topk_through_torch() -> None:
    x = torch.tensor([[3.0, 1.0], [2.0, 7.0]])
    td = TensorDict({"x": x}, 2)
    for name in ("softmax", "log_softmax"):
        call: Any = getattr(torch.nn.functional, name)
        assert same(call(td, dim=0)["x"], call(x, dim=0))
        got = call(td, dim=0, dtype=torch.float64)["x"]
        assert same(got, call(x, dim=0, dtype=torch.float64))
    call = torch.topk
    assert same(call(td, 1, 0, largest=False).values["x"], x.topk(1, 0, False)[0])
    assert same(call(td, k=1, dim=0).values["x"], x.topk(1, 0)[0])


@pytest.mark.parametrize("name", [*ALL, "topk"])
def test_dims_that_are_none_are_refused(name: str) -> None:
    td = TensorDict({"x": ramp(2, 3)}, 2)
    for dim, text in ((1, "no batch dim"), (-2, "no batch dim"), ("t", "is named")):
        with pytest.raises(ShapeError, match=text):
            getattr(td, name)(*((1,) if name == "topk" else ()), dim=dim)
    with pytest.raises(ShapeError, match="a dim is a number or a name"):
        getattr(td, name)(*((1,) if name == "topk" else ()), dim=(0,))
    with pytest.raises(ShapeError, match="a tree with batch dims"):
        getattr(td[0], name)(*((1,) if name == "topk" else ()), dim=0)


@pytest.mark.parametrize("k", [3, -1])
def test_topk_of_more_than_there_is_says_how_many(k: int) -> None:
    td = TensorDict({"x": ramp(2, 3)}, 2)
    with pytest.raises(ShapeError) as caught:
        td.topk(k, 0)
    text = str(caught.value)
    assert f"there are no {k} elements along dim 0" in text
    assert "expected 0 to 2 for batch_size=[2]" in text
    assert f"got {k}" in text
    assert "td.topk(min(k, td.batch_size[0]), dim=0)" in text


def test_what_torch_refuses_names_the_leaf() -> None:
    td = TensorDict({"a": ramp(2), "n": {"i": torch.tensor([1, 2])}}, 2)
    for name in ("softmax", "log_softmax", "logcumsumexp"):
        with pytest.raises(RuntimeError) as caught:
            getattr(td, name)(0)
        assert any("td['n', 'i']" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("name", [*ALL, "topk"])
def test_transforms(name: str) -> None:
    x = torch.tensor([[3.0, 1.0], [2.0, 7.0], [5.0, 4.0]])
    td = TensorDict({"x": x, "n": {"y": x[:, 0] + 1}}, 3)
    fn = ALL.get(name) or (lambda x, dim: torch.topk(x, 2, dim))
    first = (2,) if name == "topk" else ()

    def ours(t: Any) -> Any:
        return getattr(tdfunc, name)(t, *first, dim=0)

    expected = parts(fn(x, dim=0))
    size = expected[0].shape[0]
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    mapped = torch.vmap(ours)(td.unsqueeze(0).expand(4, 3))
    for i, value in enumerate(expected):
        got = parts(compiled(td))[i]
        assert got.batch_size == Size((size,))
        assert same(got["x"], value)
        assert parts(mapped)[i].batch_size == Size((4, size))
        assert same(parts(mapped)[i]["x"], value.expand(4, size, 2))
    if name == "argsort":
        return
    square: Any = lambda out: (parts(out)[0] ** 2).sum()  # noqa: E731
    grad = torch.func.grad(lambda t: (parts(ours(t))[0] ** 2).sum(reduce=True))(td)
    plain = torch.func.grad(lambda x: square(fn(x, dim=0)))(x)
    torch.testing.assert_close(grad["x"], plain)


def test_the_peer_agrees() -> None:
    peer = pytest.importorskip("tensordict")
    x, y = torch.rand(3, 2), torch.rand(3)
    ours = TensorDict({"x": x, "n": {"y": y}}, 3)
    theirs = peer.TensorDict({"x": x, "n": {"y": y}}, 3)
    for name in ("cummax", "cummin"):
        out, mine = getattr(theirs, name)(dim=0), getattr(ours, name)(dim=0)
        assert same(mine.values["x"], out.values["x"])
        assert same(mine.indices["n", "y"], out.indices["n", "y"])
    out = theirs.softmax(dim=0)
    check(ours.softmax(0), (3,), {("x",): out["x"], ("n", "y"): out["n", "y"]})
