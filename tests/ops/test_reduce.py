"""Sums and means: of whole leaves, of batch dims, of features, of all leaves."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tdfunc import TensorDict
from tdfunc.errors import OperandError, ShapeError
from tests.cases import Case, cases, check, fingerprint, ramp, same

Size = torch.Size

REDUCTIONS = {"sum": torch.sum, "mean": torch.mean}


def floating(case: Case) -> bool:
    return all(x.is_floating_point() for x in case.leaves.values())


@pytest.fixture(params=REDUCTIONS)
def reduction(request: pytest.FixtureRequest) -> Any:
    name = request.param
    return (lambda td, *a, **k: getattr(td, name)(*a, **k)), REDUCTIONS[name]


@cases(floating)
def test_no_dim_reduces_every_leaf_to_a_scalar(case: Case, reduction: Any) -> None:
    ours, torchs = reduction
    check(ours(case.tree), (), case.mapped(torchs), case.statics)
    for path in case.batches:
        if path:
            assert ours(case.tree)[path].batch_size == Size(())


@cases(floating)
def test_no_dim_kept_leaves_ones(case: Case, reduction: Any) -> None:
    ours, torchs = reduction
    expected = case.mapped(
        lambda x: torchs(x, dim=tuple(range(x.dim())), keepdim=True) if x.dim() else x
    )
    check(ours(case.tree, keepdim=True), (1,) * len(case.batch), expected)


@cases(lambda case: floating(case) and bool(case.batch))
def test_batch_dims_are_reduced_one_by_one_and_together(
    case: Case, reduction: Any
) -> None:
    ours, torchs = reduction
    td, dims = case.tree, len(case.batch)
    for count in range(1, dims + 1):
        for gone in itertools.combinations(range(dims), count):
            kept = [n for i, n in enumerate(case.batch) if i not in gone]
            ones = [1 if i in gone else n for i, n in enumerate(case.batch)]
            plain = case.mapped(lambda x, g=gone: torchs(x, dim=g))
            held = case.mapped(lambda x, g=gone: torchs(x, dim=g, keepdim=True))
            forms: list[Any] = [gone, list(gone), [i - dims for i in gone]]
            if count == 1:
                forms += [gone[0], gone[0] - dims]
            for dim in forms:
                check(ours(td, dim), kept, plain, case.statics)
                check(ours(td, dim, True), ones, held)
                check(ours(td, dim=dim, keepdim=True), ones, held)


@cases(floating)
def test_feature_dims_are_reduced_and_the_batch_stays(
    case: Case, reduction: Any
) -> None:
    ours, torchs = reduction

    def over(x: torch.Tensor, path: Any, *, keep: bool) -> torch.Tensor:
        own = len(case.batches[path[:-1]])
        dims = tuple(range(own, x.dim()))
        # Without feature dims there is nothing to reduce; torch would reduce all.
        return torchs(x, dim=dims, keepdim=keep) if dims else x

    for keep in (False, True):
        out = ours(case.tree, "feature", keep)
        expected = {p: over(x, p, keep=keep) for p, x in case.leaves.items()}
        check(out, case.batch, expected, case.statics)
        for path, batch in case.batches.items():
            assert (out[path] if path else out).batch_size == Size(batch)
        assert out.names == case.names


def test_a_dim_may_be_a_name() -> None:
    td = TensorDict({"x": ramp(2, 3, 4)}, (2, 3), names=("t", "env"))
    out = td.sum("env")
    check(out, (2,), {("x",): ramp(2, 3, 4).sum(1)})
    assert out.names == ("t",)
    assert td.mean(["t"], keepdim=True).names == ("t", "env")
    assert td.sum(["t", "env"]).names is None
    assert td.sum().names is None


def test_sums_by_hand() -> None:
    td = TensorDict({"x": torch.ones(2, 3), "n": {"y": torch.tensor([1.0, 2.0])}}, 2)
    assert td.sum()["x"].item() == 6
    assert td.sum(0)["n", "y"].item() == 3
    assert td.mean(0)["n", "y"].item() == 1.5
    assert td.sum("feature")["x"].tolist() == [3, 3]
    assert td.sum(reduce=True).item() == 9
    assert td.mean(reduce=True).item() == 9 / 8
    assert td.sum("feature", reduce=True).tolist() == [4, 5]
    assert td.mean("feature", reduce=True).tolist() == [1, 1.25]


@cases(lambda case: floating(case) and bool(case.leaves))
def test_folding_all_leaves_is_one_sum_and_one_mean(case: Case) -> None:
    td = case.tree
    flat = torch.cat([x.reshape(-1) for x in case.leaves.values()])
    torch.testing.assert_close(td.sum(reduce=True), flat.sum(), equal_nan=True)
    torch.testing.assert_close(td.mean(reduce=True), flat.mean(), equal_nan=True)


@cases(lambda case: floating(case) and bool(case.leaves) and 0 not in case.batch)
def test_folding_features_gives_one_number_for_each_row(case: Case) -> None:
    td = case.tree
    # Of a wider node too: all that is behind the batch dims of the root is one row.
    rows = [x.reshape(*case.batch, -1) for x in case.leaves.values() if x.numel()]
    flat = torch.cat(rows, -1)
    got = td.sum("feature", reduce=True)
    torch.testing.assert_close(got, flat.sum(-1), equal_nan=True)
    got = td.mean("feature", reduce=True)
    torch.testing.assert_close(got, flat.mean(-1), equal_nan=True)


def test_sums_promote_and_take_a_dtype_as_in_torch() -> None:
    leaves = {
        "b": torch.tensor([True, True]),
        "u": torch.tensor([200, 100], dtype=torch.uint8),
        "h": torch.tensor([1.5, 2.5], dtype=torch.float16),
        "c": torch.tensor([1 + 1j, 2 - 1j]),
    }
    td = TensorDict(leaves, 2)
    for key, x in leaves.items():
        assert same(td.sum()[key], x.sum())
        assert same(td.sum(0)[key], x.sum(0))
    real = td.drop("c")
    assert real.sum(dtype=torch.float64).dtype == torch.float64
    assert real.mean(0, dtype=torch.float32)["u"].item() == 150


def test_the_mean_of_integers_wants_a_dtype_and_names_the_leaf() -> None:
    td = TensorDict({"x": ramp(2), "n": {"i": torch.tensor([1, 2])}}, 2)
    table = td.set(("n", "i"), torch.ones(2, 2, dtype=torch.int64))
    for dim in (None, 0, "feature"):
        with pytest.raises(RuntimeError) as caught:
            table.mean(dim)
        assert any("td['n', 'i']" in note for note in caught.value.__notes__)


def test_reduce_with_batch_dims_is_refused_with_the_call_that_works() -> None:
    td = TensorDict({"x": ramp(2, 3)}, 2)
    for name in ("sum", "mean", "amax", "norm"):
        with pytest.raises(OperandError) as caught:
            getattr(td, name)(dim=0, reduce=True)
        text = str(caught.value)
        assert "can not be folded into one tensor" in text
        assert "got dim=0" in text
        assert f'td.{name}(dim="feature", reduce=True).{name}(dim=0)' in text
    for name in ("var", "std", "nanmean"):
        with pytest.raises(OperandError, match="returns a tree"):
            getattr(td, name)(dim=0, reduce=True)
    with pytest.raises(OperandError, match="leave keepdim out"):
        td.sum(keepdim=True, reduce=True)


def test_a_tree_without_leaves_has_nothing_to_fold() -> None:
    for td in (TensorDict({}), TensorDict({"s": "text"}, 3)):
        for use in (td.sum, td.mean):
            with pytest.raises(
                OperandError, match=r"no leaf to reduce.*at least one leaf"
            ):
                use(reduce=True)
        assert td.sum().batch_size == Size(())


@pytest.mark.parametrize("dim", [(0, 0), [0, -2], ["t", 0]], ids=str)
def test_a_dim_that_comes_twice_is_refused(dim: Any) -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3), names=["t", None])
    with pytest.raises(ShapeError, match="a dim comes twice"):
        td.sum(dim)


def test_reductions_change_nothing_and_keep_wider_nodes() -> None:
    inner = TensorDict({"o": ramp(2, 3, 4)}, (2, 3))
    td = TensorDict({"a": inner, "r": ramp(2)}, 2)
    before = fingerprint([td["a", "o"], td["r"]])
    out = td.sum(0)
    assert out["a"].batch_size == Size((3,))
    assert td.sum("feature")["a"].batch_size == Size((2, 3))
    assert same(td.sum("feature")["a", "o"], ramp(2, 3, 4).sum(-1))
    assert td.mean()["a"].batch_size == Size(())
    assert fingerprint([td["a", "o"], td["r"]]) == before


def test_reductions_differentiate_and_map() -> None:
    td = TensorDict({"x": ramp(3, 2), "y": ramp(3)}, 3)
    gradient = torch.func.grad(lambda t: (t * t).mean(reduce=True))(td)
    check(
        gradient,
        (3,),
        {("x",): 2 * ramp(3, 2) / 9, ("y",): 2 * ramp(3) / 9},
        exact=False,
    )
    out = torch.vmap(lambda t: t.sum(reduce=True))(td)
    assert same(out, ramp(3, 2).sum(1) + ramp(3))


def test_one_mean_of_all_leaves_wants_a_dtype_for_integers_too() -> None:
    td = TensorDict({"x": ramp(2), "n": {"i": torch.tensor([1, 2])}}, 2)
    for dim in (None, "feature"):
        with pytest.raises(OperandError) as caught:
            td.mean(dim, reduce=True)
        text = str(caught.value)
        assert "integers have no mean of their own dtype" in text
        assert "at td['n', 'i']" in text
        assert "got torch.int64" in text
        assert "dtype=torch.float32" in text
    assert td.mean(reduce=True, dtype=torch.float32).item() == 1
    assert td.mean("feature", reduce=True, dtype=torch.float32).tolist() == [0.5, 1.5]


def test_no_dims_reduce_nothing() -> None:
    td = TensorDict({"x": torch.ones(3, 4)}, 3)
    for dims in ([], ()):
        assert td.sum(dims)["x"].shape == (3, 4)
        assert td.mean(dims).batch_size == (3,)


def test_all_and_any_fold_every_leaf_into_one_tensor() -> None:
    td = TensorDict({"x": torch.ones(2, 3), "n": {"y": torch.tensor([1, 0])}}, 2)
    assert td.all().shape == ()
    assert not td.all()
    assert td.any()
    assert (td == td.clone()).all()
    assert not (td != td.clone()).any()
    assert TensorDict({}).all()
    assert not TensorDict({}).any()
    assert td.all().dtype == torch.bool


def test_all_and_any_with_a_dim_give_trees() -> None:
    td = TensorDict({"x": torch.tensor([[1, 0], [1, 1]]), "y": torch.ones(2)}, 2)
    assert td.all(0)["x"].tolist() == [True, False]
    assert td.any("feature")["x"].tolist() == [True, True]
    assert td.all("feature").batch_size == (2,)
    through_torch: Any = torch.all
    assert through_torch(td, dim=0)["x"].tolist() == [True, False]
    assert td.all(0, keepdim=True).batch_size == (1,)
