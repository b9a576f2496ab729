"""Typed records: classes whose annotated fields are the entries of a tree.

A record is stored as a `TensorDict` is, and has the same operations. What its class
adds is known at definition: which fields there are, and of which kind each is. The
fields are properties that read an entry; the records themselves have no attributes.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from functools import cached_property, partialmethod, singledispatchmethod
from inspect import getattr_static
from itertools import count
from types import FunctionType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Protocol,
    Self,
    TypeVar,
    dataclass_transform,
    overload,
)
from weakref import WeakKeyDictionary

import torch

from tdfunc._core._torch import is_tracing
from tdfunc._core.annotations import Kind, evaluated, names_around, type_arguments
from tdfunc._core.batch import as_device, as_names, as_size
from tdfunc._core.field import Options
from tdfunc._core.leaf import check_own
from tdfunc._core.node import HOMES, Node, make
from tdfunc._core.record import Record, field_of, fill, role, run_hook
from tdfunc._core.statics import NO_STATICS, Statics
from tdfunc._ops import restructure
from tdfunc._pytree import register
from tdfunc._tensordict import Tree
from tdfunc.errors import InvalidLeafError, OptionError, PureNameError
from tdfunc.io import _files

if TYPE_CHECKING:
    from abc import ABCMeta
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Unpack

    from tdfunc.typing import (
        Device,
        DimNames,
        FileName,
        Index,
        LoadOptions,
        Size,
    )

__all__ = ["TensorClass", "tensorclass"]

_ClassT = TypeVar("_ClassT")

_ARGUMENTS = ("batch_size", "device", "names")
_NUMBERS = count()


class _Unset:
    """Stands in signatures for what a default factory makes, as in dataclasses."""

    def __repr__(self) -> str:
        return "<factory>"


_UNSET: Any = _Unset()


@dataclasses.dataclass(init=False, repr=False, eq=False)
class _Carried:
    # What `dataclasses.replace` has to pass on, though it is no field.
    batch_size: dataclasses.InitVar[Any] = None
    names: dataclasses.InitVar[Any] = None


def _argument(*, default: Any, alias: str, kw_only: bool) -> Any:
    """Tell type checkers of an argument that is no field."""
    del alias, kw_only
    return default


if TYPE_CHECKING:
    _AbstractMeta = ABCMeta
else:
    # Derived from ABCMeta, and mixes with protocols too.
    _AbstractMeta = type(Protocol)


@dataclass_transform(
    frozen_default=True,
    eq_default=False,
    field_specifiers=(dataclasses.field, dataclasses.Field, _argument),
)
class TensorClassMeta(_AbstractMeta):
    """Makes the classes of records: reads the annotations, registers the class."""

    def __new__(  # noqa: PLR0913 - the options of a class
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        autocast: bool | None = None,
        nocast: bool | None = None,
        tensor_only: bool | None = None,
        shadow: bool | None = None,
        check_shapes: bool | None = None,
        kw_only: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the class; see `TensorClass` for the options."""
        if namespace.setdefault("__slots__", ()):
            raise OptionError(
                f"{name} declares slots",
                expected="annotated fields: a record has no other attributes",
                got=namespace["__slots__"],
            )
        cls: Any = super().__new__(mcs, name, bases, namespace, **kwargs)
        if not any([isinstance(base, TensorClassMeta) for base in bases]):
            return cls  # TensorClass itself
        if autocast and nocast:
            raise OptionError("autocast and nocast exclude each other", got=name)
        given = {
            "autocast": False if nocast else autocast,
            "tensor_only": tensor_only,
            "shadow": shadow,
            "check_shapes": check_shapes,
        }
        parent = next((b._record for b in cls.__mro__[1:] if _is_record(b)), None)
        options = Options() if parent is None else parent.options
        options = options._replace(**{k: v for k, v in given.items() if v is not None})
        _define(cls, options, kw_only=kw_only)
        return cls


