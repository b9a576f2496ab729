"""How a value is taken from a distribution, and the switches of a block of code.

The switches stand in one `threading.local`, which Dynamo traces and guards: a new
thread starts with the defaults, the asyncio tasks of a thread share its values, and
an argument of the call beats them.
"""

from __future__ import annotations

import functools
import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, TypeVar

from tdfunc.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = [
    "InteractionType",
    "as_interaction",
    "composite_lp_aggregate",
    "interaction_type",
    "set_composite_lp_aggregate",
    "set_interaction_type",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_ValueT = TypeVar("_ValueT")


class InteractionType(StrEnum):
    """How a probabilistic module takes a value from its distribution.

    Attributes:
        RANDOM: a draw from the key, differentiable where the distribution is
            reparameterised.
        MODE: the mode of the distribution.
        MEDIAN: its median: an attribute of this name, else ``icdf(0.5)``.
        MEAN: its mean, or the mean of many draws where there is no formula.
        DETERMINISTIC: its `deterministic_sample` if it has one, else the mode if its
            values can be counted up, else the mean.

    Examples:
        >>> from tdfunc.nn import InteractionType
        >>> InteractionType("Random") is InteractionType.RANDOM
        True
    """

    MODE = "mode"
    MEDIAN = "median"
    MEAN = "mean"
    RANDOM = "random"
    DETERMINISTIC = "deterministic"

    @classmethod
    def _missing_(cls, value: object) -> InteractionType | None:
        return _BY_NAME.get(value.lower()) if isinstance(value, str) else None


_BY_NAME = {member.value: member for member in InteractionType}


def as_interaction(value: Any) -> InteractionType:
    """Return an interaction type of itself or of its name in any case.

    Raises:
        OptionError: it is something else.
    """
    if isinstance(value, InteractionType):
        return value
    found = _BY_NAME.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise OptionError(
            "this is no interaction type",
            expected=f"one of {', '.join(map(repr, _BY_NAME))}",
            got=repr(value),
        )
    return found


class _Switches(threading.local):
    # In the dict of each thread from the start: Dynamo guards whether they are there,
    # and a block in compiled code puts them there.
    def __init__(self) -> None:
        self.interaction: InteractionType | None = None
        self.aggregate: bool = False


_SWITCHES = _Switches()


def interaction_type() -> InteractionType | None:
    """Return what `set_interaction_type` set for this thread, None outside of it.

    Examples:
        >>> from tdfunc.nn import interaction_type, set_interaction_type
        >>> with set_interaction_type("mode"):
        ...     print(interaction_type())
        mode
        >>> print(interaction_type())
        None
    """
    return _SWITCHES.interaction


def composite_lp_aggregate() -> bool:
    """Return what `set_composite_lp_aggregate` set for this thread, False by default.

    Examples:
        >>> from tdfunc.nn import composite_lp_aggregate
        >>> composite_lp_aggregate()
        False
    """
    return _SWITCHES.aggregate


class _Block(Generic[_ValueT]):
    """A switch for a ``with`` block, or for the calls of a decorated function."""

    _switch: ClassVar[str]

    # Of this object, for a block inside a block: one value for each that is open.
    def __init__(self, value: _ValueT) -> None:
        self._value = value
        self._before: list[_ValueT] = []

    def __call__(self, fn: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(fn)
        def switched(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            # A block of its own for every call: threads share this object.
            with type(self)(self._value):
                return fn(*args, **kwargs)

        return switched

    def __enter__(self) -> None:
        self._before.append(getattr(_SWITCHES, self._switch))
        setattr(_SWITCHES, self._switch, self._value)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        setattr(_SWITCHES, self._switch, self._before.pop())


class set_interaction_type(_Block[InteractionType | None]):  # noqa: N801 - the peer's name
    """Set how values are taken from distributions, in a block or a function.

    It holds for the thread that enters it, and for every probabilistic module whose
    call does not say otherwise by ``interaction_type=``.

    Args:
        type: an `InteractionType` or its name; None for each module's own default.

    Raises:
        OptionError: `type` is something else.

    Examples:
        >>> from tdfunc.nn import interaction_type, set_interaction_type
        >>> with set_interaction_type("random"), set_interaction_type():
        ...     print(interaction_type())
        deterministic
        >>> set_interaction_type("mean")(interaction_type)()
        <InteractionType.MEAN: 'mean'>
    """

    _switch = "interaction"

    def __init__(
        self, type: InteractionType | str | None = InteractionType.DETERMINISTIC
    ) -> None:
        super().__init__(None if type is None else as_interaction(type))


class set_composite_lp_aggregate(_Block[bool]):  # noqa: N801 - the peer's name
    """Set whether log-probabilities of several parts are one sum, in a block.

    A `ProbabilisticTensorDictModule` reads it when it is made, and keeps it; a
    `CompositeDistribution` reads it in every call that is not told by
    ``aggregate=``.

    Args:
        mode: True for one sum, False for one entry for each part.

    Examples:
        >>> from tdfunc.nn import composite_lp_aggregate, set_composite_lp_aggregate
        >>> with set_composite_lp_aggregate(True):
        ...     print(composite_lp_aggregate())
        True
    """

    _switch = "aggregate"

    def __init__(self, mode: bool = True) -> None:  # noqa: FBT001, FBT002 - the peer's
        super().__init__(bool(mode))
