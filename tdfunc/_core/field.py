"""One field of a record class: what its annotation makes of a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from tdfunc._core.annotations import Kind, Meaning
from tdfunc._core.build import Part, as_part
from tdfunc._core.leaf import Unbatched, as_leaf
from tdfunc._core.node import Node
from tdfunc._core.rows import NonTensorStack
from tdfunc._core.schema import STATIC
from tdfunc._core.statics import NonTensorData, Statics
from tdfunc.errors import InvalidLeafError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc.typing import Device, Path

__all__ = ["CASTS", "Field", "Options"]

CASTS: Final = (bool, int, float, complex, str)
"""What ``autocast`` converts a static value to, where that is the annotation."""

# What says by itself as what it is to be kept.
_MARKED = (NonTensorData, NonTensorStack)

_ALLOWED = {
    Kind.TENSOR: "a tensor, or what becomes one: a number, an array",
    Kind.NODE: "such a tree, or a mapping of its entries",
    Kind.VALUE: "a value that is neither a tensor nor a tree",
}


class Options(NamedTuple):
    """The options of a record class."""

    autocast: bool = False
    tensor_only: bool = False
    shadow: bool = False
    check_shapes: bool = False


class Field(NamedTuple):
    """One field of a record class."""

    name: str
    meaning: Meaning
    annotation: Any
    cast: Callable[[Any], Any] | None  # of ``autocast``

    def part(
        self,
        value: Any,
        path: Path,
        batch_size: torch.Size,
        device: Device | None = None,
    ) -> Part | None:
        """Return a value as the entry of this field, None if it has none.

        Raises:
            BatchSizeError: a leaf does not start with `batch_size`.
            InvalidLeafError: the annotation does not allow the value.
        """
        kind = self.meaning.kind
        if value is None and self.meaning.optional:
            return None
        if kind == Kind.TENSOR:
            value = self._tensor(value, path)
        elif kind == Kind.NODE:
            self._check_node(value, path)
        else:
            if isinstance(value, (torch.Tensor, Node, Unbatched)):
                if kind == Kind.VALUE and self.cast is None:
                    raise self.wrong(value, path)
                is_entry = kind == Kind.ANY
            else:
                # A list for a text is one text for every row.
                per_row = self.meaning.text and isinstance(value, (list, np.ndarray))
                is_entry = per_row or isinstance(value, _MARKED)
            if not is_entry:
                return Part(STATIC, 0, (), Statics((self._casted(value, path),)))
        return as_part(value, path, batch_size, Node._plain, device)

    def opens(self, value: Any) -> bool:
        """Return whether `value` holds the fields of the record that this field is."""
        kind, _, cls, *_ = self.meaning
        if kind != Kind.NODE or cls is None or cls._record is None:
            return False
        plain = isinstance(value, Node) and type(value) is Node._plain
        return plain or isinstance(value, Mapping)

    def wrong(self, value: Any, path: Path) -> InvalidLeafError:
        """Return the error for a value that the annotation does not allow."""
        shown = getattr(self.annotation, "__name__", str(self.annotation))
        return InvalidLeafError(
            f"the field {self.name!r} is annotated {shown}",
            path=path,
            expected=_ALLOWED[self.meaning.kind],
            got=type(value).__name__,
            fix=f"annotate it {shown} | {type(value).__name__}",
        )

    def _tensor(self, value: Any, path: Path) -> torch.Tensor | Unbatched:
        if value is None or isinstance(value, (Node, Mapping)):
            raise self.wrong(value, path)
        leaf = as_leaf(value, path)
        if isinstance(leaf, NonTensorData):
            raise self.wrong(value, path)
        return leaf

    def _check_node(self, value: Any, path: Path) -> None:
        cls = self.meaning.cls or Node
        opened = isinstance(value, Mapping) and cls._record is None
        if not isinstance(value, cls) and not opened:
            raise self.wrong(value, path)

    def _casted(self, value: Any, path: Path) -> Any:
        cast = self.cast
        if cast is None or type(value) is cast:
            return value
        try:
            return cast(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidLeafError(
                f"the field {self.name!r} can not be cast to its annotation",
                path=path,
                expected=getattr(cast, "__name__", None),
                got=repr(value),
            ) from error