def _is_record(cls: Any) -> bool:
    return getattr(cls, "_record", None) is not None


def _record_of(cls: type[Any]) -> Record:
    """Return the fields of a class.

    Raises:
        OptionError: it declares none.
    """
    if cls._record is None:
        raise OptionError(
            f"{cls.__name__} declares no fields",
            fix="class Obs(TensorClass): pos: torch.Tensor",
        )
    return cls._record


def _define(cls: Any, options: Options, *, kw_only: bool) -> None:
    """Give a new class its fields, its initializer and its places in registries."""
    own, pending = _evaluated(cls)
    given = {name: vars(cls)[name] for name in own if name in vars(cls)}
    # Dataclasses look for the names in strings in the module.
    module = cls.__module__ if cls.__module__ in sys.modules else __name__
    body = {"__annotations__": own, "__module__": module, **given}
    # The dataclass of the same annotations says what they mean to dataclasses.
    holder: Any = type(cls.__name__, (), body)
    holder = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(
        holder
    )
    declared: dict[str, Any] = {}
    for base in cls.__mro__[:0:-1]:
        declared |= getattr(base, "__dataclass_fields__", {})
    declared = {k: v for k, v in declared.items() if k not in _ARGUMENTS}
    declared |= holder.__dataclass_fields__
    fields = {f.name: f for f in declared.values() if role(f) == "_FIELD"}
    _check_bases(cls)
    for name in fields:
        if name in holder.__dataclass_fields__:
            _check_name(cls, name, options)
        else:
            _inherit(cls, name, options)
    hints, pending = _hints(cls, fields, own, pending)
    cls._record = Record(cls, declared, hints, pending, options, type_arguments(cls))
    for name, field in holder.__dataclass_fields__.items():
        if name in fields:
            setattr(cls, name, _reader(name))
        elif field.default is not dataclasses.MISSING:
            setattr(cls, name, field.default)
    cls.__dataclass_fields__ = {**declared, **_Carried.__dataclass_fields__}
    cls.__match_args__ = tuple(
        [f.name for f in fields.values() if f.init and not f.kw_only]
    )
    initialize = _initializer(cls, declared)
    cls._record.initialize = initialize
    if "__init__" not in vars(cls):
        cls.__init__ = initialize
    if cls.__dictoffset__:
        cls.__setattr__ = _set_slot  # a base without __slots__ gave records a dict
    cls._home = f"{cls.__name__}_{next(_NUMBERS)}"
    setattr(HOMES, cls._home, cls)
    is_local = "<locals>" in cls.__qualname__
    register(cls, None if is_local else f"{cls.__module__}.{cls.__qualname__}")


def _check_name(cls: type[Any], name: str, options: Options) -> None:
    """Raise if a field hides what a record needs, or a method.

    Raises:
        OptionError: it does.
    """
    if name.startswith("_"):
        raise OptionError(
            f"the field {cls.__name__}.{name} starts with an underscore",
            fix="a public name: the fields are the entries of a tree",
        )
    there = getattr_static(TensorClass, name, None)
    needed = name in _ARGUMENTS or name == "self" or hasattr(Node, name)
    if needed or (not options.shadow and hasattr(TensorClass, name)):
        kind = "method" if callable(there) else "attribute"
        raise OptionError(
            f"the field {cls.__name__}.{name} would hide the {kind} {name!r} of trees",
            fix="another name"
            if needed
            else f"another name, or class {cls.__name__}(TensorClass, shadow=True): "
            f"then tdfunc.{name}(obj) is the operation",
        )


def _evaluated(cls: type[Any]) -> tuple[dict[str, Any], dict[str, tuple[Any, str]]]:
    """Return the annotations of a class, and which could not be evaluated yet."""
    own = inspect.get_annotations(cls)
    pending: dict[str, tuple[Any, str]] = {}
    if not any([isinstance(hint, str) for hint in own.values()]):
        return own, pending
    around = names_around(cls.__module__) | {cls.__name__: cls}
    for name, annotation in own.items():
        try:
            own[name] = evaluated(annotation, cls.__module__, around)
        except NameError:
            pending[name] = annotation, cls.__module__
    return own, pending


