"""Transformations made of transformations: in a row, now and then, on one vector."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tdfunc._core._torch import (
    as_one_vector,
    foreach_works,
    pytree,
    vector_as,
)
from tdfunc.errors import OperandError, OptionError, ShapeError
from tdfunc.optim._base import GradientTransformation, check_state, init_flat
from tdfunc.optim._flat import check_numbers, flatten
from tdfunc.optim._vector import count_from, opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc.optim._flat import Flat

__all__ = ["AccumulateState", "accumulate", "chain", "flat"]


class AccumulateState(NamedTuple):
    """How many gradients came, their mean since the last step, the inner state."""

    step: torch.Tensor
    mean: Any
    inner: Any


def chain(*transformations: GradientTransformation) -> GradientTransformation:
    """Return the transformation that applies these in turn.

    Its state is the tuple of their states.

    Args:
        transformations: each gets the updates of the one before it.

    Raises:
        OptionError: one of them is no transformation.
        StructureError: in `update`: the state has another length.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.chain(optim.clip(1.0), optim.scale(-0.1))
        >>> tx.update(torch.tensor([5.0, 0.5]), tx.init(torch.ones(2)))[0]
        tensor([-0.1000, -0.0500])
    """
    for tx in transformations:
        _check_transformation(tx)

    def init(params: Any, /) -> tuple[Any, ...]:
        return tuple([tx.init(params) for tx in transformations])

    def update(
        grads: Any, state: tuple[Any, ...], params: Any = None, /
    ) -> tuple[Any, tuple[Any, ...]]:
        given = len(state) if isinstance(state, (tuple, list)) else None
        if given != len(transformations):
            raise OperandError(
                "the state is not that of this chain",
                expected=f"{len(transformations)} states",
                got=type(state).__name__ if given is None else given,
                fix="state = tx.init(params)",
            )
        news: list[Any] = []
        for tx, old in zip(transformations, state, strict=True):
            grads, new = tx.update(grads, old, params)
            news.append(new)
        return grads, tuple(news)

    return GradientTransformation(init, update)


def _check_transformation(tx: Any) -> None:
    if not isinstance(tx, tuple) or not hasattr(tx, "update"):
        raise OptionError(
            "this is no transformation",
            expected="what optim.adam(...) and the like return",
            got=type(tx).__name__,
            fix="call it: optim.clip(1.0), not optim.clip",
        )


def accumulate(tx: GradientTransformation, steps: int) -> GradientTransformation:
    """Return the transformation that makes one step of `tx` out of several gradients.

    Updates are zeros, except those of every `steps`-th call: they are what `tx` makes
    of the mean of the gradients since then. Equal batches whose losses are means thus
    add up to one large batch.

    Args:
        tx: the transformation.
        steps: how many gradients make one step.

    Raises:
        OptionError: `steps` is less than 1, or no int.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.accumulate(optim.sgd(1.0), 2)
        >>> updates, state = tx.update(torch.ones(2), tx.init(torch.ones(2)))
        >>> updates, tx.update(3 * torch.ones(2), state)[0]
        (tensor([0., 0.]), tensor([-2., -2.]))
    """
    _check_transformation(tx)
    if not isinstance(steps, Integral) or steps < 1:
        raise OptionError(
            "a step is made of gradients",
            expected="an int, at least 1",
            got=f"steps={steps}",
        )

    def init(params: Any, /) -> AccumulateState:
        flat = init_flat(params, "accumulate.init")
        zeros = flat.closed([torch.zeros_like(x.detach()) for x in flat.tensors])
        return AccumulateState(count_from(flat.tensors), zeros, tx.init(params))

    def update(
        grads: Any, state: AccumulateState, params: Any = None, /
    ) -> tuple[Any, AccumulateState]:
        check_state(state, AccumulateState, "accumulate")
        work = opened("accumulate", [grads, state.mean])
        g, mean = work.vectors
        at = state.step % steps
        count = state.step + 1
        if at.device.type == "cpu" and foreach_works([state.step]):
            # No transform, no tracer: Python may look, and the inner update runs only
            # when its turn has come.
            done = int(at)
            mean = mean.add(g.sub(mean).div(done + 1))
            if done + 1 < steps:
                waiting = AccumulateState(count, work.closed(mean, 1), state.inner)
                return work.closed(g.zeros()), waiting
            updates, inner = tx.update(work.closed(mean, 1), state.inner, params)
            return updates, AccumulateState(count, work.closed(mean.zeros(), 1), inner)
        mean = mean.add(g.sub(mean).div(at + 1))
        ready = at == steps - 1
        full = work.closed(mean, 1)
        updates, inner = tx.update(full, state.inner, params)

        def zero_if(tree: Any, flag: torch.Tensor) -> Any:
            leaves = flatten(tree)
            return leaves.closed(
                [torch.where(flag, torch.zeros_like(x), x) for x in leaves.tensors]
            )

        def choose(new: Any, old: Any) -> Any:
            if not isinstance(new, torch.Tensor):
                return new  # None, where a pytree has it
            return torch.where(ready, new, old)

        return zero_if(updates, ~ready), AccumulateState(
            count,
            zero_if(full, ready),
            pytree.tree_map(choose, inner, state.inner),
        )

    return GradientTransformation(init, update)


def flat(tx: GradientTransformation) -> GradientTransformation:
    """Return `tx` on one vector of all parameters of a dtype, instead of on each leaf.

    The state is a dict of vectors by dtype, so that a step costs one operation instead
    of one for each leaf. Gradients are copied into a vector, and the updates are views
    of one. (Whoever keeps the parameters as one vector, ``vector, unravel =
    tdfunc.ravel(params)``, needs no copy and no `flat`: a tensor is a pytree.)

    Args:
        tx: a transformation that treats every element alike: not one that looks at the
            norms of leaves (`lamb`) or at paths (`masked`).

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> from tdfunc import optim
        >>> params = tdfunc.TensorDict({"w": torch.ones(2, 3), "b": torch.ones(3)})
        >>> tx = optim.flat(optim.adam(0.1))
        >>> state = tx.init(params)
        >>> state.mean["float32"].shape
        torch.Size([9])
        >>> updates, state = tx.update(params, state)
        >>> updates["w"].shape
        torch.Size([2, 3])
    """
    _check_transformation(tx)

    def init(params: Any, /) -> Any:
        return tx.init(_joined(init_flat(params, "flat.init")))

    def update(grads: Any, state: Any, params: Any = None, /) -> tuple[Any, Any]:
        leaves = flatten(grads)
        check_numbers(leaves, "flat.update")
        given = None if params is None else _joined(flatten(params))
        updates, new = tx.update(_joined(leaves), state, given)
        return _parted(leaves, updates), new

    return GradientTransformation(init, update)


def _name(x: torch.Tensor) -> str:
    return _NAMES.get(x.dtype) or str(x.dtype).partition(".")[2]


_NAMES = {torch.float32: "float32", torch.float64: "float64"}


def _joined(leaves: Flat) -> dict[str, torch.Tensor]:
    """Return the elements as one vector for each dtype."""
    rows = _by_dtype(leaves.tensors)
    return {name: _vector([leaves.tensors[at] for at in rows[name]]) for name in rows}


def _by_dtype(tensors: Sequence[Any]) -> dict[str, list[int]]:
    """Return which tensors have which dtype, in the order of the names of dtypes."""
    places: dict[str, list[int]] = {}
    for at, x in enumerate(tensors):
        places.setdefault(_name(x), []).append(at)
    return dict(sorted(places.items()))


def _vector(tensors: list[torch.Tensor]) -> torch.Tensor:
    if as_one_vector is not None and foreach_works(tensors):
        return as_one_vector(tensors)
    return torch.cat([x.reshape(-1) for x in tensors])


def _views(vector: torch.Tensor, likes: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return the pieces of a vector in the shapes of tensors."""
    if vector_as is not None and foreach_works(likes) and foreach_works([vector]):
        return vector_as(vector, likes)
    parts = vector.split([x.numel() for x in likes])
    return [part.view(x.shape) for part, x in zip(parts, likes, strict=True)]


def _parted(leaves: Flat, vectors: dict[str, torch.Tensor]) -> Any:
    """Return the elements of vectors in the shapes of leaves, as views."""
    out: list[Any] = [None] * len(leaves.tensors)
    for name, slots in _by_dtype(leaves.tensors).items():
        likes = [leaves.tensors[at] for at in slots]
        width = sum([x.numel() for x in likes])
        if vectors[name].shape != (width,):
            raise ShapeError(
                "the updates are not those of these gradients",
                expected=[width],
                got=list(vectors[name].shape),
            )
        for at, part in zip(slots, _views(vectors[name], likes), strict=True):
            out[at] = part
    return leaves.closed(out)


torch.serialization.add_safe_globals([AccumulateState])
