"""What is left of a tree without its leaves: the context of its pytree node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core._torch import register_trace_constant
from tdfunc._core.statics import NO_STATICS, Statics

if TYPE_CHECKING:
    from tdfunc._core.schema import Schema

__all__ = ["BareContext", "Context", "context_of"]


class Context:
    """Schema, statics and dim names of a tree, compared as structures.

    Two contexts are equal when keys, kinds, node classes and statics are, in
    whatever order the keys were written. Feature ranks, surplus dims and names ride
    along uncompared, so that a tree of norms, masks or in_dims matches the tree that
    it was mapped from.
    """

    __slots__ = ("batch_size", "names", "schema", "statics")

    schema: Schema
    statics: Statics
    names: tuple[str | None, ...] | None
    batch_size: torch.Size | None  # only of a tree without leaves

    def __init__(
        self,
        schema: Schema,
        statics: Statics = NO_STATICS,
        names: tuple[str | None, ...] | None = None,
        batch_size: torch.Size | None = None,
    ) -> None:
        self.schema = schema
        self.statics = statics
        self.names = names
        self.batch_size = batch_size

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Context):
            return NotImplemented
        return self.schema.matches(other.schema) and (
            self.statics is other.statics or self.statics == other.statics
        )

    def __hash__(self) -> int:
        return hash(self.schema.canon())

    def __repr__(self) -> str:
        return f"Context({self.schema!r}, {self.statics!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        size = None if self.batch_size is None else tuple(self.batch_size)
        return rebuild_context, (self.schema, self.statics, self.names, size)


class BareContext(Context):
    """The context of a tree with leaves, without statics and names: just a schema.

    Being a constant to Dynamo it can be part of what `torch.export` keeps, and one
    object serves all trees with the schema.
    """

    __slots__ = ()

    def __init__(self, schema: Schema) -> None:
        # Spelled out: a call of the parent's would double the cost of flattening.
        self.schema = schema
        self.statics = NO_STATICS
        self.names = None
        self.batch_size = None

    def __fx_repr__(self) -> tuple[str, dict[str, Any]]:
        """Return source that rebuilds this context, and the names that it uses."""
        source, names = self.schema.__fx_repr__()
        return f"BareContext({source})", {**names, "BareContext": BareContext}

    def own_schema(self) -> Schema:
        """Return the schema, as a constant."""
        return self.schema


def context_of(
    schema: Schema,
    statics: Statics,
    names: tuple[str | None, ...] | None,
    batch_size: torch.Size | None,
) -> Context:
    """Return the context of a tree."""
    if statics is NO_STATICS and names is None and batch_size is None:
        return BareContext(schema)
    return Context(schema, statics, names, batch_size)


def rebuild_context(
    schema: Schema,
    statics: Statics,
    names: tuple[str | None, ...] | None,
    batch_size: tuple[int, ...] | None,
) -> Context:
    """Return an unpickled context."""
    size = None if batch_size is None else torch.Size(batch_size)
    return context_of(schema, statics, names, size)


register_trace_constant(BareContext, ("__eq__", "__hash__", "own_schema"))
