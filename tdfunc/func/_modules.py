"""Parameters and buffers of a `torch.nn.Module` as a tree, and modules run purely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from tdfunc._core.build import assemble
from tdfunc._core.node import Node, make
from tdfunc._core.statics import NO_STATICS
from tdfunc._core.tree import without_rows
from tdfunc._ops.join import stack
from tdfunc.errors import InvalidLeafError, OperandError, OptionError, StructureError
from tdfunc.func._purecall import call_pure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc._core.schema import Schema

__all__ = ["from_module", "from_modules", "functional_call"]


def from_module(
    module: nn.Module,
    *,
    params_only: bool = False,
    buffers_only: bool = False,
    copy: bool = False,
) -> Any:
    """Return the parameters and buffers of a module as a nested tree.

    Names nest as the modules do: ``"0.weight"`` becomes ``("0", "weight")``. A tensor
    that occurs twice (tied weights, a module used twice) is one leaf, under the first
    of its names; `functional_call` puts it in all its places.

    Args:
        module: the module; it is not changed.
        params_only: leave the buffers out.
        buffers_only: leave the parameters out.
        copy: copy the tensors; otherwise the tree shares memory with the module, and
            shows what an optimizer writes into it.

    Returns:
        A `TensorDict` with batch size ``[]`` and detached tensors.

    Raises:
        InvalidLeafError: a parameter of a lazy module is not initialised yet.
        OperandError: `module` is no module.
        OptionError: `params_only` and `buffers_only` together.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> params = tdfunc.from_module(torch.nn.Linear(3, 4))
        >>> params["weight"].shape
        torch.Size([4, 3])
    """
    if not isinstance(module, nn.Module):
        raise OperandError(
            "this is no module", expected="a torch.nn.Module", got=type(module).__name__
        )
    if params_only and buffers_only:
        raise OptionError("params_only and buffers_only exclude each other")
    named: dict[str, torch.Tensor] = {}
    if not buffers_only:
        named.update(module.named_parameters())
    if not params_only:
        named.update(module.named_buffers())
    nested: dict[str, Any] = {}
    for name, tensor in named.items():
        *above, last = name.split(".")
        if nn.parameter.is_lazy(tensor):
            raise InvalidLeafError(
                "a parameter of a lazy module is not initialised",
                path=(*above, last),
                fix="run the module once on an input",
            )
        node = nested
        for key in above:
            node = node.setdefault(key, {})
        node[last] = tensor.detach().clone() if copy else tensor.detach()
    part = assemble(nested, torch.Size(), Node._plain)
    return make(part.kid, part.leaves, NO_STATICS, torch.Size(), None)  # pyright: ignore[reportArgumentType]


def from_modules(
    *modules: nn.Module, params_only: bool = False, buffers_only: bool = False
) -> Any:
    """Return the parameters and buffers of several modules, stacked.

    Args:
        modules: modules of the same structure.
        params_only: leave the buffers out.
        buffers_only: leave the parameters out.

    Returns:
        A `TensorDict` with batch size ``[len(modules)]`` of detached copies.

    Raises:
        OperandError: there is no module.
        OptionError: `params_only` and `buffers_only` together.
        ShapeError: parameters have other shapes.
        StructureError: modules have other parameters; all differences are listed.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> params = tdfunc.from_modules(*[torch.nn.Linear(3, 4) for _ in range(5)])
        >>> params.batch_size, params["bias"].shape
        (torch.Size([5]), torch.Size([5, 4]))
    """
    if not modules:
        raise OperandError("there is no module to stack", expected="at least one")
    return stack(
        [
            from_module(module, params_only=params_only, buffers_only=buffers_only)
            for module in modules
        ]
    )


def functional_call(
    module: nn.Module,
    params: Node | Mapping[str, Any],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    buffers: Node | Mapping[str, Any] | None = None,
) -> Any:
    """Return ``module(*args, **kwargs)`` computed with other parameters, purely.

    The module runs as a structural copy: neither `module` nor `params` nor `buffers`
    change, not even batch-norm statistics in training mode or attributes that
    `forward` assigns, from several threads at once, and under `vmap` and `grad`.

    What a copy of the structure can not protect: lists, dicts and tensors that
    `forward` changes *in place* in plain attributes (``self.cache.append(x)``), the
    state of random number generators, and globals. What torch has no batching rule
    for can not be mapped: the power iteration of spectral norm in training mode, and
    recurrent layers on CPU.

    Args:
        module: the module.
        params: its parameters as a tree (`from_module`), buffers may be among them.
            Those that are missing are the module's own.
        args: positional arguments, or a single argument that is not a tuple.
        kwargs: keyword arguments.
        buffers: its buffers as a tree; they are cloned before the call.

    Returns:
        What the module returns. Updated buffers are thrown away.

    Raises:
        OperandError: `params` or `buffers` is neither a tree nor a mapping.
        MissingKeyError: a path names no parameter or buffer of the module.
        StructureError: a path is in `params` and in `buffers`.
        OptionError: the module is a script module or a compiled module.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> net = torch.nn.Linear(3, 1)
        >>> params = tdfunc.from_module(net) * 0
        >>> tdfunc.func.functional_call(net, params, torch.ones(2, 3)).shape
        torch.Size([2, 1])
    """
    tensors = dotted(params)
    if buffers is not None:
        more = dotted(buffers)
        both = sorted(tensors.keys() & more.keys())
        if both:
            raise StructureError(
                "entries are given as parameters and as buffers", got=both
            )
        tensors |= more
    if not isinstance(args, tuple):
        args = (args,)
    given: Sequence[Any] = args
    return call_pure(module, tensors, tuple(given), kwargs or {})[0]


def dotted(tree: Node | Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the leaves of a tree (or nested mapping) by dotted name."""
    if not isinstance(tree, (Node, Mapping)):
        raise OperandError(
            "parameters and buffers come as a tree",
            expected="a tree or a mapping",
            got=type(tree).__name__,
            fix="tdfunc.from_module(module) gives those of a module",
        )
    if isinstance(tree, Node):
        tree = without_rows(tree)
        schema, leaves = tree._schema, tree._leaves
    else:
        part = assemble(tree, torch.Size(), Node._plain)
        schema, leaves = cast("Schema", part.kid), part.leaves
    return dict(zip(schema.dotted(), leaves, strict=True))
