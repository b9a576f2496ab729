"""Who may import whom: the layers of DESIGN.md section 5, read from the source."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

import pytest

from tests.meta.source import ROOT, iter_imports, package_modules, parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.meta.source import Module

FACADE = "tdfunc"

# Imports go downwards only. The facade is `tdfunc/__init__.py`: what uses the whole
# public interface, and is not part of it, stands above.
LAYERS = (
    {"errors", "typing", "_check"},
    {"_core"},
    {"_ops"},
    {"random", "func", "io", "optim", "distributed"},
    {"_tensordict", "_lazystack", "_tensorclass", "_pytree"},
    {"nn"},
    {"objectives", "replay", "store", "interop"},
    {FACADE},
    {"testing", "__main__"},
)
LAYER_OF = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}

# Inside a layer nothing imports a neighbour, with these exceptions.
NEIGHBOURS = {("func", "random"), ("optim", "func"), ("distributed", "io")}
# These two layers are one subject in several files; no cycles is all they need.
LOOSE = {LAYER_OF["errors"], LAYER_OF["_tensordict"]}

TORCH_PRIVATES = "tdfunc._core._torch"


def _declared_dependencies() -> tuple[set[str], set[str]]:
    """Return the required packages, and the optional ones that have a feature."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tooling = {"examples", "docs", "test", "dev"}
    extras = project["optional-dependencies"]
    features = [need for name in extras.keys() - tooling for need in extras[name]]

    def names(needs: Iterable[str]) -> set[str]:
        return {re.split(r"[^\w-]", need, maxsplit=1)[0] for need in needs}

    return names(project["dependencies"]), names(features)


REQUIRED, OPTIONAL = _declared_dependencies()
MODULES = package_modules()


def _unit(module: str) -> str:
    """Return the part of a dotted name that the table of layers lists."""
    return module.split(".")[1] if "." in module else FACADE


def _own_imports(
    module: Module, known: set[str]
) -> Iterator[tuple[int, str, str | None, bool]]:
    """Yield line, imported module, function and typing_only for our own package."""
    for found in iter_imports(module):
        if found.module.partition(".")[0] != FACADE:
            continue
        # `from tdfunc._core import keys` imports the module, not a name in it.
        longer = f"{found.module}.{found.name}"
        target = longer if longer in known else found.module
        yield found.line, target, found.function, found.typing_only


def find_layer_faults(module: Module, known: set[str]) -> Iterator[str]:
    """Yield every import of a module that goes up, sideways or hides."""
    unit = _unit(module.name)
    if unit not in LAYER_OF:
        yield f"{module.name}: {unit!r} is in no layer"
        return
    for line, target, function, _ in _own_imports(module, known):
        where = f"{module.name}:{line} imports {target}"
        if function is not None:
            yield f"{where} inside {function}()"
        other = _unit(target)
        if other not in LAYER_OF:
            yield f"{where}, which is in no layer"
        elif LAYER_OF[other] > LAYER_OF[unit]:
            yield f"{where}, which is above it"
        elif (
            LAYER_OF[other] == LAYER_OF[unit]
            and other != unit
            and LAYER_OF[unit] not in LOOSE
            and (unit, other) not in NEIGHBOURS
        ):
            yield f"{where}, its neighbour"


def find_dependency_faults(modules: Iterable[Module]) -> Iterator[str]:
    """Yield what is imported undeclared, early, or in two places."""
    places: dict[str, set[str]] = {}
    for module in modules:
        for found in iter_imports(module):
            top = found.module.partition(".")[0]
            if top in {FACADE, *REQUIRED} or top in sys.stdlib_module_names:
                continue
            where = f"{module.name}:{found.line} imports {top}"
            if top not in OPTIONAL:
                yield f"{where}, which pyproject.toml does not declare for users"
            elif found.typing_only:
                continue
            elif found.function is None:
                yield f"{where} outside a function"
            else:
                places.setdefault(top, set()).add(f"{module.name}.{found.function}")
    for top, functions in places.items():
        if len(functions) > 1:
            yield f"{top} is imported in {', '.join(sorted(functions))}"


