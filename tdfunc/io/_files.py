"""Saving and loading: which format, which options, and what is made of what is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path as FilePath
from reprlib import repr as shorter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import torch

from tdfunc._core.batch import as_device
from tdfunc._core.keys import as_path
from tdfunc._core.leaf import check_own
from tdfunc._core.node import Node, NodeT, entry_at, make
from tdfunc._core.schema import Schema
from tdfunc._ops.convert import to
from tdfunc.errors import (
    FileFormatError,
    InvalidLeafError,
    MissingFileError,
    MissingKeyError,
    OptionError,
    TdfuncError,
    nearest,
)
from tdfunc.io import _archive, _consolidated, _directory, _safetensors
from tdfunc.io._atomic import named_after
from tdfunc.io._layout import (
    Level,
    iter_arrays,
    level_at,
    levels_of,
    narrowed,
    tree_of,
)
from tdfunc.io._options import ReadOptions, WriteOptions
from tdfunc.io._pending import PENDING
from tdfunc.typing import LoadOptions, SaveOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future
    from typing import Unpack

    from tdfunc.io._layout import Array, Source
    from tdfunc.io._options import Compression
    from tdfunc.typing import (
        Device,
        FileFormat,
        FileName,
        Key,
        Path,
        RecordClasses,
    )

__all__ = [
    "from_consolidated",
    "load",
    "load_memmap",
    "load_safetensors",
    "memmap",
    "save",
    "save_async",
    "save_safetensors",
]


_T = TypeVar("_T")


class _Module(Protocol):
    """What the module of a format offers."""

    def write(self, level: Level, path: FilePath, options: WriteOptions) -> None: ...
    def open_source(self, path: FilePath, options: ReadOptions) -> Source: ...
    def recognises(self, path: FilePath) -> bool: ...


@dataclass(frozen=True)
class Format:
    """One way to keep a tree in files.

    Attributes:
        module: what writes and reads it.
        about: what such a file or directory is, for errors.
        takes: the options that not every format has.
        suffix: what the names of its files end with.
    """

    module: _Module
    about: str
    takes: frozenset[str]
    suffix: str | None = None


# In the order in which they are tried.
FORMATS: dict[str, Format] = {
    "memmap": Format(_directory, "a directory with a meta.json", frozenset({"atomic"})),
    "archive": Format(
        _archive,
        "a zip archive with a meta.json",
        frozenset({"compression", "verify"}),
        ".tdz",
    ),
    "safetensors": Format(
        _safetensors, "a safetensors file", frozenset({"separator"}), ".safetensors"
    ),
    "consolidated": Format(
        _consolidated,
        "a file that ends with its JSON, and that one's length",
        frozenset(),
    ),
}


def save(  # noqa: PLR0913 - the options of a file
    td: Node,
    path: FileName,
    *,
    format: FileFormat | None = None,
    overwrite: bool = False,
    durable: bool = False,
    atomic: bool = True,
    allow_pickle: bool = False,
    compression: Compression | None = None,
    progress: bool = False,
) -> None:
    """Write a tree to a file or directory, from which `load` gives it back.

    The tree appears there whole, or not at all: it is written under another name and
    renamed. What was loaded from the files that are replaced keeps its values, so that
    a tree can be saved onto the files that it is mapped from.

    Args:
        td: the tree. `requires_grad` is not kept, devices are not, and of records only
            the names of their classes.
        path: where to.
        format: ``"memmap"``, a directory with a file for every tensor; ``"archive"``,
            the same in one zip file; ``"consolidated"``, one file; or
            ``"safetensors"``. By default what the suffix says, ``.tdz`` an archive
            and ``.safetensors`` that, and a directory for every other name.
        overwrite: replace a tree that was saved there.
        durable: have it on the disk before returning, so that it survives a loss of
            power.
        atomic: see above. False is for directories, where it saves the second copy
            while one is replaced.
        allow_pickle: pickle statics that have no other form.
        compression: of the tensors of an archive: ``"deflate"``, ``"bzip2"`` or
            ``"lzma"``. Compressed tensors are not mapped but read.
        progress: show a bar (needs the extra ``progress``).

    Raises:
        TargetExistsError: something is there, and `overwrite` is false or it is no
            tree.
        MissingFileError: the directory to write it in does not exist.
        FormatLimitError: the format can not hold an entry; all are listed.
        PickleRefusedError: a static has no form but a pickle.
        InvalidLeafError: `td` is no tree, or a leaf has no elements: it is on the
            device "meta", sparse, or inside a transform.
        OptionError: the format has not this option, or there is no such format.
        OSError: the system refuses.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> from tempfile import TemporaryDirectory
        >>> td = TensorDict({"x": torch.zeros(3, 2), "name": "run 1"}, 3)
        >>> with TemporaryDirectory() as folder:
        ...     td.save(f"{folder}/run.tdz")
        ...     TensorDict.load(f"{folder}/run.tdz").equal(td)
        True
    """
    given: Any = {
        "overwrite": overwrite,
        "durable": durable,
        "atomic": atomic,
        "allow_pickle": allow_pickle,
        "compression": compression,
        "progress": progress,
    }
    job = _Job(td, path, format, given)
    job.run(job.level())


def save_async(
    td: Node,
    path: FileName,
    *,
    format: FileFormat | None = None,
    copy: bool = True,
    **options: Unpack[SaveOptions],
) -> Future[None]:
    """Write a tree in a thread; the future is done when it is there.

    What is saved is the tree at the time of the call: the tensors are copied before it
    returns, since others may write into them in place, as optimizers do into
    parameters. What can be refused is refused before it returns, too. Only errors of
    the writing itself come out of ``future.result()``, and out of nowhere else.

    Saves to one path are carried out one after the other, in the order of the calls;
    with ``atomic=False`` the call waits for those before it. The interpreter waits for
    them when it ends.

    Args:
        td: the tree.
        path: where to.
        format: as of `save`.
        copy: False shares the tensors, for trees too large to be copied: then nothing
            may write into them before the future is done.
        options: those of `save`; see `tdfunc.typing.SaveOptions`.

    Raises:
        TdfuncError: what `save` raises, but for the system's errors.
        RuntimeError: there can be no more threads.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     future = TensorDict(x=torch.ones(2)).save_async(f"{folder}/x")
        ...     future.result()
        ...     TensorDict.load(f"{folder}/x")["x"]
        tensor([1., 1.])
    """
    _check_known(options, SaveOptions)
    job = _Job(td, path, format, options)
    level = job.level()
    if copy:
        for _, array in iter_arrays(level):
            array.tensor = cast("torch.Tensor", array.tensor).to("cpu", copy=True)
    return PENDING.start(job.path, partial(job.run, level), in_place=job.in_place)


def save_safetensors(td: Node, path: FileName, **options: Unpack[SaveOptions]) -> None:
    """Write a tree to a safetensors file, whatever its name ends with.

    Any reader of safetensors reads its tensors, nested keys joined with dots; the rest
    of the tree is in the metadata.

    Args:
        td: the tree.
        path: the file.
        options: those of `save`; see `tdfunc.typing.SaveOptions`.

    Raises:
        TdfuncError: what `save` raises.
    """
    _check_known(options, SaveOptions)
    save(td, path, format="safetensors", **options)


def memmap(td: NodeT, path: FileName, **options: Unpack[SaveOptions]) -> NodeT:
    """Write a tree to a directory, or an archive, and return it mapped from there.

    The result is the same tree, records included, but its tensors have no memory until
    they are looked at. They are private: who writes into one in place changes what
    this process sees, never the file.

    Args:
        td: the tree.
        path: the directory, or an archive if it ends with ``.tdz``.
        options: those of `save`; see `tdfunc.typing.SaveOptions`.

    Raises:
        OptionError: `path` ends with what stands for another format.
        TdfuncError: what `save` raises.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     td = TensorDict({"x": torch.arange(3)}, 3).memmap(f"{folder}/td")
        >>> td["x"]
        tensor([0, 1, 2])
    """
    _check_known(options, SaveOptions)
    name = _format_of(as_file(path))
    if name not in _MAPPED:
        raise OptionError(
            "a name like this stands for another format",
            expected="a directory, or an archive that ends with '.tdz'",
            got=f"{str(path)!r}, for {name}",
            fix=f"td.save(path), then load(path): a file of {name} is mapped too",
        )
    save(td, path, format=name, **options)
    return reopened(td, as_file(path), name, options.get("allow_pickle", False))


_MAPPED = ("memmap", "archive")


def reopened(td: Any, file: FilePath, name: str, pickles: bool = False) -> Any:  # noqa: FBT001, FBT002
    """Return the tree in a file that holds one like `td`, with its record classes."""

    def read() -> Level:
        with FORMATS[name].module.open_source(file, ReadOptions(pickles)) as source:
            level = source.outline()
            source.read([array for _, array in iter_arrays(level)])
        return level

    level = steady(file, read)
    classes = _classes_of(td, level)

    def made(here: Level, node: Any) -> Any:
        cls = classes.get(id(here))
        if cls is None:
            return node
        old = node._schema
        schema = Schema(cls, old.keys, old.kids, old.surplus)
        return make(schema, node._leaves, node._statics, node.batch_size, node._names)

    return tree_of(level, made)


def load(  # noqa: PLR0913 - the options of a file
    path: FileName,
    *,
    format: FileFormat | None = None,
    mode: str = "r",
    device: Device | None = None,
    subpath: Key | Path = (),
    keys: Iterable[Key | Path] | None = None,
    cls: RecordClasses | None = None,
    allow_pickle: bool = False,
    verify: bool = False,
    separator: str | None = None,
    progress: bool = False,
) -> Any:
    """Return the tree in a file or directory.

    Tensors of 64 KiB and more are mapped: they have no memory until they are looked
    at. All are private to this process: who writes into one in place changes what this
    process sees, never the file.

    Args:
        path: the file or directory; of tdfunc or of tensordict, or any safetensors.
        format: as of `save`; found out by default.
        mode: only ``"r"``: nothing that was loaded writes to a file.
        device: where to move the tensors. ``"meta"`` reads no data at all: the tree
            has tensors of the right shapes without elements.
        subpath: the key or path of the node to load, instead of the whole tree.
        keys: the keys and paths to load; all that is in a node is loaded with it.
        cls: the record class of the tree, `from_tensordict` of which is called; or a
            mapping of keys and paths to those of nodes, ``()`` being the tree itself.
            Classes that a file names are not looked for.
        allow_pickle: read statics that were pickled. Only for files that you trust:
            pickle runs what it is told to.
        verify: compare the bytes of an archive that are read with its checksums.
        separator: of safetensors that tdfunc did not write: what splits names into
            nested keys; None leaves them whole.
        progress: show a bar (needs the extra ``progress``).

    Raises:
        MissingFileError: there is no such file.
        FileFormatError: it is of no format that is known, broken, or holds no tree.
        PickleRefusedError: something in it was pickled.
        MissingKeyError: there is no entry at `subpath` or one of `keys`.
        PathThroughLeafError: `subpath` is a value, or a path goes on below one.
        OptionError: another `mode`, an option that the format has not, a value that an
            option does not take, or a class that is none of records.
        TdfuncError: what `from_tensordict` of a class raises.
        OSError: the system refuses.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> from tempfile import TemporaryDirectory
        >>> td = tdfunc.TensorDict({"obs": {"x": torch.ones(3, 2)}, "y": 0.5}, [])
        >>> with TemporaryDirectory() as folder:
        ...     td.save(f"{folder}/td")
        ...     obs = tdfunc.load(f"{folder}/td", subpath="obs")
        ...     bare = tdfunc.load(f"{folder}/td", device="meta")
        >>> obs
        TensorDict(batch_size=[], fields={x: f32[3, 2]})
        >>> bare["obs", "x"].shape
        torch.Size([3, 2])
    """
    options: LoadOptions = {
        "device": device,
        "subpath": subpath,
        "keys": keys,
        "allow_pickle": allow_pickle,
        "verify": verify,
        "mode": mode,
        "progress": progress,
    }
    formats = tuple(FORMATS) if format is None else (_checked_format(format),)
    return _load(path, formats, separator, cls=cls, **options)


def load_memmap(
    path: FileName,
    *,
    cls: RecordClasses | None = None,
    **options: Unpack[LoadOptions],
) -> Any:
    """Return the tree in a directory or archive; see `load`.

    Args:
        path: the directory or archive, of tdfunc or of tensordict.
        cls: the record class of the tree, or those of nodes by path.
        options: those of `load`; see `tdfunc.typing.LoadOptions`.

    Raises:
        TdfuncError: what `load` raises.
    """
    return _load(path, _MAPPED, None, cls=cls, **options)


def from_consolidated(
    path: FileName,
    *,
    cls: RecordClasses | None = None,
    **options: Unpack[LoadOptions],
) -> Any:
    """Return the tree in a consolidated file; see `load`.

    Args:
        path: the file, of tdfunc or of tensordict.
        cls: the record class of the tree, or those of nodes by path.
        options: those of `load`; see `tdfunc.typing.LoadOptions`.

    Raises:
        TdfuncError: what `load` raises.
    """
    return _load(path, ("consolidated",), None, cls=cls, **options)


def load_safetensors(
    path: FileName,
    *,
    separator: str | None = None,
    cls: RecordClasses | None = None,
    **options: Unpack[LoadOptions],
) -> Any:
    """Return the tree in any safetensors file; see `load`.

    Args:
        path: the file.
        separator: of files that tdfunc did not write: what splits names into nested
            keys, ``"."`` for state dicts; None leaves them whole.
        cls: the record class of the tree, or those of nodes by path.
        options: those of `load`; see `tdfunc.typing.LoadOptions`.

    Raises:
        TdfuncError: what `load` raises.
    """
    return _load(path, ("safetensors",), separator, cls=cls, **options)


# Writing


class _Job:
    """A save that was asked for: the options fit each other and the format.

    Raises:
        InvalidLeafError: there is no tree to save.
        OptionError: they do not fit.
    """

    def __init__(
        self,
        td: Node,
        path: FileName,
        format: str | None,
        options: SaveOptions,
    ) -> None:
        check_own(td, ())
        if not isinstance(td, Node):
            raise InvalidLeafError(
                "only trees are saved",
                expected="a tree",
                got=type(td).__name__,
                fix="TensorDict(mapping).save(path)",
            )
        self.td = td
        self.path = as_file(path)
        self.format = format or _format_of(self.path)
        _check_takes(
            _checked_format(self.format),
            atomic=None if options.get("atomic", True) else "atomic=False",
            compression=_shown_option("compression", options.get("compression")),
        )
        self.options = dict[str, Any](options)
        self.in_place = not options.get("atomic", True)
        self.make_bar = _bar_maker() if self.options.pop("progress", False) else None

    def level(self) -> Level:
        """Return what is to be written."""
        return levels_of(self.td)

    def run(self, level: Level, ready: Callable[[], None] | None = None) -> None:
        """Write it."""
        options: dict[str, Any] = dict(self.options)
        if ready is not None:
            options["ready"] = ready
        with _bar(self.make_bar, f"saving {self.path.name}") as bar:
            if bar is not None:
                bar.start(level)
                options["progress"] = bar.add
            FORMATS[self.format].module.write(level, self.path, WriteOptions(**options))


def as_file(path: Any) -> FilePath:
    """Return where a file is.

    Raises:
        OptionError: it is not a path.
    """
    plain = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(plain, str) or not plain or "\0" in plain or not _is_name(plain):
        raise OptionError(
            "this names no file",
            expected="a non-empty string or a path",
            got=ascii(path),
        )
    return FilePath(plain)


def _is_name(text: str) -> bool:
    """Return whether the system has bytes for a text: not for half of a character."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _format_of(path: FilePath) -> FileFormat:
    """Return the format that the name of a file stands for."""
    for name, kind in FORMATS.items():
        if kind.suffix is not None and path.suffix == kind.suffix:
            return cast("FileFormat", name)
    return "memmap"


