"""What the files of a tree say about it, checked; and the values that stand in them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from math import prod
from typing import TYPE_CHECKING, Any, cast

from tdfunc.errors import FileFormatError
from tdfunc.io._folder import META, MOST_DIMS, MOST_META, OURS, VERSION
from tdfunc.io._layout import Level, Rows, Static
from tdfunc.io._values import PICKLED, dumps, from_json, loads, unpickle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc.io._folder import Folder, Where
    from tdfunc.io._options import ReadOptions
    from tdfunc.typing import Path

__all__ = ["Described", "class_names"]

_MOST_SIZE = 1 << 63
_MOST_SHOWN = 80  # characters of a value in an error

# What the peer's `from_pytree` notes, by the names in its json_types.json.
_CONTAINERS = {"dict": dict, "OrderedDict": OrderedDict, "list": list, "tuple": tuple}


def class_names(meta: dict[str, Any]) -> set[str]:
    """Return the names of the class of a directory, without their modules."""
    names: set[str] = set()
    for field in ("_type", "_class"):
        name = meta.get(field)
        if isinstance(name, str):
            bare = name.removeprefix("<class '").removesuffix("'>")
            names.add(bare.replace(":", ".").rpartition(".")[2])
    return names


class Described:
    """The JSON in a folder. Everything raises FileFormatError that names the file."""

    def __init__(self, folder: Folder, options: ReadOptions) -> None:
        self.folder = folder
        self._options = options

    def wrong(
        self, where: Where, what: str, path: Path | None = None, **more: Any
    ) -> FileFormatError:
        """Return the error for a file; `got` is shortened."""
        if "got" in more:
            more["got"] = ascii(more["got"])[:_MOST_SHOWN]
        return FileFormatError(f"{self.folder.at(where)}: {what}", path=path, **more)

    def missing(self, file: Where, path: Path) -> FileFormatError:
        """Return the error for a file that is not there."""
        return self.wrong(
            file,
            "there is no such file",
            path,
            fix="save again, or copy the whole directory; it may be being written",
        )

    def meta(self, where: Where) -> dict[str, Any] | None:
        """Return the meta.json of a directory, None if there is none."""
        file = (*where, META)
        raw = self.folder.content(file, MOST_META)
        if raw is None:
            return None
        meta = loads(raw, self.folder.at(file))
        if not isinstance(meta, dict):
            raise self.wrong(file, "this is no JSON object", got=type(meta).__name__)
        found = cast("dict[str, Any]", meta)
        if not isinstance(found.get("_type"), str):
            raise self.wrong(file, "there is no '_type' in it: this is no saved tree")
        version = found.get("_format_version")
        if type(version) is int and version > 1:
            raise self._newer(file, version)
        return found

    def _newer(self, file: Where, version: int) -> FileFormatError:
        return self.wrong(
            file,
            "the file has a later format than this version of tdfunc knows",
            expected="version 1",
            got=version,
        )

    def ours(self, where: Where, meta: dict[str, Any]) -> dict[str, Any] | None:
        """Return what only we know of a directory, None if the peer wrote it."""
        ours = meta.get(OURS)
        if ours is None or isinstance(ours, dict):  # an entry of the peer's
            return None
        file = (*where, META)
        match ours:
            case [int() as version, dict() as known] if version is not True:
                if version > VERSION:
                    raise self._newer(file, version)
                return cast("dict[str, Any]", known)
            case _:
                raise self.wrong(file, f"{OURS!r} in it is no [1, {{...}}]", got=ours)

    def shape(
        self, file: Where, shape: Any, path: Path, itemsize: int = 1, least: int = 0
    ) -> tuple[int, ...]:
        """Return a shape, that of a tensor that there can be."""
        if isinstance(shape, list):
            sizes = cast("list[Any]", shape)
            whole = itemsize
            for size in sizes:
                if type(size) is not int or size < least:
                    break
                whole *= size or 1
            else:
                if len(sizes) <= MOST_DIMS and -_MOST_SIZE < whole < _MOST_SIZE:
                    return tuple(sizes)
        what = "a shape is no list of sizes of which a tensor can be"
        raise self.wrong(file, what, path, got=shape)

    def names(
        self, file: Where, names: Any, path: Path
    ) -> tuple[str | None, ...] | None:
        """Return names of dims, None if no dim has one."""
        if isinstance(names, list):
            found = cast("list[Any]", names)
            given = [name for name in found if name is not None]
            text = all([isinstance(name, str) and name for name in given])
            if text and len(set(given)) == len(given):
                return tuple(found) if given else None
        raise self.wrong(file, "these are no names of dims", path, got=names)

    def member(self, file: Where, ours: dict[str, Any], name: str) -> dict[str, Any]:
        """Return a member of ours that goes by keys."""
        found = ours.get(name, {})
        if not isinstance(found, dict):
            raise self.wrong(file, f"{name!r} in {OURS!r} is no object")
        return cast("dict[str, Any]", found)

    # Values

    def value(self, file: Where, data: Any) -> Any:
        """Return an exact value."""
        allow, name = self._options.allow_pickle, self.folder.at(file)
        return from_json(data, allow_pickle=allow, name=name)

    def static(
        self, where: Where, meta: dict[str, Any], path: Path, exact: Static | None
    ) -> Static:
        """Return one value.

        Args:
            where: its directory.
            meta: the meta.json of that.
            path: its path.
            exact: what the node noted of it.
        """
        if "data" not in meta:
            fields = self._pickled_fields(where)
            if "data" not in fields:
                raise self.wrong((*where, META), "it has no value", path)
            return Static(fields["data"])
        # Unless the peer has changed it since.
        if exact is not None and _says(exact.value, meta["data"]):
            return exact
        return Static(meta["data"])

    def rows(
        self, where: Where, meta: dict[str, Any], path: Path, parent: Level
    ) -> Rows | Static:
        """Return the values of rows.

        The peer does not say what are rows and what are values that are lists; the
        batch size of the node does.
        """
        file = (*where, META)
        ours = self.ours(where, meta)
        if ours is not None and "values" in ours:
            return self.exact_rows(file, ours.get("shape"), ours["values"], path)
        data = meta.get("data")
        if data == "pickle.pkl":
            name = (*where, "pickle.pkl")
            raw = self.folder.content(name, MOST_META)
            if raw is None:
                raise self.missing(name, path)
            data = self._unpickled(name, raw)
            if data is PICKLED:
                return Static(PICKLED)
        elif data is None:
            data = self._elements(where, path)
        if not isinstance(data, list):
            raise self.wrong(file, "its 'data' is no list", path)
        values = cast("list[Any]", data)
        size = parent.batch_size
        if ours is not None:
            size = self.shape(file, ours.get("shape"), path)
        elif not size:
            return Static(values)
        flat = _flat(values, size)
        if flat is None:
            raise self._no_rows(file, size, path)
        return Rows(size, flat)

    def exact_rows(self, file: Where, shape: Any, values: Any, path: Path) -> Rows:
        """Return the values of rows from their exact values."""
        size = self.shape(file, shape, path)
        found = self.value(file, values)
        if not isinstance(found, list) or len(cast("list[Any]", found)) != prod(size):
            raise self._no_rows(file, size, path)
        return Rows(size, found)

    def _no_rows(self, file: Where, size: Sequence[int], path: Path) -> FileFormatError:
        return self.wrong(
            file,
            "there is not one value for every row",
            path,
            expected=f"values of rows {list(size)}",
        )

    def _elements(self, where: Where, path: Path) -> list[Any]:
        """Return rows that an old version of the peer wrote one by one."""
        values: list[Any] = []
        while True:
            below = (*where, str(len(values)))
            meta = self.meta(below)
            if meta is None:
                return values
            if meta.get("_is_non_tensor") is not True:
                raise self.wrong((*below, META), "this is no value", path)
            values.append(self.static(below, meta, path, None).value)

    def fields(self, where: Where, meta: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that a record of the peer keeps beside its entries."""
        known = {key: value for key, value in meta.items() if not key.startswith("_")}
        return {**known, **self._pickled_fields(where)}

    def _pickled_fields(self, where: Where) -> dict[str, Any]:
        """Return what the peer pickled in a directory: fields and their values."""
        file = (*where, "other.pickle")
        raw = self.folder.content(file, MOST_META)
        if raw is None:
            return {}
        found = self._containers(where, raw)
        if found is None:
            found = self._unpickled(file, raw)
            if found is PICKLED:
                return {"data": PICKLED}
            if not isinstance(found, dict):
                raise self.wrong(file, "this is no pickled dict of fields")
        return cast("dict[str, Any]", found)

    def _containers(self, where: Where, pickled: bytes) -> dict[str, Any] | None:
        """Return the classes in a pickle, if the peer says which ones they are."""
        file = (*where, "json_types.json")
        raw = self.folder.content(file, MOST_META)
        if raw is None:
            return None
        match loads(raw, self.folder.at(file)):
            case {"types": dict() as types, "pickle_sha256": str() as digest}:
                pass
            case _:
                raise self.wrong(file, "this names no types")
        if hashlib.sha256(pickled).hexdigest() != digest:
            return None
        named = cast("dict[str, Any]", types)
        for name in named.values():
            if not isinstance(name, str) or name not in _CONTAINERS:
                raise self.wrong(file, "an unknown type", got=name)
        return {key: _CONTAINERS[name] for key, name in named.items()}

    def _unpickled(self, file: Where, raw: bytes) -> Any:
        allow, name = self._options.allow_pickle, self.folder.at(file)
        return unpickle(raw, allow_pickle=allow, name=name)


def _says(value: Any, plain: Any) -> bool:
    """Return whether plain JSON is what a value is written as."""
    try:
        return dumps(value) == dumps(plain)
    except (TypeError, ValueError, RecursionError):
        return False


def _flat(data: list[Any], size: Sequence[int]) -> list[Any] | None:
    """Return the values in nested lists, None if these do not have a shape."""
    level: list[Any] = [data]
    for length in size:
        joined: list[Any] = []
        for part in level:
            if not isinstance(part, list) or len(cast("list[Any]", part)) != length:
                return None
            joined += cast("list[Any]", part)
        level = joined
    return level
