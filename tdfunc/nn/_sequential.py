"""Sequences of modules: each sees what those before it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdfunc import random
from tdfunc._core.keys import as_path, short
from tdfunc._core.node import Node
from tdfunc._tensordict import TensorDict
from tdfunc.errors import OperandError
from tdfunc.nn._module import TensorDictModuleBase

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from tdfunc.typing import Path

__all__ = ["TensorDictSequential"]


class TensorDictSequential(TensorDictModuleBase):
    """Modules in a row, as one module.

    It reads what a module reads and none before it wrote, and writes all that its
    modules write; a key that is written again counts where it is written last. Its
    parameters are a tree with one entry for each module, by its name: "0", "1", ... or
    what a dict names.

    Args:
        modules: modules; or one dict or list of them.

    Raises:
        OperandError: one of them is no module.

    Examples:
        >>> from tdfunc.nn import Delta, ProbabilisticTensorDictModule
        >>> from tdfunc.nn import TensorDictSequential
        >>> copy = ProbabilisticTensorDictModule({"param": "x"}, ["y"])
        >>> TensorDictSequential(copy).out_keys
        ('y',)
    """

    __slots__ = ("_ins", "_members", "_names", "_outs")

    def __init__(self, *modules: Any) -> None:
        given: Any = modules
        if len(modules) == 1 and isinstance(modules[0], (dict, list, tuple)):
            given = modules[0]
        if not isinstance(given, dict):
            given = {str(i): module for i, module in enumerate(given)}
        for module in given.values():
            if not isinstance(module, TensorDictModuleBase):
                raise OperandError(
                    "this is no module of trees",
                    expected="a TensorDictModuleBase",
                    got=type(module).__name__,
                )
        self._names = tuple(given)
        self._members = tuple(given.values())
        self._ins, self._outs = _ends(self._members)

    @property
    def in_keys(self) -> tuple[Any, ...]:
        """What the sequence reads."""
        return tuple(map(short, self._ins))

    @property
    def out_keys(self) -> tuple[Any, ...]:
        """What the sequence writes."""
        return tuple(map(short, self._outs))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the modules: the keys of the parameter tree."""
        return self._names

    @property
    def modules(self) -> tuple[TensorDictModuleBase, ...]:
        """The modules."""
        return self._members

    def __len__(self) -> int:
        return len(self._members)

    def init(self, key: Any) -> Any:
        """Return the parameters of all modules, each drawn from a key of its own."""
        rows = zip(self._names, self._members, self._keys(key), strict=True)
        return TensorDict({name: member.init(k) for name, member, k in rows})

    def forward(self, params: Any, td: Any, *, key: Any = None, **options: Any) -> Any:
        """Return the tree with the outputs, as a call does."""
        keys = (None,) * len(self._names) if key is None else self._keys(key)
        for name, member, own in zip(self._names, self._members, keys, strict=True):
            known = {k: v for k, v in options.items() if k in member._options}
            td = member(_entry(params, name), td, key=own, **known)
        return td

    def _keys(self, key: Any) -> tuple[torch.Tensor, ...]:
        return tuple([random.fold_in(key, i) for i in range(len(self._names))])


def _ends(
    members: Iterable[TensorDictModuleBase],
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return what is read before it is written, and what is written."""
    ins: dict[Path, None] = {}
    outs: dict[Path, None] = {}
    for member in members:
        for path in map(as_path, member.in_keys):
            if not any([path[: len(other)] == other for other in outs]):
                ins[path] = None
        for path in map(as_path, member.out_keys):
            outs.pop(path, None)
            outs[path] = None
    return tuple(ins), tuple(outs)


def _entry(tree: Any, name: str) -> Any:
    """Return what a tree or mapping has for a module, None if nothing."""
    if tree is None:
        return None
    return tree.get(name, None) if isinstance(tree, Node) else tree.get(name)