def _checked_format(name: Any) -> str:
    if not isinstance(name, str) or name not in FORMATS:
        raise OptionError(
            "there is no such format",
            expected=nearest(str(name), FORMATS),
            got=repr(name),
        )
    return name


def _shown_option(name: str, value: Any) -> str | None:
    return None if value is None else f"{name}={value!r}"


def _check_known(options: Mapping[str, Any], known: type[Any]) -> None:
    """Raise if there is an option that the typed mapping `known` has not."""
    for name in options:
        if name not in known.__annotations__:
            raise OptionError(
                f"there is no option {name!r}",
                expected=nearest(name, known.__annotations__),
                got=f"{name}={shorter(options[name])}",
            )


def _check_takes(format: str, **given: str | None) -> None:
    """Raise if a format has not an option that is given, with its text.

    Raises:
        OptionError: it has not.
    """
    for name, text in given.items():
        if text is not None and name not in FORMATS[format].takes:
            holders = [key for key, kind in FORMATS.items() if name in kind.takes]
            raise OptionError(
                f"the format {format!r} has no option {name!r}",
                expected=f"the format {holders[0]!r}, which has it",
                got=text,
            )


# Reading


def _load(
    path: FileName,
    formats: tuple[str, ...],
    separator: str | None,
    *,
    keys: Iterable[Key | Path] | None = None,
    cls: RecordClasses | None = None,
    mode: str = "r",
    **options: Any,
) -> Any:
    """Load a tree, whole or in parts."""
    _check_known(options, LoadOptions)
    if mode != "r":
        raise OptionError(
            "a tree that was loaded never writes to its file",
            expected="mode='r': maps are copy-on-write",
            got=f"mode={mode!r}",
            fix="td.save(path, overwrite=True) replaces the file",
        )
    file = as_file(path)
    if isinstance(keys, Iterator):
        keys = list(keys)

    def read() -> Any:
        return _load_once(file, formats, separator, keys=keys, cls=cls, **options)

    return steady(file, read)


