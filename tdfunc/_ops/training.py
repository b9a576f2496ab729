"""Whole trees as vectors: norms, products, averages of parameters, a look for NaN.

What is computed here is about numbers that are trained, so all leaves are of a floating
or complex dtype (`tdfunc.partition` splits the others off), and rows of values, which
are no numbers, do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tdfunc._core._torch import (
    foreach_lerp,
    foreach_norm,
    foreach_works,
    is_tracing,
)
from tdfunc._core.keys import short
from tdfunc._core.mismatch import check_same_entries
from tdfunc._core.node import Node, NodeT, make
from tdfunc._core.picking import named
from tdfunc._core.statics import NO_STATICS
from tdfunc._core.tree import refuse_lazy
from tdfunc._ops.members import Members
from tdfunc._ops.pieces import where
from tdfunc._ops.pointwise import ternary
from tdfunc.errors import (
    MissingKeyError,
    NotFiniteError,
    OperandError,
    OptionError,
    nearest,
    show_path,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc.typing import Path

__all__ = [
    "check_finite",
    "cosine_similarity",
    "global_norm",
    "norm_of",
    "polyak",
    "tree_dot",
    "tree_where",
]

# The name under which users of Optax and Equinox look for it.
tree_where = where


def global_norm(td: Node) -> torch.Tensor:
    """Return the 2-norm of all elements of all leaves, as one vector.

    Args:
        td: a tree of floating and complex tensors.

    Returns:
        A real tensor without dims, 0 for a tree without tensors, with gradient 0 at 0.

    Raises:
        OperandError: a leaf is of an integer or boolean dtype.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([3.0, 4.0]), "y": torch.tensor(12.0)})
        >>> td.global_norm()
        tensor(13.)
    """
    return norm_of(_numbers(td, "global_norm"))


def norm_of(leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm of all elements of tensors."""
    if not leaves:
        return torch.zeros(())
    if foreach_norm is not None and foreach_works(leaves):
        parts = foreach_norm(leaves)
    else:
        parts = [torch.linalg.vector_norm(x) for x in leaves]
    return torch.linalg.vector_norm(_column(parts))


def _column(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return one number of every leaf as a vector, in the dtype that holds them all."""
    common = parts[0].dtype
    if any([x.dtype != common for x in parts]):
        for x in parts:
            common = torch.promote_types(common, x.dtype)
        parts = [x.to(common) for x in parts]
    return torch.stack(list(parts))


def tree_dot(td: Node, other: Node) -> torch.Tensor:
    """Return the inner product of two trees, as two vectors.

    The sum of ``conj(td) * other`` over all elements of all leaves, so that
    ``tree_dot(td, td)`` is the square of `global_norm`.

    Args:
        td: a tree of floating and complex tensors.
        other: a tree with its entries and shapes.

    Returns:
        A tensor without dims, 0 for trees without tensors.

    Raises:
        OperandError: a leaf is of an integer or boolean dtype, or has another shape in
            `other`.
        StructureError: the trees do not have the same entries.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([1.0, 2.0]), "y": torch.tensor(3.0)})
        >>> td.tree_dot(td)
        tensor(14.)
    """
    return _dot(*_pair(td, other, "tree_dot"))


def _dot(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> torch.Tensor:
    if not left:
        return torch.zeros(())
    pairs = zip(left, right, strict=True)
    return _column([(x.conj() * y).sum() for x, y in pairs]).sum()


def cosine_similarity(td: Node, other: Node, *, eps: float = 1e-8) -> torch.Tensor:
    """Return the cosine of the angle between two trees, as two vectors.

    ``tree_dot(td, other) / (max(|td|, eps) * max(|other|, eps))``, as in
    `torch.nn.functional.cosine_similarity`: 1 if they point the same way, 0 if one of
    them is 0. No product overflows on the way, however large or small the elements.

    Args:
        td: a tree of floating and complex tensors.
        other: a tree with its entries and shapes.
        eps: the least that a norm counts as.

    Returns:
        A tensor without dims, in the dtype that holds those of all leaves.

    Raises:
        OperandError: a leaf is of an integer or boolean dtype, or has another shape in
            `other`.
        StructureError: the trees do not have the same entries.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([3.0, 0.0]), "y": torch.tensor(4.0)})
        >>> td.cosine_similarity(-2 * td)
        tensor(-1.)
    """
    pairs = zip(*_pair(td, other, "cosine_similarity"), strict=True)
    filled = [(x, y) for x, y in pairs if x.numel()]
    if not filled:
        return torch.zeros(())
    common = filled[0][0].dtype
    for x, y in filled:
        common = torch.promote_types(common, torch.promote_types(x.dtype, y.dtype))
    left, left_norm = _scaled([x for x, _ in filled], eps)
    right, right_norm = _scaled([y for _, y in filled], eps)
    return (_dot(left, right) / left_norm / right_norm).to(common)


_HALF = frozenset({torch.float16, torch.bfloat16})


def _scaled(
    leaves: Sequence[torch.Tensor], eps: float
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return a vector with elements of about one, and its norm, at least eps before.

    The scale is a constant to gradients: it cancels out of what is computed with both.
    """
    wide = [x.float() if x.dtype in _HALF else x for x in leaves]
    most = _column([x.detach().abs().amax() for x in wide]).amax()
    most = most.clamp_min(torch.finfo(most.dtype).tiny).where(most.isfinite(), 1)
    # A power of two, so that nothing is rounded; half of it, which can not overflow.
    scale = (most.log2().floor() - 1).exp2().clamp_min(torch.finfo(most.dtype).tiny)
    scaled = [x / scale.to(x.abs().dtype if x.is_complex() else x.dtype) for x in wide]
    return scaled, norm_of(scaled).maximum(eps / scale)