def _hints(
    cls: type[Any],
    fields: dict[str, Any],
    own: dict[str, Any],
    pending: dict[str, tuple[Any, str]],
) -> tuple[dict[str, Any], dict[str, tuple[Any, str]]]:
    """Return the annotations of all fields, and which could not be evaluated yet."""
    hints: dict[str, Any] = {}
    left: dict[str, tuple[Any, str]] = {}
    homes = _declaring(cls)
    for name, field in fields.items():
        base = homes[name]
        record: Record | None = getattr(base, "_record", None)
        if base is cls:
            known, waiting = own, pending
        elif record is not None:
            known, waiting = record.hints, record.pending
        else:  # a dataclass that is mixed in
            known = {name: evaluated(field.type, base.__module__, {})}
            waiting = {}
        if name in waiting and (base is cls or name not in known):
            left[name] = waiting[name]
        else:
            hints[name] = known[name]
    return hints, left


def _declaring(cls: type[Any]) -> dict[str, type[Any]]:
    """Return the class in which each field is annotated."""
    homes: dict[str, type[Any]] = {}
    for base in reversed(cls.__mro__):
        # What others annotate, a protocol say, are no fields.
        if base is cls or "__dataclass_fields__" in vars(base):
            homes |= dict.fromkeys(inspect.get_annotations(base), base)
    return homes


def _check_bases(cls: type[Any]) -> None:
    """Raise if the methods that a dataclass made would hide those of records.

    Raises:
        OptionError: they would.
    """
    for base in cls.__mro__[: cls.__mro__.index(TensorClass)]:
        if dataclasses.is_dataclass(base) and not isinstance(base, TensorClassMeta):
            raise OptionError(
                f"the methods of the dataclass {base.__name__} would hide those of "
                f"{cls.__name__}",
                fix=f"class {cls.__name__}(TensorClass, {base.__name__})",
            )


def _hiding(cls: type[Any], name: str) -> type[Any] | None:
    """Return the class that hides an inherited field by an attribute, if one does."""
    for base in cls.__mro__:
        if name in vars(base):
            there = vars(base)[name]
            is_field = _is_reader(there) or "__dataclass_fields__" in vars(base)
            return None if is_field and base is not cls else base
    return None


def _inherit(cls: Any, name: str, options: Options) -> None:
    """Have an inherited field read by its name.

    Raises:
        OptionError: a class on the way has an attribute of the name.
    """
    is_read = _is_reader(getattr_static(cls, name, None))
    if not is_read:
        _check_name(cls, name, options)
    hiding = _hiding(cls, name)
    if hiding is not None and (hiding is cls or not options.shadow):
        there = vars(hiding)[name]
        kind = "method" if callable(there) else "attribute"
        fix = "another name"
        if hiding is not cls:
            fix += (
                f", or class {cls.__name__}(..., shadow=True): then the field is read"
            )
        elif kind == "attribute" and not isinstance(there, property):
            fix = (
                f"{name}: <its annotation> = {there!r} is another default of the field"
            )
        raise OptionError(
            f"the {kind} {name!r} of {hiding.__name__} hides the field "
            f"{cls.__name__}.{name}",
            fix=fix,
        )
    if not is_read:
        setattr(cls, name, _reader(name))


def _reader(name: str) -> Any:
    """Return the property that reads a field."""

    def read(self: Any) -> Any:
        try:
            return self._leaves[self._schema.slots[name]]
        except KeyError:
            return field_of(self, name)

    def write(_: Any, value: Any) -> None:
        del value
        raise PureNameError(
            f"setting {name!r} would change the record",
            fix=f"obj = obj.replace({name}=value)",
        )

    def delete(_: Any) -> None:
        raise PureNameError(
            f"deleting {name!r} would change the record",
            fix=f"obj = obj.replace({name}=None) for a field that may be None",
        )

    return property(read, write, delete)


