"""The python blocks of README.md and docs/ run; the examples keep their form."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.meta.source import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_EXAMPLE_LINES = 120
# An environment, an agent and how it learns are three programs in one.
LONGER = {"functional_ppo_or_dqn.py": 200}

FENCE = re.compile(
    r"^(?P<indent> *)```python\b[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def python_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield every python block of a page with the number of its first line."""
    for match in FENCE.finditer(text):
        first = text.count("\n", 0, match.start("code")) + 1
        indent = len(match["indent"])
        lines = [line[indent:] for line in match["code"].splitlines()]
        yield first, "\n".join(lines) + "\n"


def run_page(page: Path) -> None:
    """Run the blocks of a page in order, later ones seeing what earlier ones made."""
    namespace: dict[str, object] = {"__name__": page.stem}
    for first, code in python_blocks(page.read_text()):
        # Blank lines in front make a traceback show the line of the page.
        source = "\n" * (first - 1) + code
        exec(compile(source, str(page), "exec", dont_inherit=True), namespace)  # noqa: S102


def find_example_faults(source: str, most: int = MAX_EXAMPLE_LINES) -> Iterator[str]:
    """Yield what is wrong with the form of an example."""
    functions = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]
    if "main" not in {function.name for function in functions}:
        yield "has no main()"
    lines = source.count("\n")
    if lines >= most:
        yield f"has {lines} lines; {most - 1} are the most"


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


WITH_BLOCKS = [page for page in PAGES if any(python_blocks(page.read_text()))]


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=_relative)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A page may write files: they belong in no one's checkout.
    monkeypatch.chdir(tmp_path)

    run_page(page)


@pytest.mark.parametrize("example", EXAMPLES, ids=_relative)
def test_example_is_short_and_has_a_main(example: Path) -> None:
    most = LONGER.get(example.name, MAX_EXAMPLE_LINES)

    assert [] == list(find_example_faults(example.read_text(), most))


PAGE = """
```python
x = 1
```

=== "Tab"

    ```python title="indented"
    if x:
        y = x + 1

    assert y == 2
    ```

```text
assert False
```
"""


def test_blocks_are_found_with_their_lines() -> None:
    assert [
        (3, "x = 1\n"),
        (9, "if x:\n    y = x + 1\n\nassert y == 2\n"),
    ] == list(python_blocks(PAGE))


def test_failing_block_fails_at_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("y == 2", "y == 3"))

    with pytest.raises(AssertionError) as caught:
        run_page(page)

    last = caught.traceback[-1]
    assert (str(page), 12) == (str(last.path), last.lineno + 1)


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ("def main(): ...\n" + "\n" * 118, []),
        ("def main(): ...\n" + "\n" * 119, ["has 120 lines; 119 are the most"]),
        ("class A:\n  def main(self): ...\n", ["has no main()"]),
    ],
)
def test_example_fault_is_found(source: str, faults: list[str]) -> None:
    assert faults == list(find_example_faults(source))
