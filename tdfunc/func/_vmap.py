"""Map a function over a dim of its arguments, as `torch.vmap`, knowing the batch."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core import _torch
from tdfunc._core._torch import is_tracing, pytree
from tdfunc._core.node import Node
from tdfunc.errors import OperandError, OptionError, ShapeError
from tdfunc.func._dims import as_batch_dim, with_dim, without_dim
from tdfunc.func._flat import Layout, flatten, is_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["vmap"]

_RANDOMNESS = ("error", "different", "same")


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return `func` mapped over a dim of its positional arguments.

    As `torch.vmap`, with the same results for tensors, and at less cost. For trees a
    dim is a batch dim: inside `func` a tree has the batch size without it, and the
    result has it where `out_dims` says, whatever the sizes are. Statics, rows of text
    and unbatched tensors pass through.

    Args:
        func: a function of any pytrees that returns a pytree of tensors and trees.
        in_dims: the dim to map of every argument: an int, for trees also the name of
            a dim, None for an argument to pass whole; one for all, or a tuple with
            one for each. In place of a tree, a tree of ints and None (`in_dims` makes
            one) maps leaves differently. Negative ones count the dims of a tensor, and
            the batch dims of a tree.
        out_dims: where the mapped dim is in the results: an int, or a structure of
            them like that of the results. Of a tree it is a position among its batch
            dims. None returns what was not mapped as it is.
        randomness: ``"error"``, ``"different"`` or ``"same"``, for functions that draw
            from torch's global generator. `tdfunc.random` needs none.
        chunk_size: how many rows to map at once; None for all.

    Raises:
        OptionError: `randomness` or `chunk_size` is none of these.
        ShapeError: a tree has no such batch dim.
        ValueError: what `torch.vmap` raises: nothing to map over, different sizes,
            results that are no tensors.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.ones(3, 5, 2)}, [3, 5], names=["b", "t"])
        >>> tdfunc.vmap(lambda row: row * 2, in_dims="t", out_dims=1)(td).batch_size
        torch.Size([3, 5])
    """
    if randomness not in _RANDOMNESS:
        raise OptionError(
            "this is no kind of randomness",
            expected=", ".join(_RANDOMNESS),
            got=repr(randomness),
        )
    if chunk_size is not None and chunk_size <= 0:
        raise OptionError(
            "chunk_size is no number of rows", expected="None or > 0", got=chunk_size
        )

    def mapped(*args: Any, **kwargs: Any) -> Any:
        call = _Call(func, in_dims, out_dims, args)
        if chunk_size is not None or is_tracing() or not _torch.transforms_apart():
            return call.through_torch(randomness, chunk_size, kwargs)
        return call.direct(randomness, kwargs)

    return mapped if is_tracing() else functools.wraps(func)(mapped)


