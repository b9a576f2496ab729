"""Trees of Python's own containers, and back.

What the `from_` functions share: containers nest as deep as you like, and inside
them mappings, tuples, named tuples, `torch.return_types`, dataclass instances and
structured arrays become nodes by their keys, positions and fields; all else is what it
is in the constructor.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tdfunc._core.batch import as_size
from tdfunc._core.node import Node, entry_at, make
from tdfunc._core.schema import Schema
from tdfunc._core.statics import NonTensorData
from tdfunc._core.tree import refuse_lazy
from tdfunc._ops.convert import from_dict, to
from tdfunc._ops.entries import set, with_batch_size, with_names
from tdfunc._ops.join import stack
from tdfunc._ops.lazy import lazy_stack, maybe_dense_stack
from tdfunc._ops.peer import is_entry, is_peer, read_entry, read_peer
from tdfunc._ops.restructure import auto_batch_size
from tdfunc.errors import (
    BatchSizeError,
    InvalidKeyError,
    OperandError,
    OptionError,
    StructureError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from tdfunc.typing import FromOptions, Path

__all__ = [
    "children",
    "from_any",
    "from_dataclass",
    "from_list",
    "from_namedtuple",
    "from_tuple",
    "to_namedtuple",
    "to_tensordict",
    "unfolded",
    "with_size",
]


def fields_of(value: Any) -> tuple[str, ...] | None:
    """Return the field names of a named tuple or of a return type of torch, or None."""
    if not isinstance(value, tuple):
        return None
    names = getattr(value, "_fields", None)
    if names is None and hasattr(type(value), "n_sequence_fields"):
        names = getattr(type(value), "__match_args__", None)
    return names


def children(value: Any) -> dict[Any, Any] | None:
    """Return the entries of the node that a container becomes, None if it is none."""
    if isinstance(value, Node) or is_entry(value):
        return None
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        names = fields_of(value)
        keys = map(str, range(len(value))) if names is None else names
        return dict(zip(keys, value, strict=True))
    if isinstance(value, np.ndarray) and value.dtype.names is not None:
        return {name: _field(value[name], value.ndim) for name in value.dtype.names}
    return _instance_fields(value)


def _instance_fields(value: Any) -> dict[Any, Any] | None:
    """Return the fields of an instance of a dataclass, None for all else."""
    if isinstance(value, (Node, type)) or not dataclasses.is_dataclass(value):
        return None
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def _field(column: Any, dims: int) -> Any:
    """Return a field of a structured array; what is not numeric as rows of values."""
    kind = column.dtype.kind
    if column.dtype.names is not None or kind in "biufc":
        return column
    if not dims:
        return NonTensorData(column)
    if kind in "OSU" and column.ndim == dims:
        return column
    rows = np.empty(column.shape[:dims], dtype=object)
    # One by one: NumPy would make dates of `datetime`, and open arrays.
    for place in np.ndindex(rows.shape):
        rows[place] = column[place]
    return rows


def unfolded(
    value: Any,
    opened: Callable[[Any], dict[Any, Any] | None],
    leaf: Callable[[Any, Path], Any] | None = None,
) -> dict[Any, Any]:
    """Return a container as nested dicts.

    Args:
        value: the container.
        opened: gives the entries of a container, None for what is none.
        leaf: what to put in place of all else, given its path; None keeps it.

    Raises:
        StructureError: a container contains itself.
    """
    root: dict[Any, Any] = {}
    first: Iterator[tuple[Any, Any]] = iter((opened(value) or {}).items())
    stack: list[tuple[Path, dict[Any, Any], Iterator[tuple[Any, Any]], int]] = [
        ((), root, first, id(value))
    ]
    inside = {id(value)}
    while stack:
        above, entries, rest, own = stack[-1]
        for key, item in rest:
            path = (*above, key)
            inner = opened(item)
            if inner is None:
                entries[key] = item if leaf is None else leaf(item, path)
                continue
            if id(item) in inside:
                raise StructureError("a container contains itself", path=path)
            inside.add(id(item))
            entries[key] = node = {}
            stack.append((path, node, iter(inner.items()), id(item)))
            break
        else:
            stack.pop()
            inside.discard(own)
    return root


def _wrong(what: str, expected: str, value: Any, fix: str) -> OperandError:
    return OperandError(what, expected=expected, got=type(value).__name__, fix=fix)


def infers(options: FromOptions) -> bool:
    """Return whether the batch size is to be inferred."""
    return bool(options.get("auto_batch_size")) or options.get("batch_dims") is not None


def with_size(options: FromOptions, size: tuple[int, ...]) -> FromOptions:
    """Return the options with a batch size where they say nothing of it."""
    if options.get("batch_size") is not None or infers(options):
        return options
    return {**options, "batch_size": size}


def from_tuple(
    values: tuple[Any, ...],
    **options: Unpack[FromOptions],
) -> Any:
    """Return the tree of a tuple, with keys ``"0"``, ``"1"``, ... in that order.

    Args:
        values: the tuple.
        options: batch size, device and names; see `tdfunc.typing.FromOptions`.

    Raises:
        OperandError: `values` is no tuple, or one with field names.
        TdfuncError: what `from_dict` raises.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> tdfunc.from_tuple((torch.zeros(3), (1, "text")))["1", "0"]
        tensor(1)
    """
    if not isinstance(values, tuple) or fields_of(values) is not None:
        what = "this is no plain tuple"
        raise _wrong(what, "a tuple", values, "tdfunc.from_any(values)")
    return from_dict(unfolded(values, children), **options)


def from_namedtuple(
    values: tuple[Any, ...],
    **options: Unpack[FromOptions],
) -> Any:
    """Return the tree of a named tuple, or of what a torch function returned.

    Args:
        values: a named tuple, or one of `torch.return_types`.
        options: batch size, device and names; see `tdfunc.typing.FromOptions`.

    Raises:
        OperandError: `values` has no field names.
        TdfuncError: what `from_dict` raises.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> td = tdfunc.from_namedtuple(torch.max(torch.eye(3), 0), batch_size=3)
        >>> td.keys()
        ('values', 'indices')
    """
    if fields_of(values) is None:
        what = "this is no named tuple"
        raise _wrong(what, "a tuple with fields", values, "tdfunc.from_any(values)")
    return from_dict(unfolded(values, children), **options)


def from_dataclass(
    value: Any,
    *,
    as_tensorclass: bool = False,
    dest_cls: type[Any] | None = None,
    **options: Unpack[FromOptions],
) -> Any:
    """Return the tree of the fields of a dataclass instance.

    Args:
        value: an instance of a dataclass.
        as_tensorclass: return a record, of a `TensorClass` with the fields and
            annotations of the dataclass. It is made once for every dataclass, has its
            name, and can not be pickled: it is in no module.
        dest_cls: the `TensorClass` of the record to return.
        options: batch size, device and names; see `tdfunc.typing.FromOptions`.

    Raises:
        OperandError: `value` is no such instance; the class itself is none.
        TdfuncError: what `from_dict` raises, of the class where a record is made.

    Examples:
        >>> from dataclasses import dataclass
        >>> import torch
        >>> import tdfunc
        >>> @dataclass
        ... class Step:
        ...     obs: torch.Tensor
        ...     tag: str
        >>> tdfunc.from_dataclass(Step(torch.zeros(3), "a"), batch_size=3)["tag"]
        'a'
    """
    if isinstance(value, type) or not dataclasses.is_dataclass(value):
        raise _wrong(
            "this is no instance of a dataclass",
            "an instance",
            value,
            f"tdfunc.from_dataclass({value.__name__}(...))"
            if isinstance(value, type)
            else "tdfunc.from_any(value)",
        )
    build, opened = from_dict, children
    if as_tensorclass or dest_cls is not None:
        cls: Any = dest_cls or Node._record_class(type(value))
        # What else there is (a tuple, a dict) is a value of a field, not a node.
        build, opened = cls.from_dict, _instance_fields
    return build(unfolded(value, opened), **options)


def from_list(
    rows: list[Any] | tuple[Any, ...],
    *,
    lazy: bool | None = False,
    **options: Unpack[FromOptions],
) -> Any:
    """Return the trees of a list stacked along a new first batch dim.

    Args:
        rows: trees, or containers that `from_any` converts, all with the same entries.
            Texts that are not the same in all become one value per row.
        lazy: keep the rows apart in a lazy stack; None does so only where they are
            not alike.
        options: batch size, device and names of the result; see
            `tdfunc.typing.FromOptions`. The batch size starts with the length of
            `rows`, and what follows is that of each row; by default trees keep their
            own, and other rows have none.

    Returns:
        A tree with copies of all tensors; a lazy stack shares them.

    Raises:
        BatchSizeError: `batch_size` does not start with the length of `rows`, or a
            leaf does not start with the rest of it.
        OperandError: `rows` is empty or no list, or a row is no container.
        StructureError: without `lazy`, rows have other entries or unbatched tensors
            than the first.
        TdfuncError: what `from_dict` and `stack` raise.

    Examples:
        >>> import tdfunc
        >>> rows = [{"x": 1.0, "y": [1, 2]}, {"x": 2.0, "y": [3, 4]}]
        >>> td = tdfunc.from_list(rows)
        >>> td.batch_size, td["y"].shape
        (torch.Size([2]), torch.Size([2, 2]))
    """
    if not isinstance(rows, (list, tuple)) or not rows:
        raise OperandError(
            "there is nothing to stack",
            expected="a list of at least one row",
            got="an empty list" if isinstance(rows, list) else type(rows).__name__,
        )
    inner = None
    batch_size = options.get("batch_size")
    if batch_size is not None:
        whole = as_size(batch_size)
        if whole[:1] != (len(rows),):
            raise BatchSizeError(
                "the batch size does not start with the number of rows",
                expected=f"[{len(rows)}, ...]",
                got=list(whole),
                fix=f"batch_size={[len(rows), *whole[1:]]}",
            )
        inner = whole[1:]
    tds: list[Any] = []
    for at, given in enumerate(rows):
        row = read_entry(given, ())
        if isinstance(row, Node):
            tds.append(row if inner is None else with_batch_size(row, inner))
            continue
        if children(row) is None:
            what = f"row {at} can not become a tree"
            raise _wrong(what, "a tree or a mapping", row, "torch.tensor(rows)")
        entries = unfolded(row, children, read_entry)
        tds.append(from_dict(entries, batch_size=inner or ()))
    joins: dict[bool | None, Callable[..., Any]] = {
        True: lazy_stack,
        False: stack,
        None: maybe_dense_stack,
    }
    return _finished(joins[lazy](tds), options)


def from_any(
    value: Any,
    **options: Unpack[FromOptions],
) -> Any:
    """Return the tree of a container of any kind; what is none comes back unchanged.

    Mappings, tuples, named tuples, `torch.return_types`, dataclass instances,
    structured arrays (whose batch size is their shape) and the containers of
    tensordict become trees; a list of those, or of trees, becomes their stack. Trees,
    tensors, strings, numbers, arrays, other lists and all else are returned as they
    are, whatever the options; the values of tensordict that are no containers
    (`NonTensorData`, `NonTensorStack`, `UnbatchedTensor`) as what `set` takes for them.

    Args:
        value: anything.
        options: batch size, device and names; see `tdfunc.typing.FromOptions`.

    Raises:
        TdfuncError: what the function for this kind raises.

    Examples:
        >>> import tdfunc
        >>> tdfunc.from_any({"pair": (1, 2)})["pair"].keys()
        ('0', '1')
        >>> tdfunc.from_any("text")
        'text'
    """
    convert: Callable[..., Any] = from_dict
    entries = value
    if is_peer(value):
        tree, size = read_peer(value), options.get("batch_size")
        if size is not None and not infers(options):
            tree = with_batch_size(tree, size)
        return _finished(tree, options)
    if isinstance(value, list):
        if not value or not all([_is_row(row) for row in value]):
            return value
        convert = from_list
    elif children(value) is None:
        return read_entry(value, ())
    else:
        entries = unfolded(value, children, read_entry)
        if isinstance(value, np.ndarray):
            options = with_size(options, value.shape)
    return convert(entries, **options)


def _is_row(value: Any) -> bool:
    return isinstance(value, Node) or is_peer(value) or children(value) is not None


def _finished(td: Any, options: FromOptions) -> Any:
    """Return a tree by the options that are not yet seen to."""
    if infers(options):
        batch_size = options.get("batch_size")
        if batch_size is not None:
            raise OptionError(
                "the batch size is given and to be inferred",
                got=f"batch_size={batch_size!r}",
                fix="leave batch_size out to have it inferred",
            )
        td = auto_batch_size(td, options.get("batch_dims"))
    if options.get("device") is not None:
        td = to(td, device=options.get("device"))
    names = options.get("names")
    return td if names is None else with_names(td, names)


def to_namedtuple(td: Node, dest_cls: Callable[..., Any] | None = None) -> Any:
    """Return the entries as a named tuple, nested nodes as named tuples too.

    Batch sizes and dim names are not kept.

    Args:
        td: the tree.
        dest_cls: what to call with the entries of `td` as keywords: a named tuple, a
            dataclass. None makes a class for these keys; trees with the same keys in
            the same order share it. It has no name to be pickled by.

    Raises:
        InvalidKeyError: a key can not be a field.
        StructureError: `dest_cls` does not take these keywords.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"a": 1, "n": {"s": "x"}}).to_namedtuple()
        Entries(a=tensor(1), n=Entries(s='x'))
    """
    refuse_lazy(td, "to_namedtuple")
    walked = td._schema.walk()
    nodes = [((), td._schema.keys)]
    nodes += [(s.path, s.kid.keys) for s in walked if isinstance(s.kid, Schema)]
    built: dict[Path, Any] = {}
    # Parents come before children, so from the end every child is there.
    for path, keys in reversed(nodes):
        values = {}
        for key in keys:
            here = (*path, key)
            values[key] = built.pop(here) if here in built else entry_at(td, here)
        if path or dest_cls is None:
            built[path] = _entries_class(path, keys)(**values)
            continue
        try:
            built[path] = dest_cls(**values)
        except TypeError as error:
            raise StructureError(
                "the class does not take these entries",
                expected=f"what {getattr(dest_cls, '__name__', dest_cls)} takes",
                got=f"{list(keys)} ({error})",
                fix="td.select(...) or td.to_namedtuple()",
            ) from error
    return built[()]


def _entries_class(path: Path, keys: tuple[str, ...]) -> Callable[..., Any]:
    try:
        return _named(keys)
    except ValueError as error:
        raise InvalidKeyError(
            "a key can not be the field of a named tuple",
            path=path,
            expected="identifiers that do not start with an underscore",
            got=error,
            fix="td.to_dict()",
        ) from error


@lru_cache(maxsize=256)
def _named(keys: tuple[str, ...]) -> Callable[..., Any]:
    made: Any = collections.namedtuple  # noqa: PYI024 - the fields are data
    return made("Entries", keys)


def to_tensordict(td: Node, *, retain_none: bool = False) -> Any:
    """Return the tree with every node a plain `TensorDict`, sharing all leaves.

    Args:
        td: the tree.
        retain_none: add a static None where a record has a field that is None.

    Examples:
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"a": 1})
        >>> td.to_tensordict() is td
        True
    """
    if td._schema.lazy:
        lazy: Any = td
        td = lazy.densify()
    size = td.batch_size
    schema = td._schema.of_class(Node._plain)
    if schema is td._schema:
        return td
    plain = make(schema, td._leaves, td._statics, size, td._names)
    if retain_none:
        for path in td._schema.absent():
            plain = set(plain, path, None)
    return plain