def polyak(target: NodeT, online: Node, tau: Any) -> NodeT:
    """Return ``target + tau * (online - target)``: a moving average of parameters.

    What is no floating or complex tensor, such as a count of batches, is taken from
    `online`.

    Args:
        target: the average; statics, names and dtypes of the result are its.
        online: the tree that it follows, with the same entries.
        tau: how far it moves: a number from 0 (not at all) to 1, or a tensor whose dims
            align with the batch dims. What is in a tensor is not looked at. For parts
            that move at rates of their own a mapping, nested or not, of keys or paths
            (of leaves or of whole nodes), or of patterns such as ``"enc/**"`` and
            ``"**/bias"``, to such numbers and tensors; later entries win.

    Raises:
        MissingKeyError: a mapping names an entry that is not there.
        OperandError: `tau` or `online` is of another kind, or has a shape that is not,
            or for `tau` does not broadcast to, that of `target`; a mapping for a tree
            with a lazy stack.
        OptionError: `tau` is a number out of range, or a mapping without an entry for
            a leaf.
        StructureError: the trees do not have the same entries.

    References:
        Polyak and Juditsky, "Acceleration of stochastic approximation by averaging",
        1992. As target of a learner: Lillicrap et al., "Continuous control with deep
        reinforcement learning", 2016.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> target = TensorDict({"w": torch.tensor([0.0, 10.0])})
        >>> target.polyak(TensorDict({"w": torch.tensor([4.0, 10.0])}), 0.25)["w"]
        tensor([ 1., 10.])
        >>> target = TensorDict(enc={"w": torch.zeros(2)}, head={"w": torch.zeros(2)})
        >>> moved = target.polyak(target + 1, {"enc/**": 0.25, "head": 0.5})
        >>> moved["enc", "w"].tolist(), moved["head", "w"].tolist()
        ([0.25, 0.25], [0.5, 0.5])
    """
    if not isinstance(online, Node):
        raise _no_tree(online, "polyak")
    if isinstance(tau, Mapping):
        return _polyak_by_path(target, online, named(tau))
    _check_moves(target, online, tau)
    rows = target._schema.rows
    all_move = all(
        [
            slot in rows or (isinstance(x, torch.Tensor) and _is_number(x))
            for slot, x in enumerate(target._leaves)
        ]
    )
    return ternary(target, online, tau, _moved, foreach_lerp if all_move else None)