class _Call:
    """One call of a mapped function."""

    __slots__ = (
        "dims",
        "func",
        "in_dims",
        "layout",
        "leaves",
        "name",
        "out_dims",
        "size",
        "tree_dims",
    )

    def __init__(
        self,
        func: Callable[..., Any],
        in_dims: Any,
        out_dims: Any,
        args: tuple[Any, ...],
    ) -> None:
        self.func = func
        self.in_dims = in_dims
        self.out_dims = out_dims
        self.name: str | None = None
        self.leaves, self.layout = flatten(args)
        # The dim of every tree, and of every leaf.
        self.tree_dims: list[Any] = []
        self.dims: list[Any] = []
        self._find_dims(args)
        self.size = self._mapped_size()

    # What is mapped

    def _find_dims(self, args: tuple[Any, ...]) -> None:
        dims = self.dims
        for item, dim in zip(self.layout.items, self._item_dims(args), strict=True):
            if not is_tree(item):
                if isinstance(item, torch.Tensor) and type(dim) is int and dim < 0:
                    dims.append(dim + item.dim())
                else:
                    dims.append(dim)
            elif isinstance(dim, Node):
                if not item._schema.matches(dim._schema):
                    raise self._unfit(args)
                dims += dim._leaves
                alike = len(set(dim._leaves)) == 1
                self.tree_dims.append(dim._leaves[0] if alike else _MIXED)
            else:
                if isinstance(dim, str):
                    self.name = dim
                at = as_batch_dim(item, dim)
                dims += [at] * item._schema.n
                self.tree_dims.append(at)

    def _item_dims(self, args: tuple[Any, ...]) -> list[Any]:
        """Return what `in_dims` says of every tensor and tree among the arguments."""
        in_dims, layout = self.in_dims, self.layout
        if isinstance(in_dims, (int, str)) and not isinstance(in_dims, bool):
            return [in_dims] * len(layout.items)
        if not isinstance(in_dims, (tuple, list)) or len(in_dims) != len(args):
            raise self._unfit(args)
        if layout.spec is None:
            return list(in_dims)
        found: list[Any] = []
        for dim, arg in zip(in_dims, args, strict=True):
            spread = _broadcast(dim, arg)
            if spread is None:
                raise self._unfit(args)
            found += spread
        return found

    def _unfit(self, args: tuple[Any, ...]) -> Exception:
        """Return torch's error for `in_dims` that do not fit the arguments."""
        try:
            torch.vmap(self.func, self.in_dims)(*args)
        except ValueError as error:
            return error
        return OptionError(
            "in_dims does not fit the arguments",
            expected="an int, a dim name, or a tuple with one for every argument",
            got=repr(self.in_dims),
        )

    def _mapped_size(self) -> int:
        size: Any = None
        for leaf, dim in zip(self.leaves, self.dims, strict=True):
            if dim is None:
                continue
            if (
                type(dim) is not int
                or not isinstance(leaf, torch.Tensor)
                or not 0 <= dim < leaf.dim()
                or (size is not None and leaf.shape[dim] != size)
            ):
                raise self._refused()
            size = leaf.shape[dim]
        if size is not None:
            return size
        # Trees without leaves have only their batch size to map.
        trees = [item for item in self.layout.items if is_tree(item)]
        for tree, dim in zip(trees, self.tree_dims, strict=True):
            if type(dim) is int:
                return tree.batch_size[dim]
        raise self._refused()

    def _refused(self) -> Exception:
        """Return torch's error for arguments that it does not map."""
        try:
            torch.vmap(lambda *_: torch.zeros(()), tuple(self.dims))(*self.leaves)
        except (ValueError, RuntimeError) as error:
            return error
        return OperandError(
            "the arguments can not be mapped over", got=f"in_dims={self.in_dims!r}"
        )

    # Inside the function

    def _arguments(self, leaves: Sequence[Any]) -> Any:
        """Return the arguments that `func` is called with."""
        if self.layout.flat:
            return self.layout.rebuilt(leaves)
        dims = iter(self.tree_dims)

        def resized(tree: Any) -> tuple[torch.Size | None, Any]:
            dim = next(dims)
            if dim is None:
                return tree.batch_size, tree._names
            if dim is _MIXED:
                return None, tree._names  # the rank rule finds what all leaves have
            return without_dim(tree, dim)

        return self.layout.rebuilt(leaves, resized)

    def direct(self, randomness: str, kwargs: dict[str, Any]) -> Any:
        """Call the function on one level of functorch."""
        _torch.load_decompositions()
        with _level(self.size, randomness) as level:
            add = _torch.add_batch_dim
            leaves = [
                leaf if dim is None else add(leaf, dim, level)
                for leaf, dim in zip(self.leaves, self.dims, strict=True)
            ]
            result = self.func(*self._arguments(leaves), **kwargs)
            leaves, layout = flatten(result)
            dims = self._out_dims(result, layout)
            size = self.size
            remove = _torch.remove_batch_dim
            out: list[Any] = []
            for leaf, dim in zip(leaves, layout.spread(dims), strict=True):
                if dim is None or not isinstance(leaf, torch.Tensor):
                    out.append(self._kept(leaf, dim, level))
                elif _torch.is_batched_at(leaf, level):
                    out.append(remove(leaf, level, size, dim))
                else:
                    out.append(_repeated(leaf, dim, size))
        return self._result(out, layout, dims)

    def _kept(self, leaf: Any, dim: Any, level: int) -> Any:
        if dim is None:
            if isinstance(leaf, torch.Tensor) and _torch.is_batched_at(leaf, level):
                raise ValueError(
                    f"vmap({_name(self.func)}, ...): `{_name(self.func)}` can not "
                    "return a BatchedTensor when out_dim is None"
                )
            return leaf
        raise ValueError(
            f"vmap({_name(self.func)}, ...): `{_name(self.func)}` must only return "
            f"Tensors, got type {type(leaf)}. Did you mean to set out_dims= to None "
            "for output?"
        )

    def _out_dims(self, result: Any, layout: Layout) -> list[Any]:
        """Return for every tensor and tree of the result where the dim goes."""
        given: list[Any] | None
        if isinstance(self.out_dims, int):
            given = [self.out_dims] * len(layout.items)
        else:
            given = _broadcast(self.out_dims, result)
        if given is None:
            raise ValueError(
                f"vmap({_name(self.func)}, ..., out_dims={self.out_dims})(<inputs>): "
                "out_dims is not compatible with the structure of `outputs`."
            )
        dims: list[Any] = []
        for item, dim in zip(layout.items, given, strict=True):
            if dim is None or not isinstance(item, (torch.Tensor, Node)):
                dims.append(dim)
                continue
            count = item.dim() + 1
            if type(dim) is not int or not -count <= dim < count:
                what = "batch size" if isinstance(item, Node) else "shape"
                raise ShapeError(
                    f"the mapped dim can not go to {dim!r}",
                    expected=f"{-count} to {count - 1}",
                    got=f"a result of {what} {list(item.shape)}",
                )
            dims.append(dim % count)
        return dims

    def _result(
        self, leaves: Sequence[Any], layout: Layout, dims: Sequence[Any]
    ) -> Any:
        if layout.flat:
            return layout.rebuilt(leaves)
        pairs = zip(layout.items, dims, strict=True)
        of_trees = iter([dim for item, dim in pairs if is_tree(item)])

        def resized(tree: Any) -> tuple[torch.Size, Any]:
            dim = next(of_trees)
            if dim is None:
                return tree.batch_size, tree._names
            return with_dim(tree, dim, self.size, self.name)

        return layout.rebuilt(leaves, resized)

    def through_torch(
        self, randomness: str, chunk_size: int | None, kwargs: dict[str, Any]
    ) -> Any:
        """Call the function by `torch.vmap`, on tensors only."""
        mapped = [i for i, dim in enumerate(self.dims) if dim is not None]
        if not mapped:
            # Only trees without leaves are mapped: something has to tell the size.
            self.leaves.append(torch.empty(self.size))
            self.dims.append(0)
            mapped = [len(self.dims) - 1]
        count = sum(self.layout.counts)
        kept: list[tuple[Layout, list[Any], list[Any]]] = []

        def call(*given: Any) -> tuple[Any, ...]:
            leaves = list(self.leaves)
            for i, leaf in zip(mapped, given, strict=True):
                leaves[i] = leaf
            result = self.func(*self._arguments(leaves[:count]), **kwargs)
            out, layout = flatten(result)
            dims = self._out_dims(result, layout)
            kept.append((layout, dims, out))
            flat = zip(out, layout.spread(dims), strict=True)
            return tuple([leaf for leaf, dim in flat if dim is not None])

        tensors = torch.vmap(
            call,
            tuple([self.dims[i] for i in mapped]),
            0,
            randomness,
            chunk_size=chunk_size,
        )(*[self.leaves[i] for i in mapped])
        layout, dims, out = kept[-1]
        moved = iter(tensors)
        for i, dim in enumerate(layout.spread(dims)):
            if dim is not None:
                out[i] = next(moved).movedim(0, dim)
        return self._result(out, layout, dims)


