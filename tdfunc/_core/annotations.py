"""What the annotation of a field says: a tensor, a node, a static value, or any.

Annotations are evaluated where the class stands. One that names what is not there yet
(the class itself, a class further down) is evaluated again at the first use.
"""

from __future__ import annotations

import sys
import typing
from enum import IntEnum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import torch

from tdfunc._core.node import Node

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Kind",
    "Meaning",
    "evaluated",
    "meaning_of",
    "names_around",
    "stands_for",
    "type_arguments",
]

_WRAPPERS: Final = (Annotated, Final)


class Kind(IntEnum):
    """What a field holds."""

    TENSOR = 0
    NODE = 1
    VALUE = 2  # a static, as given
    ANY = 3  # what the value is


class Meaning(NamedTuple):
    """What an annotation says."""

    kind: Kind
    optional: bool  # None leaves the field out
    cls: type[Any] | None  # of the node, or of the value if it is of one class
    text: bool  # a list is one text for every row
    shape: Any  # an annotation that can check a tensor's shape, or None


def names_around(module: str) -> dict[str, Any]:
    """Return the local names at the class statement or decorator that is running.

    Of code that is in no module (`exec` with a name of its own) the globals too.

    Args:
        module: the name of the module that it stands in.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != module:
        frame = frame.f_back
    if frame is None:
        return {}
    names = {} if module in sys.modules else dict(frame.f_globals)
    if frame.f_locals is not frame.f_globals:
        names |= frame.f_locals
    return names


def evaluated(annotation: Any, module: str, names: Mapping[str, Any]) -> Any:
    """Return an annotation with the strings in it evaluated.

    Raises:
        NameError: it names what is not there.
    """
    # A class, since only there a ClassVar is good.
    holder = type("Holder", (), {"__annotations__": {"field": annotation}})
    known = vars(sys.modules[module]) if module in sys.modules else {}
    hints = typing.get_type_hints(holder, known, dict(names), include_extras=True)
    return hints["field"]


def type_arguments(cls: type[Any]) -> dict[Any, Any]:
    """Return what the bases of a class say of their type variables."""
    found: dict[Any, Any] = {}
    for base in reversed(cls.__mro__):
        for alias in getattr(base, "__orig_bases__", ()):
            parameters = getattr(typing.get_origin(alias), "__parameters__", ())
            arguments = typing.get_args(alias)
            if len(parameters) == len(arguments):
                found.update(zip(parameters, arguments, strict=True))
    return found


def meaning_of(annotation: Any, variables: Mapping[Any, Any]) -> Meaning:
    """Return what an evaluated annotation says.

    Args:
        annotation: a class, a union, or another annotation of `typing`.
        variables: what type variables stand for.
    """
    members = _members(annotation, variables)
    optional = len(members) > 1 and NoneType in members
    members = [m for m in members if m is not NoneType or not optional]
    kinds = {_kind(member) for member in members}
    kind = kinds.pop() if len(kinds) == 1 else Kind.ANY
    cls = None
    if len(members) == 1:
        origin = typing.get_origin(members[0]) or members[0]
        cls = origin if isinstance(origin, type) else None
    elif kind is Kind.NODE:
        kind = Kind.ANY
    is_shaped = kind is Kind.TENSOR and len(members) == 1 and _array_type(members[0])
    shape = members[0] if is_shaped else None
    return Meaning(kind, optional, cls, str in members, shape)


def stands_for(annotation: Any, variables: Mapping[Any, Any]) -> Any:
    """Return what a type variable stands for, any other annotation as it is."""
    seen: set[Any] = set()
    while isinstance(annotation, TypeVar) and annotation not in seen:
        seen.add(annotation)
        annotation = variables.get(annotation, annotation)
    return annotation


def _members(annotation: Any, variables: Mapping[Any, Any]) -> list[Any]:
    """Return the classes that an annotation is a union of."""
    pending, members = [annotation], list[Any]()
    seen: set[int] = set()
    while pending:
        hint = pending.pop(0)
        origin = typing.get_origin(hint)
        if id(hint) in seen:  # a type variable that stands for itself
            members.append(Any)
            continue
        if isinstance(hint, TypeVar):
            seen.add(id(hint))
            default = hint.__constraints__ or (hint.__bound__ or Any,)
            pending += [variables[hint]] if hint in variables else default
        elif origin in _WRAPPERS:
            pending.append(typing.get_args(hint)[0])
        elif origin in (typing.Union, UnionType):
            pending += typing.get_args(hint)
        elif hasattr(hint, "__supertype__"):  # a NewType
            pending.append(hint.__supertype__)
        elif hasattr(hint, "__value__"):  # a type statement
            pending.append(hint.__value__)
        else:
            members.append(NoneType if hint is None else hint)
    return members


def _array_type(hint: Any) -> bool:
    """Return whether an annotation of jaxtyping is one of tensors."""
    array = getattr(hint, "array_type", None)
    return isinstance(array, type) and issubclass(array, torch.Tensor)


def _kind(hint: Any) -> Kind:
    if hint is Any or hint is object:
        return Kind.ANY
    if _array_type(hint):
        return Kind.TENSOR
    origin = typing.get_origin(hint) or hint
    if not isinstance(origin, type):
        return Kind.VALUE
    if issubclass(origin, torch.Tensor):
        return Kind.TENSOR
    return Kind.NODE if issubclass(origin, Node) else Kind.VALUE