def _polyak_by_path(target: NodeT, online: Node, taus: dict[Path, Any]) -> NodeT:
    """Return the average whose parts move at the rates that are for their paths."""
    for tree in (target, online):
        refuse_lazy(tree, "polyak with a mapping")
    check_same_entries([target, online], _OTHER_ENTRIES)
    size, schema, names = target.batch_size, target._schema, tuple(taus)
    found, unused = schema.picked(names)
    rows = frozenset(schema.rows)
    _check_picked(schema.paths(), found, rows, names, unused)
    leaves: list[Any] = list(target._leaves)
    for at, tau in enumerate(taus.values()):
        chosen = tuple([at == i and slot not in rows for slot, i in enumerate(found)])
        if True in chosen:
            part, slots = _part(target, chosen)
            moved = polyak(part, _part(online, chosen)[0], tau)
            for slot, leaf in zip(slots, moved._leaves, strict=True):
                leaves[slot] = leaf
    return make(schema, tuple(leaves), target._statics, size, target._names)


def _part(td: Node, chosen: tuple[bool, ...]) -> tuple[Node, tuple[int, ...]]:
    """Return the tree of some of the leaves, and which they are."""
    size = td.batch_size
    (schema, slots), _ = td._schema.parted(chosen)
    leaves = tuple([td._leaves[i] for i in slots])
    return make(schema, leaves, NO_STATICS, size, td._names), slots


def _check_picked(
    paths: Sequence[Path],
    found: Sequence[int],
    rows: frozenset[int],
    names: Sequence[Path],
    unused: Sequence[int],
) -> None:
    """Raise unless every name is for a leaf, and every leaf but rows has a name."""
    if unused:
        lost = [short(names[at]) for at in unused]
        raise MissingKeyError(
            "polyak: tau is for entries that are not there",
            path=names[unused[0]],
            expected=nearest(".".join(names[unused[0]]), map(".".join, paths)),
            got=", ".join(map(repr, lost[:_SHOWN])),
        )
    bare = [paths[i] for i, at in enumerate(found) if at < 0 and i not in rows]
    if bare:
        more = f" and {len(bare) - _SHOWN} more" if len(bare) > _SHOWN else ""
        raise OptionError(
            "polyak: leaves have no tau",
            path=bare[0],
            expected="a number for every leaf",
            got=f"none for {', '.join(map(show_path, bare[:_SHOWN]))}{more}",
            fix='{"**": tau, ...}, for later entries win; 0 keeps a leaf',
        )


_OTHER_ENTRIES = "polyak: the trees have other entries"


def _check_moves(target: Node, online: Node, tau: Any) -> None:
    """Raise unless an average of two trees has the shapes of the first."""
    size = target.batch_size
    if isinstance(tau, (int, float)) and not 0 <= tau <= 1:
        raise OptionError(
            "tau is how far an average moves", expected="a number from 0 to 1", got=tau
        )
    if isinstance(tau, (torch.Tensor, np.ndarray)):
        shape = tau.shape
        pairs = zip(reversed(shape), reversed(size), strict=False)
        if len(shape) > len(size) or any([n not in (1, m) for n, m in pairs]):
            raise OperandError(
                "polyak: tau does not fit the batch size",
                expected=f"a number, or a tensor that broadcasts to {list(size)}",
                got=f"a tensor of shape {list(shape)}",
            )
    check_same_entries([target, online], _OTHER_ENTRIES)
    rows, others = _leaves(target), [x for _, x in _leaves(online)]
    _check_shapes(rows, others, "polyak")
    for (path, x), y in zip(rows, others, strict=True):
        if y.is_complex() and x.is_floating_point():
            raise OperandError(
                "polyak: a real average can not follow a complex tensor",
                path=path,
                expected=x.dtype,
                got=y.dtype,
            )


def _moved(x: torch.Tensor, end: torch.Tensor, tau: Any) -> torch.Tensor:
    if not _is_number(x):
        return end
    if isinstance(tau, torch.Tensor):
        tau = tau.to(x.dtype)
    return torch.lerp(x, end.to(x.dtype), tau)


