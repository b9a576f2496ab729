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
    foreach_sqrt,
    foreach_sub,
    foreach_works,
    foreach_zero,
    fused_adam,
    fused_adamw,
)
from tdfunc.errors import OperandError, OptionError
from tdfunc.optim._flat import (
    Flat,
    Kinds,
    check_alike,
    check_numbers,
    flatten,
    kinds,
    shapes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Leaves",
    "Opened",
    "Scalar",
    "as_number",
    "can_fuse",
    "check_betas",
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

# Half-precision leaves take numbers in single precision.
_EXACT = frozenset({torch.float32, torch.float64})
_REAL = _EXACT | {torch.float16, torch.bfloat16}
_HAS_KERNELS = not any(
    [fn is None for fn in (fused_adam, fused_adamw, foreach_clone, foreach_zero)]
)
_FUSED_DEVICES = frozenset({"cuda"})


class Leaves:
    """A list of tensors that is computed with as one vector; real dtypes only."""

    __slots__ = ("each", "kind", "tensors")

    def __init__(
        self,
        tensors: Sequence[Any],
        each: bool,  # noqa: FBT001
        kind: torch.dtype | None = None,
    ) -> None:
        self.tensors = tensors
        self.each = each  # take the multi-tensor kernels
        self.kind = kind  # the dtype where all are float32 or float64 on the CPU

    def like(self, tensors: Sequence[Any]) -> Leaves:
        """Return other tensors of the same kinds as a vector."""
        return Leaves(tensors, self.each, self.kind)

    def _with(self, kernel: Any, fn: Callable[..., Any], other: Any) -> Leaves:
        if isinstance(other, Leaves):
            if self.each and kernel is not None:
                return self.like(kernel(self.tensors, other.tensors))
            pairs = zip(self.tensors, other.tensors, strict=True)
            return self.like([fn(x, y) for x, y in pairs])
        if isinstance(other, torch.Tensor):
            # A tensor without dims takes part in promotion where the leaf has none.
            out = [fn(x, other) for x in self.tensors]
            pairs = zip(out, self.tensors, strict=True)
            return self.like([y.to(x.dtype) for y, x in pairs])
        if self.each and kernel is not None:
            if self.kind is not None:
                # A number would be wrapped for every leaf, which costs what the
                # operation itself does; in these dtypes the results are equal.
                other = [torch.tensor(other, dtype=self.kind, device="cpu")] * len(
                    self.tensors
                )
            return self.like(kernel(self.tensors, other))
        return self.like([fn(x, other) for x in self.tensors])

    def _map(self, kernel: Any, fn: Callable[..., Any]) -> Leaves:
        if self.each and kernel is not None:
            return self.like(kernel(self.tensors))
        return self.like([fn(x) for x in self.tensors])

    # Methods, not operators: between an object and a tensor Dynamo does not trace them.

    def add(self, other: Any, factor: Scalar = 1) -> Leaves:
        """Return ``self + factor * other``, of leaves or of a number without factor."""
        if isinstance(factor, torch.Tensor):
            return self.add(other.mul(factor))
        if factor != 1:
            if self.each and foreach_add is not None:
                pair = (self.tensors, other.tensors)
                return self.like(foreach_add(*pair, alpha=factor))
            return self.add(other.mul(factor))
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
        """Return the signs, NaN of NaN: torch's is 0, which would hide it."""
        return self.like([torch.where(x.isnan(), x, x.sign()) for x in self.tensors])

    def sqrt(self) -> Leaves:
        """Return the roots, 0 of what is negative by rounding.

        The derivative at 0 is taken to be 0 instead of infinity: what is rooted here
        is a mean of squares, and the root of ``g * g`` is not steep at 0. Without this
        one dead unit makes the gradient through an update NaN.
        """
        if self.each and foreach_sqrt is not None and foreach_clamp_min is not None:
            return self.like(foreach_sqrt(foreach_clamp_min(self.tensors, 0)))
        return self.like([_root(x) for x in self.tensors])

    def maximum(self, other: Leaves) -> Leaves:
        """Return the greater of both, element by element."""
        return self._with(foreach_maximum, torch.maximum, other)

    def clamp(self, most: Scalar) -> Leaves:
        """Return the elements, bounded by -most and most."""
        if isinstance(most, torch.Tensor):
            out = [x.clamp(-most.to(x.dtype), most.to(x.dtype)) for x in self.tensors]
            return self.like(out)
        if self.each and foreach_clamp_min is not None:
            low = foreach_clamp_min(self.tensors, -most)
            return self.like(foreach_clamp_max(low, most))
        return self.like([x.clamp(-most, most) for x in self.tensors])

    def zeros(self) -> Leaves:
        """Return as many zeros."""
        return self.like([torch.zeros_like(x) for x in self.tensors])


def _root(x: torch.Tensor) -> torch.Tensor:
    positive = x > 0
    return torch.where(positive, x, 1).sqrt().where(positive | x.isnan(), 0)


class Opened:
    """Pytrees of one structure as vectors, and the way back.

    Complex leaves are computed with as pairs of real numbers, as in torch.optim.
    """

    __slots__ = ("_flats", "_pairs", "alike", "each", "vectors")

    def __init__(
        self,
        flats: list[Flat],
        vectors: list[Leaves],
        pairs: list[bool] | None,
        *,
        alike: bool = False,
    ) -> None:
        self._flats = flats
        self._pairs = pairs  # which leaves are pairs, None if none is
        self.vectors = vectors
        self.each = vectors[0].each
        self.alike = alike  # one dtype and one device, shapes that fit: see `can_fuse`

    def closed(self, leaves: Leaves, like: int = 0) -> Any:
        """Return a vector as a pytree; `like` says which of those that were opened."""
        tensors = leaves.tensors
        if self._pairs is not None:
            tensors = [
                torch.view_as_complex(x.contiguous()) if pair else x
                for x, pair in zip(tensors, self._pairs, strict=True)
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
    columns = [flat.tensors for flat in flats]
    kernels = all([foreach_works(column) for column in columns])
    sizes = [shapes(column) for column in columns] if kernels else []
    fit = kernels and all([row == sizes[0] for row in sizes])
    for flat in flats[1:]:
        check_alike(flats[0], flat, call, _WHAT, shapes=not fit)
    each = False
    if kernels:
        found = kinds(columns)
        each = _no_gradient(found, scalars)
        if each and len(found.dtypes) == len(found.on_cpu) == 1:
            (dtype,), (cpu,) = found.dtypes, found.on_cpu
            if dtype in _REAL:
                # The hot path: all tensors of one kind.
                alike = fit and _fused_takes(columns, cpu=cpu)
                kind = dtype if cpu and dtype in _EXACT else None
                return Opened(flats, _vectors(columns, each, kind), None, alike=alike)
    check_numbers(flats[0], call)
    if len(flats) > 1:
        _check_real(flats, call)
        # Moments keep their dtype, so half-precision gradients are accumulated in it.
        pairs = zip(columns[0], columns[1], strict=True)
        columns[0] = [x if x.dtype == y.dtype else x.to(y.dtype) for x, y in pairs]
    pairs = [x.is_complex() for x in columns[0]]
    if any(pairs):
        columns = [
            [torch.view_as_real(x) if x.is_complex() else x for x in column]
            for column in columns
        ]
    return Opened(flats, _vectors(columns, each), pairs if any(pairs) else None)


def _check_real(flats: Sequence[Flat], call: str) -> None:
    """Raise where a conversion would drop the imaginary part of a gradient."""
    for other in flats[1:]:
        pairs = zip(flats[0].tensors, other.tensors, strict=True)
        for at, (x, y) in enumerate(pairs):
            if x.is_complex() and not y.is_complex():
                raise OperandError(
                    f"{call}: the gradient is complex where state or parameter is real",
                    path=flats[0].paths()[at],
                    expected=y.dtype,
                    got=x.dtype,
                    fix="grads.apply(torch.real) drops the imaginary part",
                )


_WHAT = "gradients and state or parameters"


def _vectors(
    columns: Sequence[Any],
    each: bool,  # noqa: FBT001
    kind: torch.dtype | None = None,
) -> list[Leaves]:
    return [Leaves(column, each, kind) for column in columns]


def _no_gradient(found: Kinds, scalars: Sequence[Any]) -> bool:
    """Return whether nothing has a gradient that must be kept."""
    if not torch.is_grad_enabled():
        return True
    needs = [isinstance(x, torch.Tensor) and x.requires_grad for x in scalars]
    return True not in found.needs and not any(needs)


def _fused_takes(columns: Sequence[Any], *, cpu: bool) -> bool:
    """Return whether the fused kernel takes tensors of one dtype in fitting shapes."""
    if any([x.layout is not torch.strided for x in columns[0]]):
        return False
    first = columns[0][0].device
    return cpu or (
        first.type in _FUSED_DEVICES
        and all([x.device == first for column in columns for x in column])
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


def check_betas(betas: Any) -> None:
    """Raise unless these are two numbers at least 0 and below 1.

    Raises:
        OptionError: they are not.
    """
    if not isinstance(betas, (tuple, list)) or len(betas) != _BOTH:
        raise OptionError("betas are two numbers", expected="(b1, b2)", got=repr(betas))
    check_number("betas[0]", betas[0], 0.0, 1.0)
    check_number("betas[1]", betas[1], 0.0, 1.0)


_BOTH = 2


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
    return opened.alike and _HAS_KERNELS


def fused(
    grads: Leaves,
    moments: Sequence[Leaves],
    count: torch.Tensor,
    params: Leaves | None = None,
    *,
    decoupled: bool = False,
    **options: Any,
) -> tuple[Leaves, list[Leaves]]:
    """Return parameters and moments after a step of Adam, by torch's fused kernel.

    The kernel writes into parameters and moments, so it gets copies. Without `params`
    it gets zeros: what it makes of these is the update.
    """
    # It walks through memory and does not look at strides.
    ours = _contiguous(grads.tensors)
    news = [foreach_clone(_contiguous(m.tensors)) for m in moments]
    if params is None:
        written = foreach_clone(ours)
        foreach_zero(written)
    else:
        written = foreach_clone(_contiguous(params.tensors))
    mean, square, *rest = news
    kernel = fused_adamw if decoupled else fused_adam
    kernel(
        written,
        ours,
        mean,
        square,
        rest[0] if rest else [],
        [count.to(torch.float32)] * len(ours),
        amsgrad=bool(rest),
        **options,
    )
    return grads.like(written), [grads.like(new) for new in news]


def _contiguous(tensors: Sequence[Any]) -> Sequence[Any]:
    if all(map(torch.Tensor.is_contiguous, tensors)):
        return tensors
    return [x if x.is_contiguous() else x.contiguous() for x in tensors]
