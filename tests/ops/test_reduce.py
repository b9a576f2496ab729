"""Reductions: of whole leaves, of batch dims, of features, of all leaves."""

from __future__ import annotations

import itertools
from typing import Any, cast

import optree
import pytest
import torch
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import TensorDict, ValuesIndices
from tdfunc.errors import OperandError, OptionError, ShapeError
from tests.cases import Case, cases, check, fingerprint, ramp, same

# torch's own, of vmap over quantile.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

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


# The rest of the reductions: one table, against torch on flattened dims

AT_ONCE: dict[str, Any] = {
    "var": torch.var,
    "std": torch.std,
    "amax": torch.amax,
    "amin": torch.amin,
    "nansum": torch.nansum,
    "nanmean": torch.nanmean,
    "norm": torch.linalg.vector_norm,
    "logsumexp": torch.logsumexp,
    "count_nonzero": lambda x, d, k=False: (x != 0).sum(d, k),
}
ONE_DIM: dict[str, Any] = {
    "prod": torch.prod,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "quantile": lambda x, d, k=False: torch.quantile(x, 0.5, d, k),
}
PAIRS: dict[str, Any] = {
    "max": torch.max,
    "min": torch.min,
    "median": torch.median,
    "nanmedian": torch.nanmedian,
}
TENSORS = AT_ONCE | ONE_DIM
WITH = {"quantile": (0.5,), "norm": (2,)}


def filled(case: Case) -> bool:
    return floating(case) and all(x.numel() for x in case.leaves.values())


def over_dims(name: str, x: torch.Tensor, dims: tuple[int, ...]) -> Any:
    """Reduce dims, kept as 1, by torch's function of one dim and a flattened view."""
    fn = PAIRS.get(name) or TENSORS[name]
    if not dims:
        return over_dims(name, x[..., None], (x.dim(),))
    kept = [d for d in range(x.dim()) if d not in dims]
    flat = x.permute(*kept, *dims).reshape(*[x.shape[d] for d in kept], -1)
    ones = [1 if d in dims else n for d, n in enumerate(x.shape)]
    out = fn(flat, -1) if name != "norm" else fn(flat, 2, -1)
    if name in PAIRS:
        return [part.reshape(ones) for part in out]
    return out.reshape(ones)


def squeezed(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    return x.reshape([n for d, n in enumerate(x.shape) if d not in dims])


def few(x: torch.Tensor, dims: tuple[int, ...]) -> bool:
    """Return whether torch warns that a variance of so few elements is none."""
    return torch.Size([x.shape[d] for d in dims]).numel() < 2


@pytest.mark.parametrize("name", TENSORS)
@cases(filled)
def test_other_reductions_without_dim(case: Case, name: str) -> None:
    if name in {"var", "std"} and any(x.numel() < 2 for x in case.leaves.values()):
        return
    if name == "prod" and any(x.numel() > 30 for x in case.leaves.values()):
        return  # infinity times 0
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)

    def whole(x: torch.Tensor) -> torch.Tensor:
        if name == "prod":
            return x.prod()
        return over_dims(name, x, tuple(range(x.dim()))).reshape(())

    out = getattr(case.tree, name)(*WITH.get(name, ()))
    check(out, (), case.mapped(whole), case.statics, exact=False)
    held = getattr(case.tree, name)(*WITH.get(name, ()), keepdim=True)
    ones = (1,) * len(case.batch)
    expected = case.mapped(lambda x: whole(x).reshape((1,) * x.dim()))
    check(held, ones, expected, exact=False)
    assert held.names == case.names
    assert fingerprint(tensors) == before


@pytest.mark.parametrize("name", [*TENSORS, *PAIRS])
@cases(lambda case: filled(case) and bool(case.batch))
def test_other_reductions_of_batch_dims(case: Case, name: str) -> None:
    td, dims = case.tree, len(case.batch)
    for count in range(1, dims + 1):
        for gone in itertools.combinations(range(dims), count):
            if name in {"var", "std"} and few(torch.empty(case.batch), gone):
                continue
            kept = [n for i, n in enumerate(case.batch) if i not in gone]
            ones = [1 if i in gone else n for i, n in enumerate(case.batch)]
            held = case.mapped(lambda x, g=gone: over_dims(name, x, g))
            for dim in (gone, [i - dims for i in gone], *gone[: count == 1]):
                out = getattr(td, name)(*WITH.get(name, ()), dim)
                again = getattr(td, name)(*WITH.get(name, ()), dim, True)
                for i, (tree, wide) in enumerate(
                    zip(out, again, strict=True) if name in PAIRS else [(out, again)]
                ):
                    full = {p: x[i] if name in PAIRS else x for p, x in held.items()}
                    plain = {p: squeezed(x, gone) for p, x in full.items()}
                    check(tree, kept, plain, case.statics, exact=False)
                    check(wide, ones, full, exact=False)
                    assert wide.names == case.names


