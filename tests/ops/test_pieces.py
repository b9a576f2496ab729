"""Rows taken apart, repeated, moved, picked and exchanged: torch's own on each leaf."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import OperandError, ShapeError, StructureError, TreeIndexError
from tests.cases import Case, cases, check, fingerprint, leaves_of, ramp, same

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Size = torch.Size
batched = cases(lambda case: bool(case.batch))


def dims_of(case: Case) -> list[tuple[int, int]]:
    """Return every batch dim as users write it, and from 0."""
    dims = len(case.batch)
    return [(dim, dim % dims) for dim in range(-dims, dims)]


def check_pieces(
    pieces: Sequence[TensorDict], case: Case, fn: Callable[[torch.Tensor], Any]
) -> None:
    """Assert that the pieces are those that `fn` makes of each leaf."""
    assert isinstance(pieces, tuple)
    sizes = [x.shape for x in fn(torch.empty(case.batch))]
    assert [piece.batch_size for piece in pieces] == sizes
    for i, piece in enumerate(pieces):
        expected = case.mapped(lambda x, i=i: fn(x)[i])
        check(piece, sizes[i], expected, case.statics)


def meshed(index: torch.Tensor, at: int) -> tuple[torch.Tensor, ...]:
    """Return the index with which plain indexing gathers."""
    places = torch.meshgrid(*[torch.arange(n) for n in index.shape], indexing="ij")
    return tuple([index if i == at else place for i, place in enumerate(places)])


# Apart


@batched
def test_split_is_torchs_on_the_batch_dims(case: Case) -> None:
    td = case.tree
    for dim, at in dims_of(case):
        rows = case.batch[at]
        for step in (1, 2, rows, rows + 3):
            if step:
                check_pieces(
                    td.split(step, dim), case, lambda x, s=step, a=at: x.split(s, a)
                )
        for sections in (
            [rows],
            [0, rows, 0],
            [1, rows - 1],
            [rows // 2, -(-rows // 2)],
        ):
            if min(sections) >= 0:
                check_pieces(
                    td.split(sections, dim),
                    case,
                    lambda x, s=sections, a=at: x.split(s, a),
                )


@batched
def test_chunk_and_tensor_split_are_torchs_on_the_batch_dims(case: Case) -> None:
    td = case.tree
    for dim, at in dims_of(case):
        for n in (1, 2, 3, 7):
            check_pieces(td.chunk(n, dim), case, lambda x, n=n, a=at: x.chunk(n, a))
            check_pieces(
                td.tensor_split(n, dim), case, lambda x, n=n, a=at: x.tensor_split(n, a)
            )
        for cuts in ([], [1], [1, 1], [0, 2], [2, 1], [-1], [-9, 9], [3, -3, 1]):
            wanted = torch.tensor(cuts, dtype=torch.int64)
            for given in (cuts, tuple(cuts), wanted):
                check_pieces(
                    td.tensor_split(given, dim),
                    case,
                    lambda x, c=cuts, a=at: x.tensor_split(c, a),
                )


def test_tensor_split_takes_a_number_as_a_tensor() -> None:
    td = TensorDict({"x": ramp(5)}, 5)
    assert [len(t) for t in td.tensor_split(torch.tensor(2))] == [3, 2]


def test_split_pieces_are_as_long_as_they_say() -> None:
    # B02: 3333 rows in pieces of 1024.
    xs = ramp(3333, 2)
    td = TensorDict({"xs": xs}, (3333,))
    for pieces, rows in (
        (td.split(1024), [1024, 1024, 1024, 261]),
        (td.chunk(4), [834, 834, 834, 831]),
    ):
        assert [piece.batch_size for piece in pieces] == [Size((n,)) for n in rows]
        assert [len(piece["xs"]) for piece in pieces] == rows
        check(tdfunc.cat(pieces), (3333,), {("xs",): xs})


def test_pieces_are_views_and_none_at_all_is_possible() -> None:
    x = ramp(4, 3)
    td = TensorDict({"x": x}, 4)
    for out in (td.split(2)[1], td.chunk(2)[1], td.tensor_split([2])[1]):
        assert out["x"].data_ptr() == x[2:].data_ptr()
    none = TensorDict({"x": torch.zeros(0, 3)}, 0)
    assert none.split([]) == ()
    assert [len(t) for t in none.split(0)] == [0]


@pytest.mark.parametrize("sections", [[1, 1], [2, 2], [4, -1], []], ids=str)
def test_sections_that_do_not_make_up_the_dim_say_both_sums(sections: Any) -> None:
    for td in (TensorDict({"x": ramp(2, 3)}, (2, 3)), TensorDict({}, (2, 3))):
        with pytest.raises(ShapeError) as caught:
            td.split(sections, 1)
        text = str(caught.value)
        assert "the sections do not make up batch dim 1" in text
        assert "expected sizes with the sum 3" in text
        assert f"got {sections}, with the sum {sum(sections)}" in text
        assert "td.tensor_split(indices, 1)" in text


def test_numbers_of_pieces_and_rows_are_positive() -> None:
    td = TensorDict({"x": ramp(3)}, 3)
    for step in (0, -1):
        with pytest.raises(ShapeError, match="pieces have at least one row") as caught:
            td.split(step)
        assert f"got {step}" in str(caught.value)
        for use in (td.chunk, td.tensor_split):
            with pytest.raises(ShapeError, match="at least one piece") as caught:
                use(step)
            assert "expected a number of 1 or more" in str(caught.value)


# Repeated and moved


@cases()
def test_repeat_and_tile_are_torchs_on_the_batch_dims(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for counts in itertools.product((0, 1, 3), repeat=dims):
        batch = torch.empty(case.batch).repeat(*counts).shape if dims else Size()
        expected = case.mapped(
            lambda x, c=counts: x.repeat(*c, *(1,) * (x.dim() - dims)) if x.dim() else x
        )
        for out in (td.repeat(*counts), td.repeat(counts), td.tile(counts)):
            check(out, batch, expected, case.statics)
    more = (2, *(1 for _ in case.batch))
    check(
        td.tile(*more),
        (2, *case.batch),
        case.mapped(lambda x: torch.stack([x, x])),
        case.statics,
    )
    if dims:
        batch = torch.empty(case.batch).tile((2,)).shape
        doubled = case.mapped(lambda x: torch.cat([x, x], dims - 1))
        check(td.tile(2), batch, doubled, case.statics)
    check(td.tile(), case.batch, case.leaves, case.statics)


@pytest.mark.parametrize("counts", [(2,), (), (1, 2, 3)], ids=str)
def test_repeat_wants_a_number_for_every_dim(counts: Any) -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3))
    with pytest.raises(ShapeError) as caught:
        td.repeat(*counts)
    text = str(caught.value)
    assert "repeat takes a number for every batch dim" in text
    assert "expected 2 numbers for batch_size=[2, 3]" in text
    assert f"got {list(counts)}" in text
    assert "td.tile(counts)" in text
    with pytest.raises(ShapeError, match="expected >= 0 - got") as caught:
        td.repeat(1, -1)
    assert "got [1, -1]" in str(caught.value)


@batched
def test_repeat_interleave_is_torchs_on_the_batch_dims(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for dim, at in dims_of(case):
        rows = case.batch[at]
        each = torch.arange(rows) % 3
        for repeats in (0, 1, 2, torch.tensor(2), torch.tensor([2]), each):
            expected = case.mapped(lambda x, r=repeats, a=at: x.repeat_interleave(r, a))
            dummy = torch.empty(case.batch)
            batch = dummy.repeat_interleave(repeats, at).shape
            check(td.repeat_interleave(repeats, dim), batch, expected, case.statics)
        total = int(each.sum())
        assert (
            td.repeat_interleave(each, dim, output_size=total).batch_size[at] == total
        )
    rows = math.prod(case.batch)
    out = td.repeat_interleave(2)
    expected = case.mapped(lambda x: x.flatten(0, dims - 1).repeat_interleave(2, 0))
    check(out, (2 * rows,), expected, case.statics)


def test_repeat_interleave_says_what_does_not_fit() -> None:
    td = TensorDict({"x": ramp(3)}, 3)
    wrong: list[tuple[Any, Any]] = [
        (-1, None),
        (2, 5),
        (torch.tensor([1, 2]), None),
        (torch.ones(3, 1, dtype=torch.int64), None),
        (torch.tensor([1, -1, 1]), None),
        (torch.tensor([1, 1, 1]), 4),
    ]
    for repeats, size in wrong:
        with pytest.raises(ShapeError) as caught:
            td.repeat_interleave(repeats, 0, output_size=size)
        text = str(caught.value)
        assert "the rows can not be repeated like this" in text
        assert "one number, or 3 numbers, that are not negative" in text
        assert size is None or f"{size} rows in all" in text
    others: Any = (torch.ones(3), [1, 2, 3])
    for given in others:
        with pytest.raises(OperandError, match="repeats of rows is a tensor of ints"):
            td.repeat_interleave(given, 0)


@batched
def test_roll_is_torchs_on_the_batch_dims(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for dim, at in dims_of(case):
        for shift in (0, 1, -2, 7):
            expected = case.mapped(lambda x, s=shift, a=at: x.roll(s, a))
            for out in (td.roll(shift, dim), td.roll([shift], [dim])):
                check(out, case.batch, expected, case.statics)
    every = list(range(dims))
    expected = case.mapped(lambda x: x.roll([i + 1 for i in every], every))
    check(td.roll([i + 1 for i in every], every), case.batch, expected, case.statics)

    def flat(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(0, dims - 1).roll(1, 0).reshape(x.shape)

    check(td.roll(1), case.batch, case.mapped(flat), case.statics)


def test_roll_without_batch_dims_moves_nothing() -> None:
    td = TensorDict({"x": ramp(3), "n": {"y": torch.tensor(4.0)}})
    check(td.roll(2), (), {("x",): ramp(3), ("n", "y"): torch.tensor(4.0)})


def test_roll_wants_a_shift_for_every_dim() -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3))
    for shifts, dims, wanted in (
        ([1, 2], None, "1 shifts"),
        (1, (0, 1), "2 shifts"),
        ([], [], "at least one dim"),
    ):
        with pytest.raises(ShapeError, match="a shift for every dim") as caught:
            td.roll(shifts, dims)
        assert f"expected {wanted}" in str(caught.value)


@batched
def test_flips_are_torchs_on_the_batch_dims(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for count in range(dims + 1):
        for places in itertools.combinations(range(dims), count):
            expected = case.mapped(lambda x, p=places: x.flip(p))
            signed = [i - dims for i in places]
            for out in (td.flip(*places), td.flip(places), td.flip(signed)):
                check(out, case.batch, expected, case.statics)
    check(td.flipud(), case.batch, case.mapped(lambda x: x.flip(0)), case.statics)
    if dims > 1:
        check(td.fliplr(), case.batch, case.mapped(lambda x: x.flip(1)), case.statics)
    else:
        with pytest.raises(ShapeError, match="dim 1 is no batch dim"):
            td.fliplr()


@cases(lambda case: len(case.batch) > 1)
def test_rot90_is_torchs_on_the_batch_dims(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for plane in itertools.permutations(range(dims), 2):
        for k in range(-3, 5):
            batch = torch.empty(case.batch).rot90(k, plane).shape
            expected = case.mapped(lambda x, k=k, p=plane: x.rot90(k, p))
            check(td.rot90(k, plane), batch, expected, case.statics)
    check(td.rot90(), td.transpose(0, 1).batch_size, case.mapped(torch.rot90))


def test_flip_and_rot90_take_a_dim_once() -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3))
    for use, name in (
        (lambda: td.flip(0, -2), "flip"),
        (lambda: td.rot90(1, (1, 1)), "rot90"),
    ):
        with pytest.raises(ShapeError, match=f"{name} takes a dim once"):
            use()
    with pytest.raises(ShapeError, match=r"rot90 turns a plane - expected two dims"):
        td.rot90(1, (0,))


@cases()
def test_pad_adds_rows_from_the_first_dim_on(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for count in range(dims + 1):
        widths = [1, 2, 0, 3, 2, 0][: 2 * count]
        batch = [n + sum(widths[2 * i : 2 * i + 2]) for i, n in enumerate(case.batch)]

        def padded(x: torch.Tensor, w: Any = widths, b: Any = batch) -> torch.Tensor:
            out = torch.full((*b, *x.shape[dims:]), 1).to(x.dtype)
            inside = [
                slice(w[2 * i], w[2 * i] + n) if 2 * i < len(w) else slice(None)
                for i, n in enumerate(case.batch)
            ]
            out[tuple(inside)] = x.detach()
            return out

        check(td.pad(widths, value=1), batch, case.mapped(padded), case.statics)


def test_pad_takes_rows_away_with_negative_numbers() -> None:
    td = TensorDict({"x": ramp(4, 2), "b": ramp(4) > 1}, 4)
    check(
        td.pad((-1, -1)),
        (2,),
        {("x",): ramp(4, 2)[1:3], ("b",): torch.tensor([False, True])},
    )
    check(
        td.pad((-4, 1), value=2)[:, None],
        (1, 1),
        {("x",): torch.full((1, 1, 2), 2.0), ("b",): torch.tensor([[True]])},
    )


@pytest.mark.parametrize(
    "widths", [(1,), (1, 2, 3, 4, 5, 6), (-3, 0), (-2, -1), (3, -4)], ids=str
)
def test_pad_of_another_kind_says_what_it_takes(widths: Any) -> None:
    for td in (TensorDict({"x": ramp(2, 3)}, (2, 3)), TensorDict({}, (2, 3))):
        with pytest.raises(ShapeError) as caught:
            td.pad(widths)
        text = str(caught.value)
        assert "the batch can not be padded like this" in text
        assert "pairs of numbers, before and after, for at most 2 dims" in text
        assert f"got {list(widths)}" in text


# Picked


@batched
def test_gather_takes_whole_rows_as_torch_takes_elements(case: Case) -> None:
    td = case.tree
    for dim, at in dims_of(case):
        if not case.batch[at]:
            continue
        for rows in (0, 1, 5):
            shape = [
                rows if i == at else max(n - 1, 0) for i, n in enumerate(case.batch)
            ]
            index = torch.arange(math.prod(shape)).reshape(shape) % case.batch[at]
            batch = torch.empty(case.batch).gather(at, index).shape
            places = meshed(index, at)
            out = td.gather(dim, index)
            check(out, batch, case.mapped(lambda x, p=places: x[p]), case.statics)
            same_rows = td.gather(dim, index.to(torch.int32))
            check(same_rows, batch, leaves_of(out))


@batched
def test_index_select_is_torchs_on_the_batch_dims(case: Case) -> None:
    td = case.tree
    for dim, at in dims_of(case):
        rows = case.batch[at]
        for given in ([], [0], [rows - 1, 0, 0]):
            if given and not rows:
                continue
            index = torch.tensor(given, dtype=torch.int64)
            expected = case.mapped(lambda x, i=index, a=at: x.index_select(a, i))
            batch = torch.empty(case.batch).index_select(at, index).shape
            check(td.index_select(dim, index), batch, expected, case.statics)
        if rows:
            one = td.index_select(dim, torch.tensor(rows - 1))
            check(
                one, td.narrow(dim, -1, 1).batch_size, leaves_of(td.narrow(dim, -1, 1))
            )


@cases(lambda case: math.prod(case.batch) > 0)
def test_take_is_torchs_on_the_flattened_batch(case: Case) -> None:
    td, rows = case.tree, math.prod(case.batch)
    dims = len(case.batch)
    for given in (0, [], [rows - 1, -rows], [[0], [-1]]):
        index = torch.tensor(given, dtype=torch.int64)
        expected = case.mapped(lambda x, i=index: x.reshape(rows, *x.shape[dims:])[i])
        check(
            td.take(index),
            torch.ones(case.batch).take(index).shape,
            expected,
            case.statics,
        )


def test_rows_that_are_not_there_are_named() -> None:
    tree = TensorDict({"x": ramp(2, 3, 4)}, (2, 3))
    empty = TensorDict({"x": torch.zeros(2, 3, 0)}, (2, 3))
    for td in (tree, empty, tree.select()):
        for row in (3, -1):
            index = torch.tensor([[row], [0]])
            for use in (
                lambda t, i=index: t.gather(1, i),
                lambda t, i=index: t.index_select(1, i[0]),
            ):
                with pytest.raises(TreeIndexError) as caught:
                    use(td)
                assert isinstance(caught.value, IndexError)
                text = str(caught.value)
                assert "rows that batch dim 1 does not have" in text
                assert "expected 0 to 2 for batch_size=[2, 3]" in text
                assert f"got {row}" in text
        with pytest.raises(TreeIndexError):
            td.take(torch.tensor([6]))
    none = TensorDict({"x": ramp(0, 2)}, 0)
    with pytest.raises(TreeIndexError, match=r"no index: the dim is empty"):
        none.index_select(0, torch.tensor([0]))


def test_an_index_of_another_kind_or_shape_is_refused() -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3))
    wrong: Any = [[0], [1]]
    for use in (
        lambda i: td.gather(0, i),
        lambda i: td.index_select(0, i),
        td.take,
    ):
        for index, kind in (
            (wrong, "list"),
            (torch.ones(2, 3), "torch.float32"),
            (torch.ones(2, 3) > 0, "torch.bool"),
        ):
            with pytest.raises(
                OperandError, match="an index of rows is a tensor of ints"
            ) as caught:
                use(index)
            assert f"got {kind}" in str(caught.value)
            assert "torch.as_tensor(rows)" in str(caught.value)
    for shape in ((3,), (2, 4), (1, 1, 1)):
        with pytest.raises(
            ShapeError, match="the index does not fit the batch"
        ) as caught:
            td.gather(0, torch.zeros(shape, dtype=torch.int64))
        assert "expected 2 dims, not larger than [2, 3] except at dim 0" in str(
            caught.value
        )
    with pytest.raises(ShapeError, match=r"at most one dim - got shape \[1, 1\]"):
        td.index_select(0, torch.zeros(1, 1, dtype=torch.int64))


# Under conditions


def masks_of(batch: tuple[int, ...]) -> list[torch.Tensor]:
    """Return masks of the batch shape, and of shapes that broadcast to it."""
    full = ramp(*batch).to(torch.int64) % 2 == 0
    shapes = [
        tuple(1 if i == j else n for i, n in enumerate(batch))
        for j in range(len(batch))
    ]
    found = [ramp(*s).to(torch.int64) % 2 == 1 for s in (*shapes, batch[1:])]
    return [full, torch.tensor(True), torch.tensor(False), *found]


def behind(mask: torch.Tensor, x: torch.Tensor, dims: int) -> torch.Tensor:
    return mask.reshape((*mask.shape, *(1,) * (x.dim() - dims))) if mask.dim() else mask


@cases()
def test_masked_select_takes_the_rows_where_it_holds(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for mask in masks_of(case.batch):
        batch = torch.empty(case.batch).masked_select(mask).shape
        full = mask.expand(case.batch)
        rows = case.mapped(lambda x, m=full: x[m])
        check(td.masked_select(mask), batch, rows, case.statics)
    assert dims == td.batch_dims


@cases()
def test_masked_fill_and_where_are_torchs_behind_the_batch(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for mask in masks_of(case.batch):
        filled = case.mapped(lambda x, m=mask: x.masked_fill(behind(m, x, dims), 1))
        check(td.masked_fill(mask, 1), case.batch, filled, case.statics)
        one = td.masked_fill(mask, torch.tensor(1))
        check(one, case.batch, filled, case.statics)
        for other in (2, 0.5):
            left = case.mapped(
                lambda x, m=mask, o=other: torch.where(behind(m, x, dims), x, o)
            )
            right = case.mapped(
                lambda x, m=mask, o=other: torch.where(behind(m, x, dims), o, x)
            )
            check(tdfunc.where(mask, td, other), case.batch, left, case.statics)
            check(td.where(mask, other), case.batch, left, case.statics)
            check(tdfunc.where(mask, other, td), case.batch, right, case.statics)
        zeros = td.apply(torch.zeros_like)
        both = case.mapped(
            lambda x, m=mask: torch.where(behind(m, x, dims), x, torch.zeros_like(x))
        )
        check(tdfunc.where(mask, td, zeros), case.batch, both, case.statics)


@cases()
def test_where_and_masked_fill_take_trees_of_booleans(case: Case) -> None:
    td = case.tree

    def finite(x: torch.Tensor) -> torch.Tensor:
        return x.isfinite()

    chosen = td.apply(finite)
    expected = case.mapped(lambda x: torch.where(finite(x), x, 3))
    check(tdfunc.where(chosen, td, 3), case.batch, expected, case.statics)
    filled = case.mapped(lambda x: x.masked_fill(finite(x), 1))
    check(td.masked_fill(chosen, 1), case.batch, filled, case.statics)
    numbers = case.mapped(lambda x: torch.where(finite(x), 1, 0))
    check(tdfunc.where(chosen, 1, 0), case.batch, numbers, case.statics)


def test_a_mask_of_rows_is_aligned_to_the_batch() -> None:
    # B32, the whole tree: mask (2,), leaves (2, 3).
    td = TensorDict({"x": ramp(2, 3), "y": ramp(2)}, 2)
    out = td.where(torch.tensor([True, False]), -td)
    assert out["x"].tolist() == [[0, 1, 2], [-3, -4, -5]]
    assert out["y"].tolist() == [0, -1]


def test_where_replaces_branches_inside_vmap() -> None:
    # B32: x = [1, 2], flag = [True, False].
    td = TensorDict(
        {"x": torch.tensor([1.0, 2.0]), "flag": torch.tensor([True, False])}, 2
    )

    def chosen(t: TensorDict) -> TensorDict:
        values = t.select("x")
        return values.where(t["flag"], -values)

    check(torch.vmap(chosen)(td), (2,), {("x",): torch.tensor([1.0, -2.0])})


def test_where_of_trees_broadcasts_batch_and_feature_dims() -> None:
    wide = TensorDict({"x": ramp(2, 3, 4), "n": {"y": ramp(2, 3)}}, (2, 3))
    row = TensorDict({"x": -ramp(3, 1) - 1, "n": {"y": -ramp(3) - 1}}, 3, names=["env"])
    mask = TensorDict({"n": {"y": ramp(2, 1) > 0}, "x": ramp(2, 1) > 0}, (2, 1))
    keep = torch.tensor([[False], [True]])
    x = torch.where(keep[..., None], ramp(2, 3, 4), -ramp(3, 1) - 1)
    y = torch.where(keep, ramp(2, 3), -ramp(3) - 1)
    check(tdfunc.where(mask, wide, row), (2, 3), {("x",): x, ("n", "y"): y})
    other = tdfunc.where(mask, row, wide)
    swapped = torch.where(keep, -ramp(3) - 1, ramp(2, 3))
    assert other.batch_size == (2, 3)
    assert other.names is None
    assert same(other["n", "y"], swapped)
    tall = tdfunc.where(torch.ones(5, 1, 1, dtype=torch.bool), wide, 0)
    assert tall.batch_size == (5, 2, 3)
    assert same(tall["x"][4], ramp(2, 3, 4))
    weights = tdfunc.where(keep, wide, torch.tensor([7.0, 8.0, 9.0]))
    assert weights["x"][0, :, 3].tolist() == [7, 8, 9]
    assert same(weights["x"][1], ramp(2, 3, 4)[1])


def test_where_takes_arrays() -> None:
    td = TensorDict({"x": ramp(2, 2)}, 2)
    mask: Any = np.array([True, False])
    assert td.where(mask, np.array([5.0, 6.0]))["x"].tolist() == [[0, 1], [6, 6]]
    assert td.masked_fill(mask, 9)["x"].tolist() == [[9, 9], [2, 3]]
    assert td.masked_select(mask)["x"].tolist() == [[0, 1]]


def test_where_keeps_wider_nodes_wider() -> None:
    inner = TensorDict({"o": ramp(2, 3, 4)}, (2, 3))
    td = TensorDict({"a": inner, "x": ramp(2)}, 2)
    few = TensorDict({"a": TensorDict({"o": -ramp(2, 1, 4)}, (2, 1)), "x": -ramp(2)}, 2)
    out = tdfunc.where(torch.tensor([True, False]), td, few)
    assert out["a"].batch_size == (2, 3)
    assert same(out["a", "o"][0], ramp(2, 3, 4)[0])
    assert same(out["a", "o"][1], -ramp(2, 1, 4)[1].expand(3, 4))


def test_conditions_that_do_not_fit_are_refused() -> None:
    td = TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2)}}, 2)
    short = torch.tensor([True, False, True])
    for use in (
        td.masked_select,
        lambda m: td.masked_fill(m, 0),
        lambda m: td.where(m, 0),
    ):
        with pytest.raises(OperandError) as caught:
            use(short)
        text = str(caught.value)
        assert "the tensor does not fit the batch size" in text
        assert "expected a shape that broadcasts with [2]" in text
        assert "got shape [3]" in text
        others: Any = ((ramp(2), "torch.float32"), (True, "bool"))
        for wrong, kind in others:
            with pytest.raises(
                OperandError, match="a condition holds booleans"
            ) as caught:
                use(wrong)
            assert f"got {kind}" in str(caught.value)
    with pytest.raises(OperandError, match="does not fit the batch size"):
        td.masked_select(torch.ones(3, 2, dtype=torch.bool))
    with pytest.raises(
        OperandError, match=r"a condition holds booleans - at td\['n', 'y'\]"
    ):
        td.where(td.set("x", td["x"] > 0), 0)
    with pytest.raises(OperandError, match="does not fit the batch size"):
        td.where(torch.tensor([True, False]), torch.zeros(3))


def test_operands_of_where_and_masked_fill_are_checked() -> None:
    td = TensorDict({"x": ramp(2, 3)}, 2)
    mask = torch.tensor([True, False])
    with pytest.raises(OperandError, match="can not be combined with this") as caught:
        td.where(mask, "text")
    assert "got str" in str(caught.value)
    with pytest.raises(OperandError, match="none of the operands is a tree") as caught:
        tdfunc.where(mask, ramp(2), 0)
    assert "got Tensor and int" in str(caught.value)
    assert "torch.where(condition, input, other)" in str(caught.value)
    with pytest.raises(StructureError, match=r"td\['y'\] is extra"):
        td.where(mask, td.set("y", ramp(2)))
    with pytest.raises(OperandError, match="the batch sizes do not broadcast"):
        td.where(mask, TensorDict({"x": ramp(3, 3)}, 3))
    with pytest.raises(OperandError, match=r"leaves do not broadcast - at td\['x'\]"):
        td.where(mask, TensorDict({"x": ramp(2, 4)}, 2))
    for value, kind in (("a", "str"), (ramp(2), r"shape \[2\]")):
        with pytest.raises(OperandError, match=f"filled with one number.*got {kind}"):
            td.masked_fill(mask, value)


# What holds for all of them

INDEX = torch.tensor([[2, 0], [1, 1]])
MASK = torch.tensor([[True, False, True], [False, True, True]])

OPERATIONS: dict[str, Callable[[TensorDict], Any]] = {
    "split": lambda t: t.split(2, 1),
    "split sections": lambda t: t.split([1, 2], -1),
    "chunk": lambda t: t.chunk(2, 1),
    "tensor_split": lambda t: t.tensor_split(2, 1),
    "tensor_split at": lambda t: t.tensor_split([2, 1], 1),
    "repeat": lambda t: t.repeat(2, 3),
    "tile": lambda t: t.tile(2, 1, 2),
    "repeat_interleave": lambda t: t.repeat_interleave(2, 1),
    "repeat_interleave all": lambda t: t.repeat_interleave(2),
    "repeat_interleave each": lambda t: t.repeat_interleave(
        torch.tensor([1, 0, 2]), 1, output_size=3
    ),
    "roll": lambda t: t.roll((1, -1), (0, 1)),
    "roll all": lambda t: t.roll(2),
    "flip": lambda t: t.flip(0, 1),
    "rot90": lambda t: t.rot90(3),
    "pad": lambda t: t.pad((1, 0, 0, 2), value=3),
    "gather": lambda t: t.gather(1, INDEX),
    "index_select": lambda t: t.index_select(1, INDEX[0]),
    "take": lambda t: t.take(INDEX),
    "masked_fill": lambda t: t.masked_fill(MASK, 5),
    "where": lambda t: t.where(MASK, -t),
    "where tree": lambda t: tdfunc.where(t > 3, t, 0),
    "where number": lambda t: tdfunc.where(MASK[:, :1], 1.0, t),
}
KEEPS_NAMES = {
    *("split", "split sections", "chunk", "tensor_split", "tensor_split at", "repeat"),
    *("repeat_interleave", "repeat_interleave each", "roll", "roll all", "flip", "pad"),
    *("gather", "index_select", "masked_fill", "where", "where tree", "where number"),
}

every = pytest.mark.parametrize("name", OPERATIONS)


def tree() -> TensorDict:
    wider = TensorDict(
        {"o": ramp(2, 3, 2, 5) + 1, "m": {"r": ramp(2, 3, 2)}}, (2, 3, 2)
    )
    entries = {"x": ramp(2, 3, 4), "n": {"y": ramp(2, 3) - 2, "s": "t"}, "w": wider}
    return TensorDict(entries, (2, 3), names=("t", "env"))


def many(out: Any) -> tuple[TensorDict, ...]:
    return out if isinstance(out, tuple) else (out,)


@every
def test_operations_keep_names_wider_nodes_and_statics(name: str) -> None:
    for out in many(OPERATIONS[name](tree())):
        dims = out.batch_dims
        assert out["w"].batch_size == out["w", "m"].batch_size == (*out.batch_size, 2)
        assert out["w", "o"].shape[dims:] == (2, 5)
        assert out["n", "s"] == "t"
        if name in KEEPS_NAMES:
            assert out.names == ("t", "env")
        elif name == "tile":
            assert out.names == (None, "t", "env")
        elif name == "rot90":
            assert out.names == ("env", "t")
        else:
            assert out.names is None


def test_dims_go_by_name_too() -> None:
    td = tree()
    for named, plain in (
        (td.split(2, "env"), td.split(2, 1)),
        (td.chunk(2, "env"), td.chunk(2, 1)),
        (td.tensor_split(2, "env"), td.tensor_split(2, 1)),
        (td.repeat_interleave(2, "env"), td.repeat_interleave(2, 1)),
        (td.roll(1, "env"), td.roll(1, 1)),
        (td.roll([1, 1], ["env", "t"]), td.roll([1, 1], [1, 0])),
        (td.flip("env"), td.flip(1)),
        (td.rot90(1, ("env", "t")), td.rot90(1, (1, 0))),
        (td.gather("env", INDEX), td.gather(1, INDEX)),
        (td.index_select("env", INDEX[0]), td.index_select(1, INDEX[0])),
    ):
        for one, other in zip(many(named), many(plain), strict=True):
            assert one.equal(other)
            assert one.names == other.names


@every
def test_operations_change_nothing_in_their_tree(name: str) -> None:
    td = tree()
    tensors = list(leaves_of(td).values())
    before = fingerprint(tensors)
    OPERATIONS[name](td)
    assert fingerprint(tensors) == before


@every
def test_operations_inside_vmap_act_on_each_tree(name: str) -> None:
    one = tree()
    stacked = tdfunc.stack([one, one * 2 + 1])
    rows = [many(OPERATIONS[name](t)) for t in stacked]
    mapped = many(torch.vmap(OPERATIONS[name])(stacked))
    assert len(mapped) == len(rows[0])
    for i, out in enumerate(mapped):
        expected = tdfunc.stack([row[i] for row in rows])
        check(out, expected.batch_size, leaves_of(expected))


@every
def test_operations_are_differentiable(name: str) -> None:
    td = tree().exclude("n")

    def total(t: TensorDict) -> torch.Tensor:
        rows = [(row**2).sum(reduce=True) for row in many(OPERATIONS[name](t))]
        return torch.stack(rows).sum()

    gradient = torch.func.grad(total)(td)
    by_hand = td.apply(lambda x: x.clone().requires_grad_())
    total(by_hand).backward()
    expected = {path: x.grad for path, x in leaves_of(by_hand).items()}
    check(gradient, (2, 3), expected)
    assert any([bool(x.any()) for x in expected.values()])


@pytest.mark.parametrize("dynamic", [False, True])
@every
def test_operations_compile_without_a_break(name: str, *, dynamic: bool) -> None:
    torch._dynamo.reset()
    td, use = tree(), OPERATIONS[name]
    compiled = torch.compile(use, fullgraph=True, backend="eager", dynamic=dynamic)
    expected, got = many(use(td)), many(compiled(td))
    assert len(expected) == len(got)
    for one, other in zip(got, expected, strict=True):
        check(one, other.batch_size, leaves_of(other))
        assert one.names == other.names
    torch._dynamo.reset()


TORCH: dict[str, tuple[Callable[[Any], Any], Callable[[TensorDict], Any]]] = {
    "split": (lambda t: torch.split(t, 2, dim=1), lambda t: t.split(2, 1)),
    "chunk": (lambda t: torch.chunk(t, 2, dim=1), lambda t: t.chunk(2, 1)),
    "chunk by keyword": (lambda t: torch.chunk(t, chunks=2), lambda t: t.chunk(2)),
    "tensor_split": (
        lambda t: torch.tensor_split(t, 2, 1),
        lambda t: t.tensor_split(2, 1),
    ),
    "tile": (lambda t: torch.tile(t, (2,)), lambda t: t.tile(2)),
    "tile by keyword": (lambda t: torch.tile(t, dims=(2,)), lambda t: t.tile(2)),
    "repeat_interleave": (
        lambda t: torch.repeat_interleave(t, 2, dim=0),
        lambda t: t.repeat_interleave(2, 0),
    ),
    "roll": (lambda t: torch.roll(t, 1, 0), lambda t: t.roll(1, 0)),
    "roll by keyword": (
        lambda t: torch.roll(t, shifts=1, dims=0),
        lambda t: t.roll(1, 0),
    ),
    "flip": (lambda t: torch.flip(t, (0, 1)), lambda t: t.flip(0, 1)),
    "flip by keyword": (lambda t: torch.flip(t, dims=(0, 1)), lambda t: t.flip(0, 1)),
    "fliplr": (torch.fliplr, lambda t: t.flip(1)),
    "flipud": (torch.flipud, lambda t: t.flip(0)),
    "rot90": (lambda t: torch.rot90(t, 1, (0, 1)), lambda t: t.rot90()),
    "gather": (lambda t: torch.gather(t, 1, INDEX), lambda t: t.gather(1, INDEX)),
    "gather by keyword": (
        lambda t: torch.gather(t, dim=1, index=INDEX),
        lambda t: t.gather(1, INDEX),
    ),
    "index_select": (
        lambda t: torch.index_select(t, 1, INDEX[0]),
        lambda t: t.index_select(1, INDEX[0]),
    ),
    "take": (lambda t: torch.take(t, INDEX), lambda t: t.take(INDEX)),
    "masked_select": (lambda t: torch.masked_select(t, MASK), lambda t: t[MASK]),
    "masked_fill": (
        lambda t: torch.masked_fill(t, MASK, 5),
        lambda t: t.masked_fill(MASK, 5),
    ),
    "where": (lambda t: torch.where(MASK, t, -t), lambda t: t.where(MASK, -t)),
    "where a number": (lambda t: torch.where(MASK, t, 0), lambda t: t.where(MASK, 0)),
    "where a tree": (lambda t: torch.where(t > 3, t, t), lambda t: t),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_functions_of_trees_are_the_methods(name: str) -> None:
    function, method = TORCH[name]
    td = tree()
    expected, got = many(method(td)), many(function(td))
    assert len(expected) == len(got)
    for one, other in zip(got, expected, strict=True):
        assert one.equal(other)
        assert one.names == other.names


# The peer

PEER = [
    *("split", "split sections", "chunk", "tensor_split", "tensor_split at", "repeat"),
    *("repeat_interleave", "repeat_interleave all", "roll", "roll all", "pad"),
    *("rot90", "gather", "masked_fill", "where"),
]


@pytest.mark.parametrize("name", PEER)
def test_the_peer_agrees(name: str) -> None:
    peer: Any = pytest.importorskip("tensordict").TensorDict
    td = tree().exclude(("n", "s"))
    theirs = peer(td.select("x", "n").to_dict(), [2, 3])
    theirs["w"] = peer({"o": td["w", "o"], "m": {"r": td["w", "m", "r"]}}, [2, 3, 2])
    for ours, other in zip(
        many(OPERATIONS[name](td)), many(OPERATIONS[name](theirs)), strict=True
    ):
        assert ours.batch_size == other.batch_size
        for path, x in leaves_of(ours).items():
            assert same(x, other[path]), path
