"""Zip files: a strict reader of their index, and a writer that knows sizes before.

`index` takes no archive in which two readers could see different things: every local
header says what the central directory says, members lie one behind the other, names
are plain relative paths, each there once. What it refuses, it refuses before a byte is
inflated. `Writer` puts payloads at multiples of 64 bytes, so that they can be mapped.

References:
    PKWARE, ".ZIP File Format Specification" 6.3.10,
    https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import bz2
import lzma
import os
import re
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tdfunc.errors import FileFormatError
from tdfunc.io._map import write_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Self

    from tdfunc.io._options import Compression

__all__ = ["Member", "Writer", "has_member", "index", "is_plain", "pieces"]

STORED, DEFLATE, BZIP2, LZMA = 0, 8, 12, 14
METHODS: dict[Compression, int] = {"deflate": DEFLATE, "bzip2": BZIP2, "lzma": LZMA}
_NEEDS = {STORED: 20, DEFLATE: 20, BZIP2: 46, LZMA: 63}

_LOCAL = Struct("<4s5H3I2H")
_CENTRAL = Struct("<4s6H3I5H2I")
_END = Struct("<4s4H2IH")
_END64 = Struct("<4sQ2H2I4Q")
_LOCATOR = Struct("<4sIQI")
_EXTRA = Struct("<2H")
_SIZES = Struct("<2Q")
_WIDE_EXTRA = _EXTRA.size + _SIZES.size
_WIDE_NEEDS = 45

# What does not fit these fields stands in fields of 64 bits elsewhere.
_MAX32 = 0xFFFFFFFF
_MAX16 = 0xFFFF
# From these on the writer takes the fields of 64 bits; tests lower them.
_WIDE = _MAX32
_MANY = _MAX16

# No file has more bytes; the system refuses to read beyond.
_FARTHEST = (1 << 63) - (1 << 32)

_UTF8 = 0x800
# The two bits tell how hard a compressor tried, or how its stream ends.
_HARMLESS = _UTF8 | 0b110
_ENCRYPTED = 0x2041
_SIZES_FOLLOW = 0x8
_LZMA_END_MARK = 0x2

_ZIP64 = 0x0001
_UNICODE_NAME = 0x7075
_PADDING = 0x6474  # "td", as the peer names it
_ALIGN = 64

_UNIX = 3
_KIND, _REGULAR, _DIRECTORY = 0o170000, 0o100000, 0o040000
_MODE = 0o644 << 16
_FIRST_DAY = 0x21  # 1980-01-01, always: equal trees make equal archives

_STEP = 1 << 20
_BATCH = 8 << 20
_BUFFERS = 1000
# From here on a checksum takes longer than handing it to a thread.
_THREADED = 1 << 20
_LATE = 4
# Deflate can not do better than this.
_DEFLATE_RATIO = 1032
_LZMA_HEAD = 9
_LZMA_MEMORY = 256 << 20

# Where names are joined by line ends, an odd one makes one of these.
_SUSPECT = ("\0", "\\", ":", "//", "/.", "/\n", "\n/", "\n.", "\n\n")
_ODD_NAME = re.compile(r"[\0\\]|//|(?:\A|/)(?:\.{1,2}(?:/|\Z)|\Z)|\A/|\A[A-Za-z]:")


class Member(NamedTuple):
    """One file in an archive.

    Attributes:
        name: its path under the root.
        start: where its bytes begin in the archive.
        packed: how many bytes they are there.
        size: how many bytes the file has.
        crc: the CRC-32 of the file.
        method: how it is compressed.
        flags: what else its header says.
    """

    name: str
    start: int
    packed: int
    size: int
    crc: int
    method: int
    flags: int


def broken(file: str, member: str | None, why: str, got: object = None) -> Exception:
    """Return the error of an archive that is not taken."""
    where = file if member is None else f"{file}: {member!r}"
    return FileFormatError(f"{where}: {why}", got=got)


def _exactly(descriptor: int, count: int, offset: int, file: str) -> bytes:
    """Return bytes of a file.

    Raises:
        FileFormatError: it ends before.
    """
    found = os.pread(descriptor, count, offset)
    # The system reads no more than 2 GiB at once.
    while len(found) < count:
        more = os.pread(descriptor, count - len(found), offset + len(found))
        if not more:
            raise broken(file, None, "the file ends too early")
        found += more
    return found


class _Directory(NamedTuple):
    """The list of members: its records, how many, and where it begins."""

    records: bytes
    members: int
    start: int


def _directory(descriptor: int, file: str) -> _Directory:
    size = os.fstat(descriptor).st_size
    reach = min(size, _END.size + _MAX16)
    tail = _exactly(descriptor, reach, size - reach, file)
    at = tail.rfind(b"PK\5\6")
    while at >= 0 and reach - at - _END.size != int.from_bytes(
        tail[at + 20 : at + 22], "little"
    ):
        at = tail.rfind(b"PK\5\6", 0, at)
    if at < 0:
        raise broken(file, None, "the end of an archive is not there: it is cut off")
    _, disk, first, here, count, length, start, _ = _END.unpack_from(tail, at)
    end = size - reach + at
    found = (disk, first, here, count, length, start)
    if end >= _LOCATOR.size:
        locator = _exactly(descriptor, _LOCATOR.size, end - _LOCATOR.size, file)
        if locator.startswith(b"PK\6\7"):
            end, found = _directory64(descriptor, locator, end, found, file)
    disk, first, here, count, length, start = found
    if disk or first or here != count:
        raise broken(file, None, "it is one part of an archive of several files")
    if start + length != end or _CENTRAL.size * count > length:
        raise broken(file, None, "its list of members is not where it should be")
    return _Directory(_exactly(descriptor, length, start, file), count, start)


def _directory64(
    descriptor: int, locator: bytes, end: int, short: tuple[int, ...], file: str
) -> tuple[int, tuple[int, ...]]:
    """Return where the 64-bit end record begins, and its fields."""
    _, disk, start, disks = _LOCATOR.unpack(locator)
    if disk or disks > 1:
        raise broken(file, None, "it is one part of an archive of several files")
    if start + _END64.size + _LOCATOR.size > end:
        raise broken(file, None, "its 64-bit end record is not where it should be")
    fields = _END64.unpack(_exactly(descriptor, _END64.size, start, file))
    if fields[0] != b"PK\6\6" or start + 12 + fields[1] + _LOCATOR.size != end:
        raise broken(file, None, "its 64-bit end record is broken")
    long = fields[4:]
    limits = (_MAX16,) * 4 + (_MAX32,) * 2
    for few, many, limit in zip(short, long, limits, strict=True):
        if few not in (many, limit):
            raise broken(file, None, "its two end records do not agree")
    return start, long


def has_member(descriptor: int, name: str) -> bool:
    """Return whether a file is an archive with a member of this name.

    Never raises on what is in the file: a broken archive may be found or not.
    """
    raw = name.encode()
    size = len(raw).to_bytes(2, "little")
    head = os.pread(descriptor, _LOCAL.size + len(raw), 0)
    if head[:4] + head[26:28] + head[_LOCAL.size :] == b"PK\3\4" + size + raw:
        return True
    try:
        records = _directory(descriptor, "").records
    except (FileFormatError, OSError, OverflowError, MemoryError):
        return False
    record = rb"PK\x01\x02.{24}" + re.escape(size) + rb".{16}" + re.escape(raw)
    return re.search(record, records, re.DOTALL) is not None


def index(descriptor: int, file: str) -> dict[str, Member]:
    """Return the files in an archive by name; entries of directories are left out.

    Raises:
        FileFormatError: it is no archive, it is broken, or not taken for another
            reason that the module docstring gives.
    """
    directory = _directory(descriptor, file)
    records, pread = directory.records, os.pread
    found: dict[str, Member] = {}
    heads: list[tuple[int, Member]] = []
    for at, raw, offset, member in _listed(directory, file):
        name, packed, size, crc, method, flags = member
        start = offset + _LOCAL.size + len(raw)
        head = pread(descriptor, start - offset, offset)
        # Most headers are the record of the list without its last fields.
        if (
            head[4:28] != records[at + 6 : at + 30]
            or head[_LOCAL.size :] != raw
            or head[:4] != b"PK\3\4"
            or packed == _MAX32
        ):
            wanted = (flags, method, crc, packed, size)
            _check_head(descriptor, offset, raw, wanted, file, name)
        if name in found:
            raise broken(file, name, "this name is there twice")
        start += head[28] | head[29] << 8
        one = Member(name, start, packed, size, crc, method, flags)
        found[name] = one
        heads.append((offset, one))
    _check_names(found, file)
    _check_spans(descriptor, heads, directory.start, file)
    return {name: found[name] for name in found if name[-1:] != "/"}


def _listed(
    directory: _Directory, file: str
) -> Iterator[tuple[int, bytes, int, tuple[str, int, int, int, int, int]]]:
    """Yield the members as the list has them.

    With the place of the record, the name in it, and the place of the header.
    """
    records, at, limit = directory.records, 0, len(directory.records)
    unpack = _CENTRAL.unpack_from
    for _ in range(directory.members):
        if at + _CENTRAL.size > limit:
            raise broken(file, None, "its list of members is cut off")
        fields = unpack(records, at)
        sign, _, _, flags, method, _, _, crc, packed, size, *lengths = fields[:13]
        _, _, _, disk, _, mode, offset = fields[10:]
        name_end = at + _CENTRAL.size + lengths[0]
        after = name_end + lengths[1] + lengths[2]
        if sign != b"PK\1\2" or after > limit:
            raise broken(file, None, "its list of members is broken")
        raw = records[at + _CENTRAL.size : name_end]
        if (
            flags | method | disk | mode & _KIND << 16
            or packed != size
            or _MAX32 in (size, offset)
            or raw[-1:] == b"/"
            or not raw.isascii()
        ):
            extra = records[name_end : name_end + lengths[1]]
            offset, member = _unusual(fields, raw, extra, file)
        else:
            member = (raw.decode("ascii"), packed, size, crc, method, flags)
        yield at, raw, offset, member
        at = after
    if at != limit:
        raise broken(file, None, "there is something behind its list of members")


def _unusual(
    fields: tuple[Any, ...], raw: bytes, extra: bytes, file: str
) -> tuple[int, tuple[str, int, int, int, int, int]]:
    """Return header and member of a record that is more than a stored ASCII name."""
    _, made, _, flags, method, _, _, crc, packed, size = fields[:10]
    disk, _, mode, offset = fields[13:]
    name = _name(raw, flags, made >> 8, extra, file)
    if _MAX32 in (packed, size, offset) or disk == _MAX16:
        size, packed, offset, disk = _long(
            extra, (size, packed, offset, disk), file, name
        )
    if offset > _FARTHEST or packed > _FARTHEST:
        raise broken(file, name, "it is not where it should be")
    member = (name, packed, size, crc, method, flags)
    _check_kind(member, disk, made >> 8, mode >> 16, file)
    return offset, member


def _name(raw: bytes, flags: int, system: int, extra: bytes, file: str) -> str:
    if raw.isascii():
        return raw.decode("ascii")
    told = None if flags & _UTF8 else _unicode_name(raw, extra)
    if told is not None:
        return told
    try:
        # Programs on Unix store names as the system has them.
        if flags & _UTF8 or system == _UNIX:
            return raw.decode()
    except UnicodeDecodeError:
        if flags & _UTF8:
            raise broken(file, None, "a name is no UTF-8", raw) from None
    return raw.decode("cp437")


def _check_names(names: Iterable[str], file: str) -> None:
    # All at once, and one by one only if something looks odd.
    joined = "\n".join(["", *names, ""])
    if not any([odd in joined for odd in _SUSPECT]):
        return
    for name in names:
        if not is_plain(name[:-1] if name[-1:] == "/" else name):
            raise broken(file, name, "this is no plain path below the archive")


def is_plain(name: str) -> bool:
    """Return whether a name is a relative path in its shortest form.

    Without what any system takes for more than a name: ``..``, backslashes, drives.

    Examples:
        >>> [is_plain(name) for name in ("a/b", "../a", "/a", "a//b", "a/.", "C:a")]
        [True, False, False, False, False, False]
    """
    return _ODD_NAME.search(name) is None


def _unicode_name(raw: bytes, extra: bytes) -> str | None:
    """Return the name in a field of Info-ZIP, if it belongs to the short name."""
    data = _fields(extra).get(_UNICODE_NAME, b"")
    if data[:1] != b"\1" or data[1:5] != zlib.crc32(raw).to_bytes(4, "little"):
        return None
    try:
        return data[5:].decode()
    except UnicodeDecodeError:
        return None


def _fields(extra: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        found.setdefault(kind, extra[at : at + length])
        at += length
    return found


def _long(
    extra: bytes, short: tuple[int, int, int, int], file: str, name: str
) -> tuple[int, ...]:
    """Return size, packed size, offset and disk, with those of 64 bits filled in."""
    data = _fields(extra).get(_ZIP64, b"")
    found: list[int] = []
    for value, limit, width in zip(
        short, (_MAX32, _MAX32, _MAX32, _MAX16), (8, 8, 8, 4), strict=True
    ):
        if value != limit:
            found.append(value)
            continue
        if len(data) < width:
            raise broken(file, name, "its 64-bit sizes are not there")
        found.append(int.from_bytes(data[:width], "little"))
        data = data[width:]
    return tuple(found)


def _check_kind(
    member: tuple[str, int, int, int, int, int],
    disk: int,
    system: int,
    mode: int,
    file: str,
) -> None:
    """Refuse what is no regular file, stored here, in a form that can be read."""
    name, packed, size, _, method, flags = member
    if flags & ~_HARMLESS or disk or method not in _NEEDS:
        if flags & _ENCRYPTED:
            raise broken(file, name, "it is encrypted")
        if flags & _SIZES_FOLLOW:
            raise broken(file, name, "its sizes stand behind its bytes")
        if disk:
            raise broken(file, name, "it lies in another file")
        if flags & ~_HARMLESS:
            raise broken(file, name, "its flags are not known", hex(flags))
        raise broken(file, name, "its compression is not known", method)
    if method == STORED and packed != size:
        raise broken(file, name, "it is not compressed, and yet has two sizes")
    folder = name[-1:] == "/"
    if folder and size:
        raise broken(file, name, "a directory has bytes")
    kind = mode & _KIND
    if system == _UNIX and kind and kind != (_DIRECTORY if folder else _REGULAR):
        raise broken(file, name, "it is a link, or another special file", oct(kind))


def _check_head(
    descriptor: int,
    offset: int,
    raw: bytes,
    wanted: tuple[int, int, int, int, int],
    file: str,
    name: str,
) -> None:
    """Compare a header with the list of members, field by field."""
    head = _exactly(descriptor, _LOCAL.size, offset, file)
    sign, _, flags, method, _, _, crc, packed, size, name_size, extra_size = (
        _LOCAL.unpack(head)
    )
    if sign != b"PK\3\4":
        raise broken(file, name, "its header is not where it should be")
    after = offset + _LOCAL.size
    if _exactly(descriptor, name_size, after, file) != raw:
        raise broken(file, name, "its header has another name")
    if _MAX32 in (packed, size):
        extra = _exactly(descriptor, extra_size, after + name_size, file)
        size, packed, *_ = _long(extra, (size, packed, 0, 0), file, name)
    if (flags, method, crc, packed, size) != wanted:
        raise broken(file, name, "its header and the list of members do not agree")


def _check_spans(
    descriptor: int, found: list[tuple[int, Member]], limit: int, file: str
) -> None:
    """Refuse members that overlap, given with their headers.

    Where the next one begins at the end of one, both are where they seem to be.
    """
    found.sort()
    ends = [*[head for head, _ in found[1:]], limit]
    for (head, member), end in zip(found, ends, strict=True):
        over = member.start + member.packed - end
        if over > 0:
            raise broken(
                file, member.name, f"it reaches {over} bytes into what follows"
            )
        if over:
            _check_extra(descriptor, head, member, file)


def _check_extra(descriptor: int, head: int, member: Member, file: str) -> None:
    """Check that a header ends where its last field does."""
    lengths = _exactly(descriptor, _EXTRA.size, head + _LOCAL.size - _EXTRA.size, file)
    size = _EXTRA.unpack(lengths)[1]
    extra = _exactly(descriptor, size, member.start - size, file)
    at = 0
    while at + _EXTRA.size <= size:
        at += _EXTRA.size + _EXTRA.unpack_from(extra, at)[1]
    if at != size:
        raise broken(file, member.name, "its header is broken")


class _Engine(Protocol):
    """What inflates: the interface of `bz2` and `lzma`."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Inflate:
    """Raw deflate with that interface."""

    def __init__(self) -> None:
        self._engine = zlib.decompressobj(-zlib.MAX_WBITS)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._engine.eof

    @property
    def unused_data(self) -> bytes:
        return self._engine.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        rest = self._engine.unconsumed_tail
        found = self._engine.decompress(rest + data if rest else data, max_length)
        # A full piece may have left more in the engine than in the tail.
        full = len(found) == max_length
        self.needs_input = not (full or self._engine.unconsumed_tail)
        return found


