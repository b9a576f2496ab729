"""What the tests of transforms share: structures, and comparison with torch's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import NonTensorData, TensorDict
from tests.cases import ramp

if TYPE_CHECKING:
    from collections.abc import Callable


def assert_same(got: Any, expected: Any, *, exact: bool = True) -> None:
    """Assert that two pytrees have equal structure and tensors.

    Trees count as the nested dicts of their tensors, so that a tree can be compared
    with what torch gives for dicts, without rows of text (the key "r" here). `exact`
    False allows rounding.
    """
    one, one_spec = pytree.tree_flatten(plain(got))
    two, two_spec = pytree.tree_flatten(plain(expected))
    assert one_spec == two_spec
    for x, y in zip(one, two, strict=True):
        assert type(x) is type(y)
        if not isinstance(x, torch.Tensor):
            assert x == y
        elif exact:
            torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
        else:
            torch.testing.assert_close(x, y, equal_nan=True)


def plain(value: Any) -> Any:
    """Return a pytree with dicts of tensors, sorted, in the place of trees."""
    if isinstance(value, TensorDict):
        tensors = value.keys(leaves_only=True)
        kept = [(k, value[k]) for k in sorted(value.keys())]
        parts = {
            k: plain(v)
            for k, v in kept
            if isinstance(v, TensorDict) or (k in tensors and k != "r")
        }
        return {k: v for k, v in parts.items() if not isinstance(v, dict) or v}
    if isinstance(value, dict):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, (tuple, list)):
        return type(value)(map(plain, value))
    return value


def outcome(call: Callable[[], Any]) -> tuple[type, str]:
    """Return type and text of the error of a call that has to fail."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - any is the result here
        return type(error), str(error)
    raise AssertionError("there was no error")


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled whole, as if nothing was before."""
    torch._dynamo.reset()
    return torch.compile(fn, fullgraph=True, backend="eager")


def levels() -> int:
    """Return how many transforms are open."""
    functorch: Any = getattr(torch._C, "_functorch")  # noqa: B009 - not in the stubs
    return functorch.get_dynamic_layer_stack_depth()


def floats(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return numbers in (-1, 1), none alike, so that no derivative is by chance."""
    return torch.sin(ramp(*shape, dtype=dtype) * 1.7 + 0.3)


def _tree() -> TensorDict:
    return TensorDict({"x": floats(3, 2), "y": floats(3) * 2}, 3)


# Structures of three rows, all of whose tensors can have a gradient.
STRUCTURES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: floats(3, 2),
    "tuple": lambda: (floats(3, 2), floats(3)),
    "list": lambda: [floats(3, 2), floats(3)],
    "dict": lambda: {"a": {"c": floats(3, 3)}, "b": floats(3, 2)},
    "tree": _tree,
    "square tree": lambda: TensorDict({"x": floats(3, 3), "y": floats(3, 3, 3)}, 3),
    "nested tree": lambda: TensorDict(
        {"n": {"x": floats(3, 2), "m": {"y": floats(3, 1)}}, "z": floats(3)}, 3
    ),
    "dict of trees": lambda: {"t": _tree(), "u": (_tree() * 2, floats(3))},
    "tree of statics": lambda: _tree().set("s", "text").set(("n", "o"), None),
    "tree of rows": lambda: _tree().set("r", ["a", "b", "a"]),
    "tree of unbatched": lambda: _tree().set("w", tdfunc.unbatched(floats(5))),
    "tree of tags": lambda: _tree().set("tags", NonTensorData(["p", "q"])),
    "surplus": lambda: TensorDict(
        {"a": TensorDict({"o": floats(3, 2, 4)}, (3, 2)), "d": floats(3)}, 3
    ),
    "names": lambda: _tree().with_names(["rows"]),
    "some nodes empty": lambda: _tree().set("e", TensorDict({}, 3)),
}


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return every tensor of a pytree that can have a gradient."""
    return [
        x
        for x in pytree.tree_leaves(value)
        if isinstance(x, torch.Tensor) and x.is_floating_point()
    ]


def energy(value: Any) -> torch.Tensor:
    """Return a scalar in which all floating tensors of a pytree meet."""
    total = torch.ones((), dtype=torch.float64)
    for x in tensors_of(value):
        total = total * (2 + (x.sin() * x).sum())
    return total


def differentiable(value: Any) -> Any:
    """Return a pytree without the codes of rows: torch refuses to differentiate it."""

    def part(v: Any) -> Any:
        return tdfunc.partition(v, "inexact")[0] if isinstance(v, TensorDict) else v

    return pytree.tree_map(part, value, is_leaf=lambda v: isinstance(v, TensorDict))