_READ = _reader("").fget.__code__


def _is_reader(value: Any) -> bool:
    """Return whether an attribute of a class reads a field."""
    return isinstance(value, property) and getattr(value.fget, "__code__", 0) is _READ


def _initializer(cls: Any, declared: dict[str, Any]) -> Callable[..., None]:
    """Return the function that stores the fields of a new record.

    Written as source, as dataclasses do: Python then binds the arguments, faster than
    any code of ours could.
    """
    record = cls._record
    taken = [f for f in declared.values() if role(f) != "_FIELD_CLASSVAR"]
    known: dict[str, Any] = {
        "_record": record,
        "_fill": fill,
        "_hook": run_hook,
        "_empty": torch.Size(),
        "_type": type,
        "_int": int,
        "_list": list,
        "_tuple": tuple,
        # A nested tensor of strided layout has no shape, and a shape may be new.
        "_misses": (KeyError, RuntimeError, TypeError),
    }
    positional: list[str] = []
    keywords = [f"{name}=None" for name in _ARGUMENTS]
    keywords[0] = "batch_size=_empty"
    lines: list[str] = []
    started = ""
    for field in taken:
        name = field.name
        _check_argument(cls, name)
        text = name
        known[f"_default_{name}"] = field.default
        if field.default_factory is not dataclasses.MISSING:
            known[f"_default_{name}"], known[f"_make_{name}"] = (
                _UNSET,
                field.default_factory,
            )
            lines += [f"if {name} is _default_{name}: {name} = _make_{name}()"]
        if known[f"_default_{name}"] is not dataclasses.MISSING:
            text = f"{name}=_default_{name}"
        if not field.init:
            if text == name:
                raise OptionError(
                    f"{cls.__name__}.{name} is no argument and has no default",
                    fix="field(init=False, default=...)",
                )
            lines.insert(0, f"{name} = _default_{name}")
        elif field.kw_only:
            keywords.insert(-len(_ARGUMENTS), text)
        else:
            if started and text == name:
                raise TypeError(
                    f"{cls.__name__}: argument {name!r} without default follows "
                    f"{started!r}"
                )
            started = "" if text == name else name
            positional.append(text)
    stored = "".join([f"{name}, " for name in record.order])
    hooked = "".join([f", {f.name}" for f in taken if role(f) == "_FIELD_INITVAR"])
    hook = f"_hook(self{hooked})" if record.has_hook else "return"
    lines += _quick_lines(cls, record, known, hook)
    lines += [
        f"if _fill(self, _record, ({stored}), batch_size, device, names):",
        "    if _key is not None:",
        "        _record.learn(_key, (self._schema, self._batch_size))",
        f"    {hook}",
    ]
    head = ", ".join(["self", *positional, "*", *keywords, "**_unknown"])
    lines.insert(0, "if _unknown: raise _record.undeclared([*_unknown][0])")
    source = f"def __init__({head}):\n" + "".join([f"    {line}\n" for line in lines])
    # The names in it are identifiers: dataclasses have checked them.
    exec(source, known)  # noqa: S102
    made = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    made.__annotations__ = {f.name: f.type for f in taken if f.init}
    shown = inspect.signature(made)
    parameters = [p for p in shown.parameters.values() if p.name != "_unknown"]
    made.__signature__ = shown.replace(parameters=parameters)
    return made


def _check_argument(cls: type[Any], name: str) -> None:
    """Raise if an argument is called as what the constructor needs.

    Raises:
        OptionError: it is; such names start with an underscore, so it is an InitVar.
    """
    if name.startswith("_"):
        raise OptionError(
            f"the argument {cls.__name__}.{name} starts with an underscore",
            fix=f"{name.strip('_') or 'value'}: InitVar[...], a public name",
        )


