"""The tree that files hold, all of it but the bytes of its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from tdfunc.io._folder import (
    META,
    MOST_DIMS,
    PARTS,
    SUFFIX,
    encoded,
    hidden_name,
    is_name,
)
from tdfunc.io._folder_meta import Described, class_names
from tdfunc.io._layout import Array, Jagged, Level, Rows, Static, iter_levels
from tdfunc.io._values import dtype_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc.io._folder import Folder, Where
    from tdfunc.io._layout import Entry
    from tdfunc.io._options import ReadOptions
    from tdfunc.typing import Path

__all__ = ["outline_of"]

# Classes of the peer that show another tree.
_VIEWS = frozenset(
    {
        "_SubTensorDict",
        "_CustomOpTensorDict",
        "_TransposedTensorDict",
        "_PermutedTensorDict",
        "_ViewedTensorDict",
        "_SqueezedTensorDict",
        "_UnsqueezedTensorDict",
    }
)

_PLACEHOLDER = Static(None)


def outline_of(folder: Folder, options: ReadOptions) -> Level:
    """Return the tree in a folder, with arrays that are not read yet.

    Their places are those of the folder. Arrays that no file has as they are, those
    of the peer's nested tensors, have their tensors already.

    Raises:
        FileFormatError: a file is missing, too short, or not what it should be.
        PickleRefusedError: a value was pickled, and that is not allowed.
    """
    return _Reader(Described(folder, options)).tree()


class _Task(NamedTuple):
    """A directory that is still to be read."""

    parent: Level  # where the entry goes
    key: str
    path: Path
    above: Where
    names: tuple[str, ...]  # what the directory may be called
    exact: Static | None = None
    single: bool = False  # a value is that of a row


class _Node(NamedTuple):
    """A node that is being read."""

    level: Level
    where: Where
    path: Path
    foreign: bool  # the peer wrote it
    exact: dict[str, Any]
    ties: dict[str, Any]
    single: list[Any]
    tasks: list[_Task]

    @property
    def file(self) -> Where:
        """Its meta.json."""
        return (*self.where, META)


class _Reader:
    def __init__(self, files: Described) -> None:
        self._files = files
        self._folder = files.folder
        self._wrong = files.wrong
        self._pending: list[_Task] = []
        self._tied: dict[tuple[Any, ...], list[Array]] = {}

    def tree(self) -> Level:
        """Return the whole tree."""
        top = Level(())
        self._pending.append(_Task(top, "", (), (), ()))
        while self._pending:
            self._read(self._pending.pop())
        level = top.entries[""]
        if not isinstance(level, Level):
            raise self._wrong((), "this is one value, not a tree")
        self._settle(level)
        self._tie(level)
        return level

    def _read(self, task: _Task) -> None:
        """Read a directory: a node, one value, or the values of rows."""
        files, path = self._files, task.path
        where, meta = task.above, None
        for where in [(*task.above, name) for name in task.names] or [task.above]:
            meta = files.meta(where)
            if meta is not None:
                break
        if meta is None:
            raise files.missing((*task.above, *task.names[:1], META), path)
        names = class_names(meta)
        if meta.get("_is_non_tensor") is True or names & {"NonTensorData", "MetaData"}:
            static = files.static(where, meta, path, task.exact)
            entry: Entry = Rows((), [static.value]) if task.single else static
        elif "NonTensorStack" in names:
            entry = files.rows(where, meta, path, task.parent)
        elif "LazyStackedTensorDict" in names:
            entry = self._stack(where, meta, path)
        else:
            entry = self._plain_or_record(where, meta, names, path)
        task.parent.entries[task.key] = entry

    # Nodes

    def _plain_or_record(
        self, where: Where, meta: dict[str, Any], names: set[str], path: Path
    ) -> Level:
        record: str | None = None
        held: dict[str, Any] = {}
        # The peer has the entries of a record one directory below.
        while not names & {"TensorDict", "LazyStackedTensorDict"}:
            below = (*where, "_tensordict")
            inner = self._files.meta(below)
            if inner is None:
                self._check_plain(where, meta, names, path)
                break
            record = record or _record_name(meta)
            held = {**self._files.fields(where, meta), **held}
            where, meta = below, inner
            names = class_names(meta)
        if "LazyStackedTensorDict" in names:
            if held:
                raise self._wrong((*where, META), "a stack with fields beside", path)
            level = self._stack(where, meta, path)
        else:
            level = self._node(where, meta, path)
        level.record = level.record or record
        for key, value in held.items():
            level.entries.setdefault(key, Static(value))
        return level

    def _check_plain(
        self, where: Where, meta: dict[str, Any], names: set[str], path: Path
    ) -> None:
        """Check that a class of the peer that we do not know is a plain node."""
        file = (*where, META)
        if names & _VIEWS or isinstance(meta.get("custom_op"), str):
            raise self._wrong(
                file,
                "this is a view of another tree, which is not read",
                path,
                got=meta["_type"],
                fix="load it with tensordict and save td.contiguous()",
            )
        if not isinstance(meta.get("shape"), list):
            raise self._wrong(
                file, "a node of an unknown class", path, got=meta["_type"]
            )

    def _stack(self, where: Where, meta: dict[str, Any], path: Path) -> Level:
        files, file = self._files, (*where, META)
        dim = meta.get("stack_dim")
        if type(dim) is not int or not 0 <= dim < MOST_DIMS:
            raise self._wrong(file, "its 'stack_dim' is no dim", path, got=dim)
        ours = files.ours(where, meta)
        level = Level((), stack_dim=dim)
        if ours is None:
            name = meta.get("stack_dim_name")
            # Joined with those of the members when they are there.
            level.names = (name,) if isinstance(name, str) else None
            count = 0
            while self._folder.locate((*where, str(count), META), 0) is not None:
                count += 1
        else:
            count = ours.get("count")
            level.record = _text_or_none(ours.get("record"))
            if "names" in ours:
                level.names = files.names(file, ours["names"], path)
        if type(count) is not int or count < 0 or (ours is None and not count):
            raise self._wrong(file, "a lazy stack without members", path)
        if ours is not None and not count:
            shape = files.shape(file, ours.get("shape"), path, least=-1)
            if dim >= len(shape) or shape[dim]:
                raise self._wrong(file, "its 'shape' is that of no empty stack", path)
            level.batch_size = shape
        tasks: list[_Task] = []
        for at in range(count):
            # One that is said to have a billion members ends at the first that is not
            # there.
            key = str(at)
            if self._folder.locate((*where, key, META), 0) is None:
                raise files.missing((*where, key, META), (*path, key))
            level.entries[key] = _PLACEHOLDER
            tasks.append(_Task(level, key, (*path, key), where, (key,)))
        self._pending += reversed(tasks)
        return level

    def _node(self, where: Where, meta: dict[str, Any], path: Path) -> Level:
        files, file = self._files, (*where, META)
        ours = files.ours(where, meta)
        known = ours or {}
        level = Level(files.shape(file, meta.get("shape", []), path))
        names = meta.get("_names")
        if isinstance(names, list):
            level.names = files.names(file, names, path)
            if level.names and len(level.names) != len(level.batch_size):
                raise self._wrong(file, "not one name for every batch dim", path)
        level.record = _text_or_none(known.get("record"))
        hidden = files.member(file, known, "hidden")
        exact = files.member(file, known, "exact")
        ties = files.member(file, known, "ties")
        single = _list_or_none(known.get("single")) or []
        node = _Node(level, where, path, ours is None, exact, ties, single, [])
        for key, record in meta.items():
            if isinstance(record, dict):
                if not key or key in hidden:
                    why = "an entry is there twice" if key else "an entry without a key"
                    raise self._wrong(file, why, (*path, key))
                fields = cast("dict[str, Any]", record)
                level.entries[key] = self._entry(node, key, fields)
        for at, (key, record) in enumerate(hidden.items()):
            if not key or not isinstance(record, dict):
                raise self._wrong(file, "an entry without a record", (*path, key))
            fields = cast("dict[str, Any]", record)
            level.entries[key] = self._hidden(node, key, hidden_name(at), fields)
        order = _list_or_none(known.get("order"))
        if order is not None:
            level.entries = _in_order(level.entries, order)
        self._pending += reversed(node.tasks)
        return level

    # Entries

    def _entry(self, node: _Node, key: str, record: dict[str, Any]) -> Entry:
        """Return an entry that the peer sees as well."""
        path = (*node.path, key)
        if record.get("type") is not None:
            exact = None
            if key in node.exact:
                exact = Static(self._files.value(node.file, node.exact[key]))
            names = _names_of(key, "", foreign=node.foreign)
            single = key in node.single
            task = _Task(node.level, key, path, node.where, names, exact, single)
            node.tasks.append(task)
            return _PLACEHOLDER
        if record.get("is_nested"):
            return self._nested_tensor(node, key, record, path)
        array = self._array(node.file, record, path)
        names = _names_of(key, SUFFIX, foreign=node.foreign)
        self._locate(node.where, names, array, path)
        if key in node.ties:
            self._note_tie(node.ties[key], array)
        return array

    def _hidden(
        self, node: _Node, key: str, name: str, record: dict[str, Any]
    ) -> Entry:
        """Return an entry that the peer does not see."""
        files, path = self._files, (*node.path, key)
        if "type" in record:
            node.tasks.append(_Task(node.level, key, path, node.where, (name,)))
            return _PLACEHOLDER
        if "static" in record:
            return Static(files.value(node.file, record["static"]))
        if "rows" in record:
            values = record.get("values")
            return files.exact_rows(node.file, record["rows"], values, path)
        if "jagged" in record:
            return self._jagged(node, name, record, path)
        return self._hidden_array(node, name, record, path)

    def _jagged(
        self, node: _Node, name: str, record: dict[str, Any], path: Path
    ) -> Jagged:
        dim = record["jagged"]
        parts: list[Array | None] = []
        for part in PARTS:
            below = record.get(part)
            array = None
            if isinstance(below, dict):
                known = cast("dict[str, Any]", below)
                array = self._hidden_array(node, f"{name}-{part}", known, path)
            parts.append(array)
        values, offsets, lengths = parts
        if values is None or offsets is None or type(dim) is not int:
            what = "a jagged tensor without values or offsets"
            raise self._wrong(node.file, what, path)
        return Jagged(values, offsets, lengths, dim)

    def _hidden_array(
        self, node: _Node, name: str, record: dict[str, Any], path: Path
    ) -> Array:
        array = self._array(node.file, record, path)
        array.unbatched = record.get("unbatched") is True
        self._locate(node.where, (name + SUFFIX,), array, path)
        if "tie" in record:
            self._note_tie(record["tie"], array)
        return array

    def _array(self, file: Where, record: dict[str, Any], path: Path) -> Array:
        name, shape = record.get("dtype"), record.get("shape")
        if name is None or shape is None:
            what = "an entry is neither a tensor nor a node"
            raise self._wrong(file, what, path, got=record)
        dtype = dtype_of(name, self._folder.at(file))
        return Array(dtype, self._files.shape(file, shape, path, dtype.itemsize))

    def _locate(
        self, where: Where, names: Sequence[str], array: Array, path: Path
    ) -> None:
        nbytes = array.nbytes
        if not nbytes:
            return
        for name in names:
            if is_name(name):
                array.place = self._folder.locate((*where, name), nbytes)
                if array.place is not None:
                    return
        raise self._files.missing((*where, names[0]), path)

    def _nested_tensor(
        self, node: _Node, key: str, record: dict[str, Any], path: Path
    ) -> Jagged:
        """Return a nested tensor of the peer as a jagged one.

        The peer has the rows one after the other, and a table of their shapes.
        """
        array = self._array(node.file, record, path)
        if len(array.shape) != 2:  # noqa: PLR2004 - a row of sizes for every tensor
            what = "the shapes of a nested tensor are no table"
            raise self._wrong(node.file, what, path)
        name = encoded(key)
        shapes = self._table(node, f"{name}.shape{SUFFIX}", array.shape, path)
        if len({tuple(shape[1:]) for shape in shapes}) != 1 or not shapes[0]:
            raise self._wrong(
                node.file,
                "a nested tensor whose rows differ in more than their first dim",
                path,
                expected="rows of which a jagged tensor can be",
                fix="td.exclude(key) in tensordict, and save again",
            )
        lengths = [shape[0] for shape in shapes]
        size = [sum(lengths), *shapes[0][1:]]
        whole = self._files.shape(node.file, size, path, array.dtype.itemsize)
        values = Array(array.dtype, whole)
        self._locate(node.where, (name + SUFFIX,), values, path)
        ends = torch.tensor([0, *lengths]).cumsum(0)
        return Jagged(values, Array(torch.int64, tuple(ends.shape), tensor=ends))

    def _table(
        self, node: _Node, name: str, size: Sequence[int], path: Path
    ) -> list[list[int]]:
        """Return the sizes that a file holds, those of one tensor in each row."""
        file = (*node.where, name)
        nbytes = size[0] * size[1] * 8
        raw = self._folder.content(file, max(nbytes, 1 << 20)) or b""
        if len(raw) < nbytes:
            raise self._files.missing(file, path)
        if not nbytes:
            return [[] for _ in range(min(size[0], 1))]
        flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8)[:nbytes]
        rows: list[list[int]] = flat.view(torch.int64).reshape(*size).tolist()
        if min(map(min, rows)) < 0:
            raise self._wrong(file, "a size is negative", path)
        return rows

    # What is known only when all is read

    def _settle(self, top: Level) -> None:
        """Give lazy stacks their batch sizes and names, from the members up."""
        depth: dict[int, int] = {}
        for path, level in reversed(list(iter_levels(top))):
            below = [e for e in level.entries.values() if isinstance(e, Level)]
            most = max([depth[id(inner)] for inner in below], default=0)
            if level.stack_dim is not None:
                most += 1
                self._settle_stack(path, level, below)
                if most > MOST_DIMS:
                    raise self._wrong((), "lazy stacks are nested too deeply", path)
            depth[id(level)] = most

    def _settle_stack(self, path: Path, level: Level, members: list[Level]) -> None:
        dim = cast("int", level.stack_dim)
        if len(members) < len(level.entries):
            raise self._wrong((), "a member of a lazy stack is no node", path)
        if members:
            dims = {len(member.batch_size) for member in members}
            if len(dims) > 1 or dim > max(dims):
                raise self._wrong((), "members of a lazy stack do not fit", path)
            sizes = zip(*[member.batch_size for member in members], strict=True)
            rest = [one.pop() if len(one) == 1 else -1 for one in map(set, sizes)]
            level.batch_size = (*rest[:dim], len(members), *rest[dim:])
        names = level.names
        if names is not None and len(names) != len(level.batch_size):
            if len(names) > 1:
                raise self._wrong((), "not one name for every batch dim", path)
            shared = {member.names for member in members}
            inner = shared.pop() if len(shared) == 1 else None
            inner = inner or (None,) * (len(level.batch_size) - 1)
            level.names = (*inner[:dim], *names, *inner[dim:])

    def _note_tie(self, number: Any, array: Array) -> None:
        if type(number) is int:
            # What differs in these is not one tensor, whatever the file says.
            what = (number, array.dtype, array.shape, array.unbatched)
            self._tied.setdefault(what, []).append(array)

    def _tie(self, top: Level) -> None:
        """Make one array of those that are one tensor."""
        one: dict[int, Array] = {}
        for arrays in self._tied.values():
            places = [array.place for array in arrays]
            # All are of one shape: there is no place where there are no elements.
            same = places[0] is None or self._folder.same(places)
            if len(arrays) > 1 and same:
                one.update({id(array): arrays[0] for array in arrays})
        if not one:
            return
        for _, level in iter_levels(top):
            for key, entry in level.entries.items():
                if isinstance(entry, Array):
                    level.entries[key] = one.get(id(entry), entry)
                elif isinstance(entry, Jagged):
                    entry.values = one.get(id(entry.values), entry.values)
                    entry.offsets = one.get(id(entry.offsets), entry.offsets)
                    lengths = entry.lengths
                    entry.lengths = lengths and one.get(id(lengths), lengths)


def _record_name(meta: dict[str, Any]) -> str:
    name = meta["_type"].removeprefix("<class '").removesuffix("'>")
    module, _, cls = name.rpartition(".")
    return f"{module}:{cls}"


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _list_or_none(value: Any) -> list[Any] | None:
    return cast("list[Any]", value) if isinstance(value, list) else None


def _names_of(key: str, suffix: str, *, foreign: bool) -> tuple[str, ...]:
    """Return what the file of a key may be called, the likeliest first."""
    name = encoded(key)
    if name == key or not foreign:
        return (name + suffix,)
    # Old versions of the peer took keys as they are.
    unsafe = {"/", "\\", "\0"} & set(key) or key[1:2] == ":"
    if unsafe or (not suffix and key in {".", ".."}):
        return (name + suffix,)
    return (name + suffix, key + suffix)


def _in_order(entries: dict[str, Entry], order: list[Any]) -> dict[str, Entry]:
    known = [key for key in order if isinstance(key, str) and key in entries]
    return {**{key: entries[key] for key in known}, **entries}