def check_finite(td: NodeT) -> NodeT:
    """Return the tree, if every element of every leaf is a finite number.

    Waits for the device. Integers, booleans and rows of values are finite.

    Args:
        td: the tree.

    Returns:
        The tree itself.

    Raises:
        NotFiniteError: naming the leaves with NaN or infinity, how many each has, and
            where there are many leaves, how many more.
        OperandError: `td` is no tree; or inside `torch.vmap` or compiled code, where
            values can not be looked at.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict(x=torch.tensor([1.0, float("nan")]), y=torch.ones(2))
        >>> td.select("y").check_finite().keys()
        ('y',)
        >>> td.check_finite()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tdfunc.errors.NotFiniteError: elements are not finite - at td['x'] - ...
    """
    if not isinstance(td, Node):
        raise _no_tree(td, "check_finite")
    rows = [(path, x) for path, x in _leaves(td) if _is_number(x)]
    if not rows:
        return td
    fix = "td.isfinite().all() is a tensor of one boolean"
    if is_tracing():
        raise _unreadable(fix)
    counts = [(~torch.isfinite(x)).sum() for _, x in rows]
    try:
        # One wait for all leaves of a device.
        several = len({x.device for x in counts}) > 1
        found = [int(x) for x in counts] if several else torch.stack(counts).tolist()
    except RuntimeError as error:
        raise _unreadable(fix) from error
    bad = [(path, n, x) for (path, x), n in zip(rows, found, strict=True) if n]
    if not bad:
        return td
    lines = [f"{show_path(path)} has {n} of {x.numel()}" for path, n, x in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        lines.append(f"and {len(bad) - _SHOWN} more leaves")
    raise NotFiniteError(
        "elements are not finite",
        path=bad[0][0],
        expected="finite numbers",
        got=", ".join(lines),
        fix="td.nan_to_num() replaces them",
    )


# A message is read by a person.
_SHOWN = 20


def _unreadable(fix: str) -> OperandError:
    return OperandError(
        "values can not be looked at inside a transform or compiled code",
        expected="a call outside, on the result",
        fix=fix,
    )


def _is_number(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _leaves(td: Node) -> list[tuple[Path, torch.Tensor]]:
    """Return path and value of every tensor that is no code; members of stacks too."""
    found: list[tuple[Path, torch.Tensor]] = []
    pending: list[tuple[Path, Node]] = [((), td)]
    while pending:
        above, node = pending.pop()
        rows, paths = node._schema.rows, node._schema.paths()
        for slot, leaf in enumerate(node._leaves):
            path = (*above, *paths[slot])
            if isinstance(leaf, Members):
                members = enumerate(leaf.flat())
                pending += [((*path, str(i)), member) for i, member in members]
            elif slot not in rows:
                found.append((path, leaf))
    return found


def _numbers(td: Node, call: str) -> list[torch.Tensor]:
    """Return all tensors of a tree, which must be of floating or complex dtypes."""
    if not isinstance(td, Node):
        raise _no_tree(td, call)
    leaves = td._leaves
    if not td._schema.plain:
        leaves = [leaf for _, leaf in _leaves(td)]
    for at, leaf in enumerate(leaves):
        if not _is_number(leaf):
            raise OperandError(
                f"{call} is about floating and complex numbers",
                path=_leaves(td)[at][0],
                expected="a tensor of a floating or complex dtype",
                got=leaf.dtype,
                fix='tdfunc.partition(td, "inexact")[0] leaves the others out',
            )
    return list(leaves)


def _pair(
    td: Node, other: Node, call: str
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the tensors of two trees with the same entries and shapes."""
    left = _numbers(td, call)
    right = _numbers(other, call)
    check_same_entries([td, other], f"{call}: the trees have other entries")
    if [x.shape for x in left] != [x.shape for x in right]:
        _check_shapes(_leaves(td), right, call)
    return left, right


def _check_shapes(
    rows: Sequence[tuple[Path, torch.Tensor]], others: Sequence[torch.Tensor], call: str
) -> None:
    for (path, x), y in zip(rows, others, strict=True):
        if x.shape != y.shape:
            raise OperandError(
                f"{call}: leaves have other shapes",
                path=path,
                expected=list(x.shape),
                got=list(y.shape),
            )


def _no_tree(value: Any, call: str) -> OperandError:
    return OperandError(
        f"{call} takes trees",
        expected="a tree",
        got=type(value).__name__,
        fix="TensorDict(value) makes a tree of a mapping",
    )
