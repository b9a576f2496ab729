"""Trees as vectors: norms, products, averages, and a look for what is not finite."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import NonTensorData, TensorDict
from tdfunc.errors import (
    MissingKeyError,
    NotFiniteError,
    OperandError,
    OptionError,
    StructureError,
)
from tests.cases import Case, cases, check, fingerprint, leaves_of


def is_number(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


NUMBERS = cases(lambda case: all(map(is_number, case.leaves.values())))
INTEGERS = cases(lambda case: not all(map(is_number, case.leaves.values())))


def vector(case: Case) -> torch.Tensor:
    """Return all elements as one vector in double precision."""
    rows = [x.detach().reshape(-1).to(torch.float64) for x in case.leaves.values()]
    return torch.cat([torch.zeros(0, dtype=torch.float64), *rows])


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert () == got.shape
    torch.testing.assert_close(got.detach().double(), expected, equal_nan=True)


@NUMBERS
def test_global_norm_is_that_of_one_vector(case: Case) -> None:
    before = fingerprint(case.leaves.values())

    close(case.tree.global_norm(), torch.linalg.vector_norm(vector(case)))

    assert before == fingerprint(case.leaves.values())
    assert tdfunc.global_norm is TensorDict.global_norm


@NUMBERS
def test_tree_dot_is_that_of_two_vectors(case: Case) -> None:
    other = case.tree.apply(lambda x: x.detach() * 0.5 - 1)

    got = case.tree.tree_dot(other)

    x = vector(case)
    close(got, x @ (x * 0.5 - 1))


@NUMBERS
def test_cosine_similarity_is_that_of_two_vectors(case: Case) -> None:
    other = case.tree.apply(lambda x: x.detach() * 0.5 - 1)

    got = case.tree.cosine_similarity(other)

    x = vector(case)
    y = x * 0.5 - 1
    close(got, (x @ y) / (x.norm().clamp_min(1e-8) * y.norm().clamp_min(1e-8)))


@cases()
def test_polyak_moves_numbers_and_takes_the_rest(case: Case) -> None:
    other = case.tree.apply(lambda x: x.detach().logical_not().to(x.dtype))
    before = fingerprint(case.leaves.values())

    got = case.tree.polyak(other, 0.25)

    def expected(x: torch.Tensor) -> torch.Tensor:
        y = x.detach().logical_not().to(x.dtype)
        return torch.lerp(x, y, 0.25) if is_number(x) else y

    check(got, case.batch, case.mapped(expected), case.statics)
    assert got.names == case.tree.names
    assert before == fingerprint(case.leaves.values())


@cases(lambda case: case.name != "not finite")
def test_check_finite_gives_the_tree_itself(case: Case) -> None:
    tree = case.tree

    assert tree is tree.check_finite()


@INTEGERS
@pytest.mark.parametrize("name", ["global_norm", "tree_dot", "cosine_similarity"])
def test_integers_are_refused_by_name(case: Case, name: str) -> None:
    arguments = [] if name == "global_norm" else [case.tree]
    path = next(p for p, x in case.leaves.items() if not is_number(x))

    with pytest.raises(OperandError) as raised:
        getattr(case.tree, name)(*arguments)

    assert path == raised.value.path
    for part in (name, "floating", "partition", str(case.leaves[path].dtype)):
        assert part in str(raised.value)


def test_products_of_complex_trees_conjugate_the_left() -> None:
    td = TensorDict({"z": torch.tensor([1 + 2j]), "x": torch.tensor([3.0])})
    other = TensorDict({"z": torch.tensor([2 - 1j]), "x": torch.tensor([1.0])})

    got = td.tree_dot(other)

    assert (1 - 2j) * (2 - 1j) + 3 == got.item()
    torch.testing.assert_close(td.global_norm() ** 2, td.tree_dot(td).real)


def test_similarity_with_zero_is_zero() -> None:
    td = TensorDict({"x": torch.ones(3)})

    assert 0.0 == td.cosine_similarity(td * 0).item()


def test_a_norm_of_zero_has_gradient_zero() -> None:
    td = TensorDict({"x": torch.zeros(3), "y": torch.zeros(())})

    grads = torch.func.grad(tdfunc.global_norm)(td)

    assert 0.0 == grads["x"].abs().sum().item() == grads["y"].item()


def test_rows_and_statics_do_not_count() -> None:
    td = TensorDict({"x": torch.tensor([3.0, 4.0]), "t": ["a", "b"], "s": "text"}, 2)

    assert 5.0 == td.global_norm().item()
    assert 25.0 == td.tree_dot(td).item()
    moved = td.polyak(td.set("x", torch.zeros(2)), 0.5)
    assert [1.5, 2.0] == moved["x"].tolist()
    assert "text" == moved["s"]
    assert ["a", "b"] == list(moved["t"])
    assert td is td.check_finite()


def test_members_of_lazy_stacks_count() -> None:
    stack = tdfunc.lazy_stack(
        [
            TensorDict({"x": torch.tensor([3.0])}),
            TensorDict({"x": torch.tensor([4.0, 0.0])}),
        ]
    )

    assert 5.0 == stack.global_norm().item()
    assert 25.0 == stack.tree_dot(stack).item()
    assert [2.0, 0.0] == stack.polyak(stack * 0, 0.5)[1]["x"].tolist()
    bad = tdfunc.lazy_stack([stack[0] / 0, stack[1]])
    with pytest.raises(NotFiniteError, match="1 of 1"):
        bad.check_finite()


def test_polyak_takes_one_rate_for_every_member() -> None:
    target = TensorDict({"w": torch.zeros(2, 3), "n": torch.tensor([1, 2])}, 2)
    online = TensorDict({"w": torch.ones(2, 3), "n": torch.tensor([5, 6])}, 2)

    got = target.polyak(online, torch.tensor([0.5, 0.25], dtype=torch.float64))

    assert [[0.5] * 3, [0.25] * 3] == got["w"].tolist()
    assert [5, 6] == got["n"].tolist()
    assert torch.float32 == got["w"].dtype
    once = target.polyak(online, torch.tensor(0.5))
    assert [[0.5] * 3] * 2 == once["w"].tolist()


@cases(lambda case: not case.tree._schema.lazy)
def test_polyak_moves_every_leaf_at_its_own_rate(case: Case) -> None:
    rows = case.tree._schema.rows
    paths = [p for i, p in enumerate(case.tree._schema.paths()) if i not in rows]
    rates = {path: (i + 1) / 64 for i, path in enumerate(paths)}
    other = case.tree.apply(lambda x: x.detach().logical_not().to(x.dtype))
    before = fingerprint(case.leaves.values())

    got = case.tree.polyak(other, rates)

    every = {"**": 0.25} if paths else {}
    for path, x in leaves_of(got).items():
        whole = path if isinstance(path, tuple) else (path,)
        alone = case.tree.polyak(other, rates[whole])
        assert_same(x, leaves_of(alone)[path])
    assert got._schema is case.tree._schema
    assert got.names == case.tree.names
    same, once = case.tree.polyak(other, every), case.tree.polyak(other, 0.25)
    for path, x in leaves_of(same).items():
        assert_same(x, leaves_of(once)[path])
    assert before == fingerprint(case.leaves.values())


def assert_same(x: torch.Tensor, y: torch.Tensor) -> None:
    torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


def test_a_mapping_of_rates_by_node_pattern_and_member() -> None:
    target = TensorDict(
        enc={"w": torch.zeros(2, 3), "n": torch.tensor([1, 2])},
        head={"w": torch.zeros(2), "bias": torch.zeros(2, 1)},
        name="net",
        batch_size=2,
    )
    online = target + 1
    rates = {"enc/**": torch.tensor([0.5, 0.25]), "head": {"*": 0.125}, "**/bias": 0}

    got = target.polyak(online, rates)

    assert [[0.5] * 3, [0.25] * 3] == got["enc", "w"].tolist()
    assert [2, 3] == got["enc", "n"].tolist()
    assert [0.125, 0.125] == got["head", "w"].tolist()
    assert [[0.0], [0.0]] == got["head", "bias"].tolist()
    assert "net" == got["name"]
    mapped = torch.vmap(
        lambda t, o, tau: t.polyak(o, {**rates, "enc/**": tau}), (0, 0, 0)
    )(target, online, rates["enc/**"])
    assert got.equal(mapped)
    compiled = torch.compile(
        lambda t, o: t.polyak(o, {"enc/**": 0.5, "head": 0.25}),
        fullgraph=True,
        backend="eager",
    )
    assert compiled(target, online).equal(
        target.polyak(online, {"enc/**": 0.5, "head": 0.25})
    )
    slope = torch.func.grad(
        lambda tau: target.polyak(online, {"**": tau})["enc", "w"].sum()
    )
    assert 6.0 == slope(torch.tensor(0.5)).item()


def test_a_mapping_of_rates_is_for_every_leaf_and_names_none_that_is_not() -> None:
    td = TensorDict(
        enc={"w": torch.zeros(2), "v": torch.zeros(2)},
        head={"w": torch.zeros(2)},
        text=["a", "b"],
        batch_size=2,
    )

    with pytest.raises(OptionError, match=r"no tau.*none for td\['enc', 'v'\]") as bare:
        td.polyak(td, {"head/**": 0.1, ("enc", "w"): 0.1})
    assert ("enc", "v") == bare.value.path
    with pytest.raises(OptionError, match=r"td\['enc', 'w'\].*td\['head', 'w'\]"):
        td.polyak(td, {})
    with pytest.raises(MissingKeyError, match=r"'decoder/\*\*', 'haed'$") as lost:
        td.polyak(td, {"**": 0.1, "decoder/**": 0.1, "haed": 0.1})
    assert ("decoder/**",) == lost.value.path
    with pytest.raises(OptionError, match="from 0 to 1"):
        td.polyak(td, {"**": 1.5})
    with pytest.raises(OperandError, match="does not fit the batch size"):
        td.polyak(td, {"**": torch.zeros(3)})
    with pytest.raises(OperandError, match="can not be combined") as kind:
        td.polyak(td, {"**": "fast"})
    assert "got str" in str(kind.value)
    with pytest.raises(OperandError, match="other shapes") as shape:
        td.polyak(td.set(("enc", "w"), torch.zeros(2, 3)), {"**": 0.1})
    assert ("enc", "w") == shape.value.path
    with pytest.raises(StructureError, match="other entries"):
        td.polyak(td.drop("head"), {"**": 0.1})
    with pytest.raises(OperandError, match="lazy stack"):
        tdfunc.lazy_stack([td, td]).polyak(tdfunc.lazy_stack([td, td]), {"**": 0.1})


def test_not_finite_leaves_are_all_named() -> None:
    td = TensorDict(
        {
            "a": torch.tensor([1.0, math.nan, math.inf]),
            "n": {"b": torch.tensor(-math.inf), "c": torch.ones(2)},
            "z": torch.tensor([complex(0, math.nan)]),
            "i": torch.tensor(3),
            "s": NonTensorData(math.nan),
        }
    )

    with pytest.raises(NotFiniteError) as raised:
        td.check_finite()

    assert ("a",) == raised.value.path
    said = str(raised.value)
    for part in ("td['a'] has 2 of 3", "td['n', 'b'] has 1 of 1", "td['z'] has 1 of 1"):
        assert part in said
    assert "'c'" not in said
    assert "nan_to_num" in said
    assert isinstance(raised.value, (ValueError, ArithmeticError))
    assert said == str(pickle.loads(pickle.dumps(raised.value)))


def test_values_are_not_looked_at_inside_transforms() -> None:
    td = TensorDict({"x": torch.ones(3, 2)}, 3)

    with pytest.raises(OperandError, match="isfinite"):
        torch.vmap(tdfunc.check_finite)(td)
    assert torch.func.grad(lambda t: t.check_finite()["x"].sum())(td)["x"].sum() == 6
    assert torch.vmap(lambda t: t.isfinite().all())(td).all()


@pytest.mark.parametrize("name", ["tree_dot", "cosine_similarity", "polyak"])
def test_trees_must_have_the_same_entries(name: str) -> None:
    td = TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(2)}})
    arguments: list[Any] = [0.5] if name == "polyak" else []

    with pytest.raises(StructureError, match=r"td\['n'\] is missing.*td\['c'\] is ext"):
        getattr(td, name)(td.drop("n").set("c", torch.ones(2)), *arguments)
    with pytest.raises(OperandError, match="tree"):
        getattr(td, name)({"a": 1}, *arguments)


@pytest.mark.parametrize("name", ["tree_dot", "cosine_similarity"])
def test_nothing_is_broadcast(name: str) -> None:
    td = TensorDict({"a": torch.ones(2), "b": torch.ones(2, 2)})

    with pytest.raises(OperandError) as raised:
        getattr(td, name)(td.set("b", torch.ones(2, 1)))

    assert ("b",) == raised.value.path
    assert "[2, 2]" in str(raised.value)
    assert "[2, 1]" in str(raised.value)


def test_a_number_is_no_tree() -> None:
    with pytest.raises(OperandError, match="global_norm takes trees"):
        tdfunc.global_norm(torch.ones(2))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "fn",
    [
        tdfunc.global_norm,
        lambda t: t.tree_dot(t * 2),
        lambda t: t.cosine_similarity(t * t),
        lambda t: t.polyak(t * 0, 0.5).global_norm(),
    ],
    ids=["global_norm", "tree_dot", "cosine_similarity", "polyak"],
)
def test_vmap_grad_and_compile(fn: Any) -> None:
    td = TensorDict(
        {
            "x": torch.randn(4, 3, generator=torch.Generator().manual_seed(0)),
            "n": {"y": torch.linspace(-1, 1, 4)},
        },
        4,
    )

    mapped = torch.vmap(fn)(td)
    grads = torch.vmap(torch.func.grad(fn))(td)

    torch.testing.assert_close(mapped, torch.stack([fn(td[i]) for i in range(4)]))
    for path, x in leaves_of(grads).items():
        rows = [torch.func.grad(fn)(td[i])[path] for i in range(4)]
        torch.testing.assert_close(x, torch.stack(rows))
    compiled = torch.compile(fn, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(td), fn(td))
    torch.autograd.gradcheck(
        lambda x: fn(TensorDict({"x": x}, 4)), td["x"].double().requires_grad_()
    )


@pytest.mark.parametrize(
    ("value", "number", "dtype"),
    [
        (1e-6, 2, torch.float32),
        (1e-9, 2, torch.float32),
        (1e-40, 2, torch.float32),
        (1e20, 2, torch.float32),
        (-3e38, 1000, torch.float32),
        (1e200, 2, torch.float64),
        (100.0, 1000, torch.float16),
        (6e4, 70_000, torch.float16),
        (1e38, 300, torch.bfloat16),
        (1e20, 2, torch.complex64),
    ],
)
def test_cosine_is_that_of_torch_at_every_scale(
    value: float, number: int, dtype: torch.dtype
) -> None:
    x = torch.full((number,), value, dtype=dtype)
    td = TensorDict({"a": x, "b": x[:1].clone(), "none": x[:0]})

    got = td.cosine_similarity(td)

    norm = abs(value) * math.sqrt(number + 1)
    assert dtype == got.dtype
    expected = torch.tensor(min(1.0, norm / 1e-8) ** 2, dtype=dtype)
    torch.testing.assert_close(got, expected, rtol=2e-3, atol=1e-6)
    if dtype == torch.float32 and 1e-30 < value < 1e10:
        flat = torch.cat([x, x[:1]])
        theirs = torch.nn.functional.cosine_similarity(flat, flat, dim=0)
        torch.testing.assert_close(got, theirs)
    assert 0.0 == td.cosine_similarity(td * 0).abs().item()


def test_gradient_of_the_cosine_does_not_see_the_scale() -> None:
    td = TensorDict({"x": torch.tensor([1.0, 2.0]), "y": torch.tensor(-0.5)})
    other = TensorDict({"x": torch.tensor([0.5, -1.0]), "y": torch.tensor(1.0)})

    def slope(a: TensorDict, b: TensorDict) -> TensorDict:
        return torch.func.grad(tdfunc.cosine_similarity)(a, b)

    plain, large = slope(td, other), slope(td * 1e25, other * 1e25)

    torch.testing.assert_close(large["x"] * 1e25, plain["x"])
    x = torch.tensor([1.0, 2.0, -0.5], requires_grad=True)
    y = torch.tensor([0.5, -1.0, 1.0])
    torch.nn.functional.cosine_similarity(x, y, dim=0).backward()
    assert x.grad is not None
    torch.testing.assert_close(plain["x"], x.grad[:2])
    torch.testing.assert_close(plain["y"], x.grad[2])


@pytest.mark.parametrize(
    ("size", "tau"),
    [([], [0.1, 0.2]), ([1], [0.1] * 4), ([2], [[0.1, 0.2]]), ([2], [0.1] * 3)],
)
def test_a_rate_never_makes_the_average_wider(size: list[int], tau: Any) -> None:
    target = TensorDict({"w": torch.zeros(*size, 2)}, size)

    for rate in (torch.tensor(tau), torch.tensor(tau).numpy()):
        with pytest.raises(OperandError, match=r"tau does not fit.*broadcasts to"):
            target.polyak(target + 1, rate)


def test_an_average_follows_no_other_shape() -> None:
    target = TensorDict({"w": torch.zeros(2, 1), "v": torch.zeros(2)})

    for name, shape in (("w", (2, 3)), ("w", (1, 1)), ("v", (1,)), ("v", ())):
        with pytest.raises(OperandError, match="other shapes") as raised:
            target.polyak(target.set(name, torch.ones(shape)), 0.5)
        assert (name,) == raised.value.path
    with pytest.raises(OperandError, match="other shapes"):
        target.polyak(
            TensorDict({"w": torch.ones(4, 2, 1), "v": torch.ones(4, 2)}, 4), 0.5
        )


def test_a_real_average_follows_no_complex_tensor() -> None:
    td = TensorDict({"w": torch.zeros(2)})

    with pytest.raises(OperandError, match="complex") as raised:
        td.polyak(td.apply(lambda x: x * 1j), 0.5)
    assert ("w",) == raised.value.path


@pytest.mark.parametrize("tau", [2, -0.1, math.nan, math.inf])
def test_a_rate_out_of_range_is_refused(tau: float) -> None:
    td = TensorDict({"w": torch.zeros(2)})

    with pytest.raises(OptionError, match="from 0 to 1"):
        td.polyak(td, tau)
    assert td.polyak(td + 1, 1)["w"].tolist() == [1.0, 1.0]


def test_many_leaves_that_are_not_finite_make_a_short_message() -> None:
    td = TensorDict({f"{i:04}": torch.tensor(math.nan) for i in range(1000)})

    with pytest.raises(NotFiniteError, match="and 980 more leaves") as raised:
        td.check_finite()

    assert len(str(raised.value)) < 1000
    with pytest.raises(OperandError, match="check_finite takes trees"):
        tdfunc.check_finite(torch.ones(2))  # pyright: ignore[reportArgumentType]


def test_tree_where_is_where() -> None:
    assert tdfunc.where is tdfunc.tree_where
