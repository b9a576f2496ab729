"""``python -m tests.bench``: print what operations cost beside the floor and the peer.

Times are CPU time of one thread. A ratio is how many times longer than the floor (the
same work by hand on plain tensors) a call takes; `!` marks one above its target.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

import torch

from tests.bench.cases import CASES
from tests.bench.table import (
    HEADER,
    IMPORT_NAME,
    Row,
    as_line,
    as_markdown,
    cells,
    measure,
    measure_import,
)
from tests.bench.trees import peer_installed


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    peer = options.peer and peer_installed()
    if options.peer and not peer:
        sys.stderr.write("tensordict is not installed: measuring without the peer\n")
    words = [word.lower() for word in options.words]
    chosen = [case for case in CASES if is_chosen(case.name, words)]
    with_import = is_chosen(IMPORT_NAME, words)
    if not chosen and not with_import:
        names = "\n".join([*[case.name for case in CASES], IMPORT_NAME])
        sys.exit(f"no row has one of {options.words} in its name; rows are:\n{names}")

    width = 2 + max(len(name) for name in [*[c.name for c in chosen], HEADER[0]])
    rows: list[Row] = []

    def add(row: Row) -> None:
        rows.append(row)
        if not options.markdown:
            sys.stdout.write(as_line(cells(row), width) + "\n")
            sys.stdout.flush()

    if not options.markdown:
        sys.stdout.write(as_line(HEADER, width) + "\n")
    for case in chosen:
        add(measure(case, options.rounds, peer=peer))
    if with_import:
        add(measure_import(peer=peer))
    if options.markdown:
        sys.stdout.write(as_markdown(rows))
    missed = sum(row.missed for row in rows)
    aimed = sum(row.target is not None for row in rows)
    sys.stdout.write(f"\n{aimed - missed} of {aimed} targets met\n")
    if options.json is not None:
        options.json.write_text(as_json(rows, options.rounds))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.bench", description=__doc__)
    parser.add_argument(
        "words", nargs="*", help="measure only rows whose name has one of these in it"
    )
    parser.add_argument("--rounds", type=int, default=21, help="default: 21")
    parser.add_argument(
        "--no-peer", dest="peer", action="store_false", help="leave tensordict out"
    )
    parser.add_argument("--markdown", action="store_true", help="a Markdown table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write it all here")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def is_chosen(name: str, words: list[str]) -> bool:
    return not words or any(word in name.lower() for word in words)


def as_json(rows: list[Row], rounds: int) -> str:
    """Return machine, versions, and for every row medians with their quartiles."""
    listed = []
    for row in rows:
        ratios = {
            "tdfunc": row.tdfunc,
            "peer": row.peer,
            "tdfunc_over_peer": row.tdfunc_over_peer,
        }
        plain = {name: r and r._asdict() for name, r in ratios.items()}
        listed.append({**row._asdict(), **plain, "missed": row.missed})
    about = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "rounds": rounds,
        "rows": listed,
    }
    return json.dumps(about, indent=2) + "\n"


if __name__ == "__main__":
    main()
