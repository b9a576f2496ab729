"""Modules as functions of (params, tree): the base class, and the one that wraps.

A module is a description. It holds no value that a call changes, so one module may be
called with many parameter trees, by several threads, and under every transform.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeAlias,
    cast,
    get_args,
)

import torch
from torch import nn
from torch.nn import functional as F

from tdfunc._core._torch import has_global_module_hooks, is_tracing
from tdfunc._core.build import assemble
from tdfunc._core.keys import as_path, short
from tdfunc._core.node import Node, make
from tdfunc._core.statics import NO_STATICS
from tdfunc.errors import MissingKeyError, OperandError, OptionError, StructureError
from tdfunc.func import from_module
from tdfunc.func._modules import dotted
from tdfunc.func._purecall import call_pure
from tdfunc.nn._dispatch import (
    call_with_tensors,
    input_names,
    keywords_of,
    keywords_of_forward,
)
from tdfunc.nn._keyed import Keyed, draws_numbers, reset_copy, stochastic_parts
from tdfunc.nn._scope import (
    Scope,
    bare,
    has_entry,
    put,
    read_entry,
    read_ragged,
)
from tdfunc.nn._skip import as_mode, skip_existing
from tdfunc.typing import MISSING

if TYPE_CHECKING:
    from tdfunc.typing import Path

__all__ = [
    "MethodOf",
    "Output",
    "TensorDictModule",
    "TensorDictModuleBase",
    "WrapModule",
    "as_output",
    "as_tensordict_module",
    "nested_tree",
]

Output: TypeAlias = Literal["merge", "only", "empty"]
"""Where a module puts its outputs; see `TensorDictModule`."""

_FIRST = 3  # self, params, td

# What a linear layer has, sorted as leaves are.
_WEIGHT = ("weight",)
_BOTH = (("weight", "bias"), ("bias", "weight"))


class TensorDictModuleBase:
    """Base of modules: functions of parameters and a tree, with keys for both ends.

    A subclass has `in_keys`, `out_keys` and ``forward(self, params, td) -> tree``. Its
    parameters are what `init` and `params` return, by default an empty tree. What
    `forward` takes by keyword (``key``, for one) can be given in calls, of sequences
    with the module in them too; what it takes by ``**`` is what its base class takes.

    Calling it with a tree is `forward`, calling it with tensors is `forward` with the
    tree of them, and returns tensors (see `dispatch`).

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> from tdfunc.nn import TensorDictModuleBase
        >>> class Scale(TensorDictModuleBase):
        ...     in_keys, out_keys = ("x",), ("y",)
        ...
        ...     def init(self, key):
        ...         return TensorDict({"factor": torch.tensor(2.0)})
        ...
        ...     def forward(self, params, td):
        ...         return td.set("y", params["factor"] * td["x"])
        >>> scale = Scale()
        >>> scale(scale.init(None), TensorDict({"x": 3.0}))["y"]
        tensor(6.)
        >>> scale(scale.init(None), x=torch.tensor(3.0))
        tensor(6.)
    """

    __slots__ = ("__weakref__",)

    in_keys: Any
    """What the module reads, as keys and paths."""
    out_keys: Any
    """What the module writes, as keys and paths."""

    _words: ClassVar[frozenset[str]] = frozenset()  # what forward takes by keyword

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):
            cls._words = keywords_of_forward(cls, _FIRST)
        for end in ("in_keys", "out_keys"):
            if isinstance(vars(cls).get(end), str):  # one key needs no list
                setattr(cls, end, (vars(cls)[end],))
        keys = vars(cls).get("in_keys")
        if isinstance(keys, (tuple, list)):  # not if instances say what they are
            given: Any = keys
            input_names(given, getattr(cls.forward, "separator", "_"))

    @property
    def _options(self) -> frozenset[str]:
        """What a call takes by keyword with a tree."""
        return self._words

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

    def __call__(
        self, params: Any, td: Any = None, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Return the tree with the outputs in it, or of tensors the output tensors.

        Args:
            params: the parameters: a tree (or mapping), None if there are none.
            td: a tree, or the first of the input tensors.
            args: more input tensors, in the order of `in_keys`.
            kwargs: input tensors by name, options of `forward`, and
                ``skip_existing=`` (see `set_skip_existing`).

        Raises:
            OptionError: an option or a tensor that the module does not take.
        """
        if not isinstance(td, Node):
            return call_with_tensors(self, params, td, args, kwargs)
        if args:
            raise OptionError(
                f"{type(self).__name__} takes one tree",
                got=f"{len(args)} more positional arguments",
                fix="module(params, td, key=key)",
            )
        mode = skip_existing()
        if kwargs:
            if "skip_existing" in kwargs:
                given = kwargs.pop("skip_existing")
                mode = mode if given is None else as_mode(given)
            if "key" in kwargs and "key" not in self._options:
                del kwargs["key"]
            self._check_options(kwargs)
        if mode and skips(self, mode, lambda path: has_entry(td, path)):
            return td
        if "skip_existing" in self._options:
            kwargs["skip_existing"] = mode
        return self.forward(params, td, **kwargs)

    @property
    def needed_keys(self) -> tuple[Any, ...]:
        """Which of `in_keys` it can not do without: all, unless it has defaults."""
        return tuple(self.in_keys)

    def init(self, key: torch.Tensor) -> Any:  # noqa: ARG002 - to be overridden
        """Return a tree of parameters that is drawn from a key."""
        return bare(torch.Size())

    def params(self) -> Any:
        """Return the parameters that the module came with, as a tree."""
        return bare(torch.Size())

    def buffers(self) -> Any:
        """Return the buffers that the module came with, as a tree."""
        return bare(torch.Size())

    def call_with_buffers(
        self, params: Any, buffers: Any, td: Any, **options: Any
    ) -> tuple[Any, Any]:
        """Return the tree with the outputs, and the buffers as the call leaves them.

        Args:
            params: the parameters.
            buffers: the buffers; they do not change.
            td: the tree.
            options: as in a call.
        """
        if buffers is not None and "buffers" in self._options:
            options["buffers"] = buffers
        return self(params, td, **options), buffers

    def _check_options(self, options: Iterable[str]) -> None:
        unknown = sorted(set(options) - self._options)
        if unknown:
            raise OptionError(
                f"{type(self).__name__} does not take these options",
                expected=", ".join(sorted({*self._options, "skip_existing"})),
                got=", ".join(unknown),
            )

    def _step(
        self,
        params: Any,
        scope: Scope,
        options: dict[str, Any],
        buffers: Any = None,
        *,
        collect: bool = False,
    ) -> Any:
        """Run in a sequence; return the buffers after it if they are collected."""
        known = {
            name: value
            for name, value in options.items()
            if name in self._options or name == "skip_existing"
        }
        if options.get("key") is None:
            known.pop("key", None)  # forward may have a default of its own
        if collect:
            td, after = self.call_with_buffers(params, buffers, scope.tree(), **known)
        else:
            if buffers is not None and "buffers" in self._options:
                known["buffers"] = buffers
            td, after = self(params, scope.tree(), **known), None
        scope.become(as_tree(td, self))
        return after

    def __repr__(self) -> str:
        ins, outs = list(self.in_keys), list(self.out_keys)
        return f"{type(self).__name__}(in_keys={ins}, out_keys={outs})"


