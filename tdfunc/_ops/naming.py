"""Names of batch dims: fill in those that are missing, exchange some."""

from __future__ import annotations

from types import EllipsisType
from typing import TYPE_CHECKING

from tdfunc._ops.entries import with_names
from tdfunc.errors import OptionError

if TYPE_CHECKING:
    from tdfunc._core.node import Node, NodeT

__all__ = ["refine_names", "rename"]


def refine_names(td: NodeT, *names: str | EllipsisType | None) -> NodeT:
    """Return the tree with names for batch dims that have none.

    Args:
        td: the tree.
        names: one name for every batch dim: the one that it has, one for a dim without,
            or None to leave that one so. One ``...`` stands for dims that stay as
            they are.

    Raises:
        OptionError: a dim has another name; the number of names is not that of the
            batch dims; a name is no name, or two are equal.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"a": torch.zeros(2, 3, 4)}, [2, 3], names=["env", None])
        >>> td.refine_names(..., "time").names
        ('env', 'time')
    """
    old = _names(td)
    given = list(names)
    places = [i for i, name in enumerate(given) if name is ... or name == "..."]
    if len(places) == 1:
        at = places[0]
        kept = len(old) - (len(given) - 1)
        given[at : at + 1] = old[at : at + max(kept, 0)]
    elif places:
        raise OptionError("... stands for dims once", got=list(names))
    plain = [None if isinstance(name, EllipsisType) else name for name in given]
    if len(plain) == len(old):
        pairs = list(zip(old, plain, strict=True))
        wrong = [(a, b) for a, b in pairs if a is not None and a != b]
        if wrong:
            raise OptionError(
                "dims have other names",
                expected=f"{list(old)}, with names in place of None",
                got=plain,
                fix=f"td.with_names({plain})",
            )
    return with_names(td, plain)


def rename(td: NodeT, *names: str | None, **mapping: str | None) -> NodeT:
    """Return the tree with other names for some batch dims, or for all.

    Args:
        td: the tree.
        names: one name (or None) for every batch dim; a single None removes all names.
        mapping: new names by old ones, instead.

    Raises:
        OptionError: both kinds are given; no dim has one of the old names; the
            number of names is not that of the batch dims, or two are equal.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"a": torch.zeros(2, 3)}, [2, 3], names=["env", "time"])
        >>> td.rename(env="row").names, td.rename("t", None).names
        (('row', 'time'), ('t', None))
    """
    if names and mapping:
        raise OptionError(
            "the names are given twice",
            expected="a name for every dim, or new names by old ones",
            got=f"{list(names)} and {mapping}",
        )
    if not mapping:
        return with_names(td, None if names == (None,) else names)
    old = _names(td)
    unknown = [name for name in mapping if name not in old]
    if unknown:
        raise OptionError(
            "no batch dim has this name",
            expected=f"names out of {list(old)}",
            got=unknown,
            fix="td.refine_names(...) gives names to dims without",
        )
    return with_names(td, [name and mapping.get(name, name) for name in old])


def _names(td: Node) -> tuple[str | None, ...]:
    names = td.names
    return (None,) * td.batch_dims if names is None else names
