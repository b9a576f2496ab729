"""Modules of records: what goes in and out are classes with fields."""

from __future__ import annotations

from dataclasses import MISSING
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch

from tdfunc._core.annotations import Kind, meaning_of, type_arguments
from tdfunc._core.keys import short
from tdfunc._tensorclass import TensorClass
from tdfunc.errors import OperandError, OptionError
from tdfunc.nn._dispatch import input_names, keywords_of_forward
from tdfunc.nn._module import TensorDictModuleBase, as_output
from tdfunc.nn._scope import bare, put, read_entry

if TYPE_CHECKING:
    from tdfunc._core.node import Node
    from tdfunc.nn._module import Output
    from tdfunc.typing import Path

__all__ = ["TensorClassModuleBase"]

InT = TypeVar("InT")
OutT = TypeVar("OutT")

_FIRST = 3  # self, params, x


class TensorClassModuleBase(Generic[InT, OutT]):
    """Base of modules from one record class to another.

    A subclass names both, and writes ``forward(self, params, x: In) -> Out``. What
    `forward` takes by keyword can be given in calls; what it takes by ``**`` is what
    its base class takes.

    Raises:
        OptionError: a subclass does not say what goes in and out.
        OperandError: in a call: what goes in or comes out is of another class.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorClass, TensorDict
        >>> from tdfunc.nn import TensorClassModuleBase
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        >>> class Length(TensorClass):
        ...     length: torch.Tensor
        >>> class Norm(TensorClassModuleBase[Point, Length]):
        ...     def forward(self, params, x):
        ...         return Length(length=x.x.norm(dim=-1), batch_size=x.batch_size)
        >>> Norm()(None, Point(x=torch.tensor([3.0, 4.0]))).length
        tensor(5.)
        >>> module = Norm().as_td_module()
        >>> module.in_keys, module.out_keys
        (('x',), ('length',))
    """

    __slots__ = ("__weakref__",)

    input_type: ClassVar[type[Any]]
    """The class of what goes in."""
    output_type: ClassVar[type[Any]]
    """The class of what comes out."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        found = type_arguments(cls)
        ends = (found.get(InT), found.get(OutT))
        if any(isinstance(end, TypeVar) for end in ends):
            return  # generic itself
        if not all([isinstance(e, type) and issubclass(e, TensorClass) for e in ends]):
            raise OptionError(
                f"{cls.__name__} does not say what goes in and out",
                expected="two record classes",
                got=", ".join([getattr(e, "__name__", repr(e)) for e in ends]),
                fix=f"class {cls.__name__}(TensorClassModuleBase[In, Out])",
            )
        cls.input_type, cls.output_type = ends  # pyright: ignore[reportAttributeAccessIssue]

    def forward(self, params: Any, x: InT) -> OutT:  # noqa: ARG002 - to be overridden
        """Return the output; a subclass writes this.

        Args:
            params: the parameters.
            x: the input.
        """
        raise OptionError(
            f"{type(self).__name__} has no forward",
            fix="def forward(self, params, x): return Out(...)",
        )

    def __call__(self, params: Any, x: InT, **options: Any) -> OutT:
        """Return the output.

        Args:
            params: the parameters, None if there are none.
            x: a record of `input_type`.
            options: what `forward` takes by keyword.
        """
        if not isinstance(x, self.input_type):
            raise OperandError(
                f"{type(self).__name__} takes another record",
                expected=self.input_type.__name__,
                got=type(x).__name__,
                fix="module.as_td_module() takes trees with its fields",
            )
        out = self.forward(params, x, **options)
        if not isinstance(out, self.output_type):
            raise OperandError(
                f"{type(self).__name__} returned another record",
                expected=self.output_type.__name__,
                got=type(out).__name__,
            )
        return out

    def init(self, key: torch.Tensor) -> Any:  # noqa: ARG002 - to be overridden
        """Return a tree of parameters that is drawn from a key."""
        return bare(torch.Size())

    def params(self) -> Any:
        """Return the parameters that the module came with, as a tree."""
        return bare(torch.Size())

    def as_td_module(self, output: Output = "merge") -> TensorDictModuleBase:
        """Return the module of trees that reads and writes the fields of the records.

        Args:
            output: ``"merge"`` returns the input with the outputs in it, ``"only"`` and
                ``"empty"`` the outputs, with an empty batch size or that of the input.

        Raises:
            OptionError: there is no such `output`; two fields have one name in a call
                with tensors.
        """
        return _OfRecords(self, as_output(output))


class _OfRecords(TensorDictModuleBase):
    """A module of records on trees."""

    __slots__ = ("_accepts", "_ins", "_module", "_output", "_outs", "_required")

    def __init__(self, module: TensorClassModuleBase[Any, Any], output: Output) -> None:
        self._module = module
        self._output: Output = output
        fields = _field_paths(module.input_type)
        self._ins = tuple(fields)
        self._required = tuple([path for path in fields if fields[path]])
        self._outs = tuple(_field_paths(module.output_type))
        input_names(self._ins)
        self._accepts = keywords_of_forward(type(module), _FIRST)

    @property
    def _options(self) -> frozenset[str]:
        return self._accepts

    @property
    def in_keys(self) -> tuple[Any, ...]:
        return tuple(map(short, self._ins))

    @property
    def needed_keys(self) -> tuple[Any, ...]:
        return tuple(map(short, self._required))

    @property
    def out_keys(self) -> tuple[Any, ...]:
        return tuple(map(short, self._outs))

    def init(self, key: torch.Tensor) -> Any:
        return self._module.init(key)

    def params(self) -> Any:
        return self._module.params()

    def forward(self, params: Any, td: Any, **options: Any) -> Any:
        cls: Any = self._module.input_type
        own = td if isinstance(td, cls) else None
        if own is None:
            ins = td.select(*self._ins, strict=False, as_tensordict=True)
            own = cls.from_tensordict(ins)
        out: Any = self._module(params, own, **options)
        into = td
        if self._output != "merge":
            into = bare(td.batch_size if self._output == "empty" else torch.Size())
        entries = {p: read_entry(out, p) for p in self._outs if _has(out, p)}
        return put(into, entries) if entries else into


def _has(record: Node, path: Path) -> bool:
    return record._schema.find(path) is not None


def _field_paths(cls: Any) -> dict[Path, bool]:
    """Return the paths of the fields of a record class, those of nested ones too.

    With each, whether it has to be given: neither it nor a record around it has a
    default.
    """
    paths: dict[Path, bool] = {}
    pending: list[tuple[Path, Any, bool]] = [((), cls, True)]
    while pending:
        prefix, owner, needed = pending.pop(0)
        record = owner._record.ready()
        for name in record.names:
            path = (*prefix, name)
            field = record.fields[name]
            own = needed and field.default is field.default_factory is MISSING
            meaning = meaning_of(record.hints[name], record.variables)
            nested = meaning.cls if meaning.kind is Kind.NODE else None
            if nested is not None and issubclass(nested, TensorClass):
                pending.append((path, nested, own))
            else:
                paths[path] = own
    return paths
