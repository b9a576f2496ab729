"""Gradients of functions of trees, of the leaves that have one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tdfunc._core import _torch
from tdfunc._core._torch import GradLevel, is_tracing, wraps
from tdfunc._core.keys import as_path, is_key
from tdfunc._core.node import Node, make
from tdfunc._core.statics import NO_STATICS
from tdfunc.errors import OptionError, show_path
from tdfunc.func._flat import Layout, as_places, flatten, inexact, is_tree
from tdfunc.func._partition import decided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc.typing import Path

__all__ = ["grad", "grad_and_value"]

Wrt: TypeAlias = Any


def grad(
    func: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    wrt: Wrt = None,
) -> Callable[..., Any]:
    """Return a function that computes the gradient of a scalar `func`.

    As `torch.func.grad`, with the same results, and at less cost. The gradient of a
    tree is a tree with the leaves that can have one: integer and boolean leaves and
    rows of text are absent, statics are kept.

    The gradient can be differentiated again with respect to everything that the value
    of `func` depends on. (What only a custom ``backward`` or a hook of a tensor brings
    in is a constant; there alone torch goes further.)

    Args:
        func: a function of any pytrees that returns a tensor without dims (or, with
            `has_aux`, a pair of that and anything made of tensors).
        argnums: which positional arguments to differentiate.
        has_aux: whether `func` returns a pair; the second is passed on.
        wrt: which leaves of the first argument (a tree) to differentiate: a key, a
            path, a list of them (nodes stand for what is in them), a function of path
            and leaf, or whatever else `partition` takes but a kind of dtype. The
            gradient is a tree of just these, without statics.

    Returns:
        A function of the arguments of `func` that returns the gradient, and with
        `has_aux` a pair of it and the second result of `func`.

    Raises:
        MissingKeyError: `wrt` names an entry that is not there.
        OptionError: `wrt` together with `argnums`, or without a tree to choose from;
            nothing that can be differentiated is chosen.
        RuntimeError: what `torch.func.grad` raises: `func` returned no scalar, or a
            plain tensor argument has an integer dtype.

    Examples:
        >>> import torch, tdfunc
        >>> params = tdfunc.TensorDict({"w": torch.ones(2), "steps": 3, "name": "net"})
        >>> g = tdfunc.grad(lambda p: (p["w"] ** 2).sum() * p["steps"])(params)
        >>> g["w"].tolist(), g.keys()
        ([6.0, 6.0], ('w', 'name'))
        >>> tdfunc.grad(lambda p: p["w"].sum(), wrt="w")(params).keys()
        ('w',)
    """
    both = grad_and_value(func, argnums, has_aux, wrt=wrt)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        grads, value = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return gradient if is_tracing() else wraps(func)(gradient)


def grad_and_value(
    func: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    wrt: Wrt = None,
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that computes the gradient of a scalar `func`, and its value.

    Args:
        func: as in `grad`.
        argnums: as in `grad`.
        has_aux: as in `grad`.
        wrt: as in `grad`.

    Returns:
        A function that returns a pair of the gradient and the value; with `has_aux`
        the second is itself the pair that `func` returned.

    Raises:
        Exception: as `grad`.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"w": torch.tensor(3.0)})
        >>> grads, value = tdfunc.grad_and_value(lambda p: p["w"] ** 2)(td)
        >>> grads["w"].item(), value.item()
        (6.0, 9.0)
    """
    if wrt is not None and argnums != 0:
        raise OptionError(
            "wrt chooses leaves of the first argument",
            expected="argnums=0",
            got=f"argnums={argnums!r}",
        )

    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        call = _Call(func, argnums, args, kwargs, wrt, has_aux=has_aux)
        if (
            is_tracing()
            or not _torch.transforms_apart()
            or torch.is_inference_mode_enabled()
        ):
            return call.through_torch()
        return call.direct()

    return both if is_tracing() else wraps(func)(both)