def find_private_torch_names(module: Module) -> Iterator[str]:
    """Yield every use of an underscored name of torch at run time."""
    bound: set[str] = set()
    for found in iter_imports(module):
        if found.module.partition(".")[0] != "torch":
            continue
        bound.add(found.binds)
        dotted = f"{found.module}.{found.name}" if found.name else found.module
        if not found.typing_only and any(map(_is_private, dotted.split("."))):
            yield f"{module.name}:{found.line} imports {dotted}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in bound:
                yield f"{module.name}:{node.lineno} reads {ast.unparse(node)}"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def find_cycle(modules: Iterable[Module]) -> list[str]:
    """Return one cycle of imports that run, or nothing."""
    modules = list(modules)
    known = {module.name for module in modules}
    graph = {
        module.name: {
            target
            for _, target, _, typing_only in _own_imports(module, known)
            if not typing_only and target != module.name
        }
        for module in modules
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_imports_go_downwards() -> None:
    known = {module.name for module in MODULES}

    assert [] == [f for module in MODULES for f in find_layer_faults(module, known)]


def test_imports_have_no_cycle() -> None:
    assert [] == find_cycle(MODULES)


def test_dependencies_are_declared_and_optional_ones_load_late_in_one_place() -> None:
    assert [] == list(find_dependency_faults(MODULES))


def test_private_torch_names_stand_in_one_file() -> None:
    assert [] == [
        fault
        for module in MODULES
        if module.name != TORCH_PRIVATES
        for fault in find_private_torch_names(module)
    ]


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("tdfunc._core.a", "from tdfunc._ops import b", "above it"),
        ("tdfunc._core.a", "from .._ops.b import c", "above it"),
        ("tdfunc._ops.a", "import tdfunc._tensordict", "above it"),
        ("tdfunc._ops.a", "from tdfunc import TensorDict", "above it"),
        ("tdfunc.errors", "if TYPE_CHECKING:\n  import tdfunc._core", "above it"),
        ("tdfunc.random.a", "import tdfunc.func", "its neighbour"),
        ("tdfunc.io.a", "import tdfunc.optim", "its neighbour"),
        ("tdfunc.store.a", "import tdfunc.replay", "its neighbour"),
        ("tdfunc._ops.a", "def f():\n  from tdfunc._core import b", "inside f()"),
        ("tdfunc._ops.a", "class A:\n  def f(s):\n    from . import b", "inside f()"),
        ("tdfunc.unknown", "", "in no layer"),
        ("tdfunc._ops.a", "import tdfunc.unknown", "in no layer"),
    ],
)
def test_layer_fault_is_found(name: str, source: str, fault: str) -> None:
    (found,) = find_layer_faults(parse(source, name), {"tdfunc._ops.b"})

    assert fault in found


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tdfunc._ops.at", "from tdfunc._ops import index"),
        ("tdfunc._ops.at", "from . import index"),
        ("tdfunc._core.node", "from tdfunc.errors import TdfuncError"),
        ("tdfunc.optim.adam", "from tdfunc.func import partition"),
        ("tdfunc.func.a", "from tdfunc import random"),
        ("tdfunc.testing.a", "from tdfunc import TensorDict"),
        ("tdfunc", "from tdfunc import store"),
        ("tdfunc._check", "from tdfunc import errors"),
    ],
)
def test_legal_import_is_no_layer_fault(name: str, source: str) -> None:
    known = {"tdfunc.random", "tdfunc.store", "tdfunc.errors", "tdfunc._ops.index"}

    assert [] == list(find_layer_faults(parse(source, name), known))


def test_cycle_is_found_unless_it_is_for_types_only() -> None:
    a = parse("import tdfunc._ops.b", "tdfunc._ops.a")
    b = parse("from tdfunc._ops import a", "tdfunc._ops.b")
    for_types = parse("if TYPE_CHECKING:\n  from tdfunc._ops import a", "tdfunc._ops.b")

    assert {"tdfunc._ops.a", "tdfunc._ops.b"} == set(find_cycle([a, b]))
    assert [] == find_cycle([a, for_types])


@pytest.mark.parametrize(
    ("sources", "fault"),
    [
        (["import requests"], "does not declare"),
        (["def f():\n  import sklearn"], "does not declare"),
        (["import pyarrow.parquet"], "outside a function"),
        (["if TYPE_CHECKING:\n  pass\nelse:\n  import h5py"], "outside a function"),
        (["def f():\n  import zarr\ndef g():\n  import zarr"], "is imported in"),
        (["def f():\n  import zarr", "def f():\n  import zarr"], "is imported in"),
    ],
)
def test_dependency_fault_is_found(sources: list[str], fault: str) -> None:
    modules = [parse(text, f"tdfunc.io.m{i}") for i, text in enumerate(sources)]

    (found,) = find_dependency_faults(modules)

    assert fault in found


def test_legal_dependencies_are_no_fault() -> None:
    source = """
import torch.nn, numpy as np
from collections.abc import Mapping
if TYPE_CHECKING:
    import pandas
def load():
    import pandas
    from pandas import DataFrame
"""

    assert [] == list(find_dependency_faults([parse(source)]))


@pytest.mark.parametrize(
    "source",
    [
        "import torch.utils._pytree",
        "from torch.utils import _pytree as pytree",
        "import torch\ntorch._foreach_add([], 1)",
        "import torch\ndef f(x): return torch.Tensor._make_subclass(x)",
        "from torch import nn\nnn.Module._apply",
    ],
)
def test_private_torch_name_is_found(source: str) -> None:
    assert len(list(find_private_torch_names(parse(source)))) == 1


def test_public_torch_names_are_no_fault() -> None:
    source = """
import torch
torch.__version__, torch.add(torch.ones(()), 1), self._leaves
if TYPE_CHECKING:
    from torch.utils._pytree import KeyEntry
"""

    assert [] == list(find_private_torch_names(parse(source)))