def _engine(member: Member, head: bytes) -> _Engine:
    if member.method == DEFLATE:
        return _Inflate()
    if member.method == BZIP2:
        return bz2.BZ2Decompressor()
    if head[2:4] != b"\5\0" or len(head) < _LZMA_HEAD:
        raise lzma.LZMAError
    lc, rest = head[4] % 9, head[4] // 9
    # No more than there is to say: memory is taken for all of it.
    dictionary = max(4096, min(int.from_bytes(head[5:], "little"), member.size))
    if dictionary > _LZMA_MEMORY:
        raise lzma.LZMAError(f"they need {dictionary} bytes of memory")
    return lzma.LZMADecompressor(
        format=lzma.FORMAT_RAW,
        filters=[
            {
                "id": lzma.FILTER_LZMA1,
                "dict_size": dictionary,
                "lc": lc,
                "lp": rest % 5,
                "pb": rest // 5,
            }
        ],
    )


def pieces(
    descriptor: int, member: Member, file: str, *, check: bool = True
) -> Iterator[bytes]:
    """Yield the bytes of a member in pieces of at most 1 MiB, inflated if need be.

    Never more than its size; with `check`, the CRC-32 is compared at the end. What
    was inflated is always checked.

    Raises:
        FileFormatError: it is shorter, longer or broken.
    """
    if member.method != STORED:
        found = _inflated(descriptor, member, file)
    else:
        end = member.start + member.size
        starts = range(member.start, end, _STEP)
        found = (_exactly(descriptor, min(_STEP, end - at), at, file) for at in starts)
        if not check:
            yield from found
            return
    crc = 0
    for piece in found:
        crc = zlib.crc32(piece, crc)
        yield piece
    if crc != member.crc:
        raise broken(file, member.name, "its bytes are damaged: its CRC-32 is wrong")


