"""The members of a lazy stack, as the one leaf of its node.

A lazy stack is a node with a single leaf, a `Members`, that holds the trees and acts
as a tensor of the batch shape does: operations that move rows call torch's functions
and methods on every leaf, and find here what they mean for trees kept apart. What is
not here raises and names `densify`.

As a pytree, `Members` are nodes of their own. Their children are the member trees
**with the stack dim present at size 1**, a view, so that a dim of the batch is the same
dim in all leaves, and a stack dim that was mapped or reduced is missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from tdfunc._core._torch import at_level, is_tracing, mapped_dim, transform_level
from tdfunc._core.build import Part
from tdfunc._core.leaf import LeafLike
from tdfunc._core.node import Node, make
from tdfunc._core.schema import Schema
from tdfunc._core.statics import NO_STATICS
from tdfunc._core.tree import how_to_densify
from tdfunc._ops import entries
from tdfunc.errors import OperandError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tdfunc.typing import Path

__all__ = ["MEMBERS", "Members", "lazy_node", "renested"]

_MOST_DEPTH = 64  # the most dims of a tensor

MEMBERS = "members"
"""The key of the one leaf in the node of a lazy stack."""


@final
class Members(LeafLike):
    """Trees along one batch dim; see the module.

    Args:
        trees: the members, with equally many batch dims.
        dim: the stack dim.
        rest: the batch size without the stack dim, asked for only without members.
    """

    __slots__ = ("_depth", "_dim", "_flat", "_mapped", "_trees", "_was", "level")

    def __init__(
        self, trees: Sequence[Any], dim: int, rest: Sequence[int] = ()
    ) -> None:
        if trees:
            rest = _joint([tree.batch_size for tree in trees])
        self._depth = _depth_over(trees)
        if self._depth > _MOST_DEPTH:
            raise OperandError(
                "lazy stacks are nested too deeply",
                expected=f"at most {_MOST_DEPTH} stacks in each other: every one is a "
                "dim of what is read, and torch's tensors have no more",
                got=self._depth,
                fix="tdfunc.lazy_stack(tds) takes all trees at once",
            )
        self._trees: tuple[Any, ...] | None = tuple(trees)
        self._dim = dim
        self._flat: tuple[Any, ...] | None = None
        self._mapped = -1
        self._was = (dim, tuple(rest))
        self.level = transform_level()

    @classmethod
    def unflattened(
        cls, flat: tuple[Any, ...], dim: int, rest: tuple[int, ...], level: int
    ) -> Members:
        """Return members from what a pytree function made of them.

        Where the stack dim is now is looked for when it is needed; see `_found`.

        Args:
            flat: the members with the stack dim at size 1, changed.
            dim: where the stack dim was.
            rest: the batch size that they had, without the stack dim.
            level: how many transforms ran.
        """
        self = object.__new__(cls)
        self._depth = _depth_over(flat)
        self._trees = None
        self._dim = -1
        self._flat = flat
        self._was = (dim, rest)
        self._mapped = -1
        self.level = transform_level()
        if not flat:
            self._trees, self._dim = (), dim
        elif self.level > level:
            self._mapped = _mapped_dim(flat)
        return self

    # The members

    def flat(self) -> tuple[Any, ...]:
        """Return the members with the stack dim at size 1."""
        flat = self._flat
        if flat is None:
            if is_tracing():
                return tuple([t.unsqueeze(self._dim) for t in self.trees])
            # A transform that flattens what it is given has begun already.
            with at_level(self.level):
                flat = tuple([t.unsqueeze(self._dim) for t in self.trees])
            self._flat = flat
        return flat

    @property
    def trees(self) -> tuple[Any, ...]:
        """The members.

        Raises:
            OperandError: the stack dim is gone.
        """
        return self._resolve()

    def _resolve(self) -> tuple[Any, ...]:
        trees = self._trees
        if trees is None:
            if self._holds_other():
                return self._flat or ()
            dim, flat = self.stack_dim, self._flat or ()
            dims = len(self._was[1])
            if is_tracing():
                return tuple([_of_dims(tree.squeeze(dim), dims) for tree in flat])
            with at_level(self.level):
                trees = tuple([_of_dims(tree.squeeze(dim), dims) for tree in flat])
            self._trees = trees
        return trees

    @property
    def stack_dim(self) -> int:
        """The dim along which the members lie.

        Raises:
            OperandError: it is gone.
        """
        # Members are not made for this: `torch.func.grad` marks the leaves that it
        # differentiates in place, after it has flattened them, and views from before
        # would be constants.
        if self._dim < 0:
            self._place()
        return self._dim

    def _holds_other(self) -> bool:
        """Return whether a pytree function put other things in place of all tensors."""
        if self._dim >= 0:
            return False
        kinds = (torch.Tensor, LeafLike)
        held = [x for t in self._flat or () if isinstance(t, Node) for x in t._leaves]
        return bool(held) and not any([isinstance(x, kinds) for x in held])

    def _place(self) -> None:
        dim, rest = self._found()
        if dim < 0:
            raise OperandError(
                "the stack dim of a lazy stack was mapped, indexed or reduced",
                expected="members that keep the stack dim, of size 1",
                got=f"batch sizes {[list(s) for s in self._sizes()]}",
                fix="td.densify() first, or map another dim",
            )
        # In this order: another thread may be at it, too.
        self._was = (dim, rest)
        self._dim = dim

    @property
    def where(self) -> tuple[int, tuple[int, ...]]:
        """The stack dim and the batch size without it; what they were if it is gone."""
        if self._dim < 0:
            dim, rest = self._found()
            return self._was if dim < 0 else (dim, rest)
        return self._was

    def _count(self) -> int:
        return len(self._flat or () if self._trees is None else self._trees)

    def _sizes(self) -> list[torch.Size]:
        flat = self._flat or ()
        return [t.batch_size if isinstance(t, Node) else torch.Size() for t in flat]

    def _found(self) -> tuple[int, tuple[int, ...]]:
        """Return the stack dim of the flat members, and the batch size without it.

        -1 if it is gone. It has size 1, and before and behind it are the dims that
        were there, fewer or more. On entering a `vmap` it is known which dim was
        mapped. Otherwise sizes of 1 can leave a choice; then dims came or went in
        front, so that leaving a `vmap` with `out_dims` behind a stack dim that has
        dims of size 1 beside it is not told from leaving with ``out_dims=0``.
        """
        sizes = self._sizes()
        stack, rest = self._was
        dims = min([len(size) for size in sizes])
        if any([len(size) != dims for size in sizes]):
            # Jacobians have other dims behind those that members had, and as many
            # batch dims as their leaves share. `jacfwd` maps a dim in front first.
            new = _joint([size[:dims] for size in sizes])
            for to, old in ((stack, rest), (stack - 1, rest[1:])):
                kept = (*new[:to], *new[to + 1 : len(old) + 1])
                if 0 <= to < dims and new[to] == 1 and _alike(kept, old):
                    return to, (*new[:to], *new[to + 1 :])
            return -1, ()
        new = _joint(sizes)
        more = len(new) - len(rest) - 1
        front = stack + more
        if more == -1 and 0 <= self._mapped <= len(rest):
            front += int(self._mapped > stack)
            fits = [] if self._mapped == stack else [front]
        elif more == -1 and _alike(new, rest):
            fits = []
        else:
            fits = _places(new, rest[:stack], rest[stack:])
        fits = [to for to in fits if new[to] == 1]
        to = front if front in fits else fits[0] if fits else -1
        return to, (*new[:to], *new[to + 1 :])

    # As a tensor

    @property
    def known_shape(self) -> torch.Size | None:
        """The shape, None if the stack dim is gone or there are no tensors."""
        if self._dim < 0 and self._found()[0] < 0:
            return None
        return self.shape

    @property
    def shape(self) -> torch.Size:
        """The batch size; -1 where the members differ."""
        if self._holds_other():
            return torch.Size()
        dim = self.stack_dim
        rest = self._was[1]
        return torch.Size((*rest[:dim], self._count(), *rest[dim:]))

    @property
    def ndim(self) -> int:
        """Number of batch dims."""
        return len(self.shape)

    def dim(self) -> int:
        """Return the number of batch dims."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of rows, 1 at least where it is not the same in all."""
        return prod([abs(size) for size in self.shape])

    @property
    def device(self) -> torch.device | None:
        """The device of all members, None if they differ."""
        return _common([tree.device for tree in self.trees])

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of all members, None if they differ."""
        return _common([tree.dtype for tree in self.trees])

    @property
    def requires_grad(self) -> bool:
        """Whether a member takes part in autograd."""
        return any([tree.requires_grad for tree in self.trees])

    # Each member

    def each(self, fn: Callable[..., Any], *operands: Any) -> Members:
        """Return the members ``fn(member, *its parts of the operands)``."""
        columns = [self.parts(operand) for operand in operands]
        rows = zip(self.trees, *columns, strict=True)
        return self._of([fn(*row) for row in rows])

    def _of(self, trees: list[Any]) -> Members:
        """Return other members, whose batch dims may have come or gone in front."""
        own = self.trees
        if all([x is y for x, y in zip(trees, own, strict=True)]):
            return self
        return Members(trees, trees[0].batch_dims + 1 - self._from_end())

    def along(
        self,
        what: str,
        fn: Callable[[Any, list[int]], Any],
        dims: Sequence[int],
        *,
        gone: bool = False,
    ) -> Any:
        """Return the members ``fn(member, its dims)``; see `around_lazy`.

        Several, in a tuple, if `fn` returns several trees.
        """
        stack = self.stack_dim
        if stack in dims:
            raise self._refused(f"{what} along the stack dim")
        own = [dim - (dim > stack) for dim in dims]
        outs = [fn(tree, own) for tree in self.trees]
        to = stack - (sum([dim < stack for dim in dims]) if gone else 0)
        if not outs:
            rest = [n for i, n in enumerate(self._rest()) if not (gone and i in own)]
            return Members((), to, rest)
        if isinstance(outs[0], tuple):
            return tuple([Members(column, to) for column in zip(*outs, strict=True)])
        return Members(outs, to)

    def parts(self, operand: Any) -> list[Any]:
        """Return what belongs to each member of an operand.

        Raises:
            ShapeError: it is a stack of another length, or along another dim.
        """
        count = len(self.trees)
        behind = self._from_end()
        if isinstance(operand, Members):
            if len(operand.trees) != count or operand._from_end() != behind:
                raise ShapeError(
                    "the lazy stacks do not pair up",
                    expected=f"shape {list(self.shape)}, along {self.stack_dim}",
                    got=f"shape {list(operand.shape)}, stacked along {operand._dim}",
                )
            return list(operand.trees)
        if isinstance(operand, (torch.Tensor, Node)):
            rows: Any = operand
            dim = rows.dim() - behind
            if dim >= 0:
                if rows.shape[dim] == 1 and count != 1:
                    return [rows.squeeze(dim)] * count
                return list(rows.unbind(dim))
        return [operand] * count

    def like(self, other: Any) -> Any:
        """Return a dense tree as a lazy stack that pairs up with this one."""
        dim = other.batch_dims - self._from_end()
        return lazy_node(Members(self.parts(other), dim), other._names)

    def _from_end(self) -> int:
        """Return how many batch dims there are from the stack dim on."""
        return len(self.shape) - self.stack_dim

    def _chosen(self, places: Iterable[int]) -> Members:
        trees = self.trees
        return Members([trees[at] for at in places], self.stack_dim, self._rest())

    def _rest(self) -> tuple[int, ...]:
        if self._dim < 0:
            self._place()
        return self._was[1]

    # Moving rows

    def __getitem__(self, index: Any) -> Any:
        plan = index if isinstance(index, tuple) else (index,)
        at = -1
        used = 0
        for i, item in enumerate(plan):
            dims = _dims_of(item)
            if used <= self.stack_dim < used + dims:
                at = i
                break
            used += dims
        if at < 0:
            return self._indexed(plan, range(len(self.trees)), plan)
        return self._at_stack(plan, at)

    def _at_stack(self, plan: tuple[Any, ...], at: int) -> Any:
        """Return the stack at an index whose item `at` is for the stack dim."""
        item = plan[at]
        trees = self.trees
        if isinstance(item, int):
            if not any([_is_advanced(x) for x in plan]):
                rest = (*plan[:at], *plan[at + 1 :])
                return trees[item] if _is_whole(rest) else trees[item][rest]
            own = (*plan[:at], 0, *plan[at + 1 :])
            return trees[item].unsqueeze(self.stack_dim)[own]
        if isinstance(item, torch.Tensor):
            others = [x for x in (*plan[:at], *plan[at + 1 :]) if _is_advanced(x)]
            if item.dim() == 0 and others:
                own = (*plan[:at], torch.zeros_like(item), *plan[at + 1 :])
                return trees[int(item)].unsqueeze(self.stack_dim)[own]
            if item.dim() == 0:
                return self[(*plan[:at], int(item), *plan[at + 1 :])]
            if item.dim() != 1 or others:
                raise self._refused("an index of several dims")
            if item.dtype == torch.bool:
                item = item.nonzero().squeeze(1)
            # Members stay where they are along one dim: a slice of all in its place.
            places: Iterable[int] = item.tolist()
        else:
            places = range(len(trees))[item]
        whole = (*plan[:at], slice(None), *plan[at + 1 :])
        return self._indexed(whole, places, whole)

    def _indexed(
        self, plan: tuple[Any, ...], places: Iterable[int], whole: tuple[Any, ...]
    ) -> Members:
        """Return the members at `places`, each indexed by a plan of all dims."""
        dim = self.stack_dim
        if _is_whole(plan):
            return self._chosen(places)
        trees = [self.trees[i].unsqueeze(dim)[plan] for i in places]
        to = self._moved_to(whole)
        if not trees:
            dummy = torch.empty(()).expand(_positive(self.shape))[plan].shape
            return Members((), to, (*dummy[:to], *dummy[to + 1 :]))
        return Members([tree.squeeze(to) for tree in trees], to)

    def _moved_to(self, plan: tuple[Any, ...]) -> int:
        """Return where the stack dim is after indexing the others.

        It is the dim whose size the result has from it.
        """
        # Ints that the members have rows for fit where their sizes differ, too.
        most = max([abs(i) for i in plan if type(i) is int], default=0) + 1
        shape = [size if size >= 0 else most for size in self.shape]
        found: list[torch.Size] = []
        for size in (2, 3):
            shape[self.stack_dim] = size
            found.append(torch.empty(()).expand(shape)[plan].shape)
        pairs = zip(*found, strict=True)
        return next(dim for dim, (two, three) in enumerate(pairs) if two != three)

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """Return the members, or smaller stacks along another dim."""
        if dim == self.stack_dim:
            return self.trees
        own, to = self._beside(dim)
        rows = zip(*[tree.unbind(own) for tree in self.trees], strict=True)
        return tuple([Members(row, to) for row in rows])

    def _beside(self, dim: int) -> tuple[int, int]:
        """Return the dim that members have for `dim`, and the stack dim without it."""
        stack = self.stack_dim
        return (dim, stack - 1) if dim < stack else (dim - 1, stack)

    def unsqueeze(self, dim: int) -> Members:
        """Return the stack with a new dim."""
        stack = self.stack_dim
        own, to = (dim, stack + 1) if dim <= stack else (dim - 1, stack)
        trees = [tree.unsqueeze(own) for tree in self.trees]
        return Members(trees, to, (*self._rest()[:own], 1, *self._rest()[own:]))

    def squeeze(self, dim: int) -> Any:
        """Return the stack without a dim of size 1: the member, if it is its dim."""
        if self.shape[dim] != 1:
            return self
        return self.unbind(dim)[0]

    def permute(self, order: Sequence[int]) -> Members:
        """Return the stack with its dims in another order."""
        order = [dim % len(order) for dim in order]
        stack = self.stack_dim
        own = [dim - (dim > stack) for dim in order if dim != stack]
        trees = [tree.permute(own) for tree in self.trees]
        rest = [self._rest()[dim] for dim in own]
        return Members(trees, order.index(stack), rest)

    def transpose(self, dim0: int, dim1: int) -> Members:
        """Return the stack with two dims exchanged."""
        order = list(range(self.dim()))
        order[dim0], order[dim1] = order[dim1], order[dim0]
        return self.permute(order)

    def expand(self, *sizes: int) -> Members:
        """Return the stack with dims of size 1 repeated."""
        more = len(sizes) - self.dim()
        to = self.stack_dim + more
        wanted = [size if size >= 0 else -1 for size in sizes]
        trees = self.trees
        if len(trees) == 1:
            trees = trees * (wanted[to] if wanted[to] >= 0 else 1)
        elif wanted[to] not in (-1, len(trees)):
            raise self._refused(f"expand to {list(sizes)}")
        own = [*wanted[:to], *wanted[to + 1 :]]
        known = [size if size >= 0 else None for size in own]
        return Members([_expanded(tree, known) for tree in trees], to)

    def narrow(self, dim: int, start: int, length: int) -> Members:
        """Return `length` rows of a dim from `start` on."""
        index = (*(slice(None),) * dim, slice(start, start + length))
        return self[index]

    def split_with_sizes(self, sizes: Sequence[int], dim: int = 0) -> list[Members]:
        """Return pieces along a dim."""
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        pairs = zip(ends, sizes, strict=True)
        return [self.narrow(dim, end - size, size) for end, size in pairs]

    def tensor_split(self, indices: Any, dim: int = 0) -> list[Members]:
        """Return pieces along a dim that end at `indices`."""
        rows = [r.tolist() for r in torch.arange(self.shape[dim]).tensor_split(indices)]
        return [self.narrow(dim, row[0] if row else 0, len(row)) for row in rows]

    def flip(self, dims: Sequence[int]) -> Members:
        """Return the stack in reversed order along some dims."""
        stack = self.stack_dim
        trees = self.trees[::-1] if stack in dims else self.trees
        own = [dim - (dim > stack) for dim in dims if dim != stack]
        moved = [tree.flip(own) for tree in trees] if own else trees
        return Members(moved, stack, self._rest())

    def roll(self, shifts: Sequence[int], dims: Sequence[int]) -> Members:
        """Return the stack rolled along some dims."""
        stack, trees = self.stack_dim, self.trees
        for shift, dim in zip(shifts, dims, strict=True):
            if dim == stack:
                cut = len(trees) - shift % len(trees) if trees else 0
                trees = trees[cut:] + trees[:cut]
            else:
                own = self._beside(dim)[0]
                trees = tuple([tree.roll(shift, own) for tree in trees])
        return Members(trees, stack, self._rest())

    def index_select(self, dim: int, index: torch.Tensor) -> Members:
        """Return the rows `index` of a dim."""
        return self[(*(slice(None),) * dim, index.reshape(-1))]

    def reshape(self, *sizes: Any) -> Members:
        """Return the stack in another shape, in which the stack dim is still there."""
        new = list(sizes[0] if isinstance(sizes[0], (tuple, list)) else sizes)
        shape, stack = self.shape, self.stack_dim
        if -1 in shape:
            raise self._refused("reshape of members with other batch sizes")
        before, count = prod(shape[:stack]), shape[stack]
        for to, size in enumerate(new):
            fits = size == count and prod(new[:to]) == before
            if fits and prod(new[to + 1 :]) == prod(shape[stack + 1 :]):
                rest = [*new[:to], *new[to + 1 :]]
                return Members([t.reshape(rest) for t in self.trees], to, rest)
        raise self._refused(f"reshape to {new}, which merges or splits the stack dim,")

    view = reshape

    def flatten(self, start: int, end: int) -> Members:
        """Return the stack with dims merged, the stack dim not among them."""
        shape = self.shape
        merged = prod(shape[start : end + 1])
        return self.reshape((*shape[:start], merged, *shape[end + 1 :]))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Members:
        """Return the stack with a dim as several, not the stack dim."""
        shape = self.shape
        known = -prod(sizes)  # of those that are not -1
        sizes = [shape[dim] // known if n == -1 else n for n in sizes]
        return self.reshape((*shape[:dim], *sizes, *shape[dim + 1 :]))

    def repeat(self, counts: Sequence[int]) -> Members:
        """Return the stack several times along every dim."""
        more = len(counts) - self.dim()
        to = self.stack_dim + more
        own = (*counts[:to], *counts[to + 1 :])
        trees = [tree.tile(own) for tree in self.trees]
        rest = [n * c for n, c in zip((1,) * more + self._rest(), own, strict=True)]
        return Members(trees * counts[to], to, rest)

    def repeat_interleave(self, repeats: int | torch.Tensor, dim: int) -> Members:
        """Return every row of a dim several times in a row."""
        if dim != self.stack_dim:
            return self.along(
                "repeat_interleave",
                lambda t, d: t.repeat_interleave(repeats, d[0]),
                [dim],
            )
        counts = repeats if isinstance(repeats, int) else repeats.tolist()
        if isinstance(counts, int) or len(counts) == 1:
            counts = [counts if isinstance(counts, int) else counts[0]] * len(
                self.trees
            )
        pairs = zip(counts, self.trees, strict=True)
        trees = [tree for count, tree in pairs for _ in range(count)]
        return Members(trees, self.stack_dim, self._rest())

    def constant_pad_nd(self, pads: Sequence[int], value: Any) -> Members:
        """Return the stack with rows of one value around it, not along its own dim."""
        dims = self.dim()
        pairs = [(pads[i], pads[i + 1]) for i in range(0, len(pads), 2)]
        pairs = (pairs + [(0, 0)] * (dims - len(pairs)))[::-1]
        stack = self.stack_dim
        if pairs[stack] != (0, 0):
            raise self._refused("pad along the stack dim")
        own = [n for i, pair in enumerate(pairs) if i != stack for n in pair]
        return self._like([tree.pad(own, value) for tree in self.trees])

    def gather(self, dim: int, index: torch.Tensor) -> Members:
        """Return for every place of `index` the row that it names along a dim."""
        stack = self.stack_dim
        if dim == stack:
            raise self._refused("gather along the stack dim")
        own = dim - (dim > stack)
        pairs = zip(self.trees, index.unbind(stack), strict=False)
        trees = [tree.gather(own, places) for tree, places in pairs]
        rest = (*index.shape[:stack], *index.shape[stack + 1 :])
        return Members(trees, stack, rest)

    def _like(self, trees: list[Any]) -> Members:
        return Members(trees, self.stack_dim, self._rest())

    # Writing rows

    def written(self, plan: tuple[Any, ...], value: Any, name: str) -> Members:
        """Return the stack with rows written: ``td.at[plan].name(value)``.

        Args:
            plan: an index, one item for every dim that it uses.
            value: a number, a tensor of the rows, a tree, or a mapping of these.
            name: a method of `At`.
        """
        trees = list(self.trees)
        stack = self.stack_dim
        at, used = -1, 0
        for i, item in enumerate(plan):
            dims = _dims_of(item)
            if used <= stack < used + dims:
                at = i
                break
            used += dims
        item = slice(None) if at < 0 else plan[at]
        rest = () if at < 0 else (*plan[:at], *plan[at + 1 :])
        if isinstance(item, int) or (isinstance(item, torch.Tensor) and not item.dim()):
            first = 0 if isinstance(item, int) else torch.zeros_like(item)
            own = (*plan[:at], first, *plan[at + 1 :])
            place = int(item)
            trees[place] = _write(trees[place], stack, own, value, name)
            return self._like(trees)
        places: Iterable[int]
        if isinstance(item, torch.Tensor):
            if any([_is_advanced(x) for x in rest]) or item.dim() != 1:
                raise self._refused("writing at index tensors of several dims")
            if item.dtype == torch.bool:
                item = item.nonzero().squeeze(1)
            places = item.tolist()
        else:
            places = range(len(trees))[item]
        whole = plan if at < 0 else (*plan[:at], slice(None), *plan[at + 1 :])
        to = self._moved_to(whole)
        for i, place in enumerate(places):
            part = _row(value, to, i)
            trees[place] = _write(trees[place], stack, whole, part, name)
        return self._like(trees)

    def same(self, other: Any, *, equal_nan: bool) -> bool:
        """Return whether the other holds equal members along the same dim."""
        if not isinstance(other, Members) or len(self.trees) != len(other.trees):
            return False
        pairs = zip(self.trees, other.trees, strict=True)
        return self.stack_dim == other.stack_dim and all(
            [a.equal(b, equal_nan=equal_nan) for a, b in pairs]
        )

    def _refused(self, what: str) -> OperandError:
        return OperandError(
            f"{what} is not defined for a lazy stack",
            expected="a dense tree",
            got=repr(self),
            fix=how_to_densify(self),
        )

    def __getattr__(self, name: str) -> Any:
        # Methods of tensors that operations call on every leaf.
        if name.startswith("__") or not hasattr(torch.Tensor, name):
            raise AttributeError(name)
        if name not in _EACH:
            raise self._refused(name)

        def call(*args: Any, **options: Any) -> Any:
            out = self.each(lambda tree: getattr(tree, name)(*args, **options))
            pairs = zip(out.trees, self.trees, strict=True)
            return self if all([x is y for x, y in pairs]) else out

        return call

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        if name == "stack":
            return _stacked(*args, **(kwargs or {}))
        if name == "cat":
            return _joined(*args, **(kwargs or {}))
        first = args[0]
        if name not in _MOVES or not isinstance(first, Members):
            of = first if isinstance(first, Members) else _any_members(args)
            raise of._refused(f"torch's {name!r}")
        return getattr(first, name)(*args[1:], **(kwargs or {}))

    def __reduce__(self) -> tuple[object, ...]:
        return Members, (self.trees, self.stack_dim, self._rest())

    def __repr__(self) -> str:
        if self.known_shape is None:
            return f"{len(self._flat or ())} trees, stacked along a dim that is gone"
        return f"{self._count()} trees stacked along dim {self.stack_dim}"


# What operations do with a leaf that is the same for every member.
_EACH = frozenset({"clone", "contiguous", "detach", "to"})
_MOVES = frozenset(
    {
        *("permute", "flip", "roll", "index_select", "split_with_sizes"),
        *("tensor_split", "unsqueeze", "squeeze", "transpose", "narrow", "unbind"),
        *("reshape", "view", "flatten", "unflatten", "expand", "gather"),
        *("repeat", "repeat_interleave", "constant_pad_nd"),
        *_EACH,
    }
)


def lazy_node(members: Members, names: tuple[str | None, ...] | None = None) -> Any:
    """Return the node of a lazy stack."""
    schema = Schema(Node._lazy, (MEMBERS,), (0,))
    return make(schema, (members,), NO_STATICS, members.shape, names)


def renested(td: Any) -> Any:
    """Return a tree in which members that were indexed out of a stack are nodes.

    A lazy stack that became one of its members is that member.
    """
    size, names = td.batch_size, td.names
    for slot, path, _ in td._schema.lazies():
        leaf = td._leaves[slot]
        if isinstance(leaf, Node):
            if not path:
                # Names of the stack are not those of its members.
                if names is None or names == leaf.names:
                    return leaf
                return entries.with_names(leaf, names)
            td = _with_node(td, path, leaf, size)
    return td


def _with_node(td: Any, path: Path, node: Any, size: torch.Size) -> Any:
    above, _, total = td._schema.sized(path[:-1])[0:3]
    del above
    surplus = max(0, node.batch_dims - len(size) - total)
    part = Part(node._schema, surplus, node._leaves, node._statics)
    whole: Any = make(td._schema, td._leaves, td._statics, size, td._names)
    return entries.graft(whole, path, part)


def _stacked(leaves: Sequence[Members], dim: int = 0) -> Members:
    """Return stacks of stacks: nothing is copied, and members need not be alike."""
    return Members([lazy_node(leaf) for leaf in leaves], dim)


def _joined(leaves: Sequence[Members], dim: int = 0) -> Members:
    first = leaves[0]
    stack = first.stack_dim
    if any([leaf.stack_dim != stack for leaf in leaves]):
        raise first._refused("cat of stacks along different dims")
    if dim == stack:
        return Members([tree for leaf in leaves for tree in leaf.trees], stack)
    own = first._beside(dim)[0]
    rows = zip(*[leaf.trees for leaf in leaves], strict=True)
    return Members([type(row[0]).cat(list(row), own) for row in rows], stack)


def _write(tree: Any, dim: int, index: tuple[Any, ...], value: Any, name: str) -> Any:
    """Return a member with rows written at an index of the stack."""
    return getattr(tree.unsqueeze(dim).at[index], name)(value).squeeze(dim)


def _row(value: Any, dim: int, at: int) -> Any:
    """Return the part of a value for one of the rows along a dim, which stays."""
    if isinstance(value, Mapping):
        return {key: _row(part, dim, at) for key, part in value.items()}
    if isinstance(value, (Node, np.ndarray)) or (
        isinstance(value, torch.Tensor) and value.dim()
    ):
        rows: Any = value
        if isinstance(value, Node) and type(value).is_lazy:
            members: Members = value._leaves[0]
            if members.stack_dim == dim:
                return members.trees[at].unsqueeze(dim)
            rows = rows.densify()
        return rows[(*(slice(None),) * dim, slice(at, at + 1))]
    return value


def _any_members(args: Sequence[Any]) -> Members:
    for arg in args:
        if isinstance(arg, Members):
            return arg
        if isinstance(arg, (list, tuple)):
            return _any_members(arg)
    raise TypeError("no lazy stack among the arguments")


def _expanded(tree: Any, sizes: list[int | None]) -> Any:
    own = tree.batch_size
    more = len(sizes) - len(own)
    wanted = [own[i - more] if size is None else size for i, size in enumerate(sizes)]
    return tree.expand(wanted)


def _joint(sizes: Sequence[torch.Size]) -> tuple[int, ...]:
    """Return the sizes that all have, -1 where they differ."""
    return tuple(
        [
            row[0] if all([n == row[0] for n in row]) else -1
            for row in zip(*sizes, strict=True)
        ]
    )


def _depth_over(trees: Sequence[Any]) -> int:
    """Return how many stacks are in each other, with one of these trees."""
    # A pytree function may have put other things in place of members and trees.
    below = [
        getattr(tree._leaves[slot], "_depth", 0)
        for tree in trees
        if isinstance(tree, Node) and tree._schema.lazy
        for slot, _, _ in tree._schema.lazies()
    ]
    return 1 + max(below, default=0)


def _of_dims(tree: Any, dims: int) -> Any:
    """Return a tree with so many of its batch dims as batch dims."""
    size = tree.batch_size
    return tree if len(size) == dims else entries.with_batch_size(tree, size[:dims])


def _alike(one: Sequence[int], two: Sequence[int]) -> bool:
    """Return whether sizes are equal; -1 is any."""
    pairs = zip(one, two, strict=False)
    return len(one) == len(two) and all([x == y or -1 in (x, y) for x, y in pairs])


def _places(
    new: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> list[int]:
    """Return where a dim of size 1 can be that had some sizes before and behind it.

    Dims may have come, or gone, anywhere. If no place fits because sizes changed too,
    it is where it was if dims came or went in front, or the only one of size 1.
    """
    ones = [to for to, size in enumerate(new) if size == 1]
    came = len(new) > len(before) + len(after)
    fits = [
        to
        for to in ones
        if _inside(before, new[:to], came=came)
        and _inside(after, new[to + 1 :], came=came)
    ]
    front = len(new) - 1 - len(after)
    return fits or ([front] if front in ones else ones if len(ones) == 1 else [])


def _inside(old: Sequence[int], new: Sequence[int], *, came: bool) -> bool:
    """Return whether sizes are others with some more, or with some left out."""
    few, many = (old, new) if came else (new, old)
    rest = iter(many)
    return all([any(_alike((size,), (other,)) for other in rest) for size in few])


def _mapped_dim(flat: Sequence[Any]) -> int:
    """Return the dim of the leaves of trees that a `vmap` maps, -1 if not one."""
    dims: set[int] = set()
    pending = list(flat)
    while pending:
        item = pending.pop()
        if isinstance(item, Node):
            pending += item._leaves
        elif isinstance(item, Members):
            pending += item._flat or ()
        elif isinstance(item, torch.Tensor):
            dims.add(mapped_dim(item))
    return dims.pop() if len(dims) == 1 else -1


def _is_advanced(item: Any) -> bool:
    """Return whether an item of an index takes part in choosing rows together."""
    if isinstance(item, torch.Tensor):
        return item.dim() > 0 or item.dtype == torch.bool
    return isinstance(item, bool)


def _positive(shape: Sequence[int]) -> list[int]:
    # An index that reaches a dim of different sizes is refused by the members.
    return [max(size, 1) for size in shape]


def _is_whole(plan: Sequence[Any]) -> bool:
    return all([isinstance(item, slice) and item == slice(None) for item in plan])


def _dims_of(item: Any) -> int:
    if item is None or isinstance(item, bool):
        return 0
    if isinstance(item, torch.Tensor) and item.dtype == torch.bool:
        return item.dim()
    return 1


def _common(values: Sequence[Any]) -> Any:
    same = bool(values) and all([value == values[0] for value in values])
    return values[0] if same else None
