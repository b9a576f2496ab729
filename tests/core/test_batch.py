"""The rank rule: what batch size a tree has that a pytree function rebuilt.

The table is written by hand from the rule: every leaf has ``ndim - feature rank``
batch dims, the tree the minimum of them (never below 0), shortened to the longest
prefix whose sizes all leaves share; a nested node does the same inside itself.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tdfunc import TensorDict
from tests.cases import leaves_of, ramp

Size = torch.Size

# Feature ranks: x 1, y 0. Shapes of new leaves -> batch size.
RULE: list[tuple[Any, Any, tuple[int, ...]]] = [
    # Unchanged, gained and lost in front
    ((3, 2), (3,), (3,)),
    ((5, 3, 2), (5, 3), (5, 3)),
    ((2,), (), ()),
    # Sizes may change
    ((7, 2), (7,), (7,)),
    ((0, 2), (0,), (0,)),
    # Features gained or lost are counted as batch dims as far as sizes agree
    ((3, 2, 1), (3, 1), (3,)),
    ((3, 1, 1), (3, 1), (3, 1)),
    ((3,), (3,), ()),
    # Fewer dims than features: no batch dim, never a negative number
    ((), (), ()),
    ((), (4,), ()),
    # Counts differ: the minimum
    ((5, 3, 2), (5,), (5,)),
    ((3, 2), (3, 4, 5), (3,)),
    # Counts agree, sizes do not: the shared prefix
    ((3, 4, 2), (3, 5), (3,)),
    ((4, 2), (5,), ()),
    ((3, 3, 3), (3, 3), (3, 3)),
    ((2, 3, 2), (2, 3), (2, 3)),
]


@pytest.mark.parametrize(("x", "y", "batch"), RULE, ids=str)
def test_the_batch_size_is_the_shared_prefix_that_ranks_leave(
    x: Any, y: Any, batch: tuple[int, ...]
) -> None:
    td = TensorDict({"x": ramp(3, 2), "y": ramp(3), "s": "text"}, 3)
    spec = pytree.tree_structure(td)
    new = [torch.zeros(x), torch.zeros(y)]
    out = pytree.tree_unflatten(new, spec)
    assert out.batch_size == Size(batch)
    assert type(out.batch_size) is Size
    assert out["x"] is new[0]
    assert out["s"] == "text"
    # Once settled it is as any tree of that batch size.
    again = TensorDict({"x": new[0], "y": new[1], "s": "text"}, batch)
    assert out._schema is again._schema
    assert out.equal(again)


def test_leaves_that_are_no_tensors_do_not_count() -> None:
    td = TensorDict({"x": ramp(3, 2), "y": ramp(3)}, 3)
    spec = pytree.tree_structure(td)
    for other in (None, 1, "text", object(), [1]):
        assert pytree.tree_unflatten([other, ramp(5)], spec).batch_size == Size((5,))
        assert pytree.tree_unflatten([ramp(4, 3, 2), other], spec).batch_size == Size(
            (4, 3)
        )
        assert pytree.tree_unflatten([other, other], spec).batch_size == Size(())


def test_a_tree_whose_only_leaves_are_in_a_wider_node_keeps_its_batch_size() -> None:
    td = TensorDict({"a": TensorDict({"o": ramp(2, 3, 4)}, (2, 3))}, 2)
    out = pytree.tree_map(torch.sin, td)
    assert out.batch_size == Size((2,))
    assert out["a"].batch_size == Size((2, 3))


# A node with one batch dim more than its parent. Shapes of a.o (rank 1 in a), a.p
# (rank 0 in a) and r (rank 0) -> batch size of the root and of a.
SURPLUS: list[tuple[Any, Any, Any, tuple[int, ...], tuple[int, ...]]] = [
    ((2, 3, 4), (2, 3), (2,), (2,), (2, 3)),
    ((3, 4), (3,), (), (), (3,)),
    ((5, 2, 3, 4), (5, 2, 3), (5, 2), (5, 2), (5, 2, 3)),
    # The node loses a dim: at its root it counts with its surplus, so that a tree
    # whose only leaves are in it keeps its batch size
    ((2, 4), (2,), (2,), (), (2,)),
    ((2, 3, 4), (2, 9), (2,), (2,), (2,)),
    # The root loses more than the node
    ((2, 3, 4), (2, 3), (), (), (2, 3)),
    ((2, 3, 4), (2, 3), (7,), (), (2, 3)),
    # Another surplus
    ((2, 9, 4), (2, 9), (2,), (2,), (2, 9)),
    ((2, 3, 6, 4), (2, 3, 6), (2,), (2,), (2, 3, 6)),
    ((), (), (), (), ()),
]


@pytest.mark.parametrize(("o", "p", "r", "root", "node"), SURPLUS, ids=str)
def test_a_nested_node_follows_the_rule_inside_itself(
    o: Any, p: Any, r: Any, root: tuple[int, ...], node: tuple[int, ...]
) -> None:
    inner = TensorDict({"o": ramp(2, 3, 4), "p": ramp(2, 3)}, (2, 3))
    td = TensorDict({"a": inner, "r": ramp(2)}, 2)
    leaves = [torch.zeros(o), torch.zeros(p), torch.zeros(r)]
    out = pytree.tree_unflatten(leaves, pytree.tree_structure(td))
    assert out.batch_size == Size(root)
    assert out["a"].batch_size == Size(node)


def test_reading_the_node_first_or_the_batch_size_first_gives_the_same() -> None:
    inner = TensorDict({"o": ramp(2, 3, 4)}, (2, 3))
    td = TensorDict({"a": inner, "r": ramp(2)}, 2)

    def made() -> TensorDict:
        return pytree.tree_map(lambda x: x.sum(-1) if x.dim() > 1 else x, td)

    one, two = made(), made()
    assert one["a"].batch_size == Size((2,))
    assert one.batch_size == two.batch_size == Size(())
    assert two["a"].batch_size == Size((2,))
    assert one._schema is two._schema


def rule(leaves: dict[tuple[str, ...], torch.Tensor], ranks: dict[Any, int]) -> Size:
    """Return the batch size by the rule, for trees without surplus."""
    most = max(0, min(x.dim() - ranks[path] for path, x in leaves.items()))
    shapes = [tuple(x.shape) for x in leaves.values()]
    while any(shape[:most] != shapes[0][:most] for shape in shapes):
        most -= 1
    return Size(shapes[0][:most])


@pytest.mark.parametrize("seed", range(200))
def test_random_shapes_follow_the_rule_and_are_true_prefixes(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - no secret

    def shape(most: int) -> list[int]:
        return [draw.choice([0, 1, 2, 2, 3, 3, 3]) for _ in range(draw.randrange(most))]

    batch = shape(3)
    entries: dict[str, Any] = {
        "a": torch.zeros((*batch, *shape(3))),
        "n": {"b": torch.zeros((*batch, *shape(3))), "m": {"c": torch.zeros(batch)}},
        "s": "text",
    }
    td = TensorDict(entries, batch)
    ranks = {path: x.dim() - len(batch) for path, x in leaves_of(td).items()}
    front = shape(3)
    leaves = [
        # Most leaves change together, some on their own.
        torch.zeros(
            (*(front if draw.random() < 0.8 else shape(3)), *x.shape[x.dim() - r :])
        )
        for x, r in zip(pytree.tree_leaves(td), ranks.values(), strict=True)
    ]
    out = pytree.tree_unflatten(leaves, pytree.tree_structure(td))
    assert out.batch_size == rule(leaves_of(out), ranks)
    assert out["n"].batch_size[: out.ndim] == out.batch_size
    for path, x in leaves_of(out).items():
        own = out[path[:-1]].batch_size if path[1:] else out.batch_size
        assert x.shape[: len(own)] == own