class TensorDictModule(TensorDictModuleBase):
    """A `torch.nn.Module` or a function, made a function of (params, tree).

    It reads the entries `in_keys`, calls, and puts what comes back at `out_keys` of a
    new tree. Neither the wrapped module nor anything else changes: not its parameters,
    its batch-norm statistics or what its forward assigns, nor the tensors of the tree.

    Args:
        module: an `nn.Module`, called with `params` in place of its own; a function of
            tensors; or, with `init`, a function of params and tensors.
        in_keys: keys and paths, in the order of the arguments; one may occur twice. Or
            a dict from argument names to keys. One key needs no list.
        out_keys: keys and paths, one for each output; ``"_"`` drops one.
        out_to_in_map: False reads a dict `in_keys` the other way, keys to names.
        strict: raise if an input is missing; False passes None for it.
        output: ``"merge"`` returns the input with the outputs in it, ``"only"`` the
            outputs with batch size ``[]``, ``"empty"`` the outputs with the batch size
            of the input.
        method: call this method of the `nn.Module` instead.
        kwargs: further keyword arguments of the call.
        get_kwargs: how entries of lazy stacks are read, options of their ``get``:
            ``{"as_padded_tensor": True}`` for what the members have in other lengths.
        init: with a function as `module`: ``init(key)`` returns its parameters, which
            become its first argument.

    A call takes ``module(params, td, buffers=None, key=None)``. A random layer (dropout
    in training mode) needs the key; what a function draws by `torch.rand`, `randn` or
    `bernoulli` comes from it too. Buffers default to those of the `nn.Module`.

    Outputs may come as a tensor, a tuple or list of them, or a mapping or tree, which
    is read by `out_keys`. A tree that is to be one entry comes in a tuple: ``(tree,)``.

    Raises:
        InvalidKeyError: a key is none.
        MissingKeyError: in a call: inputs are missing; all are listed.
        OperandError: `module` can not be called, keys are no list, or parameters are
            not given.
        OptionError: options do not go together; two of `in_keys` have one name in a
            call with tensors; a random layer has no key.
        StructureError: in a call: there are more or fewer outputs than `out_keys`.

    An error in the call is the original one, with a note that says in which module.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict, random
        >>> from tdfunc.nn import TensorDictModule
        >>> module = TensorDictModule(torch.nn.Linear(3, 4), ["x"], ["y"])
        >>> params = module.init(random.key(0))
        >>> td = TensorDict({"x": torch.ones(2, 3)}, batch_size=2)
        >>> module(params, td)["y"].shape
        torch.Size([2, 4])
        >>> module(params, x=torch.ones(2, 3)).shape
        torch.Size([2, 4])
    """

    __slots__ = (
        "_declared",
        "_direct",
        "_get",
        "_init",
        "_inplace",
        "_kwargs",
        "_names",
        "_options_given",
        "_output",
        "_random",
        "_reads",
        "_sinks",
        "_strict",
        "_target",
        "_wrapped",
    )

    def __init__(  # noqa: PLR0913 - what is wrapped, and how
        self,
        module: Callable[..., Any],
        in_keys: str | Iterable[str | Path] | Mapping[Any, Any],
        out_keys: str | Iterable[str | Path],
        *,
        out_to_in_map: bool = True,
        strict: bool = True,
        output: Output = "merge",
        method: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        get_kwargs: Mapping[str, Any] | None = None,
        init: Callable[..., Any] | None = None,
    ) -> None:
        self._options_given: dict[str, Any] = {
            "module": module,
            "in_keys": in_keys,
            "out_keys": out_keys,
            "out_to_in_map": out_to_in_map,
            "strict": strict,
            "output": output,
            "method": method,
            "kwargs": kwargs,
            "get_kwargs": get_kwargs,
            "init": init,
        }
        is_net = isinstance(module, nn.Module)
        _check_wrapped(module, method, init)
        self._wrapped = module
        self._target = MethodOf(module, method) if is_net and method else module
        self._reads, self._names = _inputs(in_keys, out_to_in_map)
        input_names(self._reads)
        self._declared = _sinks(out_keys)
        self._sinks = self._declared
        self._strict = strict
        self._output = as_output(output)
        self._kwargs = dict(kwargs or {})
        self._get = dict(get_kwargs or {})
        self._init = init
        self._random = stochastic_parts(module) if is_net else ()
        # These write into what they are given, which may be a tensor of the tree.
        self._inplace = is_net and any(
            getattr(part, "inplace", False) for part in module.modules()
        )
        self._direct = (
            type(module) is nn.Linear
            and type(self) is TensorDictModule
            and not method
            and not kwargs
            and self._names is None
            and self._output == "merge"
            and len(self._reads) == 1
            and len(self._reads[0]) == 1
            and len(self._sinks) == 1
            and self._sinks[0] is not None
        )

    def __call__(
        self, params: Any, td: Any = None, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Return the tree with the outputs in it, or of tensors the output tensors.

        Args:
            params: the parameters: a tree (or mapping), None if there are none.
            td: a tree, or the first of the input tensors.
            args: more input tensors, in the order of `in_keys`.
            kwargs: input tensors by name; ``buffers``, ``key`` and ``skip_existing``.
        """
        if self._direct and not kwargs and not args and not is_tracing():
            done = self._quickly(params, td)
            if done is not None:
                return done
        return super().__call__(params, td, *args, **kwargs)

    def _quickly(self, params: Any, td: Any) -> Any:
        """Return the result of a linear layer and nothing else, None if it is more."""
        if not isinstance(td, Node) or not isinstance(params, Node):
            return None
        slot = td._schema.slots.get(self._reads[0][0])
        if (
            slot is None
            or td._schema.lazy
            or skip_existing()
            or has_global_module_hooks()
        ):
            return None
        out = self._linear(params._schema, params._leaves, td._leaves[slot])
        sink: Any = self._sinks[0]
        return None if out is None else put(td, {sink: out})

    def _linear(self, schema: Any, leaves: Any, x: Any, lo: int = 0) -> Any:
        """Return the output of a bare linear layer; for sequences.

        None if it is not bare: hooks run, or there are other parameters than its own.

        Args:
            schema: of its parameters.
            leaves: those of a tree with them.
            x: the input.
            lo: place of the first of them.
        """
        own = self._wrapped.__dict__
        has_bias = schema.keys in _BOTH
        if (
            not (has_bias or schema.keys == _WEIGHT)
            or (own["_parameters"]["bias"] is None) is has_bias
            or own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
            or "forward" in own
            or own.get("_compiled_call_impl") is not None
        ):
            return None
        try:
            if has_bias:
                return F.linear(x, leaves[lo + 1], leaves[lo])
            return F.linear(x, leaves[lo])
        except Exception as error:
            self._note(error)
            raise

    @property
    def module(self) -> Any:
        """The wrapped `nn.Module` or function."""
        return self._wrapped

    @property
    def in_keys(self) -> tuple[Any, ...]:
        """What the module reads, each once."""
        return tuple([short(path) for path in dict.fromkeys(self._reads)])

    @property
    def out_keys(self) -> tuple[Any, ...]:
        """What the module writes."""
        return tuple([short(path) for path in self._sinks if path is not None])

    @property
    def out_keys_source(self) -> tuple[Any, ...]:
        """What the module wrote before `select_out_keys`."""
        return tuple([short(path) for path in self._declared if path is not None])

    def replace(self, **options: Any) -> Self:
        """Return a module of the same class with other arguments of the constructor.

        What a subclass has beside them stays. Outputs that were selected are no more.

        Args:
            options: the arguments to change, those of `TensorDictModule`.

        Raises:
            OptionError: an argument that the constructor does not have.

        Examples:
            >>> from tdfunc.nn import TensorDictModule
            >>> double = TensorDictModule(lambda x: 2 * x, ["x"], ["y"])
            >>> double.replace(out_keys=["z"]).out_keys
            ('z',)
        """
        unknown = sorted(options.keys() - self._options_given.keys())
        if unknown:
            raise OptionError(
                f"{type(self).__name__} has no such arguments",
                expected=", ".join(self._options_given),
                got=", ".join(unknown),
            )
        new = copy.copy(self)
        TensorDictModule.__init__(new, **{**self._options_given, **options})
        return new

    def select_out_keys(self, *keys: str | Path) -> Self:
        """Return a module that writes only some of the outputs.

        What the input has at the others stays as it is.

        Args:
            keys: some of `out_keys_source`.

        Raises:
            OptionError: a key is none of them.

        Examples:
            >>> from tdfunc.nn import TensorDictModule
            >>> both = TensorDictModule(lambda x: (x + 1, x - 1), ["x"], ["y", "z"])
            >>> both.select_out_keys("z").out_keys
            ('z',)
        """
        chosen = selected(keys, [path for path in self._declared if path is not None])
        new = copy.copy(self)
        new._sinks = tuple([p if p in chosen else None for p in self._declared])
        return new

    def reset_out_keys(self) -> Self:
        """Return the module that writes all outputs again."""
        new = copy.copy(self)
        new._sinks = self._declared
        return new

    def init(self, key: torch.Tensor) -> Any:
        """Return parameters drawn from a key; equal keys give equal parameters.

        Of an `nn.Module` every part draws by its own ``reset_parameters``, from a key
        of its own; parameters of parts that have none keep their values. Of a module
        made on the meta device, which has shapes and no memory, they are on the device
        of the key.

        Args:
            key: a key of `tdfunc.random`.

        Returns:
            A tree of new tensors; the wrapped module does not change.

        Raises:
            InvalidLeafError: a parameter of a lazy module is not initialised yet.
            OperandError: a parameter is on the meta device, and no part of the module
                gives it values.
            OptionError: inside a transform, or in a compiled function.
        """
        if self._init is not None:
            return self._init(key)
        if not isinstance(self._wrapped, nn.Module):
            return super().init(key)
        from_module(self._wrapped, params_only=True)  # says what is not initialised
        return from_module(reset_copy(self._wrapped, key), params_only=True, copy=True)

    def params(self) -> Any:
        """Return the parameters of the wrapped `nn.Module`; memory is shared."""
        if not isinstance(self._wrapped, nn.Module):
            return super().params()
        return from_module(self._wrapped, params_only=True)

    def buffers(self) -> Any:
        """Return the buffers of the wrapped `nn.Module`; memory is shared."""
        if not isinstance(self._wrapped, nn.Module):
            return super().buffers()
        return from_module(self._wrapped, buffers_only=True)

    def forward(
        self, params: Any, td: Any, *, buffers: Any = None, key: Any = None
    ) -> Any:
        """Return the tree with the outputs, as a call does."""
        return self._forward(params, td, buffers, key)[0]

    def call_with_buffers(
        self, params: Any, buffers: Any, td: Any, **options: Any
    ) -> tuple[Any, Any]:
        """Return the tree with the outputs, and the buffers as the call leaves them.

        Args:
            params: the parameters.
            buffers: the buffers, such as `buffers` gives; they do not change.
            td: the tree.
            options: ``key=`` and ``skip_existing=``.

        Raises:
            OptionError: an option that a call does not take.

        Examples:
            >>> import torch
            >>> from tdfunc import TensorDict
            >>> from tdfunc.nn import TensorDictModule
            >>> norm = TensorDictModule(torch.nn.BatchNorm1d(2), ["x"], ["y"])
            >>> td = TensorDict({"x": torch.arange(8.0).view(4, 2)}, batch_size=4)
            >>> td, buffers = norm.call_with_buffers(norm.params(), norm.buffers(), td)
            >>> buffers["running_mean"]
            tensor([0.3000, 0.4000])
        """
        scope = Scope(needed_tree(td, self))
        mode = options.pop("skip_existing", None)
        options["skip_existing"] = skip_existing() if mode is None else as_mode(mode)
        if type(self).forward is not TensorDictModule.forward:
            return super().call_with_buffers(params, buffers, td, **options)
        self._check_options(options.keys() - {"skip_existing"})
        if options["skip_existing"] and skips(
            self, options["skip_existing"], scope.has
        ):
            return td, buffers
        return self._forward(params, td, buffers, options.get("key"))

    def _forward(self, params: Any, td: Any, buffers: Any, key: Any) -> tuple[Any, Any]:
        entries, after = self._outputs(params, self._reader(td), buffers, key)
        into = td
        if self._output != "merge":
            size = td.batch_size if self._output == "empty" else torch.Size()
            into = bare(size)
        if not entries:
            return into, after
        if is_tracing():
            return put(into, entries), after
        try:
            return put(into, entries), after
        except Exception as error:
            self._note(error)
            raise

    def _step(
        self,
        params: Any,
        scope: Scope,
        options: dict[str, Any],
        buffers: Any = None,
        *,
        collect: bool = False,
    ) -> Any:
        if (
            self._output != "merge"
            or type(self).forward is not TensorDictModule.forward
        ):
            return super()._step(params, scope, options, buffers, collect=collect)
        mode = options["skip_existing"]
        if mode and skips(self, mode, scope.has):
            return buffers
        own_way = self._get and scope.td._schema.lazy
        read = self._reader(scope.tree()) if own_way else scope.read
        entries, after = self._outputs(params, read, buffers, options.get("key"))
        for path, value in entries.items():
            scope.write(path, value)
        return after

    def _reader(self, td: Any) -> Callable[[Path], Any]:
        """Return what reads the entry at a path, MISSING if there is none."""
        if self._get and td._schema.lazy:
            return lambda path: read_ragged(td, path, self._get)
        return lambda path: read_entry(td, path)

    def _outputs(
        self, params: Any, read: Callable[[Path], Any], buffers: Any, key: Any
    ) -> tuple[dict[Path, Any], Any]:
        """Return what goes where, and the buffers after the call."""
        values = [read(path) for path in self._reads]
        for value in values:
            if value is MISSING:
                values = self._without_missing(values)
                break
        if is_tracing():
            return self._called(params, values, buffers, key)
        try:
            return self._called(params, values, buffers, key)
        except Exception as error:
            self._note(error)
            raise

    def _called(
        self, params: Any, values: list[Any], buffers: Any, key: Any
    ) -> tuple[dict[Path, Any], Any]:
        for name, part in self._random:
            if key is None and draws_numbers(part):
                raise OptionError(
                    f"layer {name!r} ({type(part).__name__}) draws random numbers, and "
                    f"there is no key",
                    fix="module(params, td, key=tdfunc.random.key(0)), or net.eval() "
                    "before",
                )
        if self._inplace:
            values = [x.clone() if isinstance(x, torch.Tensor) else x for x in values]
        if key is None:
            out, after = self._apply(params, values, buffers)
        else:
            with Keyed(key):
                out, after = self._apply(params, values, buffers)
        return self._placed(out), after

    def _apply(self, params: Any, values: list[Any], buffers: Any) -> tuple[Any, Any]:
        """Call what is wrapped; return what it returns, and its buffers after it."""
        kwargs = self._kwargs
        if self._names is not None:
            kwargs = {**kwargs, **dict(zip(self._names, values, strict=True))}
            values = []
        if not isinstance(self._wrapped, nn.Module):
            if self._init is not None:
                values = [params, *values]
            return self._wrapped(*values, **kwargs), buffers
        prefix = "" if self._target is self._wrapped else "module."
        tensors = self._tensors(params, buffers)
        if prefix:
            tensors = {prefix + name: value for name, value in tensors.items()}
        target: Any = self._target
        out, after = call_pure(target, tensors, tuple(values), kwargs)
        return out, None if buffers is None else nested_tree(after, prefix)

    def _tensors(self, params: Any, buffers: Any) -> dict[str, torch.Tensor]:
        if params is None:
            for _ in cast("nn.Module", self._wrapped).parameters():
                raise OperandError(
                    "the wrapped module has parameters, and none are given",
                    fix="module(module.params(), td)",
                )
            tensors: dict[str, torch.Tensor] = {}
        else:
            tensors = dotted(params)
        if buffers is not None:
            more = dotted(buffers)
            both = sorted(tensors.keys() & more.keys())
            if both:
                raise StructureError(
                    "entries are given as parameters and as buffers", got=both
                )
            tensors |= more
        return tensors

    def _without_missing(self, values: list[Any]) -> list[Any]:
        pairs = zip(self._reads, values, strict=True)
        absent = [short(path) for path, value in pairs if value is MISSING]
        if self._strict:
            error = MissingKeyError(
                "the tree lacks inputs of a module",
                path=as_path(absent[0]),
                expected=", ".join(repr(key) for key in self.in_keys),
                got=f"no {', '.join(repr(key) for key in absent)}",
                fix="strict=False passes None for them",
            )
            if not is_tracing():
                self._note(error)
            raise error
        return [None if value is MISSING else value for value in values]

    def _placed(self, out: Any) -> dict[Path, Any]:
        """Return the outputs by where they go."""
        sinks = self._sinks
        if isinstance(out, torch.Tensor):
            outs: Any = (out,)
        elif isinstance(out, (Node, Mapping)):
            found = {p: _named(out, p) for p in sinks if p is not None}
            lost = [short(path) for path, value in found.items() if value is MISSING]
            if lost:
                raise StructureError(
                    "outputs are missing in what the module returned",
                    expected=", ".join(repr(key) for key in self.out_keys),
                    got=", ".join(repr(key) for key in out.keys()),  # noqa: SIM118
                    fix="(tree,) makes a whole tree one output",
                )
            return found
        elif isinstance(out, (tuple, list)):
            outs = out
        else:
            outs = (out,)
        if len(outs) != len(sinks):
            raise StructureError(
                "the number of outputs is not that of out_keys",
                expected=f"{len(sinks)} outputs: {_listed(self._declared)}",
                got=f"{len(outs)}",
                fix="'_' in out_keys drops an output",
            )
        pairs = zip(sinks, outs, strict=True)
        return {path: value for path, value in pairs if path is not None}

    def _note(self, error: Exception) -> None:
        name = getattr(self._wrapped, "__name__", type(self._wrapped).__name__)
        error.add_note(
            f"tdfunc: in {type(self).__name__} of {name}, "
            f"in_keys {list(self.in_keys)}, out_keys {list(self.out_keys)}"
        )


class WrapModule(TensorDictModuleBase):
    """A function of (params, tree) that returns a tree, made a module.

    Args:
        fn: the function. What it takes by keyword can be given in calls.
        in_keys: what it reads, None if that is not known.
        out_keys: what it writes, None if that is not known.
        init: ``init(key)`` returns its parameters; without it there are none.

    Raises:
        OperandError: `fn` can not be called, or keys are no list; in a call: it returns
            no tree.
        OptionError: two of `in_keys` have one name in a call with tensors.

    Examples:
        >>> from tdfunc import TensorDict
        >>> from tdfunc.nn import WrapModule
        >>> halve = WrapModule(lambda params, td: td / 2)
        >>> halve(None, TensorDict({"x": 3.0}))["x"]
        tensor(1.5000)
    """

    __slots__ = ("_accepts", "_fn", "_in", "_init", "_out", "keyed")

    def __init__(
        self,
        fn: Callable[..., Any],
        in_keys: Iterable[str | Path] | None = None,
        out_keys: Iterable[str | Path] | None = None,
        *,
        init: Callable[..., Any] | None = None,
    ) -> None:
        if not callable(fn):
            raise OperandError(
                "this can not be called",
                expected="a function of (params, td)",
                got=type(fn).__name__,
            )
        self._fn = fn
        self._in = tuple(map(short, key_paths(() if in_keys is None else in_keys)))
        self._out = tuple(map(short, key_paths(() if out_keys is None else out_keys)))
        input_names(self._in)
        self._init = init
        self._accepts = keywords_of(fn, _FIRST - 1)
        self.keyed = in_keys is not None and out_keys is not None

    @property
    def in_keys(self) -> tuple[Any, ...]:
        """What the function reads, as far as it is known."""
        return self._in

    @property
    def out_keys(self) -> tuple[Any, ...]:
        """What the function writes, as far as it is known."""
        return self._out

    def init(self, key: torch.Tensor) -> Any:
        """Return parameters drawn from a key."""
        return super().init(key) if self._init is None else self._init(key)

    def forward(self, params: Any, td: Any, **options: Any) -> Any:
        """Return what the function returns."""
        return as_tree(self._fn(params, td, **options), self)

    @property
    def _options(self) -> frozenset[str]:
        return self._accepts


def as_tensordict_module(
    *,
    in_keys: str | Iterable[str | Path] | Mapping[Any, Any],
    out_keys: str | Iterable[str | Path],
    **options: Any,
) -> Callable[[Callable[..., Any]], TensorDictModule]:
    """Make a function or a method a `TensorDictModule`, as a decorator.

    Of a method it is read from an object: ``owner.method`` is the module whose function
    has that object as its first argument.

    Args:
        in_keys: what it reads.
        out_keys: what it writes.
        options: the other arguments of `TensorDictModule`.

    Examples:
        >>> from tdfunc import TensorDict
        >>> from tdfunc.nn import as_tensordict_module
        >>> @as_tensordict_module(in_keys=["x"], out_keys=["y"])
        ... def double(x):
        ...     return 2 * x
        >>> double(None, TensorDict({"x": 3.0}))["y"]
        tensor(6.)
    """
    return lambda fn: _Decorated(fn, in_keys, out_keys, **options)


class _Decorated(TensorDictModule):
    """A function that is a method where it stands in a class."""

    __slots__ = ()

    def __get__(self, owner: Any, cls: Any = None) -> TensorDictModule:
        if owner is None:
            return self
        method = types.MethodType(self.module, owner)
        given: dict[str, Any] = {**self._options_given, "module": method}
        bound = TensorDictModule(**given)
        bound._sinks = self._sinks
        return bound

    def __repr__(self) -> str:
        return super().__repr__().replace(type(self).__name__, "TensorDictModule", 1)


def skips(
    module: TensorDictModuleBase,
    mode: bool | tuple[Path, ...],  # noqa: FBT001
    has: Callable[[Path], bool],
) -> bool:
    """Return whether a module need not run, for its outputs are there."""
    outs = [as_path(key) for key in module.out_keys]
    if not outs or (isinstance(mode, tuple) and not set(outs).issubset(mode)):
        return False
    ins = {as_path(key) for key in module.in_keys}
    return all([path not in ins and has(path) for path in outs])


def as_tree(value: Any, module: TensorDictModuleBase) -> Any:
    """Return what a module returned, checked to be a tree."""
    if not isinstance(value, Node):
        raise OperandError(
            f"{type(module).__name__} returned no tree",
            expected="a tree",
            got=type(value).__name__,
            fix="return td.set(key, value)",
        )
    return value


def needed_tree(td: Any, module: Any) -> Any:
    """Return what a method takes that can not be called with tensors, checked."""
    if not isinstance(td, Node):
        raise OperandError(
            f"this method of {type(module).__name__} takes a tree",
            expected="a tree with the inputs",
            got=type(td).__name__,
            fix="TensorDict({key: tensor}, batch_size)",
        )
    return td


def as_output(output: Any) -> Output:
    """Return where outputs go, checked."""
    if output not in get_args(Output):
        raise OptionError(
            "this does not say where outputs go",
            expected=", ".join(map(repr, get_args(Output))),
            got=repr(output),
        )
    return output


def selected(keys: Iterable[str | Path], known: Iterable[Path]) -> tuple[Path, ...]:
    """Return the paths of keys, checked to be among those that are known."""
    paths, all_paths = key_paths(keys), list(known)
    unknown = [short(path) for path in paths if path not in all_paths]
    if unknown or not paths:
        raise OptionError(
            "only outputs can be selected",
            expected=f"some of {_listed(all_paths)}",
            got=", ".join(map(repr, unknown)) or "nothing",
        )
    return paths


def key_paths(keys: Any) -> tuple[Path, ...]:
    """Return a key, or a collection of keys and paths, as paths.

    Raises:
        OperandError: they are no collection.
        InvalidKeyError: one of them is no key.
    """
    if isinstance(keys, str):
        return (as_path(keys),)
    if not isinstance(keys, Iterable):
        raise OperandError(
            "these are no keys", expected="a list of keys and paths", got=repr(keys)
        )
    return tuple([as_path(key) for key in keys])


def ordered_paths(keys: Any) -> tuple[Path, ...]:
    """Return what `key_paths` does, of keys whose order says what they are for.

    Raises:
        OperandError: they are no collection, or one that has no order.
    """
    if isinstance(keys, (set, frozenset)):
        raise OperandError("a set of keys has no order", fix="a list of them")
    return key_paths(keys)


def nested_tree(tensors: Mapping[str, Any], prefix: str = "") -> Any:
    """Return the tree of tensors with dotted names, without what they begin with."""
    nested: dict[str, Any] = {}
    for name, tensor in tensors.items():
        *above, last = name.removeprefix(prefix).split(".")
        node = nested
        for key in above:
            node = node.setdefault(key, {})
        node[last] = tensor
    part = assemble(nested, torch.Size(), Node._plain)
    return make(part.kid, part.leaves, NO_STATICS, torch.Size(), None)  # pyright: ignore[reportArgumentType]


class MethodOf(nn.Module):
    """Another method of a module, called like its forward."""

    def __init__(self, module: Any, name: str) -> None:
        super().__init__()
        self.module = module
        self.name = name
        # Stays as the module is, without setting its mode.
        self.training = module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.module, self.name)(*args, **kwargs)


def _check_wrapped(module: Any, method: str | None, init: Any) -> None:
    if not callable(module) or isinstance(module, TensorDictModuleBase):
        raise OperandError(
            "only modules of torch and functions of tensors can be wrapped",
            got=type(module).__name__,
            fix="TensorDictSequential(module) takes modules of trees",
        )
    is_net = isinstance(module, nn.Module)
    if init is not None and is_net:
        raise OptionError(
            "an nn.Module has parameters of its own; init= is for functions"
        )
    if method is not None and not (is_net and callable(getattr(module, method, None))):
        raise OptionError("method= names a method of an nn.Module", got=f"{method!r}")


def _inputs(
    in_keys: Any,
    out_to_in_map: bool,  # noqa: FBT001
) -> tuple[tuple[Path, ...], tuple[str, ...] | None]:
    """Return the path of every argument, and their names if they go by name."""
    if not isinstance(in_keys, Mapping):
        if not out_to_in_map:
            raise OptionError(
                "out_to_in_map=False turns a dict of in_keys, and they are none",
                got=repr(in_keys),
            )
        return ordered_paths(in_keys), None
    names, keys = list(in_keys.keys()), list(in_keys.values())
    if not out_to_in_map:
        names, keys = keys, names
    bad = [name for name in names if not isinstance(name, str)]
    if bad or len(set(names)) != len(names):
        raise OptionError(
            "every argument has one name",
            expected="{argument name: key}, or {key: argument name} with "
            "out_to_in_map=False",
            got=repr(in_keys),
        )
    return key_paths(keys), tuple(names)


def _sinks(out_keys: Any) -> tuple[Path | None, ...]:
    paths = ordered_paths(out_keys)
    sinks = tuple([None if path == ("_",) else path for path in paths])
    kept = [path for path in sinks if path is not None]
    if len(set(kept)) != len(kept):
        raise OptionError("out_keys has an entry twice", got=_listed(sinks))
    return sinks


def _listed(paths: Iterable[Path | None]) -> str:
    return ", ".join(["'_'" if path is None else repr(short(path)) for path in paths])


def _named(out: Any, path: Path) -> Any:
    """Return the entry of a mapping or tree, MISSING if there is none."""
    if isinstance(out, Node):
        return read_entry(out, path)
    whole = short(path)
    if whole in out:
        return out[whole]
    level = out
    for key in path:
        if not isinstance(level, (Node, Mapping)) or key not in level:
            return MISSING
        level = level[key]
    return level
