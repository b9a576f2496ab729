"""Modules called with tensors: the tree is made of them, and tensors come back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.keys import as_path, short
from tdfunc._core.node import Node
from tdfunc._ops.restructure import auto_batch_size as infer_batch_size
from tdfunc.errors import OperandError, OptionError
from tdfunc.nn._scope import bare, put, read_entry
from tdfunc.typing import MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tdfunc.typing import Path

__all__ = [
    "call_with_tensors",
    "dispatch",
    "input_names",
    "keywords_of",
    "keywords_of_forward",
]


# What every call takes, of modules that have no use for it too.
_ALWAYS = frozenset({"key", "skip_existing"})


def call_with_tensors(
    module: Any, params: Any, first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return the outputs of a module as tensors; see `dispatch`.

    Args:
        module: the module.
        params: its parameters.
        first: the first positional input, None if there is none.
        args: the other ones.
        kwargs: inputs by name, and options of the module.

    Raises:
        OptionError: an input is given twice, or none is; the module takes no such.
        OperandError: a mapping is given for a tree.
    """
    own = type(module).forward
    # An input that is None is given as one only in front of others.
    given = () if first is None and not args else (first, *args)
    if getattr(own, "takes_tensors", False):
        names = input_names(module.in_keys, own.separator)
        # As in other calls: whatever takes none is given none.
        unused = _ALWAYS.difference(names, module._options)
        kwargs = {k: v for k, v in kwargs.items() if k not in unused}
        return module.forward(params, *given, **kwargs)
    names = input_names(module.in_keys)
    options = {k: v for k, v in kwargs.items() if k not in names}
    tensors = {k: v for k, v in kwargs.items() if k in names}
    td = gathered(names, given, tensors, options, _options_of(module))
    return outputs_of(module(params, td, **options), module.out_keys)


def dispatch(
    fn: Callable[..., Any] | None = None,
    *,
    separator: str = "_",
    source: str | Iterable[str | Path] = "in_keys",
    dest: str | Iterable[str | Path] = "out_keys",
    auto_batch_size: bool = True,
) -> Any:
    """Let a function of (params, tree) be called with tensors too, as a decorator.

    The tensors go by position, in the order of `source`, or by name: that of a key is
    the key, that of a path its keys joined: ``robot_joints``, ``("robot", "joints")``.
    A call with tensors returns the outputs `dest` as tensors: one, or a tuple. A call
    with a tree goes through. Modules need no decorator to be called like this; of the
    `forward` of one it sets the options.

    Args:
        fn: a function ``(params, td)``, or a method ``(self, params, td)``.
        separator: what joins the keys of a path.
        source: the inputs, or the attribute of ``self`` that has them.
        dest: the outputs, or the attribute of ``self`` that has them.
        auto_batch_size: infer the batch size of the tree: the longest leading shape
            that all tensors share; False leaves it empty.

    Raises:
        OptionError: two inputs have one name: those of a list at once, those of an
            attribute when a subclass of `TensorDictModuleBase` says them, or else in
            the call; in a call: a tensor is given twice or is no input.

    Examples:
        >>> import torch
        >>> from tdfunc.nn import dispatch
        >>> @dispatch(source=["a", ("n", "b")], dest=["c"])
        ... def add(params, td):
        ...     return td.set("c", td["a"] + td["n", "b"])
        >>> add(None, a=torch.ones(2), n_b=torch.ones(2))
        tensor([2., 2.])
    """
    if fn is None:
        return functools.partial(
            dispatch,
            separator=separator,
            source=source,
            dest=dest,
            auto_batch_size=auto_batch_size,
        )
    if not isinstance(source, str):
        source = tuple(source)
        input_names(source, separator)
    is_method = isinstance(source, str) or isinstance(dest, str)
    count = 2 if is_method else 1  # arguments in front of the tree

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        front, rest = args[:count], args[count:]
        if rest and isinstance(rest[0], Node):
            return fn(*args, **kwargs)
        owner = args[0] if is_method else None
        ins = getattr(owner, source) if isinstance(source, str) else source
        outs = getattr(owner, dest) if isinstance(dest, str) else dest
        names = input_names(ins, separator)
        options = {k: v for k, v in kwargs.items() if k not in names}
        tensors = {k: v for k, v in kwargs.items() if k in names}
        allowed = frozenset() if owner is None else _options_of(owner)
        td = gathered(names, rest, tensors, options, allowed)
        if auto_batch_size:
            td = infer_batch_size(td)
        return outputs_of(fn(*front, td, **options), outs)

    wrapper.takes_tensors = True  # pyright: ignore[reportAttributeAccessIssue]
    wrapper.separator = separator  # pyright: ignore[reportAttributeAccessIssue]
    return wrapper