class _Mixed:
    """Stands for a tree whose leaves are mapped along different dims."""


_MIXED = _Mixed()


@contextmanager
def _level(size: int, randomness: str) -> Generator[int]:
    level = _torch.enter_vmap(size, randomness)
    try:
        yield level
    finally:
        _torch.leave_vmap()


def _broadcast(prefix: Any, value: Any) -> list[Any] | None:
    """Return what a prefix of a pytree says of every tensor and tree in it.

    None if it is no prefix of it.
    """
    if isinstance(value, torch.Tensor) or is_tree(value):
        return [prefix]
    if prefix is None or isinstance(prefix, (int, str)):
        return [prefix] * len(pytree.tree_leaves(value, is_leaf=is_tree))
    try:
        found: list[Any] = []

        def add(dim: Any, part: Any) -> None:
            found.extend([dim] * len(pytree.tree_leaves(part, is_leaf=is_tree)))

        pytree.tree_map_(
            add, prefix, value, is_leaf=lambda x: x is None or isinstance(x, Node)
        )
    except ValueError:
        return None
    return found


def _repeated(leaf: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Return what is the same for all rows with the mapped dim, as a view."""
    wide = leaf.unsqueeze(dim)
    return wide.expand(*wide.shape[:dim], size, *wide.shape[dim + 1 :])


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", repr(func))
