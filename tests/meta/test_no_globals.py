"""Nothing in the package changes the process, nor reads hidden settings from it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.meta.source import PACKAGE, iter_imports, package_modules, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.meta.source import Module

# Full dotted names, and what is wrong with each. Reading a pickle runs code that
# the data names; a handler or an environment variable is the program's, not ours.
FORBIDDEN = {
    "os.environ": "reads the environment",
    "os.environb": "reads the environment",
    "os.getenv": "reads the environment",
    "os.putenv": "writes the environment",
    "os.unsetenv": "writes the environment",
    "logging.basicConfig": "sets up logging",
    "pickle.load": "reads a pickle",
    "pickle.loads": "reads a pickle",
    "pickle.Unpickler": "reads a pickle",
    "importlib.import_module": "imports by a name found at run time",
    "__import__": "imports by a name found at run time",
}


def find_faults(module: Module) -> Iterator[str]:
    """Yield every piece of a module that acts on the process or hides."""
    bound = dict(_foreign_names(module))
    for node in ast.walk(module.tree):
        for fault in (
            *_forbidden_names(node, bound),
            *_global_state(node),
            *_patches(node, bound),
            *_mutating_names(node),
        ):
            yield f"{module.name}:{getattr(node, 'lineno', 1)} {fault}"


def _foreign_names(module: Module) -> Iterator[tuple[str, str]]:
    """Yield each name bound by an import from elsewhere, with what it stands for."""
    for found in iter_imports(module):
        if found.module.partition(".")[0] == "tdfunc":
            continue
        if found.name:
            yield found.binds, f"{found.module}.{found.name}"
        else:
            is_alias = found.binds != found.module.partition(".")[0]
            yield found.binds, found.module if is_alias else found.binds


def _dotted(node: ast.AST, bound: dict[str, str]) -> str | None:
    """Return what an expression like ``os.path.sep`` names, imports resolved."""
    if isinstance(node, ast.Name):
        return bound.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, bound)
        return f"{base}.{node.attr}" if base else None
    return None


def _forbidden_names(node: ast.AST, bound: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            dotted = f"{node.module}.{alias.name}"
            if dotted in FORBIDDEN:
                yield f"{FORBIDDEN[dotted]}: {dotted}"
        return
    dotted = _dotted(node, bound) or ""
    if dotted in FORBIDDEN:
        yield f"{FORBIDDEN[dotted]}: {dotted}"
    if dotted.endswith(".addHandler") or (
        dotted.startswith("logging.") and dotted.endswith("Handler")
    ):
        yield f"sets up logging: {dotted}"


def _global_state(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Global):
        yield f"rebinds a global: {', '.join(node.names)}"


def _patches(node: ast.AST, bound: dict[str, str]) -> Iterator[str]:
    """Yield writes into what was imported from another package."""
    targets: list[ast.expr] = []
    if isinstance(node, (ast.Assign, ast.Delete)):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = [node.target]
    elif isinstance(node, ast.Call) and _dotted(node.func, bound) in {
        "setattr",
        "delattr",
    }:
        # setattr(module, name, value) writes what module.name = value writes.
        targets = [ast.Attribute(node.args[0], "...", ast.Store())]
    for target in _unpacked(targets):
        root: ast.AST = target
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            root = root.value
        if root is not target and isinstance(root, ast.Name) and root.id in bound:
            yield f"writes into another package: {ast.unparse(target)}"


def _unpacked(targets: list[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, (ast.Tuple, ast.List)):
            yield from _unpacked(target.elts)
        else:
            yield target


def _mutating_names(node: ast.AST) -> Iterator[str]:
    """Yield public names in torch's spelling for in-place operations."""
    names: list[str] = []
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        names.append(node.name)
    elif isinstance(node, ast.alias):
        names.append(node.asname or node.name)
    if isinstance(node, (ast.Module, ast.ClassDef)):
        # What is assigned inside a function is nobody's interface.
        stored = (
            part
            for statement in node.body
            if isinstance(statement, (ast.Assign, ast.AnnAssign))
            for part in ast.walk(statement)
        )
        names += [
            part.id
            for part in stored
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        ]
    for name in names:
        if name.endswith("_") and not name.startswith("_"):
            yield f"has a name that ends in an underscore: {name}"


# The one place that reads a pickle, when a caller asks for it.
PICKLES = re.compile(r"tdfunc\.io\._values:\d+ reads a pickle: pickle\.loads")


def test_package_leaves_the_process_alone() -> None:
    faults = [fault for module in package_modules() for fault in find_faults(module)]
    pickles = [fault for fault in faults if PICKLES.fullmatch(fault)]

    assert pickles == faults
    assert len(pickles) == 1


def test_package_has_no_hand_written_stubs() -> None:
    assert [] == sorted(PACKAGE.rglob("*.pyi"))


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("def f():\n  global x", "rebinds a global: x"),
        ("import os\nos.environ['A']", "reads the environment: os.environ"),
        ("import os as o\no.environ.get('A')", "reads the environment: os.environ"),
        ("from os import environ", "reads the environment: os.environ"),
        ("import os\nos.getenv('A')", "reads the environment: os.getenv"),
        ("import pickle\npickle.loads(b'')", "reads a pickle: pickle.loads"),
        ("from pickle import load", "reads a pickle: pickle.load"),
        ("import pickle as p\np.Unpickler(f)", "reads a pickle: pickle.Unpickler"),
        ("import importlib\nimportlib.import_module(n)", "imports by a name"),
        ("__import__('a')", "imports by a name"),
        ("import logging\nlogging.basicConfig()", "sets up logging"),
        ("log.addHandler(h)", "sets up logging: log.addHandler"),
        ("import logging\nh = logging.StreamHandler()", "sets up logging"),
        ("import torch\ntorch.add = f", "writes into another package: torch.add"),
        ("import torch\ntorch.a, b = f", "writes into another package: torch.a"),
        ("import torch\ntorch.a += 1", "writes into another package: torch.a"),
        ("import torch\ndel torch.add", "writes into another package: torch.add"),
        ("import torch\ntorch.x.y['a'] = 1", "writes into another package"),
        ("import torch\nsetattr(torch.nn, 'a', 1)", "writes into another package"),
        ("from torch import nn\nnn.Module.a = f", "writes into another package"),
        ("def add_(): ...", "ends in an underscore: add_"),
        ("class A:\n  add_ = f", "ends in an underscore: add_"),
        ("add_: Callable = f", "ends in an underscore: add_"),
        ("from a import b as add_", "ends in an underscore: add_"),
    ],
)
def test_fault_is_found(source: str, fault: str) -> None:
    (found,) = find_faults(parse(source))

    assert fault in found


def test_harmless_code_is_no_fault() -> None:
    source = """
import os, pickle, torch, logging
from tdfunc import errors
errors.TdfuncError.__module__ = "tdfunc.errors"
_private_ = pickle.dumps(os.path.sep)
__all__ = ["add"]
log = logging.getLogger(__name__)
table = {"add_": "add"}
table["zero_"] = torch.zeros
def f(torch_out, _):
    nonlocal_out = torch.add(torch_out, 1)
    nonlocal_out.grad = type_ = None
"""

    assert [] == list(find_faults(parse(source)))
