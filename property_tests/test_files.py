"""Files: every tree comes back from every format as it was saved."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis import given

import tdfunc
from tdfunc.errors import FormatLimitError
from tdfunc.testing import assert_equal, assert_valid, tensordicts

if TYPE_CHECKING:
    from tdfunc import TensorDict

FORMATS: list[Any] = ["memmap", "archive", "consolidated", "safetensors"]

formats = st.sampled_from(FORMATS)


def trees() -> Any:
    return tensordicts(rows=True, unbatched=True, lazy=True, max_leaves=4)


def held(td: TensorDict, path: Path, format: Any, **options: Any) -> bool:
    """Return whether a tree could be saved; if not, nothing is there."""
    try:
        tdfunc.save(td, path, format=format, **options)
    except FormatLimitError:
        # safetensors has not all dtypes.
        assert format == "safetensors"
        assert not path.exists()
        return False
    return True


@given(trees(), formats, st.data())
def test_loading_what_was_saved_is_identity(
    td: TensorDict, format: Any, data: st.DataObject
) -> None:
    options: dict[str, bool] = {}
    if format == "memmap":
        options["atomic"] = data.draw(st.booleans())
    with TemporaryDirectory() as folder:
        path = Path(folder) / "td"
        if not held(td, path, format, **options):
            return

        out = tdfunc.load(path)

        assert_valid(out)
        assert_equal(out, td, key_order=True, names=True)
        assert [path] == [*Path(folder).iterdir()]


@given(trees(), formats, st.data())
def test_loading_a_part_is_selecting_it(
    td: TensorDict, format: Any, data: st.DataObject
) -> None:
    paths = td.keys(True)
    wanted = data.draw(st.lists(st.sampled_from(paths), max_size=2)) if paths else []
    with TemporaryDirectory() as folder:
        if not held(td, Path(folder) / "td", format):
            return

        out = tdfunc.load(Path(folder) / "td", keys=wanted)

        assert_equal(out, td.select(*wanted), names=True)


@given(trees(), formats)
def test_the_structure_is_there_without_the_data(td: TensorDict, format: Any) -> None:
    with TemporaryDirectory() as folder:
        if not held(td, Path(folder) / "td", format):
            return

        out = tdfunc.load(Path(folder) / "td", device="meta")

        assert out._schema is td._schema or out._schema.matches(td._schema)
        assert out.batch_size == td.batch_size
        assert tdfunc.io.show(Path(folder) / "td").replace("\n", "").isprintable()


@given(trees(), trees(), formats, formats)
def test_a_tree_goes_from_format_to_format(
    td: TensorDict, other: TensorDict, format: Any, then: Any
) -> None:
    """Over what was there, and from the files that it is mapped from."""
    with TemporaryDirectory() as folder:
        one, two = Path(folder) / "one", Path(folder) / "two"
        if not held(td, one, format) or not held(other, two, then):
            return
        mapped = tdfunc.load(one)

        if held(mapped, two, then, overwrite=True):
            assert_equal(tdfunc.load(two), td, key_order=True, names=True)
        held(other, one, format, overwrite=True)

        assert_equal(mapped, td, key_order=True, names=True)
