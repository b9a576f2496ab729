"""Modules as functions of (params, tree): the base class."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from tdfunc._tensordict import TensorDict
from tdfunc.errors import OptionError

if TYPE_CHECKING:
    from tdfunc._core.node import Node

__all__ = ["TensorDictModuleBase"]

_FIRST = 3  # self, params, td


class TensorDictModuleBase:
    """Base of modules: functions of parameters and a tree, with keys for both ends.

    A subclass has `in_keys`, `out_keys` and ``forward(self, params, td) -> tree``. What
    `forward` takes by keyword (``key``, for one) can be given in calls, of sequences
    with the module in them too.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> from tdfunc.nn import TensorDictModuleBase
        >>> class Scale(TensorDictModuleBase):
        ...     in_keys, out_keys = ("x",), ("y",)
        ...
        ...     def forward(self, params, td):
        ...         return td.set("y", params["factor"] * td["x"])
        >>> params = TensorDict({"factor": torch.tensor(2.0)})
        >>> Scale()(params, TensorDict({"x": 3.0}))["y"]
        tensor(6.)
    """

    __slots__ = ("__weakref__",)

    in_keys: Any
    """What the module reads, as keys and paths."""
    out_keys: Any
    """What the module writes, as keys and paths."""

    _options: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):
            known = list(inspect.signature(cls.forward).parameters.values())[_FIRST:]
            words = (inspect.Parameter.KEYWORD_ONLY,)
            cls._options = frozenset([p.name for p in known if p.kind in words])

    def forward(self, params: Any, td: Any) -> Any:  # noqa: ARG002 - to be overridden
        """Return the tree with the outputs; a subclass writes this.

        Args:
            params: its parameters.
            td: its inputs, and whatever else is in the tree.

        Raises:
            OptionError: the class has none.
        """
        raise OptionError(
            f"{type(self).__name__} has no forward",
            fix="def forward(self, params, td): return td.set(...)",
        )

    def __call__(self, params: Any, td: Node, /, **options: Any) -> Any:
        """Return the tree with the outputs in it.

        Args:
            params: the parameters, None if there are none.
            td: the tree.
            options: options of `forward`.
        """
        if "key" in options and "key" not in self._options:
            del options["key"]
        return self.forward(params, td, **options)

    def init(self, key: Any) -> Any:  # noqa: ARG002 - to be overridden
        """Return a tree of parameters that is drawn from a key."""
        return TensorDict({})
