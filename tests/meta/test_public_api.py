"""Every public name is documented, and importing the package changes nothing."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import tdfunc
from tests.meta.source import ROOT, package_modules

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)

# Slow or optional packages that a plain `import tdfunc` must not pay for.
HEAVY = [
    *("torch._dynamo", "sympy"),
    *("h5py", "hypothesis", "pandas", "pyarrow", "redis", "tensordict", "zarr"),
]

# Runs in a fresh interpreter. The names of torch that are bound to functions and
# classes before the import must be bound to the same objects after it, and the two
# classes that everyone patches must have no new ones.
PROBE = """
import inspect, json, logging, os, sys, warnings
import torch, torch._functorch.vmap, torch.nn, torch.utils._pytree

CLASSES = {"torch.Tensor": torch.Tensor, "torch.nn.Module": torch.nn.Module}

def bindings():
    modules = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "torch"}
    found = {(n, name): v for n, m in modules.items() for name, v in vars(m).items()}
    for owner, cls in CLASSES.items():
        for name in dir(cls):
            found[owner, name] = inspect.getattr_static(cls, name)
    return {key: value for key, value in found.items() if callable(value)}

def settings():
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    return {
        "environment": dict(os.environ),
        "log handlers": sum(len(getattr(log, "handlers", ())) for log in loggers),
        "warning filters": list(map(str, warnings.filters)),
        "default dtype": str(torch.get_default_dtype()),
        "gradients": torch.is_grad_enabled(),
        "hooks": [repr(sys.excepthook), repr(sys.displayhook)],
    }

names, values = bindings(), settings()
{STATEMENT}
now, after = bindings(), settings()
added = [key for key in now.keys() - names.keys() if key[0] in CLASSES]
rebound = [key for key in names if now.get(key) is not names[key]]
print(json.dumps({
    "modules": sorted(sys.modules),
    "patched": sorted(".".join(key) for key in added + rebound),
    "changed": [key for key in values if after[key] != values[key]],
    "torch vmap": sum(owner == "torch._functorch.vmap" for owner, _ in names),
}))
"""


def probe(statement: str) -> dict[str, Any]:
    """Return what a statement does to a fresh interpreter that has torch."""
    script = PROBE.replace("{STATEMENT}", statement)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def fresh_import() -> dict[str, Any]:
    return probe("import tdfunc")


@functools.cache
def public_modules() -> list[str]:
    """Return the modules without an underscore in their path."""
    return [
        module.name
        for module in package_modules()
        if not any(part.startswith("_") for part in module.name.split("."))
    ]


def documented_names() -> set[str]:
    pages = (ROOT / "docs" / "api").rglob("*.md")
    return {name for page in pages for name in DIRECTIVE.findall(page.read_text())}


def find_undocumented(module: ModuleType, documented: set[str]) -> Iterator[str]:
    """Yield the public names of a module without a directive or a docstring.

    The facade is written out name by name, by theme; for any other module one
    directive renders all that its ``__all__`` lists.
    """
    if module.__name__ not in {"tdfunc", *documented}:
        yield f"{module.__name__} has no page"
    if not module.__doc__:
        yield f"{module.__name__} has no docstring"
    if not hasattr(module, "__all__"):
        yield f"{module.__name__} does not list its public names"
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name, None)
        dotted = f"{module.__name__}.{name}"
        if value is None:
            yield f"{dotted} does not exist"
        elif module.__name__ == "tdfunc" and dotted not in documented:
            yield f"{dotted} has no directive"
        # Aliases and constants are documented by a string below them, in the source.
        documents_itself = inspect.isclass(value) or inspect.isroutine(value)
        is_ours = getattr(value, "__module__", "").partition(".")[0] == "tdfunc"
        if documents_itself and is_ours and not value.__doc__:
            yield f"{dotted} has no docstring"


@pytest.mark.parametrize("name", public_modules())
def test_public_names_are_documented(name: str) -> None:
    module = importlib.import_module(name)

    assert [] == list(find_undocumented(module, documented_names()))


def test_public_names_are_listed_once() -> None:
    for name in public_modules():
        listed = getattr(importlib.import_module(name), "__all__", ())

        assert sorted(set(listed)) == sorted(listed)


def test_documented_names_exist() -> None:
    def exists(dotted: str) -> bool:
        parent, _, name = dotted.rpartition(".")
        return dotted in public_modules() or (
            parent in public_modules()
            and hasattr(importlib.import_module(parent), name)
        )

    assert [] == [name for name in sorted(documented_names()) if not exists(name)]


def test_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["version"] == tdfunc.__version__


def test_import_is_light(fresh_import: dict[str, Any]) -> None:
    assert set() == set(HEAVY) & set(fresh_import["modules"])


def test_modules_are_attributes_unless_they_need_an_extra() -> None:
    done = probe("import tdfunc; tdfunc.interop.from_tensordict; tdfunc.optim.adam")

    assert "tdfunc.interop" in done["modules"]
    assert "tdfunc.testing" not in done["modules"]
    assert "tensordict" not in done["modules"]


def test_import_leaves_torch_and_the_process_alone(
    fresh_import: dict[str, Any],
) -> None:
    assert [] == fresh_import["patched"]
    assert [] == fresh_import["changed"]


def test_probe_sees_patches_settings_and_heavy_imports() -> None:
    seeded = (
        "import sympy, torch._functorch.vmap as v;"
        "warnings.simplefilter('ignore');"
        "v.vmap_impl = print;"
        "torch.Tensor.relu = torch.nn.Module.seeded = print;"
        "logging.getLogger('x').addHandler(logging.NullHandler());"
        "os.environ['TDFUNC_SEEDED'] = '1'"
    )
    found = probe(seeded)

    assert "sympy" in found["modules"]
    assert found["torch vmap"] > 0
    assert [
        "torch.Tensor.relu",
        "torch._functorch.vmap.vmap_impl",
        "torch.nn.Module.seeded",
    ] == found["patched"]
    assert ["environment", "log handlers", "warning filters"] == found["changed"]


def test_undocumented_name_is_found() -> None:
    """A module with a good name, one without a docstring and one that is missing."""

    def bare() -> None: ...

    bare.__module__ = "tdfunc.seeded"
    seeded: Any = ModuleType("tdfunc", "Has a docstring.")
    seeded.good, seeded.bare = find_undocumented, bare
    seeded.__all__ = ["good", "bare", "gone"]

    assert [
        "tdfunc.bare has no directive",
        "tdfunc.bare has no docstring",
        "tdfunc.gone does not exist",
    ] == list(find_undocumented(seeded, {"tdfunc.good"}))


def test_undocumented_module_is_found() -> None:
    seeded = ModuleType("tdfunc.seeded")

    assert [
        "tdfunc.seeded has no page",
        "tdfunc.seeded has no docstring",
        "tdfunc.seeded does not list its public names",
    ] == list(find_undocumented(seeded, {"tdfunc.errors"}))