def steady(file: FilePath, read: Callable[[], _T]) -> _T:
    """Read from a file; once more if it was replaced by another one meanwhile."""
    for left in reversed(range(_TRIES)):
        before = _identity(file)
        try:
            with named_after(file):
                return read()
        except (FileFormatError, FileNotFoundError):
            if not left or _identity(file) in (before, None):
                raise
    raise AssertionError  # the last try returns or raises


_TRIES = 50


def _identity(file: FilePath) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    # Numbers of files are given again: the time tells two of them apart.
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _load_once(  # noqa: PLR0913 - the options of a file
    file: FilePath,
    formats: tuple[str, ...],
    separator: Any,
    *,
    device: Device | None = None,
    subpath: Key | Path = (),
    keys: Iterable[Key | Path] | None = None,
    cls: RecordClasses | None = None,
    allow_pickle: bool = False,
    verify: bool = False,
    progress: bool = False,
) -> Any:
    where = as_path(subpath) if subpath != () else ()
    wanted = None if keys is None else _as_paths(keys)
    classes = _as_classes(cls)
    target = as_device(device)
    is_meta = target is not None and target.type == "meta"
    if verify and is_meta:
        raise OptionError(
            "verify=True compares bytes, and device='meta' reads none",
            fix="one of both",
        )
    if separator is not None and (not isinstance(separator, str) or not separator):
        raise OptionError(
            "this separates no names",
            expected="a non-empty string, or None",
            got=f"separator={separator!r}",
        )
    make_bar = _bar_maker() if progress else None
    format = detect(file, formats)
    _check_takes(
        format,
        verify="verify=True" if verify else None,
        separator=_shown_option("separator", separator),
    )
    with _bar(make_bar, f"loading {file.name}") as bar:
        options = ReadOptions(allow_pickle, verify, separator)
        if bar is not None:
            options = ReadOptions(allow_pickle, verify, separator, bar.add)
        with FORMATS[format].module.open_source(file, options) as source:
            level = level_at(source.outline(), where)
            if wanted is not None:
                level = narrowed(level, wanted)
            records = _records_at(level, classes)
            if bar is not None:
                bar.start(level)
            arrays = [array for _, array in iter_arrays(level)]
            if not is_meta:
                source.read(arrays)
    for array in arrays:
        array.tensor = _moved(array, target)
    tree = _as_tree(level, file, records)
    # What is left is rows, which are numbers in a table: they stay readable.
    return tree if target is None or is_meta else to(tree, target)


