"""Distributions from what a tree holds, and values from distributions."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import distributions as D
from torch.distributions import constraints

from tdfunc._core._torch import is_tracing
from tdfunc.errors import OperandError, OptionError
from tdfunc.nn._draw import draw
from tdfunc.nn._interaction import InteractionType
from tdfunc.random._samples import has_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tdfunc.typing import Path

__all__ = [
    "Recipe",
    "build",
    "check_parameters",
    "check_value",
    "is_known",
    "needed_key",
    "overlap_of",
    "recipe_of",
    "value_of",
    "with_suffix",
]


def with_suffix(path: Path, suffix: str) -> Path:
    """Return a path with something added to its last key."""
    return (*path[:-1], path[-1] + suffix)


def overlap_of(paths: Iterable[Path]) -> Path | None:
    """Return a path that is another one too, or goes on below it; None without one."""
    ordered = sorted(paths)
    for before, path in pairwise(ordered):
        if path[: len(before)] == before:
            return path
    return None


_NO_SHAPE: Final = torch.Size()

# Building


class Recipe(NamedTuple):
    """How a distribution is made of what a tree holds."""

    cls: Any
    """A class of distributions, or a function that returns one."""
    known: bool
    """Whether it is one of torch or of this package."""
    checks: tuple[tuple[str, Any], ...]
    """Arguments that can not be just any numbers, with the constraint of each."""


def recipe_of(cls: Any) -> Recipe:
    """Return what `build` needs to know of a class of distributions."""
    known = is_known(cls)
    # Nothing can be checked in compiled code.
    declared: Any = cls.arg_constraints if known and not is_tracing() else None
    if not isinstance(declared, dict):
        return Recipe(cls, known, ())
    pairs = [
        (name, constraint)
        for name, constraint in declared.items()
        if not constraints.is_dependent(constraint) and constraint not in _FREE
    ]
    return Recipe(cls, known, tuple(pairs))


def build(
    recipe: Recipe,
    params: dict[str, Any],
    options: dict[str, Any],
    paths: Mapping[str, Path],
) -> Any:
    """Return a distribution of parameters that come from a tree.

    A class of torch or ours does not validate its arguments by itself, which costs as
    much as all the rest and can not be done under `vmap`; what is checked is below.

    Args:
        recipe: how it is made.
        params: arguments, by name.
        options: more arguments.
        paths: where the parameters come from, for errors.

    Raises:
        OperandError: the arguments are not those of the class, or one has values that
            the class does not take.
    """
    cls = recipe.cls
    kwargs = {**params, **options} if options else params.copy()
    if recipe.known and "validate_args" not in kwargs:
        kwargs["validate_args"] = False
    try:
        dist = cls(**kwargs)
    except TypeError as error:
        if isinstance(error, OptionError) or not _is_signature_error(error):
            raise
        raise OperandError(
            "the parameters from the tree are not those of the distribution",
            expected=f"the arguments of {_name(cls)}: {error}",
            got=", ".join(params),
            fix="in_keys={'loc': key, ...} names the argument of each entry",
        ) from error
    check_parameters(recipe, params, paths)
    return dist


def check_parameters(
    recipe: Recipe, params: dict[str, Any], paths: Mapping[str, Path]
) -> None:
    """Check the parameters of a distribution, where they can be read.

    Raises:
        OperandError: one has values that the class does not take.
    """
    if recipe.checks and not is_tracing():
        for name, constraint in recipe.checks:
            value = params.get(name)
            if isinstance(value, torch.Tensor) and has_values(value):
                _check(constraint, value, name, recipe.cls.__name__, paths.get(name))


def is_known(cls: Any) -> bool:
    """Return whether a class of distributions is one of torch or of this package."""
    home = getattr(cls, "__module__", "")
    return (
        isinstance(cls, type)
        and issubclass(cls, D.Distribution)
        and (home.startswith(("torch.distributions.", "tdfunc.nn.")))
    )


def _is_signature_error(error: TypeError) -> bool:
    text = str(error)
    return "unexpected keyword argument" in text or "required" in text


def _name(cls: Any) -> str:
    return getattr(cls, "__name__", repr(cls))


# Any number, for which NaN is looked for in results only.
_FREE: Final = (constraints.real, constraints.real_vector)


def _check(
    constraint: Any, value: torch.Tensor, what: str, cls: str, path: Path | None
) -> None:
    if constraint is constraints.positive:
        # The least number: two operations instead of three. NaN is not above 0.
        right = not value.numel() or value.min().item() > 0
    else:
        right = bool(constraint.check(value).all())
    if right:
        return
    bad = ~constraint.check(value)
    raise OperandError(
        f"{what} of {cls} has values that it can not have",
        path=path,
        expected=str(constraint),
        got=f"others in {int(bad.sum())} of {bad.numel()} places",
    )


def check_value(dist: Any, value: Any, path: Path | None) -> None:
    """Check that a distribution may have a value, where it can be read.

    Raises:
        OperandError: it may not.
    """
    if is_tracing() or not isinstance(value, torch.Tensor) or not has_values(value):
        return
    try:
        support = dist.support
    except NotImplementedError:
        return
    if support is None or support in _FREE or constraints.is_dependent(support):
        return
    _check(support, value, "the value", type(dist).__name__, path)


# Values

# What DETERMINISTIC takes where neither the mode nor the mean is the answer for all of
# a kind: Cauchy's mean does not exist.
_MODES: Final = (D.Cauchy, D.HalfCauchy)


def value_of(
    dist: Any,
    interaction: InteractionType,
    key: torch.Tensor | None,
    sample_shape: torch.Size = _NO_SHAPE,
    draws: int = 1000,
    path: Path | None = None,
) -> Any:
    """Return a value of a distribution, taken as an interaction type says.

    Args:
        dist: the distribution.
        interaction: how.
        key: [2], or None if none is needed.
        sample_shape: dims in front: of independent draws, or of views of one value.
        draws: of how many draws a mean is that has no formula.
        path: where the value goes, for errors.

    Raises:
        OptionError: there is no such value, or a key is needed and none is given.
    """
    own = getattr(dist, "value_of", None)
    if own is not None:
        return own(interaction, key, sample_shape, draws)
    if interaction is InteractionType.RANDOM:
        return draw(dist, needed_key(key, "a draw", path), sample_shape)
    if interaction is InteractionType.DETERMINISTIC:
        value = _deterministic(dist, key, draws, path)
    elif interaction is InteractionType.MEAN:
        value = _mean(dist, key, draws, path)
    elif interaction is InteractionType.MEDIAN:
        value = _median(dist, path)
    else:
        value = _attribute(dist, "mode")
        if value is None:
            raise _no_value(dist, "mode", path)
    if not sample_shape:
        return value
    return value.expand(sample_shape + value.shape)


def needed_key(key: torch.Tensor | None, what: str, path: Path | None) -> torch.Tensor:
    """Return a key, which something needs.

    Raises:
        OptionError: there is none.
    """
    if key is None:
        raise OptionError(
            f"{what} needs a key",
            path=path,
            got="key=None",
            fix="key=tdfunc.random.key(0), or interaction_type='deterministic'",
        )
    return key


def _attribute(dist: Any, name: str) -> Any:
    """Return an attribute, None if the distribution does not have it."""
    try:
        return getattr(dist, name, None)
    except NotImplementedError:
        return None


def _no_value(dist: Any, what: str, path: Path | None) -> OptionError:
    return OptionError(
        f"{type(dist).__name__} has no {what}",
        path=path,
        fix="interaction_type='random', or another one that it has",
    )


def _base_of(dist: Any) -> Any:
    """Return the distribution whose values these are."""
    while isinstance(dist, D.Independent):
        dist = dist.base_dist
    return dist


def _mean(dist: Any, key: torch.Tensor | None, draws: int, path: Path | None) -> Any:
    base = _base_of(dist)
    if isinstance(base, D.Categorical):
        # torch gives NaN: indices have no mean.
        raise OptionError(
            f"{type(base).__name__} has no mean: its values are indices",
            path=path,
            fix="interaction_type='mode'",
        )
    value = _attribute(dist, "mean")
    if value is not None:
        return value
    key = needed_key(
        key, f"the mean of {type(base).__name__}, which has no formula,", path
    )
    return draw(dist, key, (draws,)).mean(0)


def _median(dist: Any, path: Path | None) -> Any:
    base = _base_of(dist)
    value = _attribute(base, "median")
    if value is not None:
        return value
    if not base.event_shape and type(base).icdf is not D.Distribution.icdf:
        like = _attribute(base, "mean")
        half = torch.full(base.batch_shape, 0.5)
        if isinstance(like, torch.Tensor):
            half = half.to(like)
        try:
            return base.icdf(half)
        except NotImplementedError:
            pass
    raise _no_value(dist, "median", path)


def _deterministic(
    dist: Any, key: torch.Tensor | None, draws: int, path: Path | None
) -> Any:
    base = _base_of(dist)
    value = _attribute(dist, "deterministic_sample")
    if value is None:
        # Independent leaves the values of its base as they are.
        value = _attribute(base, "deterministic_sample")
    if value is not None:
        return value
    if isinstance(base, D.LogisticNormal):
        value = base.base_dist.base_dist.loc
        for transform in base.transforms:
            value = transform(value)
        return value
    if isinstance(base, D.LKJCholesky) or not _is_of_torch(base):
        raise OptionError(
            f"nobody says what the deterministic value of {type(base).__name__} is",
            path=path,
            expected="a property deterministic_sample, or a distribution of torch",
            fix="interaction_type='mean', or one of 'mode', 'median' and 'random'",
        )
    if base.has_enumerate_support or isinstance(base, _MODES):
        value = _attribute(dist, "mode")
        if value is not None:
            return value
        if not isinstance(base, D.Categorical):
            return _mean(dist, key, draws, path)
        raise _no_value(dist, "mode", path)
    return _mean(dist, key, draws, path)


def _is_of_torch(dist: Any) -> bool:
    return any([is_known(cls) for cls in type(dist).__mro__[:-2]]) and (
        type(dist) not in (D.Distribution, D.ExponentialFamily)
    )
