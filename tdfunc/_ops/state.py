"""State dicts: a tree as a plain dict of tensors for `torch.save`, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch

from tdfunc._core.batch import as_size, misfit
from tdfunc._core.keys import short
from tdfunc._core.node import NodeT, make, size_at
from tdfunc._core.rows import decode, encode
from tdfunc._core.schema import ROWS, STATIC, UNBATCHED, Schema, is_kept, is_leaf
from tdfunc._core.statics import Statics, rebuild_statics
from tdfunc._core.tree import refuse_lazy
from tdfunc.errors import (
    BatchSizeError,
    InvalidKeyError,
    InvalidLeafError,
    OptionError,
    StructureError,
    show_path,
)

if TYPE_CHECKING:
    from tdfunc._core.node import Node
    from tdfunc.typing import Path

__all__ = ["load_state_dict", "state_dict"]

# The one entry of a state that is no tensor.
_REST = "_tdfunc"


def state_dict(td: Node, *, flatten: bool = True) -> dict[str, Any]:
    """Return a plain dict of the tensors, with one entry ``"_tdfunc"`` for the rest.

    That entry is a dict of lists, strings, numbers, and tensors that are no leaves:

    - ``"batch_sizes"``: ``[path, size]`` of every node, the root's path being ``[]``;
    - ``"names"``: the dim names of the root, or None;
    - ``"statics"``: ``[path, value]`` of every value that is not a tensor;
    - ``"rows"``: ``[path, shape, values]`` of every entry with one value per row;
    - ``"unbatched"``: ``[path, tensor]`` of every `unbatched` tensor.

    The dict goes through ``torch.save`` and ``torch.load(weights_only=True)`` if the
    static values do (None, numbers, strings, and lists and dicts of them do).

    Args:
        td: the tree.
        flatten: name each tensor by its path joined with dots, as modules do; False
            for nested dicts.

    Returns:
        A new dict; its tensors are detached and share memory with the leaves.

    Raises:
        InvalidKeyError: two leaves would have the same name, or one has the name
            ``"_tdfunc"``.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"n": {"w": torch.ones(2)}, "s": "text"})
        >>> state = td.state_dict()
        >>> list(state), state["_tdfunc"]["statics"]
        (['n.w', '_tdfunc'], [[['s'], 'text']])
    """
    refuse_lazy(td, "state_dict")
    schema = td._schema
    _check_names(schema, flatten=flatten)
    sizes: list[Any] = [[[], list(td.batch_size)]]
    rest: dict[str, list[Any]] = {"statics": [], "rows": [], "unbatched": []}
    state: dict[str, Any] = {}
    inside: dict[Path, dict[str, Any]] = {(): state}
    dotted = schema.dotted()
    leaves = td._leaves
    # The steps are remembered; walking takes as long as all the rest.
    for path, kid, lo, slo, _ in schema.listed(True, False, False):  # noqa: FBT003
        if isinstance(kid, Schema):
            sizes.append([list(path), list(size_at(td, path))])
            if not flatten:
                inside[path] = inside[path[:-1]][path[-1]] = {}
        elif kid == STATIC:
            rest["statics"].append([list(path), td._statics.values[slo]])
        elif kid == UNBATCHED:
            kept = td._statics.values[slo].detach()
            rest["unbatched"].append([list(path), kept])
        elif kid <= ROWS:
            codes = leaves[lo]
            values = decode(codes.reshape(-1), td._statics.values[slo], path)
            rest["rows"].append([list(path), list(codes.shape), values])
        elif flatten:
            state[dotted[lo]] = leaves[lo].detach()
        else:
            inside[path[:-1]][path[-1]] = leaves[lo].detach()
    names = None if td.names is None else list(td.names)
    state[_REST] = {"batch_sizes": sizes, "names": names, **rest}
    return state


def _check_names(schema: Schema, *, flatten: bool) -> None:
    """Raise if two leaves, or a leaf and the entry of the rest, had one name."""
    schema = schema.without(schema.rows)[0]
    dotted = schema.dotted()
    seen: dict[str, Path] = {}
    if flatten:
        taken = [
            (name, path)
            for name, path in zip(dotted, schema.paths(), strict=True)
            if name == _REST or seen.setdefault(name, path) is not path
        ]
    else:
        taken = [(_REST, (_REST,))] if _REST in schema.keys else []
    for name, path in taken:
        rest = "what is no tensor has that name"
        raise InvalidKeyError(
            f"two entries of the state would be named {name!r}",
            path=path,
            got=rest if name == _REST else f"the same name for {show_path(seen[name])}",
            fix="td.state_dict(flatten=False) nests them"
            if name != _REST
            else f"another key than {_REST!r}",
        )


def load_state_dict(
    td: NodeT,
    state: Mapping[str, Any],
    *,
    strict: bool = True,
    cast: Literal["keep", "source"] = "keep",
) -> NodeT:
    """Return the tree with the tensors, statics, batch sizes and names of a state.

    ``td.load_state_dict(td.state_dict())`` is the tree again, detached. The keys and
    their order stay those of `td`; shapes are those of the state.

    Args:
        td: the tree that says which entries there are.
        state: what `state_dict` gave, in either form; or any mapping of dotted names
            to tensors, such as the state of a module: then the statics, batch sizes
            and names of `td` are kept.
        strict: demand the very same entries. False takes those that are in both and
            keeps the others of `td`.
        cast: ``"keep"`` gives each tensor the dtype and device of the leaf that it
            replaces, as modules do; ``"source"`` takes it as it is.

    Returns:
        A tree whose leaves share memory with the state where they are not cast.

    Raises:
        BatchSizeError: a tensor does not start with the batch size of its node.
        InvalidLeafError: `state` is no mapping, a value in it is no tensor, or a
            complex tensor would be cast to a real one.
        OptionError: `cast` is something else.
        StructureError: `strict`, and the entries differ; both sides are listed.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"n": {"w": torch.zeros(2)}, "s": "text"})
        >>> td.load_state_dict({"n.w": torch.tensor([1, 2])}, strict=False)["n", "w"]
        tensor([1., 2.])
    """
    refuse_lazy(td, "load_state_dict")
    if cast not in {"keep", "source"}:
        raise OptionError(
            "cast says what dtype results have",
            expected="'keep' or 'source'",
            got=repr(cast),
        )
    if not isinstance(state, Mapping):
        raise InvalidLeafError(
            "a state is a mapping", expected="a mapping", got=type(state).__name__
        )
    size = td.batch_size
    schema = td._schema
    rest = state.get(_REST)
    found, extra = _tensors(state, schema)
    values, sizes, names = _rest(td, rest)
    other = [path for path in values if _kind_at(schema, path) != values[path][0]]
    extra += [show_path(path) for path in other]
    values = {path: value for path, (_, *value) in values.items() if path not in other}
    codes = frozenset(schema.rows)
    every = schema.paths()
    tensors = [path for at, path in enumerate(every) if at not in codes]
    missing = [path for path in tensors if path not in found]
    if rest is not None:
        missing += [path for path in schema.static_paths() if path not in values]
    if strict and (missing or extra):
        lines = [f"{show_path(path)} is missing" for path in missing]
        raise StructureError(
            "the state does not have the entries of the tree",
            expected="the entries "
            f"{[*map(short, tensors), *map(short, schema.static_paths())]}",
            got=", ".join(lines + [f"{name} is extra" for name in extra]),
            fix="strict=False takes what is in both",
        )
    leaves: list[torch.Tensor] = []
    for at, (path, leaf) in enumerate(zip(every, td._leaves, strict=True)):
        new = found.get(path)
        if at in codes and path in values:
            leaves.append(values[path][0].to(leaf.device))
        elif new is not None:
            leaves.append(_kept(path, new, leaf) if cast == "keep" else new)
        else:
            leaves.append(leaf)
    size = sizes.get((), size)
    resized = _resized(schema, leaves, sizes, size)
    box = _box(td, values, cast)
    return make(resized, tuple(leaves), box, size, names)


def _box(td: Node, values: dict[Path, Any], cast: str) -> Statics:
    """Return the statics of the tree, with those of a state where it has some."""
    lookups = frozenset(td._schema.unbatched())
    old = zip(td._schema.static_paths(), td._statics.values, strict=True)
    box: list[Any] = []
    for at, (path, value) in enumerate(old):
        new = values[path][-1] if path in values else value
        if at in lookups and cast == "keep":
            new = _kept(path, new, value)
        box.append(new)
    return rebuild_statics(tuple(box))


def _kind_at(schema: Schema, path: Path) -> int | None:
    """Return the kind of an entry with a value among the statics, None for others."""
    found = schema.find(path)
    if found is None or not is_kept(found.kid):
        return None
    return max(found.kid, ROWS)


def _kept(path: Path, new: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the state with dtype and device of the leaf it replaces."""
    if new.is_complex() and not leaf.is_complex():
        raise InvalidLeafError(
            "a complex tensor would lose its imaginary part",
            path=path,
            expected=f"a tensor that casts to {leaf.dtype}",
            got=new.dtype,
            fix='cast="source" takes it as it is',
        )
    return new.to(device=leaf.device, dtype=leaf.dtype)


