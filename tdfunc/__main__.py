"""``python -m tdfunc show PATH``: print the tree in a file or directory."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from tdfunc.errors import TdfuncError
from tdfunc.io import show
from tdfunc.io._show import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return the exit code: 1 if it could not be carried out."""
    options = _parser().parse_args(arguments)
    try:
        text = show(options.path, depth=options.depth)
    except (TdfuncError, OSError) as error:
        sys.stderr.write(f"tdfunc: {printable(str(error))}\n")
        return 1
    # Keys may be in any script, the terminal in ASCII.
    raw = f"{text}\n".encode(sys.stdout.encoding or "utf-8", "backslashreplace")
    try:
        sys.stdout.buffer.write(raw)
        sys.stdout.flush()
    except BrokenPipeError:  # of `| head`, which has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tdfunc")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    what = "print the tree in a file or directory, without reading its tensors"
    command = commands.add_parser("show", help=what, description=what)
    command.add_argument("path", metavar="PATH")
    command.add_argument(
        "--depth",
        type=_positive,
        metavar="N",
        help="show N levels, the tree itself being the first",
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