@pytest.mark.parametrize("name", [*TENSORS, *PAIRS])
@cases(filled)
def test_other_reductions_of_features(case: Case, name: str) -> None:
    own = {
        p: tuple(range(len(case.batches[p[:-1]]), x.dim()))
        for p, x in case.leaves.items()
    }
    if name in {"var", "std"} and any(few(case.leaves[p], d) for p, d in own.items()):
        return
    for keep in (False, True):
        found = getattr(case.tree, name)(*WITH.get(name, ()), "feature", keep)
        for i, out in enumerate(found if name in PAIRS else [found]):
            expected: dict[Any, torch.Tensor] = {}
            for p, x in case.leaves.items():
                full = over_dims(name, x, own[p])
                full = full[i] if name in PAIRS else full
                if not own[p]:
                    full = full.squeeze(-1)
                expected[p] = full if keep else squeezed(full, own[p])
            check(out, case.batch, expected, case.statics, exact=False)
            for path, batch in case.batches.items():
                assert (out[path] if path else out).batch_size == Size(batch)


def test_pairs_without_dim_are_values() -> None:
    td = TensorDict({"x": torch.tensor([[3, 1], [2, 5]])}, 2)
    assert td.max()["x"].item() == 5
    assert td.min()["x"].item() == 1
    assert td.median()["x"].item() == 2
    assert td.max(keepdim=True)["x"].tolist() == [[5]]
    assert td.median(keepdim=True).batch_size == Size((1,))


@pytest.mark.parametrize(
    "name",
    [
        *("prod", "amax", "amin", "max", "min", "logsumexp", "nansum", "norm"),
        "count_nonzero",
    ],
)
@cases(lambda case: filled(case) and bool(case.leaves) and case.name != "deep")
def test_folding_is_the_reduction_of_all_elements(case: Case, name: str) -> None:
    td = case.tree
    fn: Any = {"max": torch.amax, "min": torch.amin}.get(name) or (
        lambda x, d: over_dims(name, x, (d % x.dim(),)).squeeze(d)
    )
    flat = torch.cat([x.reshape(-1) for x in case.leaves.values()])
    got = getattr(td, name)(reduce=True)
    torch.testing.assert_close(got, fn(flat, -1), equal_nan=True)
    rows = [x.reshape(*case.batch, -1) for x in case.leaves.values()]
    got = getattr(td, name)(dim="feature", reduce=True)
    torch.testing.assert_close(got, fn(torch.cat(rows, -1), -1), equal_nan=True)


def test_spread_and_nanmean_fold_elements_not_leaves() -> None:
    nan = float("nan")
    x, y = ramp(3, 2), torch.tensor([5.0, 1.0, nan])
    td = TensorDict({"x": x, "n": {"y": y}}, 3)
    flat = torch.cat([y, x.reshape(-1)])
    row = torch.cat([y[:, None], x], -1)
    torch.testing.assert_close(td.nanmean(reduce=True), flat.nanmean())
    torch.testing.assert_close(td.nanmean("feature", reduce=True), row.nanmean(-1))
    for name in ("var", "std"):
        fn = getattr(torch, name)
        for correction in (0, 1):
            got = getattr(td, name)(reduce=True, correction=correction)
            expected = fn(flat, correction=correction)
            torch.testing.assert_close(got, expected, equal_nan=True)
            got = getattr(td, name)("feature", reduce=True, correction=correction)
            expected = fn(row, -1, correction=correction)
            torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("p", [0, 1, 2, 3.5, float("inf"), -float("inf")])
