"""The package's source, parsed: what the tests in this folder look at."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tdfunc"

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Module:
    """One module: its dotted name and its syntax tree."""

    name: str
    tree: ast.Module
    is_package: bool = False


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, with where the import stands.

    ``from a.b import c as d`` has the module ``a.b``, the name ``c`` and binds
    ``d``; ``import a.b`` has the module ``a.b``, no name and binds ``a``.
    """

    line: int
    module: str
    name: str | None
    binds: str
    function: str | None
    """Dotted name of the enclosing function, None at the level of the module."""
    typing_only: bool
    """Whether it stands under ``if TYPE_CHECKING``."""


def package_modules() -> list[Module]:
    """Parse every file of the package."""
    return [
        Module(_dotted_name(path), ast.parse(path.read_text()), path.stem == "__init__")
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def parse(source: str, name: str = "tdfunc._core.seeded") -> Module:
    """Parse a piece of source as if it were a module of the package."""
    return Module(name, ast.parse(source))


def iter_imports(module: Module) -> Iterator[Import]:
    """Yield what a module imports, function bodies and TYPE_CHECKING included."""
    yield from _imports_below(module, module.tree, function=None, typing_only=False)


def _dotted_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports_below(
    module: Module, parent: ast.AST, *, function: str | None, typing_only: bool
) -> Iterator[Import]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.Import):
            for alias in node.names:
                binds = alias.asname or alias.name.partition(".")[0]
                yield Import(
                    node.lineno, alias.name, None, binds, function, typing_only
                )
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            for alias in node.names:
                binds = alias.asname or alias.name
                yield Import(
                    node.lineno, source, alias.name, binds, function, typing_only
                )
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            # The else branch is what runs.
            for statements, only_types in ((node.body, True), (node.orelse, False)):
                yield from _imports_below(
                    module,
                    ast.Module(statements, []),
                    function=function,
                    typing_only=typing_only or only_types,
                )
        else:
            inner = function
            if isinstance(node, FUNCTIONS):
                own = getattr(node, "name", "lambda")
                inner = f"{function}.{own}" if function else own
            yield from _imports_below(
                module, node, function=inner, typing_only=typing_only
            )


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    up = node.level - 1 if module.is_package else node.level
    parts = module.name.split(".")
    base = parts[: len(parts) - up]
    return ".".join([*base, node.module] if node.module else base)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