def _tensors(
    state: Mapping[str, Any], schema: Schema
) -> tuple[dict[Path, torch.Tensor], list[str]]:
    """Return the tensors of a state by path, and the names of those not in `schema`."""
    nested = any([isinstance(v, Mapping) for k, v in state.items() if k != _REST])
    # Rows are not among the tensors.
    schema = schema.without(schema.rows)[0]
    places: dict[Path, Path] = {p: p for p in schema.paths()}
    if not nested:
        places = {(n,): p for n, p in zip(schema.dotted(), places, strict=True)}
    found: dict[Path, torch.Tensor] = {}
    extra: list[str] = []
    pending: list[tuple[Path, Mapping[str, Any]]] = [((), state)]
    while pending:
        above, values = pending.pop()
        for name, value in values.items():
            here = (*above, name)
            if here == (_REST,):
                continue
            if isinstance(value, Mapping):
                pending.append((here, value))
            elif not isinstance(value, torch.Tensor):
                raise InvalidLeafError(
                    "a state holds tensors",
                    path=here,
                    expected="a tensor",
                    got=type(value).__name__,
                )
            elif here in places:
                found[places[here]] = value
            else:
                extra.append(show_path(here) if nested else repr(name))
    return found, extra


def _rest(
    td: Node, rest: Mapping[str, Any] | None
) -> tuple[dict[Path, Any], dict[Path, torch.Size], tuple[str | None, ...] | None]:
    """Return values and batch sizes by path, and dim names, of a state or of `td`.

    A value has its kind before it; rows are codes and a table.
    """
    if rest is None:
        nodes = [s.path for s in td._schema.walk() if isinstance(s.kid, Schema)]
        return {}, {path: size_at(td, path) for path in nodes}, td._names
    # States of versions without them have neither rows nor unbatched tensors.
    values: dict[Path, Any] = {
        **{tuple(path): (STATIC, value) for path, value in rest["statics"]},
        **{tuple(path): (UNBATCHED, x) for path, x in rest.get("unbatched", ())},
        **{
            tuple(path): (ROWS, *encode(rows, shape))
            for path, shape, rows in rest.get("rows", ())
        },
    }
    sizes = {tuple(path): as_size(size) for path, size in rest["batch_sizes"]}
    names = rest["names"]
    return values, sizes, None if names is None else tuple(names)


def _resized(
    schema: Schema,
    leaves: list[torch.Tensor],
    sizes: dict[Path, torch.Size],
    size: torch.Size,
) -> Schema:
    """Return the schema of other leaves, with these batch sizes of its nodes.

    Raises:
        BatchSizeError: a leaf, or the size of a node, does not start with the batch
            size of the node above it.
    """
    ranks = [0] * schema.n
    surpluses: list[int] = []
    batch: dict[Path, torch.Size] = {(): size}
    for path, kid, lo, _, _ in schema.walk():
        above = batch[path[:-1]]
        nb = len(above)
        if isinstance(kid, Schema):
            own = sizes.get(path, above)
            if own[:nb] != above:
                raise BatchSizeError(
                    "the batch size of the node does not start with that above it",
                    path=path,
                    expected=f"a size that starts with {list(above)}",
                    got=list(own),
                )
            batch[path] = own
            surpluses.append(len(own) - nb)
        elif is_leaf(kid):
            shape = leaves[lo].shape
            if shape[:nb] != above:
                raise misfit(path, shape, above)
            ranks[lo] = len(shape) - nb
    return schema.with_ranks(tuple(ranks), tuple(surpluses))