def detect(path: FilePath, formats: tuple[str, ...] = tuple(FORMATS)) -> str:
    """Return the format of a file: what its content says.

    Args:
        path: the file.
        formats: among which; of a single one nothing but that it exists is checked.

    Raises:
        MissingFileError: there is none.
        FileFormatError: it is of none of the formats.
        OSError: it can not be read.
    """
    if not path.exists():
        what = "is a link to what is not there" if path.is_symlink() else "is not there"
        raise MissingFileError(f"{path} {what}")
    if not path.is_dir() and not path.is_file():
        raise FileFormatError(f"{path} is neither a file nor a directory")
    if len(formats) == 1:
        return formats[0]
    for name in formats:
        if FORMATS[name].module.recognises(path):
            return name
    # Now for the reason: that of the system, or of the format that it should be.
    if path.is_dir():
        next(path.iterdir(), None)
        named = "memmap"
    else:
        os.close(os.open(path, os.O_RDONLY))
        named = _format_of(path)
    if named in formats and (path.is_dir() or named != "memmap"):
        return named
    raise FileFormatError(
        f"{path} holds nothing that is known",
        expected=" or ".join([FORMATS[name].about for name in formats]),
        got=f"a file of {path.stat().st_size} bytes",
    )


def _as_paths(keys: Any) -> list[Path]:
    """Return the keys and paths that are to be loaded.

    Raises:
        OptionError: it is one key, one path or two keys, or no list at all.
        InvalidKeyError: one of them is no key.
    """
    if isinstance(keys, (str, tuple)):
        shown = shorter(keys)  # as many as there are in a tree
        listed = shorter(list(keys) if isinstance(keys, tuple) else [keys])
        fix = f"keys={listed}"
        if isinstance(keys, tuple):
            fix += f" for entries of the tree, keys=[{shown}] for one path"
        raise OptionError(
            "keys is a list of keys and paths", got=f"keys={shown}", fix=fix
        )
    if not isinstance(keys, Iterable):
        raise OptionError("keys is a list of keys and paths", got=f"keys={keys!r}")
    return [as_path(key) for key in cast("Iterable[Any]", keys)]


