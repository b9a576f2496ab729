"""All leaves as one vector, so that every formula is written once.

`Leaves` adds, multiplies and takes roots leaf by leaf. Where torch's multi-tensor
kernels do the same they are called; where a gradient goes through the update, inside a
transform and in compiled code it is a loop over the leaves.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tdfunc._core._torch import (
    foreach_add,
    foreach_clamp_max,
    foreach_clamp_min,
    foreach_clone,
    foreach_div,
    foreach_maximum,
    foreach_mul,
    foreach_neg,
    foreach_sign,
    foreach_sqrt,
    foreach_sub,
    foreach_works,
    foreach_zero,
    fused_adam,
)
from tdfunc.errors import OptionError
from tdfunc.optim._flat import Flat, check_alike, check_numbers, flatten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Leaves",
    "Opened",
    "Scalar",
    "as_number",
    "can_fuse",
    "check_number",
    "correction",
    "count_from",
    "fused",
    "opened",
    "precise",
    "same_device_zero",
]

Scalar: TypeAlias = float | torch.Tensor
"""A number, or a tensor without dims: one more input, not a constant, to a compiler."""

_FUSED_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_FUSED_DEVICES = frozenset({"cpu", "cuda"})


class Leaves:
    """A list of tensors that is computed with as one vector; real dtypes only."""

    __slots__ = ("each", "tensors")

    def __init__(self, tensors: Sequence[Any], each: bool) -> None:  # noqa: FBT001
        self.tensors = tensors
        self.each = each  # take the multi-tensor kernels

    def _with(self, kernel: Any, fn: Callable[..., Any], other: Any) -> Leaves:
        if isinstance(other, Leaves):
            if self.each and kernel is not None:
                return Leaves(kernel(self.tensors, other.tensors), self.each)
            pairs = zip(self.tensors, other.tensors, strict=True)
            return Leaves([fn(x, y) for x, y in pairs], self.each)
        if isinstance(other, torch.Tensor):
            # A tensor without dims takes part in promotion where the leaf has none.
            out = [fn(x, other) for x in self.tensors]
            pairs = zip(out, self.tensors, strict=True)
            return Leaves([y.to(x.dtype) for y, x in pairs], self.each)
        if self.each and kernel is not None:
            return Leaves(kernel(self.tensors, other), self.each)
        return Leaves([fn(x, other) for x in self.tensors], self.each)

    def _map(self, kernel: Any, fn: Callable[..., Any]) -> Leaves:
        if self.each and kernel is not None:
            return Leaves(kernel(self.tensors), self.each)
        return Leaves([fn(x) for x in self.tensors], self.each)

    # Methods, not operators: between an object and a tensor Dynamo does not trace them.

    def add(self, other: Any) -> Leaves:
        """Return the sum with other leaves, or with one number."""
        return self._with(foreach_add, operator.add, other)

    def sub(self, other: Any) -> Leaves:
        """Return the difference."""
        return self._with(foreach_sub, operator.sub, other)

    def mul(self, other: Any) -> Leaves:
        """Return the product."""
        return self._with(foreach_mul, operator.mul, other)

    def div(self, other: Any) -> Leaves:
        """Return the quotient."""
        return self._with(foreach_div, operator.truediv, other)

    def neg(self) -> Leaves:
        """Return the negatives."""
        return self._map(foreach_neg, operator.neg)

    def sign(self) -> Leaves:
        """Return the signs."""
        return self._map(foreach_sign, torch.sign)

    def sqrt(self) -> Leaves:
        """Return the roots, 0 of what is negative by rounding.

        The derivative at 0 is taken to be 0 instead of infinity: what is rooted here
        is a mean of squares, and the root of ``g * g`` is not steep at 0. Without this
        one dead unit makes the gradient through an update NaN.
        """
        if self.each and foreach_sqrt is not None and foreach_clamp_min is not None:
            return Leaves(foreach_sqrt(foreach_clamp_min(self.tensors, 0)), self.each)
        return Leaves([_root(x) for x in self.tensors], self.each)

    def maximum(self, other: Leaves) -> Leaves:
        """Return the greater of both, element by element."""
        return self._with(foreach_maximum, torch.maximum, other)

    def clamp(self, most: Scalar) -> Leaves:
        """Return the elements, bounded by -most and most."""
        if isinstance(most, torch.Tensor):
            out = [x.clamp(-most.to(x.dtype), most.to(x.dtype)) for x in self.tensors]
            return Leaves(out, self.each)
        if self.each and foreach_clamp_min is not None:
            low = foreach_clamp_min(self.tensors, -most)
            return Leaves(foreach_clamp_max(low, most), self.each)
        return Leaves([x.clamp(-most, most) for x in self.tensors], self.each)

    def zeros(self) -> Leaves:
        """Return as many zeros."""
        return Leaves([torch.zeros_like(x) for x in self.tensors], self.each)


def _root(x: torch.Tensor) -> torch.Tensor:
    positive = x > 0
    return torch.where(positive, x, 1).sqrt().where(positive | x.isnan(), 0)


class Opened:
    """Pytrees of one structure as vectors, and the way back.

    Complex leaves are computed with as pairs of real numbers, as in torch.optim.
    """

    __slots__ = ("_flats", "_pairs", "each", "vectors")

    def __init__(
        self,
        flats: list[Flat],
        vectors: list[Leaves],
        pairs: bool,  # noqa: FBT001
        each: bool,  # noqa: FBT001
    ) -> None:
        self._flats = flats
        self._pairs = pairs
        self.vectors = vectors
        self.each = each

    def closed(self, leaves: Leaves, like: int = 0) -> Any:
        """Return a vector as a pytree; `like` says which of those that were opened."""
        tensors = leaves.tensors
        if self._pairs:
            were = self._flats[like].tensors
            tensors = [
                torch.view_as_complex(x.contiguous()) if old.is_complex() else x
                for x, old in zip(tensors, were, strict=True)
            ]
        return self._flats[like].closed(tensors)


def opened(call: str, trees: Sequence[Any], scalars: Sequence[Any] = ()) -> Opened:
    """Return pytrees as vectors that can be computed with together.

    Args:
        call: the transformation, for errors.
        trees: gradients first; then state and parameters, of the same structure.
        scalars: numbers and tensors that the formula contains.

    Raises:
        OperandError: a leaf of the gradients is no tensor, or of no floating or
            complex dtype; a scalar has dims.
        ShapeError: leaves have other shapes than the gradients.
        StructureError: pytrees have other entries.
    """
    flats = [flatten(tree) for tree in trees]
    first = flats[0]
    dtypes = {getattr(x, "dtype", None) for x in first.tensors}
    if not _FUSED_DTYPES.issuperset(dtypes):
        check_numbers(first, call)
    columns = [first.tensors]
    for flat in flats[1:]:
        check_alike(first, flat, call, "gradients and state or parameters")
        columns.append(flat.tensors)
    if len(flats) > 1:
        # Moments keep their dtype, so half-precision gradients are accumulated in it.
        kept = [x.dtype for x in flats[1].tensors]
        if kept != [x.dtype for x in first.tensors]:
            pairs = zip(first.tensors, kept, strict=True)
            columns[0] = [x.to(dtype) for x, dtype in pairs]
    complexes = not _FUSED_DTYPES.issuperset(dtypes) and any(
        [x.is_complex() for x in columns[0]]
    )
    if complexes:
        columns = [
            [torch.view_as_real(x) if x.is_complex() else x for x in column]
            for column in columns
        ]
    each = _kernels_work(columns, scalars)
    return Opened(flats, [Leaves(c, each) for c in columns], complexes, each)


def _kernels_work(columns: Sequence[Any], scalars: Sequence[Any]) -> bool:
    """Return whether kernels may be used: no transform, no gradient to be kept."""
    if not all([foreach_works(column) for column in columns]):
        return False
    if not torch.is_grad_enabled():
        return True
    return not any(
        [x.requires_grad for column in columns for x in column]
        + [isinstance(x, torch.Tensor) and x.requires_grad for x in scalars]
    )


def as_number(value: Scalar, each: bool) -> Scalar:  # noqa: FBT001
    """Return a tensor without dims as a number, where kernels want one and it is free.

    Reading it from another device would wait for that.
    """
    if each and isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return value.item()
    return value


def check_number(name: str, value: Any, low: float, high: float | None = None) -> None:
    """Raise unless an option is a number in a range, or a tensor without dims.

    What is in a tensor is not looked at.

    Raises:
        OptionError: naming the option.
    """
    end = "" if high is None else f" and below {high}"
    if isinstance(value, torch.Tensor):
        if value.dim():
            raise OptionError(
                f"{name} is one number",
                expected="a number, or a tensor without dims",
                got=f"a tensor of shape {list(value.shape)}",
                fix="torch.vmap gives every member of an ensemble its own",
            )
        return
    if (
        not isinstance(value, (int, float))
        or not value >= low
        or (high is not None and not value < high)
    ):
        raise OptionError(
            f"{name} is out of range",
            expected=f"a number, at least {low}{end}, or a tensor without dims",
            got=repr(value),
        )


def count_from(tensors: Sequence[Any]) -> torch.Tensor:
    """Return a counter at 0, on the device of the leaves."""
    return torch.zeros((), dtype=torch.int64, device=same_device_zero(tensors))


def same_device_zero(tensors: Sequence[Any]) -> torch.device | None:
    """Return the device of the first leaf, None if there is no leaf."""
    return tensors[0].device if tensors else None


def precise(count: torch.Tensor) -> torch.Tensor:
    """Return a counter as a number to compute with, in double precision if it can."""
    has_double = count.device.type != "mps"
    return count.to(torch.float64 if has_double else torch.float32)


def correction(beta: Scalar, count: torch.Tensor, each: bool) -> Scalar:  # noqa: FBT001
    """Return ``1 - beta ** count``: what a mean that began at 0 lacks."""
    number = as_number(count, each)
    if isinstance(number, torch.Tensor):
        number = precise(number)
        beta = beta.to(number.dtype) if isinstance(beta, torch.Tensor) else beta
    return 1 - beta**number


def can_fuse(opened: Opened) -> bool:
    """Return whether the fused kernel does what the formula says."""
    if not opened.each or fused_adam is None or foreach_zero is None:
        return False
    columns = [vector.tensors for vector in opened.vectors]
    first = columns[0][0]
    return bool(
        first.device.type in _FUSED_DEVICES
        and first.dtype in _FUSED_DTYPES
        and {x.layout for column in columns for x in column} == {torch.strided}
        and {x.dtype for column in columns for x in column} == {first.dtype}
        and {x.device for column in columns for x in column} == {first.device}
    )


def fused(
    grads: Leaves,
    moments: Sequence[Leaves],
    count: torch.Tensor,
    **options: Any,
) -> tuple[Leaves, list[Leaves]]:
    """Return the updates and moments of a step of Adam, by torch's fused kernel.

    The kernel writes into parameters and moments. It gets copies of the moments, and
    zeros for parameters: what it makes of these is the update.
    """
    # It walks through memory and does not look at strides.
    ours = _contiguous(grads.tensors)
    news = [foreach_clone(_contiguous(m.tensors)) for m in moments]
    updates = foreach_clone(ours)
    foreach_zero(updates)
    mean, square, *rest = news
    steps = [count.to(torch.float32)] * len(ours)
    fused_adam(
        updates,
        ours,
        mean,
        square,
        rest[0] if rest else [],
        steps,
        weight_decay=0.0,
        amsgrad=bool(rest),
        maximize=False,
        **options,
    )
    return Leaves(updates, grads.each), [Leaves(new, grads.each) for new in news]


def _contiguous(tensors: Sequence[Any]) -> list[Any]:
    return [x if x.is_contiguous() else x.contiguous() for x in tensors]