def test_norms_of_all_orders(p: float) -> None:
    x, y = ramp(3, 2) - 2, ramp(3) + 1
    td = TensorDict({"x": x, "n": {"y": y}}, 3)
    norm = torch.linalg.vector_norm
    assert same(td.norm(p)["x"], norm(x, p))
    assert same(td.norm(p, 0)["x"], norm(x, p, 0))
    flat = torch.cat([y, x.reshape(-1)])
    torch.testing.assert_close(td.norm(p, reduce=True), norm(flat, p))
    grad = torch.func.grad(lambda t: t.norm(p, reduce=True))
    expected = torch.func.grad(lambda x: norm(torch.cat([y, x.reshape(-1)]), p))(x)
    if p not in {0, float("inf"), -float("inf")}:
        torch.testing.assert_close(grad(td)["x"], expected)
    half = td.norm(p, dtype=torch.float64, reduce=True)
    assert half.dtype == torch.float64


def test_quantiles_of_several_levels_make_a_first_dim() -> None:
    x, y = ramp(2, 3, 4), ramp(2, 3)
    td = TensorDict({"x": x, "n": {"y": y}}, (2, 3), names=("t", "env"))
    for q in ([0.25, 0.5, 1.0], torch.tensor([0.25, 0.5, 1.0])):
        level = torch.as_tensor(q)
        out = td.quantile(q, "t")
        check(
            out,
            (3, 3),
            {
                ("x",): torch.quantile(x, level, 0),
                ("n", "y"): torch.quantile(y, level, 0),
            },
        )
        assert out.names == (None, "env")
        both = td.quantile(q, (0, 1), True)
        check(
            both,
            (3, 1, 1),
            {
                ("x",): torch.quantile(x.flatten(0, 1), level, 0)[:, None, None],
                ("n", "y"): torch.quantile(y.flatten(), level)[:, None, None],
            },
        )
        assert td.quantile(q).batch_size == Size((3,))
        assert td.quantile(q, "feature", True)["x"].shape == (3, 2, 3, 1)
        assert td.quantile(q, "feature")["n", "y"].shape == (3, 2, 3)
    low = td.quantile(0.5, 0, interpolation="lower")
    assert same(low["x"], torch.quantile(x, 0.5, 0, interpolation="lower"))
    with pytest.raises(OptionError, match=r"at most 1 dim.*got 2"):
        td.quantile(torch.ones(1, 1))
    for wrong in (1.5, -1, [0.5, 2]):
        with pytest.raises(OptionError, match="from 0 to 1"):
            td.quantile(wrong)
    with pytest.raises(RuntimeError) as caught:
        td.quantile(torch.tensor(1.5))
    assert any("td['n', 'y']" in note for note in caught.value.__notes__)