class _Call:
    """One call of a differentiated function."""

    def __init__(
        self,
        func: Callable[..., Any],
        argnums: int | tuple[int, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wrt: Wrt,
        *,
        has_aux: bool,
    ) -> None:
        self.func = func
        self.has_aux = has_aux
        self.single = isinstance(argnums, int)
        self.argnums = as_places(argnums, len(args))
        parts = [flatten(arg) for arg in args]
        self.layouts = [layout for _, layout in parts]
        self.columns = [leaves for leaves, _ in parts]
        self.options, self.options_layout = flatten(kwargs) if kwargs else ([], None)
        # For every differentiated argument which of its tensors are.
        self.chosen = [
            self._chosen(self.columns[at], self.layouts[at], wrt) for at in self.argnums
        ]
        self.partial = wrt is not None

    def _chosen(self, leaves: list[Any], layout: Layout, wrt: Wrt) -> list[bool]:
        if wrt is not None:
            return _picked(layout, wrt)
        if layout.flat:
            return [True] * len(leaves)
        chosen: list[bool] = []
        for item in layout.items:
            chosen += inexact(item) if is_tree(item) else [True]
        return chosen

    def _called(self, columns: Sequence[Sequence[Any]], options: Sequence[Any]) -> Any:
        """Call the function with these tensors; return output and the rest."""
        pairs = zip(self.layouts, columns, strict=True)
        args = [layout.rebuilt(leaves) for layout, leaves in pairs]
        kwargs = self.options_layout.rebuilt(options) if self.options_layout else {}
        output, aux = self.func(*args, **kwargs), None
        if self.has_aux:
            if not (isinstance(output, tuple) and len(output) == 2):  # noqa: PLR2004
                raise RuntimeError(
                    "grad_and_value(f)(*args): output of function f should be a "
                    "tuple: (output, aux) if has_aux is True"
                )
            output, aux = output
        if not isinstance(output, torch.Tensor):
            raise RuntimeError(  # noqa: TRY004 - torch's
                "grad_and_value(f)(*args): Expected f(*args) to return a Tensor, "
                f"got {type(output)}"
            )
        if output.dim() != 0:
            raise RuntimeError(
                "grad_and_value(f)(*args): Expected f(*args) to return a scalar "
                f"Tensor, got tensor with {output.dim()} dims. Maybe you wanted to "
                "use the vjp or jacrev APIs instead?"
            )
        return output, aux

    def direct(self) -> tuple[Any, Any]:
        """Differentiate on one level of functorch."""
        wrap, unwrap = _torch.wrap_for_grad, _torch.unwrap_for_grad
        with GradLevel() as level:
            columns = [
                [wrap(x, level) if isinstance(x, torch.Tensor) else x for x in leaves]
                for leaves in self.columns
            ]
            options = [
                wrap(x, level) if isinstance(x, torch.Tensor) else x
                for x in self.options
            ]
            inputs: list[torch.Tensor] = []
            for at, chosen in zip(self.argnums, self.chosen, strict=True):
                inputs += [x for x, c in zip(columns[at], chosen, strict=True) if c]
            _check_tensors(inputs)
            _torch.mark_differentiable(inputs)
            output, aux = self._called(columns, options)
            lower = unwrap(output, level)
            grads = _gradients(output, inputs, create_graph=_torch.is_followed(lower))
            grads = [unwrap(g, level) for g in grads]
            if self.has_aux:
                flat, layout = flatten(aux)
                aux = layout.rebuilt([_unwrapped(x, level) for x in flat])
        return self._result(grads), (lower, aux) if self.has_aux else lower

    def through_torch(self) -> tuple[Any, Any]:
        """Differentiate by `torch.func`, a function of tensors only."""
        places = [
            (at, i)
            for at, chosen in zip(self.argnums, self.chosen, strict=True)
            for i, c in enumerate(chosen)
            if c
        ]
        kept: list[Layout] = []
        taken = set(places)
        rest = [
            [i for i in range(len(leaves)) if (at, i) not in taken]
            for at, leaves in enumerate(self.columns)
        ]
        others = [self.columns[at][i] for at, own in enumerate(rest) for i in own]

        def call(inputs: tuple[Any, ...], others: tuple[Any, ...], options: Any) -> Any:
            columns = [list(leaves) for leaves in self.columns]
            for (at, i), x in zip(places, inputs, strict=True):
                columns[at][i] = x
            values = iter(others)
            for at, own in enumerate(rest):
                for i in own:
                    columns[at][i] = next(values)
            output, aux = self._called(columns, options)
            if not self.has_aux:
                return output
            flat, layout = flatten(aux)
            kept.append(layout)
            return output, tuple(flat)

        inputs = tuple([self.columns[at][i] for at, i in places])
        both: Any = torch.func.grad_and_value(call, 0, self.has_aux)
        grads, value = both(inputs, tuple(others), tuple(self.options))
        if self.has_aux:
            value = (value[0], kept[-1].rebuilt(value[1]))
        return self._result(list(grads)), value

    def _result(self, grads: list[Any]) -> Any:
        out: list[Any] = []
        at = 0
        for place, chosen in zip(self.argnums, self.chosen, strict=True):
            count = sum(chosen)
            own = grads[at : at + count]
            at += count
            layout = self.layouts[place]
            if self.partial:
                out.append(_part(layout.items[0], own, chosen))
            else:
                out.append(layout.reduced(own, chosen))
        return out[0] if self.single else tuple(out)


def _picked(layout: Layout, wrt: Wrt) -> list[bool]:
    tree: Any = layout.items[0] if len(layout.items) == 1 else None
    if not is_tree(tree):
        raise OptionError(
            "wrt chooses leaves of a tree",
            expected="a tree as first argument",
            got=type(layout.around(layout.items)).__name__,
            fix="argnums=0 differentiates the whole argument",
        )
    chosen = decided(tree, _as_predicate(wrt))
    able = inexact(tree)
    for path, picked, can in zip(tree._schema.paths(), chosen, able, strict=True):
        # Who names an entry means it; who names a node or gives a rule, what can.
        if picked and not can and _names(wrt, path):
            raise OptionError(
                "a leaf of this dtype has no gradient",
                path=path,
                expected="a floating-point or complex leaf",
                got=str(tree[path].dtype) if hasattr(tree[path], "dtype") else "rows",
            )
    both = [a and b for a, b in zip(chosen, able, strict=True)]
    if not any(both):
        raise OptionError(
            "wrt chooses nothing that has a gradient",
            expected=f"some of {', '.join(map(show_path, tree._schema.paths()))}",
            got=repr(wrt),
        )
    return both


def _as_predicate(wrt: Wrt) -> Any:
    if is_key(wrt):
        return {as_path(wrt): True}
    if isinstance(wrt, (list, set, frozenset)):
        return {as_path(key): True for key in wrt}
    return wrt


def _names(wrt: Wrt, path: Path) -> bool:
    if is_key(wrt):
        return as_path(wrt) == path
    if isinstance(wrt, (list, set, frozenset)):
        return any([as_path(key) == path for key in wrt])
    if not isinstance(wrt, Mapping):
        return False
    return any([as_path(key) == path and bool(on) for key, on in wrt.items()])


def _part(tree: Node, grads: list[Any], chosen: list[bool]) -> Any:
    """Return the tree of the gradients of the chosen leaves, and nothing else."""
    size = tree.batch_size
    (schema, _), _ = tree._schema.parted(tuple(chosen))
    return make(schema, tuple(grads), NO_STATICS, size, tree._names)


def _check_tensors(inputs: Sequence[Any]) -> None:
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            raise ValueError(  # noqa: TRY004 - torch's
                f"Thing passed to transform API must be Tensor, got {type(value)}"
            )


def _gradients(
    output: torch.Tensor, inputs: list[torch.Tensor], *, create_graph: bool
) -> Sequence[torch.Tensor]:
    """Return the gradients of a scalar, zeros where it does not depend on an input."""
    if not inputs:
        return []
    if not output.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    # torch.func always asks for a graph of the backward pass. It is only of use to who
    # differentiates what comes out of here.
    with _torch.without_compiled_autograd():
        grads: Any = torch.autograd.grad(
            output, inputs, create_graph=create_graph, allow_unused=True
        )
    pairs = zip(grads, inputs, strict=True)
    return [torch.zeros_like(x) if g is None else g for g, x in pairs]


def _unwrapped(value: Any, level: int) -> Any:
    if isinstance(value, torch.Tensor):
        return _torch.unwrap_for_grad(value, level)
    raise RuntimeError(f"Expected tensors, got unsupported type {type(value)}")
