"""Products with Jacobians, and whole Jacobians, of functions of trees.

Each calls torch.func's function of the same name on a function of tensors only, and
puts the results back into trees whose batch sizes are known, not found.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core._torch import is_tracing, pytree, wraps
from tdfunc._core.batch import refit
from tdfunc._core.build import nested
from tdfunc._core.node import Node, make
from tdfunc._core.statics import gather_statics
from tdfunc.func._flat import Layout, as_places, flatten, inexact, is_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["hessian", "jacfwd", "jacrev", "jvp", "linearize", "vjp"]


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return ``func(*primals)``, and a function of cotangents: reverse mode.

    As `torch.func.vjp`. Leaves of trees that can have no gradient (integers, rows of
    text) are absent from what the function returns, and may be absent from the
    cotangents.

    Args:
        func: a function of pytrees that returns a pytree of tensors and trees.
        primals: its arguments.
        has_aux: whether it returns a pair, of which only the first is differentiated.

    Returns:
        The pair of output and function (and the second result, with `has_aux`). The
        function takes cotangents with the structure of the output and returns a tuple
        of what is to be added to each primal.

    Raises:
        RuntimeError: what `torch.func.vjp` raises.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.tensor([1.0, 2.0])})
        >>> out, back = tdfunc.vjp(lambda t: t * t, td)
        >>> back(out)[0]["x"].tolist()
        [2.0, 16.0]
    """
    call = _FlatCall(func, primals, range(len(primals)), _VJP, has_aux=has_aux)
    given: Any = torch.func.vjp(call, *call.inputs, has_aux=True)
    results, backward, rest = given
    output = call.assembled(results, rest)

    def pulled(cotangents: Any, **options: Any) -> tuple[Any, ...]:
        return tuple(call.gradients(backward(call.cotangents(cotangents), **options)))

    return (output, pulled, call.auxiliary(rest)) if has_aux else (output, pulled)


