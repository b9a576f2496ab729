"""Stacks of trees that are not alike: made, read, and made dense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.batch import as_names
from tdfunc._core.keys import as_path, short
from tdfunc._core.node import Node
from tdfunc._ops import entries, join, leafwise, pieces, shape
from tdfunc._ops.members import Members, lazy_node
from tdfunc._ops.shape import as_dim
from tdfunc.errors import (
    InvalidLeafError,
    OptionError,
    ShapeError,
    StructureError,
)
from tdfunc.typing import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tdfunc.typing import Path

__all__ = ["densify", "lazy_stack", "maybe_dense_stack", "to_lazystack"]


def lazy_stack(
    tds: Iterable[Node],
    dim: int = 0,
    *,
    name: str | None = None,
    strict_shape: bool = False,
) -> Any:
    """Return trees stacked along a new batch dim without copying or comparing them.

    The members may have other keys and other feature shapes. Reading shows what they
    share; arithmetic acts on every member; ``stack[0]`` is the first tree itself.

    Args:
        tds: trees with equally many batch dims. A batch dim whose size is not the same
            in all reads as -1.
        dim: where the stack dim will be, from -(n+1) to n for n batch dims.
        name: the name of the stack dim.
        strict_shape: refuse batch sizes that differ.

    Returns:
        A `LazyStackedTensorDict` that holds the trees.

    Raises:
        OperandError: `tds` is empty or holds something else than trees, or more than
            64 lazy stacks would be in each other.
        ShapeError: the trees have not equally many batch dims (or, with
            `strict_shape`, other batch sizes), or there is no such `dim`.

    Examples:
        >>> import torch, tdfunc
        >>> from tdfunc import TensorDict
        >>> short = TensorDict({"obs": torch.ones(2, 3), "won": True})
        >>> long = TensorDict({"obs": torch.ones(5, 3)})
        >>> games = tdfunc.lazy_stack([short, long])
        >>> games.keys(), [x.shape[0] for x in games.get("obs", as_list=True)]
        (('obs',), [2, 5])
    """
    nodes = join.as_nodes(tds)
    first = nodes[0]
    for i, node in enumerate(nodes):
        size, own = first.batch_size, node.batch_size
        if len(own) != len(size) or (strict_shape and own != size):
            raise ShapeError(
                f"tree {i} has another batch size",
                expected=list(size) if strict_shape else f"{len(size)} batch dims",
                got=list(own),
                fix=None if strict_shape else "td.unsqueeze(dim) adds a batch dim",
            )
    at = as_dim(first, dim, extra=1)
    names = join.shared_names(nodes)
    if names is not None or name is not None:
        names = names or (None,) * first.batch_dims
        names = as_names((*names[:at], name, *names[at:]), len(names) + 1)
    return lazy_node(Members(nodes, at), names)


def maybe_dense_stack(tds: Iterable[Node], dim: int = 0) -> Any:
    """Return trees stacked: dense if they are alike, else as a lazy stack.

    Args:
        tds: trees with equally many batch dims.
        dim: where the new batch dim will be.

    Raises:
        OperandError: `tds` is empty or holds something else than trees.
        ShapeError: the trees have not equally many batch dims, or there is no such
            `dim`.

    Examples:
        >>> import torch, tdfunc
        >>> from tdfunc import TensorDict
        >>> a, b = TensorDict(x=torch.ones(2)), TensorDict(x=torch.ones(3))
        >>> [type(tdfunc.maybe_dense_stack(p)).__name__ for p in ([a, a], [a, b])]
        ['TensorDict', 'LazyStackedTensorDict']
    """
    nodes = join.as_nodes(tds)
    try:
        return join.stack(nodes, dim)
    except (ShapeError, StructureError):
        return lazy_stack(nodes, dim)


def to_lazystack(td: Node, dim: int = 0) -> Any:
    """Return the tree as a lazy stack of its rows along a batch dim; nothing is copied.

    Args:
        td: the tree.
        dim: the batch dim that becomes the stack dim.

    Raises:
        ShapeError: `dim` is no batch dim, or it is empty.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.arange(3)}, 3)
        >>> td.to_lazystack().batch_size
        torch.Size([3])
    """
    at = as_dim(td, dim)
    rows = shape.unbind(td, at)
    size = td.batch_size
    return lazy_node(Members(rows, at, (*size[:at], *size[at + 1 :])), td.names)


def densify(td: Any, *, padding_value: float | None = None) -> Any:
    """Return the tree with every lazy stack in it as a dense tree.

    Args:
        td: a lazy stack, or a tree that may hold some.
        padding_value: fills members up to the longest where shapes differ, at the
            end of each dim; None refuses shapes that differ. Rows of text are filled
            with None.

    Returns:
        A tree with copies of what was stacked; `td` itself if nothing was.

    Raises:
        ShapeError: shapes differ, and there is no padding value.
        StructureError: the members do not have the same entries.

    Examples:
        >>> import torch, tdfunc
        >>> from tdfunc import TensorDict
        >>> rows = [TensorDict(x=torch.ones(1)), TensorDict(x=torch.ones(2))]
        >>> tdfunc.lazy_stack(rows).densify(padding_value=0)["x"].tolist()
        [[1.0, 0.0], [1.0, 1.0]]
    """
    for _, path, _ in td._schema.lazies():
        # One after the other: each that has become dense moves the leaves behind it.
        stack = td[path] if path else td
        dense = _dense(stack._leaves[0], padding_value, path)
        if not path:
            return entries.with_names(dense, td.names) if td.names else dense
        td = entries.set(td, path, dense)
    return td


def _dense(members: Members, padding: float | None, path: Path) -> Any:
    trees = [densify(tree, padding_value=padding) for tree in members.trees]
    dim = members.stack_dim
    if not trees:
        raise StructureError(
            "a lazy stack without members has no entries",
            path=path,
            expected="at least one member",
            got=f"shape {list(members.shape)}",
        )
    if padding is not None:
        trees = _padded_trees(trees, padding)
    try:
        return join.stack(trees, dim)
    except ShapeError as error:
        if padding is not None:
            raise
        raise ShapeError(
            "the members have other shapes",
            path=path,
            expected="equal shapes",
            got=error.got,
            fix="td.densify(padding_value=0) fills them up; "
            "td.get(key, as_list=True) reads them one by one",
        ) from error


def _padded_trees(trees: list[Any], value: float) -> list[Any]:
    """Return trees filled up to the sizes of the largest, in batch and features."""
    size = _largest([tree.batch_size for tree in trees])
    grown = [pieces.pad(tree, _pads(tree.batch_size, size), value) for tree in trees]
    first = grown[0]._schema
    for tree in grown[1:]:
        if not first.matches(tree._schema):
            return trees  # stacking says what differs
    columns = zip(*[tree._leaves for tree in grown], strict=True)
    wanted = [_largest([leaf.shape for leaf in row]) for row in columns]
    return [_filled(tree, wanted, value) for tree in grown]


def _filled(tree: Any, wanted: list[tuple[int, ...]], value: float) -> Any:
    rows = set(tree._schema.rows)
    shapes = iter([shape for slot, shape in enumerate(wanted) if slot not in rows])
    return leafwise.apply(tree, lambda x: _padded(x, next(shapes), value))


def _padded(x: torch.Tensor, wanted: tuple[int, ...], value: float) -> torch.Tensor:
    if tuple(x.shape) == wanted:
        return x
    pads: list[int] = []
    for have, want in reversed(list(zip(x.shape, wanted, strict=True))):
        pads += [0, want - have]
    return torch.constant_pad_nd(x, pads, value)


def _largest(sizes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    if len({len(size) for size in sizes}) > 1:
        raise ShapeError(
            "members with other numbers of dims can not be filled up",
            expected="equally many dims",
            got=[list(size) for size in sizes],
        )
    return tuple([max(row) for row in zip(*sizes, strict=True)])


def _pads(size: Sequence[int], wanted: Sequence[int]) -> list[int]:
    pads: list[int] = []
    for have, want in zip(size, wanted, strict=True):
        pads += [0, want - have]
    return pads


def get(
    td: Any,
    key: str | Path,
    default: Any = MISSING,
    *,
    as_list: bool = False,
    as_padded_tensor: bool = False,
    as_nested_tensor: bool = False,
    padding_value: float = 0,
    return_mask: bool = False,
) -> Any:
    """Return what the members have at a key or path, stacked.

    Args:
        td: the lazy stack.
        key: a key or a path.
        default: what to return where not all members have the entry; None by default.
        as_list: return the list of what each member has.
        as_padded_tensor: fill the tensors up to the longest, at the end of each dim,
            and stack them.
        as_nested_tensor: return a nested tensor of jagged layout; the stack dim must
            be the first.
        padding_value: what `as_padded_tensor` fills with.
        return_mask: with `as_padded_tensor`, return also a bool tensor that is True
            where there was a value.

    Raises:
        InvalidKeyError: `key` is no key or path.
        OptionError: options that exclude each other.
        ShapeError: shapes differ, and no option says how to read them.

    Examples:
        >>> import torch, tdfunc
        >>> from tdfunc import TensorDict
        >>> rows = [TensorDict(x=torch.ones(1)), TensorDict(x=torch.ones(2))]
        >>> x, mask = tdfunc.lazy_stack(rows).get(
        ...     "x", as_padded_tensor=True, padding_value=-1, return_mask=True
        ... )
        >>> x.tolist(), mask.tolist()
        ([[1.0, -1.0], [1.0, 1.0]], [[True, False], [True, True]])
    """
    path = as_path(key)
    if as_list + as_padded_tensor + as_nested_tensor > 1 or (
        return_mask and not as_padded_tensor
    ):
        raise OptionError(
            "the options do not go together",
            expected="one of as_list, as_padded_tensor and as_nested_tensor; "
            "return_mask only with as_padded_tensor",
            got=f"as_list={as_list}, as_padded_tensor={as_padded_tensor}, "
            f"as_nested_tensor={as_nested_tensor}, return_mask={return_mask}",
        )
    members: Members = td._leaves[0]
    trees = members.trees
    if not trees or not all([path in tree for tree in trees]):
        return None if default is MISSING else default
    if as_list:
        return [tree[path] for tree in members.trees]
    values = [tree[path] for tree in members.trees]
    if as_padded_tensor:
        dim = members.stack_dim
        return _as_padded(values, path, dim, padding_value, mask=return_mask)
    if as_nested_tensor:
        return _as_nested(values, path, members.stack_dim)
    return _stacked(members, values, path)


def _stacked(members: Members, values: list[Any], path: Path) -> Any:
    if members.known_shape is None and not any(
        [isinstance(value, (torch.Tensor, Node)) for value in values]
    ):
        return tuple(values)  # what a pytree function put in place of tensors
    dim = members.stack_dim
    if all([isinstance(value, Node) for value in values]):
        return lazy_node(Members(values, dim))
    try:
        if all([isinstance(value, torch.Tensor) for value in values]):
            return _stacked_tensors(members, values, path)
        # Statics and rows: one value if all are the same, else nested lists.
        # Of stacks of stacks, too: stacked lazily they would be read here again.
        parts = [densify(tree.select(path)) for tree in members.trees]
        return join.stack(parts, dim)[path]
    except ShapeError as error:
        if not all([isinstance(value, torch.Tensor) for value in values]):
            # Text has no shape but the batch size, and can not be padded here.
            raise ShapeError(
                "the members have other batch sizes, so their values do not stack",
                path=path,
                expected="equal batch sizes",
                got=[list(tree.batch_size) for tree in members.trees],
                fix=f"td.get({short(path)!r}, as_list=True)",
            ) from error
        raise ShapeError(
            "the members have other shapes here",
            path=path,
            expected="equal shapes",
            got=[list(value.shape) for value in values],
            fix=f"td.get({short(path)!r}, as_list=True), as_padded_tensor=True or "
            "as_nested_tensor=True",
        ) from error
    except StructureError as error:
        raise StructureError(
            "the members have other kinds of values here",
            path=path,
            got=", ".join([type(value).__name__ for value in values]),
            fix=f"td.get({short(path)!r}, as_list=True)",
        ) from error


def _stacked_tensors(members: Members, values: list[Any], path: Path) -> Any:
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        raise ShapeError("other shapes", path=path)
    if is_unbatched(members.trees[0], path):
        return join.stack([densify(tree.select(path)) for tree in members.trees])[path]
    return torch.stack(values, members.stack_dim)


def is_unbatched(tree: Any, path: Path) -> bool:
    """Return whether the batch does not index the tensor at a path of a tree."""
    while type(tree).is_lazy:
        tree = tree._leaves[0].trees[0]
    found = tree._schema.find(path)
    if found is not None:
        return found.lo == found.hi
    for end in range(1, len(path)):
        node = tree[path[:end]]
        if type(node).is_lazy:
            return is_unbatched(node, path[end:])
    return False


def _as_padded(
    values: list[Any], path: Path, dim: int, padding: float, *, mask: bool
) -> Any:
    tensors = _tensors(values, path)
    wanted = _largest([x.shape for x in tensors])
    filled = torch.stack([_padded(x, wanted, padding) for x in tensors], dim)
    if not mask:
        return filled
    true = [torch.ones_like(x, dtype=torch.bool) for x in tensors]
    return filled, torch.stack([_padded(x, wanted, 0) for x in true], dim)


def _as_nested(values: list[Any], path: Path, dim: int) -> torch.Tensor:
    if dim:
        raise OptionError(
            "a nested tensor is stacked along its first dim",
            expected="stack dim 0",
            got=f"stack dim {dim}",
            fix=f"td.get({short(path)!r}, as_padded_tensor=True)",
        )
    return torch.nested.as_nested_tensor(_tensors(values, path), layout=torch.jagged)


def _tensors(values: list[Any], path: Path) -> list[torch.Tensor]:
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise InvalidLeafError(
                "only tensors can be padded or nested",
                path=path,
                expected="tensors",
                got=type(value).__name__,
                fix=f"td.get({short(path)!r}, as_list=True)",
            )
    return values