def _as_classes(given: Any) -> dict[Path, Any]:
    """Return the record classes of nodes by path.

    Raises:
        OptionError: one is no class of records.
    """
    if given is None:
        return {}
    named = given if isinstance(given, Mapping) else {(): given}
    pairs = cast("Mapping[Any, Any]", named).items()
    classes = {key if key == () else as_path(key): cls for key, cls in pairs}
    for cls in classes.values():
        is_node = isinstance(cls, type) and issubclass(cls, Node)
        if not is_node or cls._record is None:
            raise OptionError(
                "a tree is restored to a class of records",
                expected="a class with fields, derived from TensorClass",
                got=getattr(cls, "__name__", None) or repr(cls),
                fix="leave cls out for plain trees",
            )
    return classes


def _records_at(level: Level, classes: dict[Path, Any]) -> dict[int, Any]:
    """Return the class of each level that is to have one, by its identity.

    A path leads through a lazy stack into every member that has it, and the class of a
    lazy stack is that of its members.

    Raises:
        MissingKeyError: there is no such node.
    """
    found: dict[int, Any] = {}
    for path, cls in classes.items():
        pending: list[tuple[Level, Path]] = [(level, path)]
        reached = False
        while pending:
            here, rest = pending.pop()
            below = [e for e in here.entries.values() if isinstance(e, Level)]
            if here.stack_dim is not None:
                pending += [(member, rest) for member in below]
            elif not rest:
                found[id(here)] = cls
                reached = True
            else:
                entry = here.entries.get(rest[0])
                if isinstance(entry, Level):
                    pending.append((entry, rest[1:]))
        if not reached:
            raise MissingKeyError(
                f"there is no node to become {cls.__name__}", path=path
            )
    return found