def test_dtypes_are_torchs_and_refusals_name_the_leaf() -> None:
    i = torch.tensor([3, 4])
    td = TensorDict({"n": {"i": i}}, 2)
    assert same(td.prod()["n", "i"], i.prod())
    assert td.prod(0, dtype=torch.float64)["n", "i"].dtype == torch.float64
    assert same(td.amax(0)["n", "i"], i.amax(0))
    assert td.argmax(0)["n", "i"].dtype == torch.int64
    assert same(td.logsumexp(0)["n", "i"], i.logsumexp(0))
    for name in ("var", "std", "norm", "nanmean", "quantile"):
        with pytest.raises(RuntimeError) as caught:
            getattr(td, name)(*WITH.get(name, ()), 0)
        assert any("td['n', 'i']" in note for note in caught.value.__notes__)
    with pytest.raises(OperandError, match="integers have no mean"):
        td.nanmean(reduce=True)
    empty = TensorDict({"n": {"x": torch.ones(0)}}, 0)
    for name in ("amax", "max", "argmax", "median"):
        with pytest.raises((RuntimeError, IndexError)) as caught:
            getattr(empty, name)(0)
        assert any("td['n', 'x']" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("name", [*TENSORS, *PAIRS])
def test_dims_that_are_none_are_refused(name: str) -> None:
    td = TensorDict({"x": ramp(2, 3)}, 2)
    use = getattr(td, name)
    first = WITH.get(name, ())
    for dim in (1, -2, "t", (0, 0)):
        with pytest.raises(ShapeError):
            use(*first, dim)
    options = {"correction": 0} if name in {"var", "std"} else {}
    out = use(*first, (), **options)
    out = out.values if name in PAIRS else out
    assert out["x"].shape == (2, 3)


@pytest.mark.parametrize("name", [*TENSORS, *PAIRS])
def test_other_reductions_through_torch_and_transforms(name: str) -> None:
    x = torch.tensor([[3.0, 1.0], [2.0, 7.0], [5.0, 4.0]])
    td = TensorDict({"x": x, "n": {"y": x[:, 0] + 1}}, 3)
    first = WITH.get(name, ())
    through: Any = torch.norm if name == "norm" else getattr(torch, name)
    pick: Any = (lambda out: out.values) if name in PAIRS else (lambda out: out)

    expected = pick(over_torch(name, x))
    got = through(td, *first, 0)
    assert same(pick(got)["x"], expected)
    if name != "count_nonzero":  # whose torch function keeps no dims
        assert same(pick(through(td, *first, dim=0, keepdim=True))["x"], expected[None])

    def ours(t: Any) -> Any:
        return getattr(t, name)(*first, 0)

    wide = td.unsqueeze(0).expand(4, 3)
    out = torch.vmap(ours)(wide)
    assert pick(out).batch_size == Size((4,))
    assert same(pick(out)["x"], expected.expand(4, 2))
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    assert same(pick(compiled(td))["x"], expected)
    fold = {"argmax", "argmin", "quantile", "median", "nanmedian"}
    if name not in fold:
        done = torch.compile(
            lambda t: getattr(t, name)(reduce=True), fullgraph=True, backend="eager"
        )
        torch.testing.assert_close(done(td), getattr(td, name)(reduce=True))
        rows = torch.vmap(lambda t: getattr(t, name)(reduce=True))(td)
        whole = getattr(td, name)(dim="feature", reduce=True)
        torch.testing.assert_close(rows, whole)
    if name.startswith(("arg", "count")):
        return  # no gradient
    grad = torch.func.grad(lambda t: pick(ours(t)).sum(reduce=True))(td)
    plain = torch.func.grad(lambda x: pick(over_torch(name, x)).sum())(x)
    assert same(grad["x"], plain)


def over_torch(name: str, x: torch.Tensor) -> Any:
    fn = PAIRS.get(name) or TENSORS[name]
    return fn(x, 2, 0) if name == "norm" else fn(x, 0)


def test_torchs_spellings() -> None:
    x = torch.tensor([[3.0, 1.0], [2.0, 7.0]])
    td = TensorDict({"x": x}, 2)
    call: Any = torch.var
    assert same(call(td, 0, False)["x"], x.var(0, unbiased=False))
    assert same(call(td, dim=0, correction=0)["x"], x.var(0, correction=0))
    call = torch.std
    assert same(call(td, 0, unbiased=False, keepdim=True)["x"], x.std(0, False, True))
    call = torch.norm
    assert same(call(td)["x"], torch.linalg.vector_norm(x))
    assert same(call(td, p=1, dim=0)["x"], torch.linalg.vector_norm(x, 1, 0))
    call = torch.linalg.vector_norm
    assert same(call(td, ord=1, dim=0)["x"], torch.linalg.vector_norm(x, 1, 0))
    call = torch.max
    assert same(call(td, td + 1)["x"], x + 1)
    assert same(call(torch.tensor([2.0, 2.0]), td)["x"], x.clamp(min=2))
    assert same(call(td)["x"], x.max())
    call = torch.quantile
    assert same(call(td, q=0.5, dim=0)["x"], x.quantile(0.5, 0))


def test_pairs_are_pytrees_and_come_out_of_vmap() -> None:
    td = TensorDict({"x": ramp(4, 3, 2)}, (4, 3))
    out: Any = torch.vmap(lambda t: t.max(0))(td)
    assert isinstance(out, ValuesIndices)
    assert out.values.batch_size == Size((4,))
    assert same(out.indices["x"], torch.full((4, 2), 2))
    leaves, spec = pytree.tree_flatten(out)
    assert len(leaves) == 2
    assert pytree.tree_unflatten(leaves, spec).values.equal(out.values)
    assert len(optree.tree_leaves(cast("Any", out))) == 2


def test_the_peer_agrees_on_reductions() -> None:
    peer = pytest.importorskip("tensordict")
    x, y = torch.rand(3, 2), torch.rand(3)
    ours = TensorDict({"x": x, "n": {"y": y}}, 3)
    theirs = peer.TensorDict({"x": x, "n": {"y": y}}, 3)
    for name in ("sum", "mean", "prod", "std", "var", "nansum", "nanmean", "logsumexp"):
        out = getattr(theirs, name)(dim=0)
        expected = {("x",): out["x"], ("n", "y"): out["n", "y"]}
        check(getattr(ours, name)(dim=0), (), expected, exact=False)
    for name in ("max", "min"):
        out = getattr(theirs, name)(dim=0)
        mine = getattr(ours, name)(dim=0)
        assert same(mine.values["x"], out.values["x"])
        assert same(mine.indices["n", "y"], out.indices["n", "y"])


def test_what_counts_and_what_is_left_out() -> None:
    nan = float("nan")
    td = TensorDict({"x": torch.tensor([nan, 0.0, 3.0, 1.0]), "b": [True] * 4}, 4)
    counts = td.count_nonzero()
    assert counts["x"].item() == 3
    assert counts["b"].item() == 4
    assert counts.dtype == torch.int64
    assert td.count_nonzero(reduce=True).item() == 7
    assert td.count_nonzero("feature", reduce=True).tolist() == [2, 1, 2, 2]
    floats = td.select("x")
    assert floats.nanmedian()["x"].item() == 1
    assert floats.nanmedian(0).indices["x"].item() == 3
    assert floats.median()["x"].isnan()


def mixed() -> TensorDict:
    x = torch.tensor([[3.0, 1.0, 1.0], [2.0, 7.0, 2.0], [5.0, 5.0, 4.0]])
    return TensorDict({"x": x, "n": {"y": x[:, 0] + 1}}, 3)


def elements(td: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all elements, and those of each row."""
    x, y = td["x"], td["n", "y"]
    return torch.cat([y, x.flatten()]), torch.cat([y[:, None], x], 1)


LEVELS = torch.tensor([0.25, 0.75])
FOLDS: dict[str, Any] = {
    # name: the call with reduce, the same on the elements along the last dim
    "median": (lambda t, **k: t.median(reduce=True, **k), lambda x: x.median(-1)[0]),
    "nanmedian": (
        lambda t, **k: t.nanmedian(reduce=True, **k),
        lambda x: x.nanmedian(-1)[0],
    ),
    "quantile": (
        lambda t, **k: t.quantile(0.3, reduce=True, **k),
        lambda x: x.quantile(0.3, -1),
    ),
    "quantiles": (
        lambda t, **k: t.quantile(LEVELS, reduce=True, **k),
        lambda x: x.quantile(LEVELS, -1),
    ),
    "nanquantile": (
        lambda t, **k: t.nanquantile(0.3, reduce=True, **k),
        lambda x: x.nanquantile(0.3, -1),
    ),
    "mode": (
        lambda t, dim=None: t.mode(dim, reduce=True),
        lambda x: x.mode(-1)[0],
    ),
    "kthvalue": (
        lambda t, dim=None: t.kthvalue(2, dim, reduce=True),
        lambda x: x.kthvalue(2, -1)[0],
    ),
    "all": (
        lambda t, **k: (t > 1).all(reduce=True, **k),
        lambda x: (x > 1).all(-1),
    ),
    "any": (
        lambda t, **k: (t > 6).any(reduce=True, **k),
        lambda x: (x > 6).any(-1),
    ),
}


@pytest.mark.parametrize("name", FOLDS)
def test_folds_that_are_of_elements(name: str) -> None:
    ours, on = FOLDS[name]
    td = mixed()
    flat, rows = elements(td)
    assert same(ours(td), on(flat))
    assert same(ours(td, dim="feature"), on(rows))
    out_dim = 1 if name == "quantiles" else 0
    assert same(torch.vmap(ours, out_dims=out_dim)(td), on(rows))
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    assert same(compiled(td), on(flat))
    with pytest.raises(OperandError, match="td"):
        ours(td, dim=0)


def test_truth_of_bytes_is_torchs() -> None:
    x = torch.tensor([[1, 0], [1, 1]], dtype=torch.uint8)
    td = TensorDict({"x": x, "b": x.bool()}, 2)
    for name in ("all", "any"):
        fn: Any = getattr(torch, name)
        assert same(getattr(td, name)(0)["x"], fn(x, 0))
        assert same(getattr(td, name)("feature")["x"], fn(x, 1))
        assert getattr(td, name)(0)["b"].dtype == torch.bool
        assert getattr(td, name)().dtype == torch.bool
        assert getattr(td, name)("feature", reduce=True).dtype == torch.bool
    assert TensorDict({}).all(reduce=True)


def test_positions_in_several_leaves_are_refused_with_what_works() -> None:
    td = mixed()
    flat, rows = elements(td)
    for name in ("argmax", "argmin"):
        fn: Any = getattr(torch, name)
        with pytest.raises(OperandError, match=rf"ravel\(td\)\[0\]\.{name}\(-1\)"):
            getattr(td, name)(reduce=True)
        assert same(fn(tdfunc.ravel(td)[0], -1), fn(flat, -1))
        with pytest.raises(OperandError, match=rf"pack\(\)\[0\]\.{name}\(-1\)"):
            getattr(td, name)("feature", reduce=True)
        assert same(fn(td.pack()[0], -1), fn(rows, -1))


def test_mode_and_kthvalue_are_pairs_of_the_last_batch_dim() -> None:
    td = mixed()
    x, y = td["x"], td["n", "y"]
    for call, fn in (
        ((lambda t, *a: t.mode(*a)), torch.mode),
        ((lambda t, *a: t.kthvalue(2, *a)), lambda x, *a: torch.kthvalue(x, 2, *a)),
    ):
        found = call(td)
        values, indices = fn(x, 0)
        check(found.values, (), {("x",): values, ("n", "y"): fn(y, 0)[0]})
        assert same(found.indices["x"], indices)
        assert same(call(td.select("x"), "feature").values["x"], fn(x, 1)[0])
        assert same(call(td, None)["x"], fn(x.flatten(), 0)[0])
        through: Any = fn
        assert through(td).values.equal(found.values)
        assert call(td, 0, True).values.batch_size == (1,)
        mapped = torch.vmap(call)(td[None].expand(2, 3))
        assert same(mapped.values["x"][1], values)


def test_two_results_are_the_two_operations() -> None:
    td = mixed()
    for options in ({}, {"dim": 0}, {"dim": "feature", "correction": 0}):
        for name in ("std", "var"):
            through: Any = getattr(torch, f"{name}_mean")
            results = [getattr(td, f"{name}_mean")(**options)]
            if options.get("dim") != "feature":  # which torch does not know
                results.append(through(td, **options))
            for spread, mean in results:
                assert spread.equal(getattr(td, name)(**options), equal_nan=True)
                assert mean.equal(td.mean(options.get("dim")))
    x = td["x"]
    call: Any = torch.var_mean
    for mine, theirs in zip(call(td, 0, False), call(x, 0, False), strict=True):
        assert same(mine["x"], theirs)
    call = torch.aminmax
    for out in (td.aminmax(0), call(td, dim=0)):
        assert same(out.min["x"], x.amin(0))
        assert same(out.max["x"], x.amax(0))
    flat, rows = elements(td)
    assert td.aminmax(reduce=True).max == flat.max()
    assert same(td.aminmax("feature", reduce=True).min, rows.amin(1))
    assert same(td.std_mean(reduce=True)[0], flat.std())


def test_nanquantile_leaves_nan_out() -> None:
    x = torch.tensor([[1.0, float("nan")], [3.0, 4.0]])
    td = TensorDict({"x": x}, 2)
    call: Any = torch.nanquantile
    for out in (td.nanquantile(0.5, 0), call(td, 0.5, 0)):
        assert same(out["x"], torch.nanquantile(x, 0.5, 0))
    assert td.nanquantile([0.0, 1.0], 0).batch_size == (2,)
    assert td.quantile(0.5, 0)["x"].isnan().any()


def test_what_is_no_dim_and_no_order_is_said() -> None:
    td: Any = mixed()
    for call in (lambda: td.sum(1.0), lambda: td.argmax(object()), lambda: td.max(2.0)):
        with pytest.raises(ShapeError, match="this is no dim"):
            call()
    lazy: Any = tdfunc.lazy_stack([mixed(), mixed()])
    with pytest.raises(ShapeError, match="this is no dim"):
        lazy.sum(1.0)
    with pytest.raises(OptionError, match=r"td\.norm\(dim='feature'\)"):
        td.norm("feature")
    one = TensorDict({"x": torch.ones(2)}, 2)
    with pytest.raises(OperandError, match="single batch dims of all leaves"):
        one.sum(0, reduce=True)
