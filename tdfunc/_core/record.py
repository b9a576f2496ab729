"""The fields of a record class, and how values become entries of its records.

A record stores what a tree stores: a field is an entry, its annotation says of which
kind. A field ``X | None`` that is None has no entry.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from tdfunc._core._torch import is_tracing
from tdfunc._core.annotations import Kind, evaluated, meaning_of, stands_for
from tdfunc._core.batch import as_device, as_names, as_size
from tdfunc._core.build import Draft, Part
from tdfunc._core.field import CASTS, Field, Options
from tdfunc._core.keys import check_key
from tdfunc._core.leaf import Unbatched, check_own
from tdfunc._core.node import Node, entry_at, make
from tdfunc._core.rows import NonTensorStack
from tdfunc._core.schema import STATIC, Schema
from tdfunc._core.statics import NO_STATICS, NonTensorData, Statics
from tdfunc.errors import (
    FieldError,
    InvalidLeafError,
    OptionError,
    StructureError,
    show_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tdfunc.typing import Device, Path

__all__ = [
    "Record",
    "check_fields",
    "field_of",
    "fill",
    "role",
    "run_hook",
]

_NO_DEFAULT = dataclasses.MISSING
_ABSENT = -2  # the kind, in a token of `Record.known`, of a field that is None
_KNOWN_LIMIT = 64
# Kinds as plain numbers, for the constructor; an optional field has 4 less.
_TENSOR, _VALUE, _OPTIONAL = int(Kind.TENSOR), int(Kind.VALUE), -4


class Record:
    """The fields of one record class.

    Attributes:
        cls: the class.
        names: the fields in the order in which they were declared.
        order: the same, sorted: the order of leaves.
        required: the fields that every record has; the others may be None.
        arguments: what `__post_init__` is given besides, each with its default.
        hints: the evaluated annotations, None where one could not be evaluated yet.
    """

    __slots__ = (
        "arguments",
        "cls",
        "fields",
        "has_hook",
        "hints",
        "initialize",
        "kinds",
        "known",
        "names",
        "options",
        "order",
        "pending",
        "places",
        "required",
        "rules",
        "shaped",
        "shapes",
        "variables",
    )

    def __init__(
        self,
        cls: type[Any],
        declared: dict[str, dataclasses.Field[Any]],
        hints: dict[str, Any],
        pending: dict[str, tuple[Any, str]],
        options: Options,
        variables: dict[Any, Any],
    ) -> None:
        fields = {k: f for k, f in declared.items() if role(f) == "_FIELD"}
        arguments = {k: f for k, f in declared.items() if role(f) == "_FIELD_INITVAR"}
        self.cls = cls
        self.fields = fields
        self.arguments = arguments
        self.hints = hints
        self.pending = pending  # unevaluated annotations and their modules
        self.options = options
        self.variables = variables
        self.names = tuple(fields)
        self.order = tuple(sorted(fields))
        place = {name: at for at, name in enumerate(self.order)}
        self.places = tuple([place[name] for name in self.names])
        self.has_hook = hasattr(cls, "__post_init__")
        self.known: dict[tuple[Any, ...], Schema] = {}  # by the kinds of all fields
        # Schema and batch size, by a batch size and the shapes of the tensors.
        self.shapes: dict[tuple[Any, ...], tuple[Schema, torch.Size]] = {}
        self.initialize: Callable[..., None] = _unready
        self.rules: dict[str, Field] = {}
        self.kinds: tuple[int, ...] | None = None
        self.required: frozenset[str] = frozenset()
        self.shaped = options.check_shapes
        if not pending:
            self._settle()

    def ready(self) -> Record:
        """Return the record with all annotations evaluated.

        Raises:
            OptionError: an annotation names what is not there.
        """
        if self.kinds is None:
            self._settle()
        return self

    def _settle(self) -> None:
        names = {self.cls.__name__: self.cls}
        for name, (annotation, module) in self.pending.items():
            try:
                self.hints[name] = evaluated(annotation, module, names)
            except NameError as error:
                raise OptionError(
                    f"the annotation of {self.cls.__name__}.{name} can not be "
                    f"evaluated: {error}",
                    got=repr(annotation),
                    fix="import the name at run time, not under TYPE_CHECKING",
                ) from error
        rules: dict[str, Field] = {}
        for name in self.names:
            meaning = meaning_of(self.hints[name], self.variables)
            cls = meaning.cls
            casts = self.options.autocast and meaning.kind == Kind.VALUE
            cast = cls if casts and cls in CASTS else None
            shown = stands_for(self.hints[name], self.variables)
            rules[name] = Field(name, meaning, shown, cast)
            tensors = meaning.kind in (Kind.TENSOR, Kind.NODE)
            if self.options.tensor_only and not tensors:
                raise OptionError(
                    f"{self.cls.__name__} is tensor_only, and a field is not",
                    expected="annotations of tensors and trees",
                    got=f"{name}: {self.hints[name]}",
                )
        self.rules = rules
        self.required = frozenset([n for n in rules if not rules[n].meaning.optional])
        # Last, since it says that all the others are there.
        self.kinds = tuple([_number(rules[name]) for name in self.order])

    def undeclared(self, name: str, path: Path | None = None) -> FieldError:
        """Return the error for a field that the class does not declare."""
        return FieldError(
            f"{self.cls.__name__} has no field {name!r}",
            path=path,
            expected=f"one of its fields {', '.join(self.names)}",
            fix="td = td.to_tensordict() takes any entries",
        )

    def part(
        self,
        value: Any,
        path: Path,
        batch_size: torch.Size,
        device: Device | None = None,
    ) -> Part | None:
        """Return a value as the entry of a field, None if it is to have none.

        Raises:
            FieldError: the last key of `path` is no field.
            TdfuncError: what `Field.part` raises.
        """
        field = self.ready().rules.get(path[-1])
        if field is None:
            raise self.undeclared(path[-1], path)
        if field.opens(value):
            cls: Any = field.meaning.cls
            return cls._record.assemble(value, batch_size, device, path)
        return field.part(value, path, batch_size, device)

    def flat(
        self, values: tuple[Any, ...], size: torch.Size
    ) -> tuple[Schema, tuple[Any, ...], Statics] | None:
        """Return what is stored of values in sorted order, None if it takes more.

        The constructor's hot path: tensors and plain statics.
        """
        nb = len(size)
        rows = size[0] if nb == 1 else 0
        kids: list[int] = []
        leaves: list[Tensor] = []
        statics: list[Any] = []
        try:
            for value, kind in zip(values, self.kinds or (), strict=True):
                of = type(value)
                if kind % 4 == _TENSOR and (of is Tensor or of is Parameter):
                    shape = value.shape
                    rank = len(shape) - nb
                    if nb and (
                        rank < 0
                        or (shape[0] != rows if nb == 1 else shape[:nb] != size)
                    ):
                        return None
                    kids.append(rank)
                    leaves.append(value)
                elif value is None and kind < 0:
                    kids.append(_ABSENT)
                elif kind % 4 == _VALUE and not isinstance(value, _SPECIAL):
                    kids.append(STATIC)
                    statics.append(value)
                else:
                    return None
        except RuntimeError:  # a nested tensor of strided layout
            return None
        token = tuple(kids)
        schema = None if is_tracing() else self.known.get(token)
        if schema is None:
            schema = self._schema(token)
        box = Statics(tuple(statics)) if statics else NO_STATICS
        return schema, tuple(leaves), box

    def _schema(self, token: tuple[int, ...]) -> Schema:
        """Return the schema of fields of these kinds, given in sorted order."""
        rows = zip(self.names, self.places, strict=True)
        there = [(name, token[at]) for name, at in rows if token[at] != _ABSENT]
        keys = tuple([name for name, _ in there])
        schema = Schema(self.cls, keys, tuple([kid for _, kid in there]))
        if not is_tracing():
            if len(self.known) >= _KNOWN_LIMIT:
                self.known.clear()
            self.known[token] = schema
        return schema

    def learn(self, shapes: tuple[Any, ...], found: tuple[Schema, torch.Size]) -> None:
        """Keep schema and batch size for the next tensors of these shapes."""
        if len(self.shapes) >= _KNOWN_LIMIT:
            self.shapes.clear()
        self.shapes[shapes] = found

    def assemble(
        self,
        source: Mapping[str, Any] | Node,
        batch_size: torch.Size,
        device: Device | None = None,
        path: Path = (),
    ) -> Part:
        """Return a mapping (or a plain tree) of fields as one record in flat form.

        Fields that are missing have their defaults. Fields that are records are made
        of mappings and plain trees too, and then their `__post_init__` runs. That of
        the record itself is left to the caller.

        Raises:
            StructureError: a field is missing that has no default, or a mapping
                contains itself.
            FieldError: there is an entry that is no field.
            TdfuncError: what `Field.part` raises.
        """
        check_own(source, path)
        stack = [_Frame(self.ready(), source, path, batch_size)]
        inside = {id(source)}
        while True:
            frame = stack[-1]
            for name, value in frame.rest:
                field = frame.record.rules[name]
                here = (*frame.path, name)
                check_own(value, here)
                if field.opens(value):
                    if id(value) in inside:
                        raise StructureError("a mapping contains itself", path=here)
                    inside.add(id(value))
                    cls: Any = field.meaning.cls
                    record = cls._record.ready()
                    stack.append(_Frame(record, value, here, frame.size))
                    break
                part = field.part(value, here, frame.size, device)
                if part is not None:
                    frame.draft.add(name, part)
            else:
                stack.pop()
                inside.discard(id(frame.source))
                record = frame.record
                part = frame.draft.close(record.cls)
                if record.shaped or (stack and record.has_hook):
                    kid: Any = part.kid
                    made = make(kid, part.leaves, part.statics, frame.size, None)
                    if record.shaped:
                        check_shapes(made, record, frame.path)
                    if stack and record.has_hook:
                        source, at = frame.source, frame.path
                        run_hook(made, *record.arguments_of(source, at))
                if not stack:
                    return part
                surplus = len(frame.size) - len(stack[-1].size)
                stack[-1].draft.add(frame.path[-1], part._replace(surplus=surplus))

    def values_of(self, source: Mapping[str, Any] | Node, path: Path) -> dict[str, Any]:
        """Return a value for every field, defaults where `source` has none."""
        given: dict[str, Any] = {}
        keys = source.keys()
        for key in keys:
            if check_key(key, path) not in self.fields:
                if key in self.arguments:
                    continue
                raise self.undeclared(key, (*path, key) if path else None)
            is_tree = isinstance(source, Node)
            given[key] = entry_at(source, (key,)) if is_tree else source[key]
        return self._complete(given, self.fields, path)

    def arguments_of(
        self, source: Mapping[str, Any] | Node, path: Path = ()
    ) -> tuple[Any, ...]:
        """Return what `__post_init__` is given, defaults where `source` has none.

        Raises:
            StructureError: an argument without default is missing.
        """
        given: dict[str, Any] = {}
        for name in self.arguments:
            if name in source:
                is_tree = isinstance(source, Node)
                given[name] = entry_at(source, (name,)) if is_tree else source[name]
        return tuple(self._complete(given, self.arguments, path).values())

    def _complete(
        self,
        given: dict[str, Any],
        declared: dict[str, dataclasses.Field[Any]],
        path: Path,
    ) -> dict[str, Any]:
        """Return values in the order of declaration, with defaults."""
        values: dict[str, Any] = {}
        lacking: list[str] = []
        for name, field in declared.items():
            if name in given:
                values[name] = given[name]
            elif field.default is not _NO_DEFAULT:
                values[name] = field.default
            elif field.default_factory is not _NO_DEFAULT:
                values[name] = field.default_factory()
            elif name in self.required or name in self.arguments:
                lacking.append(name)
            else:
                values[name] = None
        if lacking:
            what = "fields" if declared is self.fields else "arguments"
            raise StructureError(
                f"{self.cls.__name__} has {what} without a value or default",
                path=path or None,
                expected=", ".join(declared),
                got=f"no {', '.join(lacking)}",
            )
        return values


class _Frame:
    """One record under construction in `Record.assemble`."""

    __slots__ = ("draft", "path", "record", "rest", "size", "source")

    def __init__(
        self,
        record: Record,
        source: Any,
        path: Path,
        size: torch.Size,
    ) -> None:
        self.record = record
        self.source = source
        self.path = path
        self.size = size
        if isinstance(source, Node) and source._schema.n:
            own = source.batch_size
            # A tree may have more batch dims than the record around it, not fewer.
            if len(path) and own[: len(size)] == size:
                self.size = own
        self.draft = Draft(path)
        values = record.values_of(source, path)
        self.rest: Iterator[tuple[str, Any]] = iter(values.items())


def fill(
    node: Any,
    record: Record,
    values: tuple[Any, ...],
    batch_size: Any,
    device: Any,
    names: Any,
) -> bool:
    """Store the values of all fields, in sorted order, in a new record.

    Returns:
        Whether this was the initializer of the record's own class. If a class calls
        that of its parent, its own has run, with its defaults for what it adds.
    """
    cls = type(node)
    if cls is not record.cls:
        given = dict(zip(record.order, values, strict=True))
        kwargs = {"batch_size": batch_size, "device": device, "names": names}
        cls._record.initialize(node, **given, **kwargs)
        return False
    size = batch_size if type(batch_size) is torch.Size else as_size(batch_size)
    if record.kinds is None:
        record.ready()
    flat = record.flat(values, size) if device is None else None
    is_flat = flat is not None
    if flat is None:
        given = dict(zip(record.order, values, strict=True))
        part = record.assemble(given, size, as_device(device))
        flat = part.kid, part.leaves, part.statics
    node._schema, node._leaves, node._statics = flat
    node._batch_size = size
    node._names = None if names is None else as_names(names, len(size))
    if record.shaped and is_flat:
        check_shapes(node, record)
    return True


def field_of(node: Any, name: str) -> Any:
    """Return the entry of a record at a declared field, None if it may be None.

    Raises:
        FieldError: the record is a part of one, without this field.
    """
    schema = node._schema
    if schema.child(name) is not None:
        return entry_at(node, (name,))
    if (name,) in schema.amiss()[0]:
        raise FieldError(
            f"this part of a {schema.cls.__name__} has no field {name!r}",
            expected=f"one of {', '.join(schema.keys) or 'no fields'}",
            fix="tdfunc.combine(part, rest) has all fields",
        )
    return None


def run_hook(node: Any, *arguments: Any) -> None:
    """Call `__post_init__`, which may look but returns nothing.

    Raises:
        OptionError: it returned something.
    """
    returned = node.__post_init__(*arguments)
    if returned is not None:
        raise OptionError(
            f"{type(node).__name__}.__post_init__ returned something",
            expected="None: a record can not be exchanged for another",
            got=type(returned).__name__,
            fix="a classmethod that makes the record from other arguments",
        )


def check_shapes(node: Node, record: Record, path: Path = ()) -> None:
    """Check tensors against the annotations of jaxtyping, names bound across fields.

    Not in compiled code, which can not run what jaxtyping does.

    Raises:
        InvalidLeafError: a tensor has another shape or dtype.
    """
    if is_tracing():
        return
    from jaxtyping import jaxtyped

    checked: list[str] = []
    with jaxtyped("context"):
        for name, field in record.rules.items():
            slot = node._schema.slots.get(name)
            shape = field.meaning.shape
            if shape is None or slot is None:
                continue
            leaf = node._leaves[slot]
            if not isinstance(leaf, shape):
                before = f", after {', '.join(checked)}" if checked else ""
                raise InvalidLeafError(
                    "the tensor is not what the annotation of its field says",
                    path=(*path, name),
                    expected=shape.__name__,
                    got=f"{leaf.dtype} of shape {list(leaf.shape)}{before}",
                )
            checked.append(f"{shape.__name__} {name} of shape {list(leaf.shape)}")


def check_fields(old: Schema, new: Schema) -> None:
    """Raise if a record in a new tree has not the fields of its class.

    What was missing in the old tree already (a part of a partition) may be missing.

    Raises:
        StructureError: a field is gone that is not ``X | None``.
        FieldError: there is an entry that is no field.
    """
    if not new.records or new is old:
        return
    lost, extra = new.amiss()
    for path in extra:
        raise FieldError(
            "a record has the fields of its class only",
            path=path,
            expected=f"one of {', '.join(new.field_names(path[:-1]))}",
            fix="td = td.to_tensordict() takes any entries",
        )
    if lost:
        before = old.amiss()[0]
        gone = [path for path in lost if path not in before]
        if gone:
            raise StructureError(
                "a record would lose fields that can not be None",
                got=", ".join(map(show_path, gone)),
                fix="td.to_tensordict() first (or select(..., as_tensordict=True))",
            )


def role(field: Any) -> str:
    """Return whether dataclasses take this for a field, a ClassVar or an InitVar."""
    return field._field_type.name


def _number(field: Field) -> int:
    kind = Kind.ANY if field.cast else field.meaning.kind
    return int(kind) + (_OPTIONAL if field.meaning.optional else 0)


def _unready(*_: Any, **__: Any) -> None:
    raise AssertionError


# What is not kept as it is, whatever the annotation.
_SPECIAL = (Tensor, Node, NonTensorData, NonTensorStack, Unbatched, list, np.ndarray)