def _moved(array: Array, device: torch.device | None) -> torch.Tensor:
    if device is None:
        return cast("torch.Tensor", array.tensor)
    if device.type == "meta":
        return torch.empty(array.shape, dtype=array.dtype, device=device)
    return cast("torch.Tensor", array.tensor).to(device)


def _as_tree(level: Level, file: FilePath, records: dict[int, Any]) -> Any:
    """Return the tree of what was read.

    Raises:
        FileFormatError: it is none.
        TdfuncError: a record can not be made of it.
    """
    try:
        tree = tree_of(level)
    except TdfuncError as error:
        raise FileFormatError(
            f"what {file} holds is no tree: {error.what}",
            path=error.path,
            expected=error.expected,
            got=error.got,
        ) from error
    except (RuntimeError, ValueError, TypeError) as error:
        raise FileFormatError(f"what {file} holds is no tree", got=error) from error
    if not records:
        return tree

    def made(here: Level, node: Any) -> Any:
        cls = records.get(id(here))
        return node if cls is None else cls.from_tensordict(node)

    # Again, since now what fails is not the file's fault.
    return tree_of(level, made)


def _classes_of(td: Any, level: Level) -> dict[int, Any]:
    """Return the class of each record, by the identity of the same level of a file."""
    found: dict[int, Any] = {}
    pending: list[tuple[Any, Level]] = [(td, level)]
    while pending:
        node, here = pending.pop()
        if type(node)._record is not None:
            found[id(here)] = type(node)
        for at, (key, entry) in enumerate(here.entries.items()):
            if isinstance(entry, Level):
                is_lazy = here.stack_dim is not None
                below = node.tensordicts[at] if is_lazy else entry_at(node, (key,))
                pending.append((below, entry))
    return found


# Progress


class _Bar:
    """A bar that counts the bytes of tensors, each once."""

    def __init__(self, make: Callable[..., Any], label: str) -> None:
        self.make = make
        self.label = label
        self.shown: Any = None

    def start(self, level: Level) -> None:
        """Show it."""
        total = sum([array.nbytes for _, array in iter_arrays(level)])
        self.shown = self.make(
            total=total, desc=self.label, unit="B", unit_scale=True, unit_divisor=1024
        )

    def add(self, count: int) -> None:
        """Move it on."""
        if self.shown is not None:
            self.shown.update(count)


@contextmanager
def _bar(make: Callable[..., Any] | None, label: str) -> Generator[_Bar | None]:
    if make is None:
        yield None
        return
    bar = _Bar(make, label)
    try:
        yield bar
    finally:
        if bar.shown is not None:
            bar.shown.close()


def _bar_maker() -> Callable[..., Any]:
    """Return the class of bars.

    Raises:
        ImportError: tqdm is not installed.
    """
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError(
            "progress=True shows a bar of tqdm: pip install 'tdfunc[progress]'"
        ) from error
    return tqdm