def _quick_lines(
    cls: Any, record: Record, known: dict[str, Any], hook: str
) -> list[str]:
    """Return the lines that store plain tensors of shapes that were stored before.

    What a schema says follows from the batch size and the shapes, so one lookup takes
    the place of all checks.
    """
    kinds = dict(zip(record.order, record.kinds or (), strict=False))
    tensors = [name for name in kinds if kinds[name] % 4 == Kind.TENSOR]
    values = [name for name in kinds if kinds[name] % 4 == Kind.VALUE]
    if not tensors or len(tensors) + len(values) < len(record.order) or record.shaped:
        return ["_key = None"]
    known |= {
        "_cls": cls,
        "_Size": torch.Size,
        "_Tensor": torch.Tensor,
        "_Statics": Statics,
        "_no_statics": NO_STATICS,
        "_atoms": frozenset({str, int, float, bool}),
        "_is_tracing": is_tracing,
        "_known": record.shapes,
    }
    plain = " is ".join([f"_type({name})" for name in tensors])
    atoms = "".join([f" and _type({name}) in _atoms" for name in values])
    shapes = "".join([f", {name}.shape" for name in tensors])
    leaves = "".join([f"{name}, " for name in tensors])
    statics = "".join([f"{name}, " for name in values])
    return [
        "_key = None",
        (
            "if device is names is None and _type(self) is _cls "
            f"and {plain} is _Tensor{atoms} and not _is_tracing():"
        ),
        "    _of = _type(batch_size)",
        "    try:",
        # What else there is may be read only once, and `_fill` is to read it.
        "        _size = batch_size if _of is _Size else (",
        "            (batch_size,) if _of is _int else",
        "            _Size(batch_size if _of is _list or _of is _tuple else None))",
        f"        _key = (_size{shapes})",
        "        self._schema, self._batch_size = _known[_key]",
        "    except _misses:",
        "        pass",
        "    else:",
        f"        self._leaves = ({leaves})",
        f"        self._statics = _Statics(({statics}))"
        if values
        else "        self._statics = _no_statics",
        "        self._names = None",
        f"        {hook}",
        "        return",
    ]


def _set_slot(self: Any, name: str, value: Any) -> None:
    """Set what is declared: the slots; fields refuse by themselves."""
    is_field = isinstance(getattr_static(type(self), name, None), property)
    if name not in Node.__slots__ and not is_field:
        raise type(self)._record.undeclared(name)
    object.__setattr__(self, name, value)