def _inflated(descriptor: int, member: Member, file: str) -> Iterator[bytes]:
    name, left = member.name, member.size
    if member.method == DEFLATE and left > _DEFLATE_RATIO * member.packed:
        raise broken(file, name, "so few bytes can not become so many")
    at, end = member.start, member.start + member.packed
    head = b""
    if member.method == LZMA:
        head = _exactly(descriptor, min(_LZMA_HEAD, member.packed), at, file)
        at += len(head)
    try:
        engine = _engine(member, head)
        while not engine.eof:
            data, asked = b"", engine.needs_input
            if asked:
                data = _exactly(descriptor, min(_STEP >> 2, end - at), at, file)
                at += len(data)
            found = engine.decompress(data, min(left + 1, _STEP))
            left -= len(found)
            if left < 0:
                break
            if found:
                yield found
            elif asked and not data:
                break
    except (zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        raise broken(file, name, "its compressed bytes are broken", error) from error
    _check_ended(member, left, engine, file, more=at < end)


def _check_ended(
    member: Member, left: int, engine: _Engine, file: str, *, more: bool
) -> None:
    # A stream of LZMA may end without saying so.
    open_end = member.method == LZMA and not member.flags & _LZMA_END_MARK
    if left < 0:
        why = f"it inflates to more than the {member.size} bytes that it should be"
    elif left or not (engine.eof or open_end):
        why = "its compressed bytes end too early"
    elif more or engine.unused_data:
        why = "there is something behind its compressed bytes"
    else:
        return
    raise broken(file, member.name, why)


class _Squeeze(Protocol):
    """What compresses."""

    def compress(self, data: memoryview | bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


def _squeeze(method: int, size: int) -> tuple[bytes, _Squeeze]:
    """Return what stands before the compressed bytes, and what compresses."""
    if method == DEFLATE:
        return b"", zlib.compressobj(wbits=-zlib.MAX_WBITS)
    if method == BZIP2:
        return b"", bz2.BZ2Compressor()
    dictionary = max(4096, min(8 << 20, size))
    chain = {
        "id": lzma.FILTER_LZMA1,
        "dict_size": dictionary,
        "lc": 3,
        "lp": 0,
        "pb": 2,
    }
    head = b"\t\4\5\0" + bytes([(2 * 5 + 0) * 9 + 3]) + dictionary.to_bytes(4, "little")
    return head, lzma.LZMACompressor(format=lzma.FORMAT_RAW, filters=[chain])


class _Record(NamedTuple):
    """A member that is written, as both headers tell of it.

    Attributes:
        name: its path, UTF-8.
        need: the version of the format that has it.
        flags: the flags of its headers.
        method: how it is compressed.
        crc: the CRC-32 of the file.
        packed: how many bytes it is in the archive.
        size: how many bytes the file has.
        offset: where its header is.
        wide: whether that has sizes of 64 bits.
        padding: how many bytes of padding it has.
    """

    name: bytes
    need: int
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int
    wide: bool
    padding: int

    def local(self) -> bytes:
        """Return the header before the bytes."""
        name, need, flags, method, crc, packed, size, _, wide, padding = self
        extra = _PADDINGS[padding]
        if wide:
            extra = _EXTRA.pack(_ZIP64, _SIZES.size) + _SIZES.pack(size, packed) + extra
            packed = size = _MAX32
        fields = (need, flags, method, 0, _FIRST_DAY, crc, packed, size)
        head = _LOCAL.pack(b"PK\3\4", *fields, len(name), len(extra))
        return head + name + extra

    def central(self) -> bytes:
        """Return its record in the list of members."""
        name, need, flags, method, crc, packed, size, offset, _, _ = self
        extra = b""
        if size >= _WIDE or packed >= _WIDE or offset >= _WIDE:
            values = (size, packed, offset)
            long = [value.to_bytes(8, "little") for value in values if value >= _WIDE]
            extra = _EXTRA.pack(_ZIP64, 8 * len(long)) + b"".join(long)
            size, packed, offset = [v if v < _WIDE else _MAX32 for v in values]
            need = max(need, _WIDE_NEEDS)
        fields = (need, flags, method, 0, _FIRST_DAY, crc, packed, size)
        lengths = (len(name), len(extra), 0, 0, 0, _MODE, offset)
        head = _CENTRAL.pack(b"PK\1\2", _UNIX << 8 | need, *fields, *lengths)
        return head + name + extra


def _padding_of(size: int) -> bytes:
    if size < _EXTRA.size:
        return b""
    return _EXTRA.pack(_PADDING, size - _EXTRA.size) + bytes(size - _EXTRA.size)


# The padding field by its length.
_PADDINGS = [_padding_of(size) for size in range(_ALIGN + _EXTRA.size)]


class Writer:
    """Writes an archive from its start to its end; a context manager.

    Stored payloads are written once, together with their headers, in large batches.
    The checksums of long ones are computed by a thread meanwhile and put into their
    headers afterwards. A block that raises leaves the file without its end.
    """

    def __init__(self, descriptor: int) -> None:
        """Begin an archive in an empty file that is open for writing."""
        self._to = descriptor
        self._at = 0
        self._records: list[_Record] = []
        self._batch: list[memoryview | bytes] = []
        self._waiting = 0
        self._flushed = 0
        self._late: deque[tuple[int, Future[int]]] = deque()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)

    def store(self, name: bytes, data: memoryview | bytes, *, align: bool) -> None:
        """Add a file as it is; `align` puts its bytes at a multiple of 64."""
        size = len(data)
        late = size >= _THREADED
        self._begin(name, STORED, 0 if late else zlib.crc32(data), size, align=align)
        if late:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "tdfunc-crc32")
            coming = self._pool.submit(zlib.crc32, data)
            self._late.append((len(self._records) - 1, coming))
        self._put(data)
        # A copy of a tensor lives until its checksum is there: not too many of them.
        while len(self._late) > _LATE:
            self._settle()

    def stream(
        self,
        name: bytes,
        found: Iterable[memoryview | bytes | int],
        size: int,
        method: int,
    ) -> None:
        """Add a file that comes in pieces, aligned if it is stored.

        A number is a hole of that many zeros, and stays one where it is stored.

        Raises:
            FileFormatError: the pieces are not `size` bytes.
        """
        record = self._begin(name, method, 0, size, align=method == STORED)
        place, flushed = len(self._batch) - 1, self._flushed
        begin = self._at
        squeeze = None
        if method != STORED:
            head, squeeze = _squeeze(method, size)
            self._put(head)
        crc = taken = 0
        for piece in found:
            if isinstance(piece, int):
                taken += piece
                for zeros in _zeros(piece):
                    crc = zlib.crc32(zeros, crc)
                    if squeeze is not None:
                        self._put(squeeze.compress(zeros))
                if squeeze is None:
                    self._skip(piece)
                continue
            taken += len(piece)
            crc = zlib.crc32(piece, crc)
            self._put(piece if squeeze is None else squeeze.compress(piece))
        if squeeze is not None:
            self._put(squeeze.flush())
        if taken != size:
            raise broken(name.decode(), None, "the file changes while it is read")
        record = record._replace(crc=crc, packed=self._at - begin)
        self._records[-1] = record
        if flushed == self._flushed:
            self._batch[place] = record.local()
        else:
            os.pwrite(self._to, record.local(), record.offset)

    def _begin(
        self, name: bytes, method: int, crc: int, size: int, *, align: bool
    ) -> _Record:
        need, flags, offset = _NEEDS[method], 0, self._at
        most = size
        if method != STORED:
            # What can not be compressed becomes a little longer.
            most += (size >> 4) + 4096
            flags = _LZMA_END_MARK if method == LZMA else 0
        body = offset + _LOCAL.size + len(name)
        wide = most >= _WIDE
        if wide:
            need = max(need, _WIDE_NEEDS)
            body += _WIDE_EXTRA
        padding = -body % _ALIGN if align else 0
        if 0 < padding < _EXTRA.size:
            padding += _ALIGN
        if not name.isascii():
            flags |= _UTF8
        record = _Record(
            name, need, flags, method, crc, size, size, offset, wide, padding
        )
        self._records.append(record)
        head = record.local()
        self._batch.append(head)
        self._at += len(head)
        self._waiting += len(head)
        return record

    def _put(self, data: memoryview | bytes) -> None:
        size = len(data)
        if size:
            self._batch.append(data)
            self._at += size
            self._waiting += size
        if self._waiting >= _BATCH or len(self._batch) >= _BUFFERS:
            self._flush()

    def _skip(self, count: int) -> None:
        self._flush()
        self._at = os.lseek(self._to, count, os.SEEK_CUR)

    def _flush(self) -> None:
        write_all(self._to, self._batch)
        self._batch = []
        self._waiting = 0
        self._flushed += 1

    def _settle(self) -> None:
        at, coming = self._late.popleft()
        record = self._records[at]._replace(crc=coming.result())
        self._records[at] = record
        if self._batch:
            self._flush()
        os.pwrite(self._to, record.local(), record.offset)

    def _finish(self) -> None:
        while self._late:
            self._settle()
        start = self._at
        self._put(b"".join([record.central() for record in self._records]))
        length, count, end = self._at - start, len(self._records), self._at
        fields = (count, count, length, start)
        if end >= _WIDE or count >= _MANY:
            self._put(
                _END64.pack(
                    b"PK\6\6",
                    _END64.size - 12,
                    _WIDE_NEEDS,
                    _WIDE_NEEDS,
                    0,
                    0,
                    *fields,
                )
            )
            self._put(_LOCATOR.pack(b"PK\6\7", 0, end, 1))
            fields = (_MAX16, _MAX16, _MAX32, _MAX32)
        self._put(_END.pack(b"PK\5\6", 0, 0, *fields, 0))
        self._flush()


def _zeros(count: int) -> Iterator[bytes]:
    whole = bytes(min(count, _STEP))
    while count > 0:
        yield whole if count >= _STEP else whole[:count]
        count -= _STEP
