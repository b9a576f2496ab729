"""Map a function over a dim of its arguments, as `torch.vmap`, knowing the batch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core import _torch
from tdfunc._core._torch import VmapLevel, is_tracing, pytree, wraps
from tdfunc._core.node import Node
from tdfunc.errors import OperandError, OptionError, ShapeError
from tdfunc.func._dims import as_batch_dim, with_dim, without_dim
from tdfunc.func._flat import Layout, flatten, is_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["vmap"]


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
            dims, or a tree of ints like it, for other places in some leaves. None
            returns what was not mapped as it is.
        randomness: ``"error"``, ``"different"`` or ``"same"``, for functions that draw
            from torch's global generator. `tdfunc.random` needs none.
        chunk_size: how many rows to map at once; None for all.

    Raises:
        ShapeError: a tree has no such batch dim.
        OperandError: the dim is the stack dim of a lazy stack.
        Exception: what `torch.vmap` raises, with its text: ValueError for nothing to
            map over, different sizes, or results that are no tensors; IndexError for
            a place that a result has not; RuntimeError for another `randomness`.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.ones(3, 5, 2)}, [3, 5], names=["b", "t"])
        >>> tdfunc.vmap(lambda row: row * 2, in_dims="t", out_dims=1)(td).batch_size
        torch.Size([3, 5])
    """
    usual = randomness in {"error", "different", "same"}
    if not usual or (chunk_size is not None and chunk_size <= 0):
        torch.vmap(func, randomness=randomness, chunk_size=chunk_size)  # raises

    def mapped(*args: Any, **kwargs: Any) -> Any:
        call = _Call(func, in_dims, out_dims, args)
        if is_tracing():
            return call.through_torch(randomness, chunk_size, kwargs)
        try:
            if chunk_size is not None or not _torch.transforms_apart():
                return call.through_torch(randomness, chunk_size, kwargs)
            return call.direct(randomness, kwargs)
        except RuntimeError as error:
            _advise(error)
            raise

    return mapped if is_tracing() else wraps(func)(mapped)


# What torch says of code that asks for the value of a mapped tensor, and what it does
# not say: how to do without.
_ASKING = ("data-dependent control flow", "calling .item() on a Tensor")
_ADVICE = (
    "tdfunc: a mapped tensor has one value for every row. Choose between values with "
    "torch.where(mask, a, b) or td.where(mask, other), between functions with "
    "tdfunc.cond(mask, f, g, args)."
)


def _advise(error: RuntimeError) -> None:
    asking = any([words in str(error) for words in _ASKING])
    if asking and _ADVICE not in getattr(error, "__notes__", ()):
        error.add_note(_ADVICE)