def jvp(
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> Any:
    """Return ``func(*primals)`` and its derivative along `tangents`: forward mode.

    As `torch.func.jvp`. Leaves of trees that can have no tangent (integers, rows of
    text) may be absent from `tangents`, and are absent from the tangents returned.

    Args:
        func: a function of pytrees that returns a pytree of tensors and trees.
        primals: its arguments, in a tuple.
        tangents: one for every argument, of the same structure.
        strict: raise where an output does not depend on an input.
        has_aux: whether it returns a pair, of which only the first is differentiated.

    Raises:
        RuntimeError: what `torch.func.jvp` raises.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.tensor([1.0, 2.0])})
        >>> tdfunc.jvp(lambda t: t * t, (td,), (td,))[1]["x"].tolist()
        [2.0, 8.0]
    """
    if not isinstance(primals, tuple):
        raise RuntimeError(  # noqa: TRY004 - torch's
            f"{_JVP}: Expected primals to be a tuple. E.g. it should be "
            "valid to call f(*primals)."
        )
    call = _FlatCall(func, primals, range(len(primals)), _JVP, has_aux=has_aux)
    given: Any = torch.func.jvp(
        call, tuple(call.inputs), _tangents(call, tangents), strict=strict, has_aux=True
    )
    results, forward, rest = given
    output, pushed = call.assembled(results, rest), call.tangents(forward)
    return (output, pushed, call.auxiliary(rest)) if has_aux else (output, pushed)


def linearize(
    func: Callable[..., Any], *primals: Any
) -> tuple[Any, Callable[..., Any]]:
    """Return ``func(*primals)``, and the derivative at that point as a function.

    As `torch.func.linearize`: the derivative is traced once, and calling it computes
    nothing of `func` again.

    Args:
        func: a function of pytrees that returns a pytree of tensors and trees.
        primals: its arguments.

    Raises:
        RuntimeError: what `torch.func.linearize` raises.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.tensor([1.0, 2.0])})
        >>> out, push = tdfunc.linearize(lambda t: t * t, td)
        >>> push(td)["x"].tolist()
        [2.0, 8.0]
    """
    call = _FlatCall(func, primals, range(len(primals)), _JVP, has_aux=False)
    rest: list[Any] = []

    def differentiated(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results, others = call(*inputs)
        rest[:] = [others]
        return results

    results, forward = torch.func.linearize(differentiated, *call.inputs)

    def pushed(*tangents: Any) -> Any:
        found = call.pushed(tangents)
        if found is None:
            raise RuntimeError(
                f"Expected the tangents {pytree.tree_structure(tangents)} to have the "
                f"same argspec as the primals {pytree.tree_structure(primals)}"
            )
        return call.tangents(list(forward(*found)))

    return call.assembled(results, rest[0]), pushed


def jacrev(
    func: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of `func` by reverse mode.

    As `torch.func.jacrev`. The Jacobian has the structure of the output, with that of
    the differentiated arguments in the place of every leaf: a tensor of the shapes of
    both. A tree of the output keeps its batch size; a tree in the place of a leaf has
    the shape of that leaf in front of its own batch size.

    Args:
        func: a function of pytrees that returns a pytree of tensors and trees.
        argnums: which positional arguments to differentiate.
        has_aux: whether it returns a pair, of which only the first is differentiated.
        chunk_size: how many rows of the Jacobian to compute at once; None for all.

    Raises:
        RuntimeError: what `torch.func.jacrev` raises.
        ValueError: likewise.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.ones(3, 2)}, 3)
        >>> jac = tdfunc.jacrev(lambda t: t * 2)(td)
        >>> jac.batch_size, jac["x", "x"].shape, jac["x"].batch_size
        (torch.Size([3]), torch.Size([3, 2, 3, 2]), torch.Size([3, 2, 3]))
    """

    def jacobian(*args: Any) -> Any:
        call = _FlatCall(
            func, args, as_places(argnums, len(args)), _VJP, has_aux=has_aux
        )
        places = tuple(range(len(call.inputs)))
        rows, rest = torch.func.jacrev(
            call, places, has_aux=True, chunk_size=chunk_size
        )(*call.inputs)
        jac = call.jacobian(rows, single=isinstance(argnums, int))
        return (jac, call.auxiliary(rest)) if has_aux else jac

    return jacobian if is_tracing() else wraps(func)(jacobian)


def jacfwd(
    func: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    randomness: str = "error",
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of `func` by forward mode.

    As `torch.func.jacfwd`; the structure of the result is that of `jacrev`.

    Args:
        func: a function of pytrees that returns a pytree of tensors and trees.
        argnums: which positional arguments to differentiate.
        has_aux: whether it returns a pair, of which only the first is differentiated.
        randomness: as in `vmap`.

    Raises:
        RuntimeError: what `torch.func.jacfwd` raises.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.ones(3, 2)}, 3)
        >>> tdfunc.jacfwd(lambda t: t["x"].sum(-1))(td)["x"].shape
        torch.Size([3, 3, 2])
    """

    def jacobian(*args: Any) -> Any:
        call = _FlatCall(
            func, args, as_places(argnums, len(args)), _JVP, has_aux=has_aux
        )
        places = tuple(range(len(call.inputs)))
        rows, rest = torch.func.jacfwd(
            call, places, has_aux=True, randomness=randomness
        )(*call.inputs)
        jac = call.jacobian(rows, single=isinstance(argnums, int))
        return (jac, call.auxiliary(rest)) if has_aux else jac

    return jacobian if is_tracing() else wraps(func)(jacobian)


def hessian(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0
) -> Callable[..., Any]:
    """Return a function that computes the Hessian: the Jacobian of the Jacobian.

    As `torch.func.hessian`: forward over reverse mode.

    Args:
        func: a function of pytrees that returns a pytree of tensors and trees.
        argnums: which positional arguments to differentiate.

    Raises:
        RuntimeError: what `torch.func.hessian` raises.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.ones(2)})
        >>> tdfunc.hessian(lambda t: (t["x"] ** 3).sum())(td)["x", "x"].tolist()
        [[6.0, 0.0], [0.0, 6.0]]
    """
    return jacfwd(jacrev(func, argnums), argnums)


_VJP = "vjp(f, *primals)"
_JVP = "jvp(f, primals, tangents)"


def _tangents(call: _FlatCall, given: Any) -> tuple[Any, ...]:
    found = call.pushed(given)
    if found is None:
        raise RuntimeError(
            f"{_JVP}: Expected primals and tangents to have the same python structure. "
            "For example, if primals is a tuple of 3 tensors, tangents also must be. "
            f"Got primals with structure {pytree.tree_structure(call.args)} and "
            f"tangents with structure {pytree.tree_structure(given)}"
        )
    return found


class _FlatCall:
    """A function as one of tensors only: of what is differentiated, and so returned.

    Its second result holds all other leaves of the output, and what `has_aux` adds.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        places: Sequence[int],
        api: str,
        *,
        has_aux: bool,
    ) -> None:
        self.func = func
        self.args = args
        self.api = api
        self.has_aux = has_aux
        self.places = list(places)
        parts = [flatten(arg) for arg in args]
        self.columns = [leaves for leaves, _ in parts]
        self.layouts = [layout for _, layout in parts]
        self.chosen = [_differentiable(*parts[at]) for at in self.places]
        self.inputs = [
            x
            for at, chosen in zip(self.places, self.chosen, strict=True)
            for x, c in zip(self.columns[at], chosen, strict=True)
            if c
        ]
        self.out = Layout((), ())
        self.out_chosen: list[bool] = []
        self.aux = Layout((), ())

    def __call__(self, *inputs: torch.Tensor) -> tuple[tuple[Any, ...], Any]:
        columns = [list(leaves) for leaves in self.columns]
        values = iter(inputs)
        for at, chosen in zip(self.places, self.chosen, strict=True):
            own = columns[at]
            for i, c in enumerate(chosen):
                if c:
                    own[i] = next(values)
        pairs = zip(self.layouts, columns, strict=True)
        result = self.func(*[layout.rebuilt(leaves) for layout, leaves in pairs])
        aux: Any = ()
        if self.has_aux:
            if not (isinstance(result, tuple) and len(result) == 2):  # noqa: PLR2004
                raise RuntimeError(
                    f"{self.api}: output of function f should be a tuple: (output, "
                    "aux) if has_aux is True"
                )
            result, aux = result
        leaves, self.out = flatten(result)
        flat, self.aux = flatten(aux)
        self.out_chosen = _differentiable(leaves, self.out)
        pairs = list(zip(leaves, self.out_chosen, strict=True))
        rest = [x for x, c in pairs if not c]
        return tuple([x for x, c in pairs if c]), (tuple(rest), tuple(flat))

    # Results in trees

    def assembled(self, results: Sequence[Any], rest: Any) -> Any:
        """Return the output, of what was differentiated and of the other leaves."""
        values, others = iter(results), iter(rest[0])
        return self.out.rebuilt(
            [next(values) if c else next(others) for c in self.out_chosen]
        )

    def auxiliary(self, rest: Any) -> Any:
        """Return the second result of the function."""
        return self.aux.rebuilt(rest[1])

    def tangents(self, values: Sequence[Any]) -> Any:
        """Return tangents of the output, without the leaves that have none."""
        return self.out.reduced(values, self.out_chosen)

    def cotangents(self, given: Any) -> tuple[Any, ...]:
        """Return the tensors of cotangents with the structure of the output."""
        chosen = _selected(given, self.out, self.out_chosen)
        if chosen is None:
            shown = pytree.treespec_pprint(pytree.tree_structure(given))
            output = self.out.around(self.out.items)
            raise RuntimeError(
                "Expected pytree structure of cotangents to be the same as pytree "
                f"structure of outputs to the function. cotangents: {shown}, primal "
                f"output: {pytree.treespec_pprint(pytree.tree_structure(output))}"
            )
        return tuple(chosen)

    def pushed(self, given: Any) -> tuple[Any, ...] | None:
        """Return the tensors of tangents with the structure of the arguments.

        None if they have another one.
        """
        if not isinstance(given, tuple) or len(given) != len(self.layouts):
            return None
        found: list[Any] = []
        for tangent, layout, chosen in zip(
            given, self.layouts, self.chosen, strict=True
        ):
            own = _selected(tangent, layout, chosen)
            if own is None:
                return None
            found += own
        return tuple(found)

    def gradients(self, values: Sequence[Any], front: Sequence[int] = ()) -> list[Any]:
        """Return the differentiated arguments with other tensors.

        Args:
            values: one for every input.
            front: a shape that all of them have in front.
        """
        out: list[Any] = []
        at = 0
        for place, chosen in zip(self.places, self.chosen, strict=True):
            count = sum(chosen)
            own = values[at : at + count]
            out.append(self.layouts[place].reduced(own, chosen, front))
            at += count
        return out

    def jacobian(self, rows: Sequence[Sequence[Any]], *, single: bool) -> Any:
        """Return a Jacobian: for every tensor of the output one for every input."""
        outputs = iter(rows)
        items: list[Any] = []
        at = 0
        for item, count in zip(self.out.items, self.out.counts, strict=True):
            chosen = self.out_chosen[at : at + count]
            at += count
            parts: list[Any] = []
            for leaf in compress(item._leaves if is_tree(item) else (item,), chosen):
                found = self.gradients(list(next(outputs)), leaf.shape)
                parts.append(found[0] if single else tuple(found))
            items.append(_of_parts(item, chosen, parts) if is_tree(item) else parts[0])
        return self.out.around(items)


def _differentiable(leaves: Sequence[Any], layout: Layout) -> list[bool]:
    """Return for every tensor whether it can have a gradient.

    Integers that are no leaves of a tree are said to: torch tells who passed them.
    """
    if layout.flat:
        return [True] * len(leaves)
    chosen: list[bool] = []
    for item in layout.items:
        chosen += inexact(item) if is_tree(item) else [True]
    return chosen


def _selected(given: Any, layout: Layout, chosen: Sequence[bool]) -> list[Any] | None:
    """Return the tensors of a pytree like another, of its chosen ones.

    The others may be absent. None if it is not like it.
    """
    leaves, own = flatten(given)
    if not own.like(layout):
        return None
    found: list[Any] = []
    at = start = 0
    pairs = zip(layout.items, layout.counts, own.items, own.counts, strict=True)
    for item, count, other, held in pairs:
        flags = chosen[at : at + count]
        part = leaves[start : start + held]
        at, start = at + count, start + held
        if is_tree(item):
            if not is_tree(other):
                return None
            paths, own_paths = item._schema.paths(), other._schema.paths()
            if paths != own_paths:
                if tuple(compress(paths, flags)) != own_paths:
                    return None
                flags = [True] * held
        elif is_tree(other):
            return None
        found += [x for x, c in zip(part, flags, strict=True) if c]
    return found


def _of_parts(tree: Node, chosen: Sequence[bool], parts: Sequence[Any]) -> Any:
    """Return a tree with part of a Jacobian in the place of every leaf."""
    size = tree.batch_size
    gone = tuple([i for i, c in enumerate(chosen) if not c])
    schema, _, sslots = tree._schema.without(gone)
    statics = gather_statics([(tree._statics, slot) for slot in sslots])
    leaves = tuple(parts)
    if all([isinstance(part, Node) for part in parts]) and parts:
        schema, leaves, statics = nested(schema, leaves, statics, len(size))
    elif all([isinstance(part, torch.Tensor) for part in parts]):
        schema = refit(schema, leaves, len(size))
    return make(schema, leaves, statics, size, tree._names)
