"""Ensembles: one module, many parameter sets, one vmap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tdfunc._core._torch import pytree
from tdfunc._core.node import Node
from tdfunc._ops.join import stack
from tdfunc._ops.shape import expand, reshape
from tdfunc.errors import OperandError, OptionError, ShapeError
from tdfunc.func import functional_call, vmap
from tdfunc.nn._keyed import has_reset
from tdfunc.nn._module import MethodOf, TensorDictModuleBase, needed_tree
from tdfunc.nn._scope import bare
from tdfunc.random import split
from tdfunc.random._keys import lone_key

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EnsembleModule", "functional_vmap"]

# Options of which every member has its own.
_OF_MEMBERS = ("key", "buffers")


def functional_vmap(  # noqa: PLR0913 - a call and its options
    module: nn.Module | Callable[..., Any],
    params: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    in_dims: Any = None,
    key: torch.Tensor | None = None,
    chunk_size: int | None = None,
    method: str | None = None,
    loop: bool = False,
) -> Any:
    """Return the outputs of a module for every parameter set of a batched tree.

    Args:
        module: an `nn.Module`, which is called purely; or a function
            ``f(params, *args, **kwargs)``, a module of trees for one.
        params: a tree whose batch dims ``[*sets]`` index the sets.
        args: positional arguments, or a single one that is not a tuple.
        kwargs: keyword arguments.
        in_dims: where the sets are in the arguments. None: all of them are shared. A
            dict from names (or places, as ints) to dims, or a tuple with a dim or None
            for each positional argument. With several batch dims, the dim of the first
            of them.
        key: each set gets a key of its own made of it, as the argument ``key`` of a
            module of trees or a function; an `nn.Module` takes none.
        chunk_size: how many sets to compute at once, None for all.
        method: call this method of the `nn.Module`.
        loop: call the sets one by one, for what `vmap` can not map (a GRU).

    Returns:
        What the module returns, with ``[*sets]`` in front of every tensor; with an
        empty batch size, what one plain call returns.

    Raises:
        OperandError: `params` is no tree; an argument that is not shared, or (in a
            loop) an output, is no tensor.
        OptionError: `in_dims` names no argument, or has what is no dim; `method` is
            none; a key is given twice, or for an `nn.Module`.
        ShapeError: an argument that is not shared has not the sets at its dim; a loop
            over no sets.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> from tdfunc.nn import functional_vmap
        >>> nets = [torch.nn.Linear(3, 4) for _ in range(5)]
        >>> params = tdfunc.from_modules(*nets)
        >>> functional_vmap(nets[0], params, torch.ones(2, 3)).shape
        torch.Size([5, 2, 4])
    """
    if not isinstance(params, Node):
        raise OperandError(
            "the parameter sets come as a tree",
            got=type(params).__name__,
            fix="tdfunc.from_modules(*nets) makes one",
        )
    args = args if isinstance(args, tuple) else (args,)
    named = dict(kwargs or {})
    if key is not None and "key" in named:
        raise OptionError("the key is given twice", got="key= and kwargs['key']")
    call = _as_call(module, method, key)
    sets = params.batch_size
    if not sets:
        if key is not None:
            named["key"] = key
        return call(params, *args, **named)
    values = [*args, *named.values()]
    dims = _dims(in_dims, len(args), tuple(named))
    values = [
        value if dim is None else _flat_sets(value, dim, sets)
        for value, dim in zip(values, dims, strict=True)
    ]
    axes: list[Any] = [None if dim is None else 0 for dim in dims]
    count = prod(sets)
    names = list(named)
    if key is not None:
        names.append("key")
        values.append(split(lone_key(key, "an ensemble"), count))
        axes.append(0)
    places = len(args)

    def one(own: Any, *given: Any) -> Any:
        keywords = dict(zip(names, given[places:], strict=True))
        return call(own, *given[:places], **keywords)

    # Settled with one dim, so that each member has an empty batch size.
    flat = params if len(sets) == 1 else reshape(params, (count,))
    if loop:
        out = _loop(one, flat, values, axes, count)
    else:
        mapped = vmap(one, (0, *axes), chunk_size=chunk_size)
        out = mapped(flat, *values)
    return (
        out if len(sets) == 1 else pytree.tree_map(lambda x: x.unflatten(0, sets), out)
    )


def _as_call(
    module: Any, method: str | None, key: torch.Tensor | None
) -> Callable[..., Any]:
    """Return the module as a function of (params, *args, **kwargs)."""
    if not isinstance(module, nn.Module):
        if method is not None or not callable(module):
            raise OptionError(
                "a function of params, or an nn.Module with method=",
                got=type(module).__name__,
            )
        return module
    if key is not None:
        raise OptionError(
            "an nn.Module takes no key",
            fix="functional_vmap(TensorDictModule(net, in_keys, out_keys), params, td, "
            "key=key)",
        )
    if method is None:
        return lambda own, *args, **kwargs: functional_call(module, own, args, kwargs)
    if not callable(getattr(module, method, None)):
        raise OptionError("method= names a method of the module", got=repr(method))
    bound = MethodOf(module, method)
    return lambda own, *args, **kwargs: functional_call(
        bound, {"module": own}, args, kwargs
    )


def _dims(in_dims: Any, places: int, names: tuple[str, ...]) -> list[int | None]:
    """Return the dim of the sets for every argument, None for those shared."""
    keys: list[int | str] = [*range(places), *names]
    if in_dims is None:
        return [None] * len(keys)
    if isinstance(in_dims, (tuple, list)):
        if len(in_dims) != places:
            raise OptionError(
                "in_dims has an entry for each positional argument",
                expected=f"{places} entries",
                got=repr(in_dims),
            )
        in_dims = dict(enumerate(in_dims))
    if not isinstance(in_dims, Mapping):
        raise OptionError(
            "in_dims says for each argument where the sets are",
            expected="a dict, a tuple or None",
            got=repr(in_dims),
        )
    bad = [dim for dim in in_dims.values() if not isinstance(dim, int | None)]
    if bad:
        raise OptionError(
            "where the sets are is a dim, or None",
            expected="ints and None",
            got=", ".join(map(repr, bad)),
        )
    unknown = [key for key in in_dims if key not in keys]
    if unknown:
        raise OptionError(
            "in_dims names no argument of the call",
            expected=", ".join(map(repr, keys)) or "no arguments",
            got=", ".join(map(repr, unknown)),
        )
    return [in_dims.get(key) for key in keys]


def _flat_sets(value: Any, dim: int, sets: torch.Size) -> Any:
    """Return an argument with all sets in its first dim."""
    if not isinstance(value, (Node, torch.Tensor)):
        raise OperandError(
            "only tensors and trees can have parameter sets at a dim",
            got=type(value).__name__,
            fix="leave it out of in_dims: all sets share it",
        )
    if isinstance(value, Node):
        size = value.batch_size
        at = dim + len(size) if dim < 0 else dim
        if size[at : at + len(sets)] != sets:
            raise _misfit(size, dim, sets)
        order = [
            *range(at, at + len(sets)),
            *range(at),
            *range(at + len(sets), len(size)),
        ]
        moved: Any = value
        moved = moved.permute(order) if at else moved
        return moved if len(sets) == 1 else moved.flatten(0, len(sets) - 1)
    at = dim + value.dim() if dim < 0 else dim
    if value.shape[at : at + len(sets)] != sets:
        raise _misfit(value.shape, dim, sets)
    where = list(range(at, at + len(sets)))
    return value.movedim(where, list(range(len(sets)))).flatten(0, len(sets) - 1)


def _misfit(shape: torch.Size, dim: int, sets: torch.Size) -> ShapeError:
    return ShapeError(
        "an argument has not the parameter sets at its dim",
        expected=f"{list(sets)} at dim {dim}",
        got=f"shape {list(shape)}",
    )


def _loop(
    one: Callable[..., Any],
    params: Any,
    values: Sequence[Any],
    axes: Sequence[int | None],
    count: int,
) -> Any:
    """Return what `vmap` would, one call after the other."""
    if not count:
        raise ShapeError(
            "a loop over no parameter sets has no outputs",
            expected="params with at least one set",
            got="batch size with a 0",
            fix="loop=False",
        )
    outs: list[Any] = []
    for i in range(count):
        given = [
            x if axis is None else x[i] for x, axis in zip(values, axes, strict=True)
        ]
        outs.append(one(params[i], *given))
    return pytree.tree_map(_stacked, *outs)


def _stacked(*outs: Any) -> torch.Tensor:
    if not isinstance(outs[0], torch.Tensor):
        raise OperandError(
            "the outputs of all sets are stacked",
            expected="tensors, or trees of them",
            got=type(outs[0]).__name__,
        )
    return torch.stack(outs)


class EnsembleModule(TensorDictModuleBase):
    """Several copies of a module that differ in their parameters, as one module.

    Its parameters are a tree with batch size ``[num_copies]``, and so are its outputs:
    ``[num_copies, *batch]``. The entries of the input come along, repeated.

    Args:
        module: a module of trees.
        num_copies: how many.
        expand_input: True gives the same tree to all copies; False gives each its row
            of a tree of batch size ``[num_copies, ...]``, such as another ensemble
            returns.

    Raises:
        OperandError: `module` is no module of trees.
        OptionError: `num_copies` is not positive.
        ShapeError: in a call: the tree has not a row for each copy.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict, random
        >>> from tdfunc.nn import EnsembleModule, TensorDictModule
        >>> net = TensorDictModule(torch.nn.Linear(3, 4), ["x"], ["y"])
        >>> ensemble = EnsembleModule(net, 5)
        >>> params = ensemble.init(random.key(0))
        >>> ensemble(params, TensorDict({"x": torch.ones(2, 3)}, 2))["y"].shape
        torch.Size([5, 2, 4])
    """

    __slots__ = ("_accepts", "_copies", "_expand", "_wrapped")

    def __init__(
        self,
        module: TensorDictModuleBase,
        num_copies: int,
        expand_input: bool = True,  # noqa: FBT001, FBT002 - the peer's signature
    ) -> None:
        if not isinstance(module, TensorDictModuleBase):
            raise OperandError(
                "this is no module of trees",
                got=type(module).__name__,
                fix="TensorDictModule(net, in_keys, out_keys)",
            )
        if (
            not isinstance(num_copies, int)
            or isinstance(num_copies, bool)
            or num_copies < 1
        ):
            raise OptionError(
                "an ensemble has members", got=f"num_copies={num_copies!r}"
            )
        self._wrapped = module
        self._copies = num_copies
        self._expand = expand_input
        self._accepts = module._options

    @property
    def _options(self) -> frozenset[str]:
        return self._accepts

    @property
    def module(self) -> TensorDictModuleBase:
        """The module of one member."""
        return self._wrapped

    @property
    def num_copies(self) -> int:
        """How many members there are."""
        return self._copies

    @property
    def in_keys(self) -> Any:
        """What the module reads."""
        return self._wrapped.in_keys

    @property
    def needed_keys(self) -> tuple[Any, ...]:
        """Which of them it can not do without."""
        return self._wrapped.needed_keys

    @property
    def out_keys(self) -> Any:
        """What the module writes."""
        return self._wrapped.out_keys

    def init(self, key: torch.Tensor) -> Any:
        """Return the parameters of all members, each drawn from a key of its own.

        Those of the i-th are ``module.init(split(key, n)[i])`` for every n > i.

        Args:
            key: a key of `tdfunc.random`.

        Raises:
            OperandError: no part of the module draws its parameters, so that all
                members would be equal.
        """
        wrapped = getattr(self._wrapped, "module", None)
        if (
            isinstance(wrapped, nn.Module)
            and any(True for _ in wrapped.parameters())
            and not has_reset(wrapped)
        ):
            raise OperandError(
                "all members would have the same parameters, for no part of the module "
                "has a method reset_parameters",
                got=type(wrapped).__name__,
                fix="tdfunc.from_modules(*nets) stacks modules that differ",
            )
        keys = split(lone_key(key, "an ensemble"), self._copies)
        return stack([self._wrapped.init(own) for own in keys.unbind(0)])

    def params(self) -> Any:
        """Raise: members that begin equal stay equal.

        Raises:
            OptionError: always; `init` gives parameters.
        """
        raise OptionError(
            "an ensemble of copies would never differ",
            fix="ensemble.init(key), or tdfunc.from_modules(*nets)",
        )

    def buffers(self) -> Any:
        """Return the buffers of the module, one copy for each member."""
        one: Any = self._wrapped.buffers()
        return expand(one, self._copies).clone()

    def forward(self, params: Any, td: Any, **options: Any) -> Any:
        """Return the tree with the outputs, as a call does."""
        return self._each(self._wrapped, (params,), td, options)

    def call_with_buffers(
        self, params: Any, buffers: Any, td: Any, **options: Any
    ) -> tuple[Any, Any]:
        """Return the tree with the outputs, and the buffers as the call leaves them.

        Args:
            params: the parameters of all members.
            buffers: the buffers of all members; they do not change. None for those of
                the module, which do not come back.
            td: the tree.
            options: as in a call.
        """
        if buffers is None:
            return self(params, needed_tree(td, self), **options), None
        call = self._wrapped.call_with_buffers
        return self._each(call, (params, buffers), needed_tree(td, self), options)

    def _each(
        self,
        call: Callable[..., Any],
        own: tuple[Any, ...],
        td: Any,
        options: Mapping[str, Any],
    ) -> Any:
        """Return what a call gives for each member, with trees of its own."""
        self._check(td)
        self._check_rows(own[0], "parameters", "ensemble.init(key)")
        for buffers in (*own[1:], options.get("buffers")):
            self._check_rows(buffers, "buffers", "ensemble.buffers()")
        # Of a module without parameters: the rows of no entries say how many there are.
        has_none = own[0] is None
        if has_none:
            own = (bare(torch.Size((self._copies,))), *own[1:])
        # Members differ in what they own, in their keys and buffers.
        values = {k: options[k] for k in _OF_MEMBERS if options.get(k) is not None}
        shared = {k: v for k, v in options.items() if k not in _OF_MEMBERS}
        if "key" in values:
            key = lone_key(values["key"], "an ensemble")
            values["key"] = split(key, self._copies)
        names, trees = tuple(values), len(own)

        def one(row: Any, *given: Any) -> Any:
            mine = dict(zip(names, given[trees:], strict=True))
            mapped = (None, *given[1:trees]) if has_none else given[:trees]
            return call(*mapped, row, **mine, **shared)

        rest = (*own, *values.values())
        axes = (None if self._expand else 0, *(0,) * len(rest))
        return vmap(one, axes)(td, *rest)

    def _check_rows(self, tree: Any, what: str, fix: str) -> None:
        n = self._copies
        if tree is not None and (
            not isinstance(tree, Node) or tree.batch_size[:1] != (n,)
        ):
            shape = tree.batch_size if isinstance(tree, Node) else None
            raise ShapeError(
                f"the {what} of an ensemble have a row for each member",
                expected=f"a tree of batch size [{n}]",
                got=type(tree).__name__ if shape is None else f"{list(shape)}",
                fix=fix,
            )

    def _check(self, td: Any) -> None:
        n = self._copies
        if not self._expand and td.batch_size[:1] != (n,):
            raise ShapeError(
                "the tree has not a row for each member",
                expected=f"batch size [{n}, ...]",
                got=f"{list(td.batch_size)}",
                fix="EnsembleModule(module, n) gives one tree to all",
            )
