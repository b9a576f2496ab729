"""Laws of archives: what was saved is loaded, and they are directories in one file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import hypothesis.strategies as st
from hypothesis import given

import tdfunc
from tdfunc.errors import TdfuncError
from tdfunc.testing import assert_equal, assert_pure, assert_valid, keys, tensordicts
from tests.io import directories
from tests.io.archives import load, save

# What file names and the fields of the peer could be taken for.
ODD = ("shape", "_type", "meta.json", "..", ".", "a/b", "C:a", "\\", "\x00", "\ud800")
KEYS = st.one_of(keys(), st.sampled_from(ODD))
TREES = tensordicts(key=KEYS, rows=True, unbatched=True, lazy=True)
COMPRESSIONS = st.sampled_from([None, "deflate", "bzip2", "lzma"])


@given(td=TREES, compression=COMPRESSIONS)
def test_load_gives_what_was_saved(td: Any, compression: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "x.tdz")
        assert_pure(lambda tree: save(tree, path, compression=compression), td)
        back = load(path, verify=True)

        with ZipFile(path) as file:
            assert file.testzip() is None
    assert_equal(back, td)
    assert_valid(back)
    # One tensor at two places is one tensor again.
    assert len({id(x) for x in back._leaves}) == len({id(x) for x in td._leaves})


@given(td=TREES, compression=COMPRESSIONS)
def test_archives_are_directories(td: Any, compression: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        directories.save(td, root / "d")
        save(td, root / "x.tdz", compression=compression)
        tdfunc.pack_memmap(root / "d", root / "y.tdz", compression=compression)
        tdfunc.unpack_memmap(root / "y.tdz", root / "e")

        assert (root / "x.tdz").read_bytes() == (root / "y.tdz").read_bytes()
        assert_equal(directories.load(root / "e"), td)


@given(td=TREES, data=st.data())
def test_a_broken_archive_is_an_error_or_no_harm(td: Any, data: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "x.tdz")
        save(td, path)
        raw = bytearray(path.read_bytes())
        start = data.draw(st.integers(0, len(raw) - 1))
        stop = data.draw(st.integers(start, min(start + 8, len(raw))))
        raw[start:stop] = data.draw(st.binary(max_size=8))
        path.write_bytes(raw)
        try:
            back = load(path, verify=True)
        except TdfuncError as error:
            assert str(path) in str(error)  # noqa: PT017
        else:
            assert_equal(back, td)
