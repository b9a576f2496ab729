"""What is in a file, as text and on the command line."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

import tdfunc
from tdfunc import NonTensorData, TensorClass, TensorDict, unbatched
from tdfunc.__main__ import main
from tdfunc.errors import FileFormatError, MissingFileError, OptionError
from tdfunc.io import _files, show
from tests.cases import ramp
from tests.meta.source import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FORMATS: dict[str, Any] = {
    "memmap": "saved",
    "archive": "saved.tdz",
    "consolidated": "saved.cons",
    "safetensors": "saved.safetensors",
}

every_format = pytest.mark.parametrize("format", FORMATS)


class Obs(TensorClass):
    pos: torch.Tensor


def tree() -> TensorDict:
    shared = ramp(3)
    stack = tdfunc.lazy_stack([TensorDict(x=ramp(2)), TensorDict(x=ramp(5), y=1)] * 2)
    return TensorDict(
        {
            "x": ramp(3, 2),
            "n": {"a": shared, "b": shared, "s": "t" * 100, "deep": {"z": ramp(3)}},
            "obs": Obs(pos=ramp(3, 2), batch_size=[3]),
            "rows": ["go", "stop", "go"],
            "u": unbatched(ramp(7)),
            "stack": stack[:3],
        },
        3,
        names=["time"],
    )


def lines(text: str) -> list[str]:
    """Return the lines without the columns."""
    return [" ".join(line.split()) for line in text.splitlines()]


@every_format
def test_every_entry_has_a_line(format: Any, tmp_path: Path) -> None:
    path = tmp_path / FORMATS[format]
    tdfunc.save(tree(), path, format=format)

    found = lines(show(path))

    assert found[0].startswith(f"{path.name} {format}, ")
    assert "tree node batch_size=[3] names=['time']" in found
    assert "x float32 [3, 2] 24 B" in found
    assert "a float32 [3] 12 B" in found
    assert "b float32 [3] 12 B the same as td['n', 'a']" in found
    assert any(line.startswith("s static 'ttt") and "..." in line for line in found)
    assert any(f"record={__name__}:Obs" in line for line in found)
    assert "rows rows [3] 'go', 'stop', 'go'" in found
    assert "u float32 [7] 28 B unbatched" in found
    assert any(line.startswith("stack lazy stack batch_size=[3]") for line in found)
    assert any(line.startswith("[2] node batch_size=[]") for line in found)
    assert "y int64 [] 8 B" in found


@every_format
def test_no_data_is_read(
    format: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / FORMATS[format]
    tdfunc.save(TensorDict(x=torch.zeros(1000)), path, format=format)
    module: Any = _files.FORMATS[format].module
    opened = module.open_source

    def watched(*args: Any) -> Any:
        source = opened(*args)
        source.read = pytest.fail
        return source

    monkeypatch.setattr(module, "open_source", watched)

    assert "3.91 KiB" in show(path)


@every_format
def test_pickles_are_left_alone(format: Any, tmp_path: Path) -> None:
    path = tmp_path / FORMATS[format]
    entries = {"s": type, "d": NonTensorData([type]), "rows": [type, "a", None]}
    tdfunc.save(TensorDict(entries, 3), path, format=format, allow_pickle=True)

    text = "\n".join(lines(show(path)))

    assert "s static <pickled>" in text
    assert "<pickled>" in text.partition("d static")[2].splitlines()[0]
    assert "<pickled>" in text.partition("rows ")[2].splitlines()[0]


def test_depth_leaves_out_what_is_below(tmp_path: Path) -> None:
    tree().save(tmp_path / "x")

    assert ["tree node batch_size=[3] names=['time'] ... 6 entries, 136 B"] == lines(
        show(tmp_path / "x", depth=1)
    )[1:]
    two = lines(show(tmp_path / "x", depth=2))
    assert len(two) == 2 + len(tree().keys())
    assert any(line.endswith("... 4 entries, 24 B") for line in two)
    assert any(line.endswith("... 3 members, 36 B") for line in two)
    with pytest.raises(OptionError, match="at least 1"):
        show(tmp_path / "x", depth=0)
    wrong: Any = "1"
    with pytest.raises(OptionError, match="got '1'"):
        show(tmp_path / "x", depth=wrong)


def test_jagged_tensors(tmp_path: Path) -> None:
    jagged = torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged
    )
    TensorDict({"j": jagged}, 2).save(tmp_path / "x.cons", format="consolidated")

    assert "j float32 [2, *, 3] 96 B jagged" in lines(show(tmp_path / "x.cons"))


def test_an_empty_tree(tmp_path: Path) -> None:
    TensorDict({}, 3).save(tmp_path / "x")

    assert [
        "x memmap, 0 tensors of 0 B",
        "tree node batch_size=[3]",
    ] == lines(show(tmp_path / "x"))


def test_sizes_have_units(tmp_path: Path) -> None:
    TensorDict(a=torch.zeros(3 << 18), b=torch.zeros(300)).save(tmp_path / "x")

    text = show(tmp_path / "x")

    assert "3 MiB" in text
    assert "1.17 KiB" in text


def test_what_a_terminal_would_obey_is_escaped(tmp_path: Path) -> None:
    keys = ["\x1b[31mred", "a\nb", "\u202eright to left", "\x9b2J", " ", "'q", "\r"]
    entries: dict[str, Any] = {key: ramp(2) for key in keys}
    entries |= {"s": "\x1b[2J", "d": NonTensorData({"\x1b]0;": "\x07"})}
    entries["rows"] = ["\x1b[0m", "\x08"]
    path = tmp_path / "e\x1b[1m"
    TensorDict(entries, 2).save(path)

    text = show(path)

    assert all(line.isprintable() for line in text.split("\n"))
    assert r"\x1b[31mred" in text
    assert len(text.split("\n")) == 2 + len(entries)


# The command


def test_the_command_prints_the_tree(tmp_path: Path) -> None:
    TensorDict({"日本": ramp(2), "x": ramp(2)}).save(tmp_path / "x.tdz")
    command = [sys.executable, "-m", "tdfunc", "show", str(tmp_path / "x.tdz")]

    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, check=True, encoding="utf-8"
    )

    assert done.stdout == show(tmp_path / "x.tdz") + "\n"
    assert done.stderr == ""


def test_the_depth_is_an_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree().save(tmp_path / "x")

    assert main(["show", str(tmp_path / "x"), "--depth", "1"]) == 0

    assert capsys.readouterr().out == show(tmp_path / "x", depth=1) + "\n"


def test_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad\x1b\n").write_text("text")
    for name, error in (("gone", MissingFileError), ("bad\x1b\n", FileFormatError)):
        with pytest.raises(error):
            show(tmp_path / name)
        assert main(["show", str(tmp_path / name)]) == 1

        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("tdfunc: ")
        assert err.endswith("\n")
        assert err[:-1].isprintable()


@pytest.mark.parametrize("arguments", [[], ["shoe"], ["show"], ["show", "x", "-d"]])
def test_a_wrong_command_prints_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert "usage: python -m tdfunc" in capsys.readouterr().err


@pytest.mark.parametrize("depth", ["0", "-1", "x"])
def test_a_wrong_depth(depth: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["show", "x", "--depth", depth])

    assert "--depth" in capsys.readouterr().err


def test_a_terminal_in_ascii(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TensorDict({"日本": ramp(2)}).save(tmp_path / "x")
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)

    assert main(["show", str(tmp_path / "x")]) == 0

    assert rb"\u65e5\u672c" in out.buffer.getvalue()