class TensorClass(Tree, metaclass=TensorClassMeta):
    """Base of typed records: frozen classes whose annotated fields are a tree.

    Declare fields as in a dataclass. The annotation says what a field holds:

    - a tensor (`torch.Tensor`, or a shape of jaxtyping): a leaf. Numbers and arrays
      become tensors.
    - a `TensorClass` or `TensorDict`: a nested node. A mapping, or a `TensorDict`,
      becomes a record where one is declared.
    - ``X | None``: may be None, and is then not among the keys.
    - `Any`, or a union with tensors: tensors and trees are entries, all else a static.
    - anything else (``str``, ``int``, callables): a static, kept as it is.

    A record has all operations of `TensorDict`, and they return records of its class.
    What would leave out a field that can not be None, or add one, raises;
    ``to_tensordict()`` has free entries. `__post_init__` runs when a record is made
    from fields, never when an operation or a transform makes one; it may check and
    raises to refuse, but can not assign.

    The constructor takes, as keywords after the fields:

    - ``batch_size``: the leading dims that every tensor has, ``[]`` by default.
    - ``device``: where to move the tensors, None to leave them where they are.
    - ``names``: one name (or None) for every batch dim.

    Options of the class, as ``class Obs(TensorClass, autocast=True)``:

    - ``autocast``: convert statics to ``bool``, ``int``, ``float``, ``complex`` or
      ``str`` where that is the annotation; ``nocast`` (the default) takes them back
      from a base.
    - ``tensor_only``: refuse fields that are neither tensors nor nodes.
    - ``shadow``: let fields hide operations, which stay as functions:
      ``tdfunc.sum(obj)``. What every tree needs (``batch_size``, ``keys``, ...) can
      not be hidden.
    - ``check_shapes``: check annotations of jaxtyping against the tensors given, batch
      dims included, a name standing for the same size in all fields; as
      `__post_init__`, when a record is made from fields. Compiled code does not check.
    - ``kw_only``: as of dataclasses.

    Raises:
        BatchSizeError: a tensor does not start with the batch size.
        FieldError: an argument is no field.
        InvalidLeafError: the annotation of a field does not allow its value.
        OptionError: a batch size or names that are none; at definition, a field that
            hides what trees have, or options that exclude each other.
        TypeError: a field without default is not given.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorClass
        >>> class Obs(TensorClass):
        ...     pos: torch.Tensor
        ...     vel: torch.Tensor | None = None
        ...     name: str = "x"
        >>> obs = Obs(pos=torch.zeros(5, 3), batch_size=[5])
        >>> obs[0].pos.shape, obs.name, obs.vel
        (torch.Size([3]), 'x', None)
        >>> (obs + 1).replace(name="y")
        Obs(batch_size=[5], fields={name: 'y', pos: f32[3]})
    """

    __slots__ = ()

    # The metaclass of protocols asks; a subclass that is one says so itself.
    _is_protocol = False

    if TYPE_CHECKING:
        # Arguments of every record, for type checkers: fields to them, with another
        # name, since the attributes of these names are properties.
        _batch_size_argument: Size = _argument(
            default=(), alias="batch_size", kw_only=True
        )
        _device_argument: Device | None = _argument(
            default=None, alias="device", kw_only=True
        )
        _names_argument: DimNames | None = _argument(
            default=None, alias="names", kw_only=True
        )

        @overload
        def __getitem__(self, key: str | tuple[str, ...]) -> Any: ...
        @overload
        def __getitem__(self, key: Index) -> Self: ...
        def __getitem__(self, key: Any) -> Any: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Not that of trees: it would take a user's methods for operations.
        super(Node, cls).__init_subclass__(**kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _record_of(type(self)).initialize(self, *args, **kwargs)

    @classmethod
    def from_dict(
        cls,
        entries: Mapping[str, Any] | Node,
        *,
        batch_size: Size | None = None,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Device | None = None,
        names: DimNames | None = None,
    ) -> Self:
        """Return the record of a mapping; fields that it lacks have their defaults.

        A field ``X | None`` without a default is None. Mappings in it become the nodes
        or records that the annotations name. An `InitVar` is given as an entry too.

        Args:
            entries: the fields.
            batch_size: the batch size, ``[]`` by default.
            auto_batch_size: infer it, as `tdfunc.from_dict` does.
            batch_dims: infer it, with at most this many dims in every node.
            device: where to move the tensors.
            names: a name (or None) for every batch dim.

        Raises:
            FieldError: an entry is no field.
            OptionError: the batch size is given and to be inferred.
            StructureError: a field without default is missing.
            TdfuncError: what the constructor raises.
        """
        infer = auto_batch_size or batch_dims is not None
        if infer and batch_size is not None:
            raise OptionError(
                "the batch size is given and to be inferred",
                got=f"batch_size={batch_size!r}",
                fix="leave batch_size out to have it inferred",
            )
        size = as_size(() if batch_size is None else batch_size)
        record = _record_of(cls)
        part = record.assemble(entries, size, as_device(device))
        kid: Any = part.kid
        obj = make(kid, part.leaves, part.statics, size, None)
        if infer:
            obj = restructure.auto_batch_size(obj, batch_dims)
        if names is not None:
            size, schema = obj.batch_size, obj._schema
            given = as_names(names, len(size))
            obj = make(schema, obj._leaves, obj._statics, size, given)
        if record.has_hook:
            run_hook(obj, *record.arguments_of(entries))
        return obj

    @classmethod
    def from_tensordict(cls, td: Node) -> Self:
        """Return the record with the entries, batch size and names of a tree.

        Args:
            td: a tree whose entries are the fields; nested nodes become the records
                that the annotations name.

        Raises:
            FieldError: an entry is no field.
            StructureError: a field without default is missing.
            InvalidLeafError: `td` is no tree.
            TdfuncError: what the constructor raises.
        """
        check_own(td, ())
        if not isinstance(td, Node):
            raise InvalidLeafError(
                "this is no tree",
                expected="a tree",
                got=type(td).__name__,
                fix=f"{cls.__name__}.from_dict(mapping, batch_size=...)",
            )
        # Not that of `cls`, which a field may hide.
        made: Any = TensorClass.from_dict.__func__
        return made(cls, td, batch_size=td.batch_size, names=td.names)

    @classmethod
    def load(cls, path: FileName, **options: Unpack[LoadOptions]) -> Self:
        """Return the record in a file or directory, of whichever format.

        Args:
            path: the file or directory.
            options: those of `tdfunc.load` but `cls`; see `tdfunc.typing.LoadOptions`.

        Raises:
            TdfuncError: what `tdfunc.load` and `from_tensordict` raise.
        """
        _record_of(cls)
        arguments: Any = {**options, "cls": cls}
        return _files.load(path, **arguments)

    @classmethod
    def load_memmap(cls, path: FileName, **options: Unpack[LoadOptions]) -> Self:
        """Return the record in a directory or archive; see `load`."""
        _record_of(cls)
        arguments: Any = {**options, "cls": cls}
        return _files.load_memmap(path, **arguments)


@overload
@dataclass_transform(
    frozen_default=True,
    eq_default=False,
    field_specifiers=(dataclasses.field, dataclasses.Field),
)
def tensorclass(cls: type[_ClassT], /) -> type[_ClassT]: ...
@overload
@dataclass_transform(
    frozen_default=True,
    eq_default=False,
    field_specifiers=(dataclasses.field, dataclasses.Field),
)
def tensorclass(
    *,
    autocast: bool = ...,
    nocast: bool = ...,
    tensor_only: bool = ...,
    shadow: bool = ...,
    check_shapes: bool = ...,
    kw_only: bool = ...,
) -> Callable[[type[_ClassT]], type[_ClassT]]: ...
def tensorclass(cls: Any = None, /, **options: Any) -> Any:
    """Make a record class of a class with annotated fields: a decorator.

    The class becomes a `TensorClass`; deriving from `TensorClass` does the same, and
    tells type checkers of the operations too.

    Args:
        cls: the class; left out with options: ``@tensorclass(autocast=True)``.
        options: those of `TensorClass`.

    Raises:
        OptionError: the class is a dataclass, or a record already.

    Examples:
        >>> import torch
        >>> from tdfunc import tensorclass
        >>> @tensorclass
        ... class Point:
        ...     x: torch.Tensor
        >>> (Point(torch.ones(2), batch_size=2) * 3).x
        tensor([3., 3.])
    """

    def recorded(cls: Any) -> Any:
        if isinstance(cls, TensorClassMeta):
            base = cls.__bases__[0].__name__
            raise OptionError(
                f"{cls.__name__} is a record already, since it derives from one",
                fix=f"class {cls.__name__}({base}) without @tensorclass; its options "
                f"are keywords: class {cls.__name__}({base}, autocast=True)",
            )
        if "__dataclass_fields__" in vars(cls):
            raise OptionError(
                f"{cls.__name__} is a dataclass already",
                fix="@tensorclass alone, without @dataclass",
            )
        made: Any = _rebased(cls, options)
        return made

    return recorded if cls is None else recorded(cls)


def _rebased(cls: Any, options: dict[str, Any]) -> Any:
    """Return a copy of a class with `TensorClass` as its last base."""
    bases: list[Any] = [base for base in cls.__bases__ if base is not object]
    # Before Generic, which has to be the last, and before the methods of dataclasses.
    last = len(bases) - (typing.Generic in bases)
    data = [i for i, base in enumerate(bases) if dataclasses.is_dataclass(base)]
    bases.insert(min([last, *data]), TensorClass)
    skipped = {"__dict__", "__weakref__"}
    namespace = {k: v for k, v in vars(cls).items() if k not in skipped}
    made: Any = TensorClassMeta(cls.__name__, tuple(bases), namespace, **options)
    # `super()` in a method finds its class in a cell, which still has the old one.
    for function in _functions(namespace.values()):
        for cell in function.__closure__ or ():
            if _content(cell) is cls:
                cell.cell_contents = made
    return made


def _functions(values: Iterable[Any]) -> Iterator[FunctionType]:
    """Yield the functions of a class body, those in properties and wrappers too."""
    pending, seen = list(values), set[int]()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            yield value
            inside = [_content(cell) for cell in value.__closure__ or ()]
            pending += [part for part in inside if isinstance(part, FunctionType)]
            pending.append(value.__dict__.get("__wrapped__"))
        elif isinstance(value, property):
            pending += [value.fget, value.fset, value.fdel]
        elif isinstance(value, (classmethod, staticmethod)):
            pending.append(value.__func__)
        elif isinstance(value, (cached_property, partialmethod, singledispatchmethod)):
            pending.append(value.func)


def _content(cell: Any) -> Any:
    """Return what is in a cell, None for one that is still empty."""
    try:
        return cell.cell_contents
    except ValueError:  # of a name that is assigned later, as that of a local class
        return None


_RECORD_CLASSES: WeakKeyDictionary[type[Any], Any] = WeakKeyDictionary()


def _record_class(cls: type[Any]) -> Any:
    """Return the record class with the fields of a dataclass, made once.

    Dataclasses among its annotations become record classes too.
    """
    known = _RECORD_CLASSES.get(cls)
    if known is not None:
        return known
    namespace: dict[str, Any] = {
        "__annotations__": {},
        "__module__": cls.__module__,
        # In no module, so that nothing can find it by name.
        "__qualname__": f"from_dataclass.<locals>.{cls.__qualname__}",
    }
    around = {cls.__name__: cls}
    homes = _declaring(cls)
    for field in dataclasses.fields(cls):
        home = homes[field.name].__module__
        try:
            hint = evaluated(field.type, home, names_around(home) | around)
        except NameError as error:
            raise OptionError(
                f"the annotation of {cls.__name__}.{field.name} can not be evaluated: "
                f"{error}",
                got=repr(field.type),
                fix="dest_cls=..., a TensorClass with these fields",
            ) from error
        namespace["__annotations__"][field.name] = _as_record(hint, cls)
        if field.default is not dataclasses.MISSING:
            namespace[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            factory: Any = dataclasses.field(default_factory=field.default_factory)
            namespace[field.name] = factory
    made = TensorClassMeta(cls.__name__, (TensorClass,), namespace, kw_only=True)
    _RECORD_CLASSES[cls] = made
    return made


def _as_record(hint: Any, around: type[Any]) -> Any:
    """Return an annotation with dataclasses exchanged for record classes."""
    if hint is around:
        return around.__name__  # itself: found by its name when it is there
    if (
        isinstance(hint, type)
        and dataclasses.is_dataclass(hint)
        and not _is_record(hint)
    ):
        return _record_class(hint)
    if typing.get_origin(hint) in (typing.Union, UnionType):
        members = tuple([_as_record(a, around) for a in typing.get_args(hint)])
        return typing.Union[members]  # noqa: UP007 - members found at run time
    return hint


Node._record_class = staticmethod(_record_class)