def keywords_of(fn: Callable[..., Any], first: int) -> frozenset[str]:
    """Return what a function takes by keyword behind its first arguments."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return frozenset(p.name for p in _parameters_of(fn)[first:] if p.kind in kinds)


def keywords_of_forward(cls: type[Any], first: int) -> frozenset[str]:
    """Return what the `forward` of a class takes by keyword behind its first arguments.

    What it takes by ``**`` goes on to the one that it overrides.
    """
    words: frozenset[str] = frozenset()
    for base in cls.__mro__:
        if "forward" in vars(base):
            fn = vars(base)["forward"]
            words |= keywords_of(fn, first)
            kinds = [p.kind for p in _parameters_of(fn)]
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                break
    return words


def _parameters_of(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a builtin
        return []


def _options_of(module: Any) -> frozenset[str]:
    return getattr(module, "_options", frozenset()) | _ALWAYS


def input_names(keys: Iterable[str | Path], separator: str = "_") -> dict[str, Path]:
    """Return the path of every input by the name that it has as an argument.

    Raises:
        OptionError: two inputs have one name.
    """
    names: dict[str, Path] = {}
    for key in keys:
        path = as_path(key)
        name = separator.join(path)
        if names.setdefault(name, path) != path:
            raise OptionError(
                f"two inputs have the name {name!r}",
                got=f"{short(names[name])!r} and {short(path)!r}",
                fix=f"td.rename_key({short(path)!r}, other_key), or another separator= "
                "of dispatch",
            )
    return names


def gathered(
    names: Mapping[str, Path],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Iterable[str],
    allowed: frozenset[str],
) -> Any:
    """Return the tree of input tensors, with an empty batch size."""
    unknown = sorted(set(options) - allowed)
    if unknown or len(args) > len(names):
        raise OptionError(
            "the module has no such inputs",
            expected=", ".join(names) or "no inputs",
            got=", ".join(unknown) or f"{len(args)} tensors",
        )
    if not args and not kwargs:
        raise OptionError(
            "there is neither a tree nor a tensor",
            expected=", ".join(names),
            fix="module(params, td), or module(params, name=tensor)",
        )
    if args and isinstance(args[0], Mapping):
        raise OperandError(
            "a mapping is no tree",
            expected=f"a tree, or tensors: {', '.join(names)}",
            got=type(args[0]).__name__,
            fix="module(params, TensorDict(mapping, batch_size)); by name it may be an "
            "input",
        )
    given = dict(zip(names, args, strict=False))
    twice = sorted(given.keys() & kwargs.keys())
    if twice:
        raise OptionError(
            "an input is given by position and by name", got=", ".join(twice)
        )
    given |= kwargs
    return put(bare(torch.Size()), {names[name]: x for name, x in given.items()})


def outputs_of(td: Any, keys: Iterable[str | Path]) -> Any:
    """Return the entries of a tree, one alone or several in a tuple."""
    outs = [read_entry(td, as_path(key)) for key in keys]
    outs = [None if value is MISSING else value for value in outs]
    return outs[0] if len(outs) == 1 else tuple(outs)