class _Call:
    """One call of a mapped function."""

    __slots__ = (
        "args",
        "dims",
        "func",
        "in_dims",
        "layout",
        "leaves",
        "name",
        "out_dims",
        "size",
        "sizes",
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
        self.args = args
        self.in_dims = in_dims
        self.out_dims = out_dims
        self.name: str | None = None
        if not isinstance(out_dims, int):
            self._check_out_dims()
        self.leaves, self.layout = flatten(args)
        if self.layout.spec is not None:
            self._refuse_stacks()
        # The dim of every tree, and of every leaf; the sizes of those dims.
        self.tree_dims: list[Any] = []
        self.dims: list[Any] = []
        self.sizes: list[int] = []
        self._find_dims()
        self.size = self._mapped_size()

    def _check_out_dims(self) -> None:
        for dim in pytree.tree_leaves(self.out_dims):
            if dim is not None and not isinstance(dim, int):
                raise ValueError(
                    f"vmap({_name(self.func)}, ..., out_dims={self.out_dims}): "
                    "`out_dims` must be an int, None or a python collection of ints "
                    "representing where in the outputs the vmapped dimension should "
                    "appear."
                )

    # What is mapped

    def _refuse_stacks(self) -> None:
        """Raise where the stack dim of a lazy stack is to be mapped.

        Its leaves have size 1 there, of which torch says only that sizes differ.
        """
        dims = self.in_dims
        if not isinstance(dims, tuple):
            dims = (dims,) * len(self.args)
        for dim, arg in zip(dims, self.args, strict=False):
            if not isinstance(dim, int):
                continue
            for node in pytree.tree_leaves(arg, is_leaf=_is_node):
                if isinstance(node, Node):
                    _check_stack_dims(node, dim)

    def _find_dims(self) -> None:
        for item, dim in zip(self.layout.items, self._item_dims(), strict=True):
            if not is_tree(item):
                self._map_leaf(item, dim)
            elif isinstance(dim, Node):
                if not item._schema.matches(dim._schema):
                    raise self._refused()
                for leaf, own in zip(item._leaves, dim._leaves, strict=True):
                    self._map_leaf(leaf, own)
                self.tree_dims.append(_common(dim._leaves))
            else:
                if isinstance(dim, str):
                    self.name = dim
                elif dim is not None and not isinstance(dim, int):
                    raise self._refused()
                at = as_batch_dim(item, dim)
                self.dims += [at] * item._schema.n
                self.tree_dims.append(at)
                if at is not None:
                    # All leaves have it: the batch size is a prefix of their shapes.
                    self.sizes.append(item.batch_size[at])

    def _map_leaf(self, leaf: Any, dim: Any) -> None:
        if dim is not None:
            if not isinstance(dim, int) or not isinstance(leaf, torch.Tensor):
                raise self._refused()
            dim = dim + leaf.dim() if dim < 0 else int(dim)
            if not 0 <= dim < leaf.dim():
                raise self._refused()
            self.sizes.append(leaf.shape[dim])
        self.dims.append(dim)

    def _item_dims(self) -> list[Any]:
        """Return what `in_dims` says of every tensor and tree among the arguments."""
        in_dims, layout, args = self.in_dims, self.layout, self.args
        if isinstance(in_dims, (int, str)):
            return [in_dims] * len(layout.items)
        if not isinstance(in_dims, tuple) or len(in_dims) != len(args):
            raise self._refused()
        if layout.spec is None:
            return list(in_dims)
        found: list[Any] = []
        for dim, arg in zip(in_dims, args, strict=True):
            spread = _broadcast(dim, arg)
            if spread is None:
                raise self._refused()
            found += spread
        return found

    def _mapped_size(self) -> int:
        sizes = self.sizes
        if not sizes or any([size != sizes[0] for size in sizes]):
            raise self._refused()
        return sizes[0]

    def _refused(self) -> Exception:
        """Return torch's error for arguments that it does not map."""

        def call(*_: Any) -> torch.Tensor:
            return torch.zeros(())

        call.__name__ = _name(self.func)
        try:
            torch.vmap(call, self.in_dims)(*self.args)
            if len(self.dims) == len(self.leaves):
                torch.vmap(call, tuple(self.dims))(*self.leaves)
        except (ValueError, RuntimeError) as error:
            return error
        return OptionError(
            "in_dims does not fit the arguments",
            expected="an int, a dim name, or a tuple with one for every argument",
            got=repr(self.in_dims),
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
        with VmapLevel(self.size, randomness) as level:
            add = _torch.add_batch_dim
            leaves = [
                leaf if dim is None else add(leaf, dim, level)
                for leaf, dim in zip(self.leaves, self.dims, strict=True)
            ]
            result = self.func(*self._arguments(leaves), **kwargs)
            leaves, layout = flatten(result)
            dims, of_trees = self._out_dims(result, layout)
            size = self.size
            remove = _torch.remove_batch_dim
            out: list[Any] = []
            for leaf, dim in zip(leaves, dims, strict=True):
                if dim is None or not isinstance(leaf, torch.Tensor):
                    out.append(self._kept(leaf, dim))
                elif not dim or _torch.is_batched_at(leaf, level):
                    out.append(remove(leaf, level, size, dim))
                else:  # torch would expand in front, and fail
                    out.append(_repeated(leaf, dim, size))
        return self._result(out, layout, of_trees)

    def _kept(self, leaf: Any, dim: Any) -> Any:
        """Return a result that has no dim to move, or raise what torch raises."""
        name = _name(self.func)
        if dim is not None:
            raise ValueError(
                f"vmap({name}, ...): `{name}` must only return Tensors, got type "
                f"{type(leaf)}. Did you mean to set out_dims= to None for output?"
            )
        if isinstance(leaf, torch.Tensor) and _torch.is_returned_mapped(leaf):
            raise ValueError(
                f"vmap({name}, ...): `{name}` can not return a BatchedTensor when "
                "out_dim is None"
            )
        return leaf

    def _out_dims(self, result: Any, layout: Layout) -> tuple[list[Any], list[Any]]:
        """Return for every tensor of the result, and every tree, where the dim goes."""
        out_dims = self.out_dims
        given: list[Any] | None
        if isinstance(out_dims, int):
            given = [out_dims] * len(layout.items)
        elif isinstance(result, torch.Tensor) and isinstance(out_dims, tuple):
            given = list(out_dims) if len(out_dims) == 1 else None
        else:
            given = _broadcast(out_dims, result)
        dims: list[Any] = []
        of_trees: list[Any] = []
        if given is None:
            raise self._incompatible(result)
        for item, dim in zip(layout.items, given, strict=True):
            if isinstance(item, Node) and isinstance(dim, Node):
                if not item._schema.matches(dim._schema):
                    raise self._incompatible(result)
                pairs = zip(item._leaves, dim._leaves, strict=True)
                own = [_position(leaf, at) for leaf, at in pairs]
                dims += own
                of_trees.append(_common(own))
            elif dim is not None and not isinstance(dim, int):
                raise self._incompatible(result)
            elif isinstance(item, Node):
                at = _position(item, dim)
                dims += [at] * item._schema.n
                of_trees.append(at)
            else:
                dims.append(_position(item, dim))
        return dims, of_trees

    def _incompatible(self, result: Any) -> Exception:
        return ValueError(
            f"vmap({_name(self.func)}, ..., out_dims={self.out_dims})(<inputs>): "
            "out_dims is not compatible with the structure of `outputs`. out_dims has "
            f"structure {pytree.tree_structure(self.out_dims)} but outputs has "
            f"structure {pytree.tree_structure(result)}."
        )

    def _result(
        self, leaves: Sequence[Any], layout: Layout, of_trees: Sequence[Any]
    ) -> Any:
        if layout.flat:
            return layout.rebuilt(leaves)
        dims = iter(of_trees)

        def resized(tree: Any) -> tuple[torch.Size | None, Any]:
            dim = next(dims)
            if dim is None:
                return tree.batch_size, tree._names
            if dim is _MIXED:
                return None, tree._names
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
        if not self.size:
            chunk_size = None  # torch makes no chunk of no rows, and fails
        count = sum(self.layout.counts)
        kept: list[tuple[Layout, list[Any], list[Any], list[Any]]] = []

        def call(*given: Any) -> tuple[Any, ...]:
            leaves = list(self.leaves)
            for i, leaf in zip(mapped, given, strict=True):
                leaves[i] = leaf
            result = self.func(*self._arguments(leaves[:count]), **kwargs)
            out, layout = flatten(result)
            dims, of_trees = self._out_dims(result, layout)
            kept.append((layout, dims, of_trees, out))
            moved: list[torch.Tensor] = []
            for leaf, dim in zip(out, dims, strict=True):
                if dim is None or not isinstance(leaf, torch.Tensor):
                    self._kept(leaf, dim)
                else:
                    moved.append(leaf)
            return tuple(moved)

        tensors = torch.vmap(
            call,
            tuple([self.dims[i] for i in mapped]),
            0,
            randomness,
            chunk_size=chunk_size,
        )(*[self.leaves[i] for i in mapped])
        layout, dims, of_trees, out = kept[-1]
        moved = iter(tensors)
        for i, dim in enumerate(dims):
            if dim is not None:
                out[i] = next(moved).movedim(0, dim)
        return self._result(out, layout, of_trees)


def _is_node(value: object) -> bool:
    return isinstance(value, Node)


def _check_stack_dims(node: Node, dim: int) -> None:
    for slot, path, _ in node._schema.lazies():
        held: Any = node._leaves[slot]
        # Without a shape the stack dim is gone already, which is told on use.
        if held.known_shape is not None and dim == held.stack_dim:
            raise OperandError(
                "the stack dim of a lazy stack can not be mapped",
                path=path or None,
                expected="a batch dim that is not the stack dim",
                got=f"in_dims {dim} for batch_size={list(held.shape)}, "
                f"stacked along {dim}",
                fix="td.densify() first, or map another dim",
            )


class _Mixed:
    """Stands for a tree whose leaves are mapped along different dims."""


_MIXED = _Mixed()


def _common(dims: Sequence[Any]) -> Any:
    """Return the dim that all leaves have, or that they have different ones."""
    return dims[0] if len(set(dims)) == 1 else _MIXED


def _position(value: Any, dim: int | None) -> int | None:
    """Return where among the dims of a result one more goes, as an int >= 0.

    Raises:
        ShapeError: the batch size of a tree has no such place.
        IndexError: nor has a tensor; torch's error.
    """
    if dim is None or not isinstance(value, (torch.Tensor, Node)):
        return dim
    count = value.dim() + 1
    if -count <= dim < count:
        return dim % count
    if isinstance(value, Node):
        raise ShapeError(
            f"the mapped dim can not go to {dim}",
            expected=f"{-count} to {count - 1}",
            got=f"a result of batch size {list(value.batch_size)}",
        )
    raise IndexError(
        f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], "
        f"but got {dim})"
    )


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


def _name(func: Any) -> str:
    if isinstance(func, partial):
        return f"functools.partial({_name(func.func)}, ...)"
    return getattr(func, "__name__", None) or repr(func)
