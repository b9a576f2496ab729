"""Call a module with other tensors in it, and leave the module alone.

``torch.func.functional_call`` swaps tensors inside the module and back: while it
runs, another thread sees them, and what forward assigns to attributes stays. Here
the call runs on a *structural copy* instead: new objects for all submodules, made
for this call, that share everything but the tensors with the originals.

Buffers are cloned inside the transform that is running, so that batch norm and its
like can write their statistics in place; what they wrote is returned.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict
from functools import partial
from types import CellType, FunctionType, MethodType, NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from tdfunc._core._torch import (
    inside_transform,
    is_compiling,
    parametrize_caches,
    pytree,
    traced_inline,
)
from tdfunc.errors import InvalidLeafError, MissingKeyError, OptionError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["call_pure"]


@traced_inline
def call_pure(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> tuple[Any, dict[str, Tensor]]:
    """Call `module` with `tensors` in place of its own, and leave it as it was.

    The output is that of a deep copy of `module` with `tensors` loaded into it: in
    eager code and under ``vmap``, ``grad`` and the other transforms in any nesting,
    from any number of threads, and in compiled functions. Attributes, buffers and
    forward hooks that forward sets are set on the structural copy that is called, and
    vanish with it.

    Buffers are cloned at every call; parameters are not, except the weight of an
    embedding with `max_norm`, which torch rescales in place. In training mode under
    a transform the persistent floating buffers are expanded to all mapped sizes,
    for ``vmap`` refuses to write batched values into unbatched tensors: keep large
    constants in non-persistent buffers, or in submodules in eval mode.

    Tensors that are tied in `module` stay tied: a tensor given for one of the names
    stands for all of them, except for those that are given one of their own.
    References to submodules are followed through attributes, hooks, bound methods,
    partials, closures, weak references, and built-in containers of them.

    What a copy can not protect: lists, dicts, unregistered tensors and other objects
    in attributes that forward *mutates* (assigning them is safe), parameters that
    forward writes into in place, backward hooks that it registers, the state of
    random number generators, and global state. Where another kind of object holds a
    submodule, it leads to the original and its tensors. A value that was computed
    from the module's own tensors and kept in an attribute is used as it is.

    Dynamo traces the copy, and the compiled code does not touch the module at all. It
    can not trace closures and weak references that lead to a submodule, and decorated
    properties; with ``fullgraph=True`` it raises, otherwise the call runs in eager
    code. Recurrent modules need ``torch._dynamo.config.allow_rnn``.

    Args:
        module: any module that is not scripted, compiled or uninitialised.
        tensors: by dotted name ("0.weight", "bn.running_mean"); a parameter or
            buffer whose name is absent keeps the module's own tensor.
        args: the positional arguments of the call.
        kwargs: the keyword arguments of the call.

    Returns:
        The output, and the buffers after the call by dotted name: those of
        ``module.named_buffers()``, under the names used in `tensors` where these
        differ, and those registered as None that forward has set. The library keeps
        no reference to them, and they share no memory with what was given.

    Raises:
        InvalidLeafError: `module` is not an ``nn.Module``.
        MissingKeyError: names in `tensors` are no parameter or buffer of `module`.
        OptionError: `module` or a part of it is scripted, compiled, wrapped for data
            parallelism, or not initialised yet; two names of one shared submodule
            have different tensors; parametrizations are being cached.

    Examples:
        >>> norm = nn.BatchNorm1d(2)
        >>> x = torch.arange(8.0).view(4, 2)
        >>> output, buffers = call_pure(norm, {"weight": torch.full((2,), 3.0)}, (x,))
        >>> buffers["running_mean"]
        tensor([0.3000, 0.4000])
        >>> norm.running_mean
        tensor([0., 0.])
    """
    if not isinstance(module, nn.Module):
        raise InvalidLeafError(
            "only a module can be called with other tensors in it",
            expected="a torch.nn.Module",
            got=type(module).__name__,
        )
    job = _Job(tensors)
    replica = job.copy(module, "")
    if job.found != len(tensors):
        job.set_aliases(module)
    if job.unset and tensors:
        job.tie_parameters()
    job.redirect()
    reported = job.set_buffers(job.mapped_zero((args, kwargs)))
    output = replica(*args, **(kwargs or {}))
    after: dict[str, Tensor] = {}
    for slot in reported:
        # Read again: forward may have put another tensor there.
        tensor = slot.holder.get(slot.key)
        if tensor is not None:
            after[slot.name] = tensor
    return output, after


# The attributes that every module has. The tensors, submodules and hooks among them
# get treatment of their own, and a call does not use the others.
_BASE_ATTRIBUTES = frozenset(vars(nn.Module())) | {
    "_flat_weights",
    "_flat_weight_refs",
}

# A forward may register one of its own, run, and remove it again.
_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")

# The bulk of all attributes, which can not refer to a module.
_INERT_TYPES = frozenset(
    {bool, int, float, complex, str, bytes, NoneType, Tensor, nn.Parameter}
    | {torch.dtype, torch.device, torch.Size}
)
_SEQUENCE_TYPES = frozenset({list, tuple, set, frozenset})
_MAPPING_TYPES = frozenset({dict, OrderedDict, defaultdict})
_LAZY_TYPES = frozenset({UninitializedParameter, UninitializedBuffer})


class _Buffer(NamedTuple):
    """One registered buffer, and what the call has for it."""

    name: str  # dotted, as it will be reported
    holder: dict[str, Tensor | None]  # the buffers of the copy
    key: str  # its name there
    own: Tensor | None  # what the original module holds
    given: Tensor | None  # what the caller gave
    trains: bool  # whether forward may write values of the current transform into it


@traced_inline
class _Job:
    """The making of one structural copy, for one call.

    Everything goes straight from dict to dict: nn.Module's own attribute access
    costs ten times as much, and does not take a plain tensor for a parameter.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.found = 0  # how many of them have a place
        self.copies: dict[int, nn.Module] = {}  # by id of the original
        self.sources: list[nn.Module] = []  # the originals
        self.unset: list[tuple[dict[str, Any], str, Tensor]] = []  # parameters
        self.buffers: list[_Buffer] = []
        self.hooks: list[tuple[dict[Any, Any], dict[Any, Any]]] = []  # own, fresh
        self.leads: list[tuple[nn.Module, str, Any]] = []  # values to follow
        self.special: dict[type[nn.Module], bool] = {}  # see _is_special
        self.unlike: list[nn.Module] = []  # originals of a special class
        self.decorated: dict[type[nn.Module], list[str]] = {}  # see _decorated_methods
        # One for all copies: what a copy notes there shows nowhere.
        self.transient: set[str] = set()
        self.seen: set[int] = set()  # ids of the values that were followed
        self.followed: dict[int, Any] = {}  # what was made of them, by id
        self.replaced = 0  # how many references were turned

    # In one piece: each further function would be called once a submodule.
    def copy(self, source: nn.Module, prefix: str) -> nn.Module:  # noqa: C901, PLR0912
        """Return a copy of `source` that holds the tensors of this job."""
        cls = type(source)
        special = self.special.get(cls)
        if special is None:
            special = self.special[cls] = _is_special(cls, prefix)
        own = source.__dict__
        if own.get("_compiled_call_impl") is not None:
            raise _compiled_module(prefix)
        replica: nn.Module = object.__new__(cls)
        self.copies[id(source)] = replica
        self.sources.append(source)
        if special:
            self.unlike.append(source)

        fresh = own.copy()
        fresh["_parameters"] = self._copy_parameters(own["_parameters"], prefix)
        fresh["_buffers"] = self._copy_buffers(own, prefix) if own["_buffers"] else {}
        transient = own["_non_persistent_buffers_set"]
        fresh["_non_persistent_buffers_set"] = (
            transient.copy() if transient else self.transient
        )
        for name in _FORWARD_HOOKS:
            # An OrderedDict, because the handle of a hook keeps a weak reference to
            # the dict, which a plain one does not allow.
            fresh[name] = OrderedDict()
            if len(own[name]) > 0:  # Dynamo guards the length, not the truth
                self.hooks.append((own[name], fresh[name]))
        for name in _BACKWARD_HOOKS:
            if len(own[name]) > 0:
                fresh[name] = OrderedDict()
                self.hooks.append((own[name], fresh[name]))
        for name, value in own.items():
            if name not in _BASE_ATTRIBUTES:
                kind = type(value)
                if kind in _INERT_TYPES or (
                    kind is tuple and _INERT_TYPES.issuperset(map(type, value))
                ):
                    continue
                self.leads.append((replica, name, value))
        fresh["_modules"] = children = own["_modules"].copy()
        for name, child in own["_modules"].items():
            if child is not None:
                known = self.copies.get(id(child))
                if known is None:
                    known = self.copy(child, f"{prefix}{name}.")
                children[name] = known
        if "parametrizations" in children:
            _check_parametrizations(prefix)
        if is_compiling():
            # Dynamo would not see the hooks in a dict that is exchanged as a whole.
            replica.__dict__.update(fresh)
            self._bind_methods(replica)
        else:
            # Half the price of an update.
            object.__setattr__(replica, "__dict__", fresh)
        return replica

    def _bind_methods(self, replica: nn.Module) -> None:
        """Put methods on a copy that Dynamo can not look into in its class.

        It knows what a function closes over only if it knows where the function comes
        from, and that is not so for the methods of an object that is made in a trace.
        Decorated methods close over their decorator; and nn.Module, when a buffer is
        assigned, asks for the signature of register_buffer.
        """
        cls = type(replica)
        names = self.decorated.get(cls)
        if names is None:
            names = self.decorated[cls] = _decorated_methods(cls)
        attributes = replica.__dict__
        for name in names:
            if name not in attributes:
                attributes[name] = partial(getattr(cls, name), replica)
        if attributes["_buffers"]:
            attributes["register_buffer"] = partial(cls.register_buffer, replica)

    def _copy_parameters(
        self, own: dict[str, Tensor | None], prefix: str
    ) -> dict[str, Tensor | None]:
        fresh = own.copy()
        for name, tensor in own.items():
            if tensor is None:
                # Registered without a value: a tensor for it would be one too many.
                continue
            if type(tensor) in _LAZY_TYPES:
                raise _uninitialized(prefix + name)
            given = self.tensors.get(prefix + name)
            if given is None:
                self.unset.append((fresh, name, tensor))
            else:
                fresh[name] = given
                self.found += 1
        return fresh

    def _copy_buffers(
        self, own: dict[str, Any], prefix: str
    ) -> dict[str, Tensor | None]:
        fresh: dict[str, Tensor | None] = own["_buffers"].copy()
        trains: bool = own["training"]
        transient: set[str] = own["_non_persistent_buffers_set"]
        for name, tensor in own["_buffers"].items():
            if type(tensor) in _LAZY_TYPES:
                raise _uninitialized(prefix + name)
            given = self.tensors.get(prefix + name)
            if given is not None:
                self.found += 1
            written = trains and name not in transient
            self.buffers.append(
                _Buffer(prefix + name, fresh, name, tensor, given, written)
            )
        return fresh

    def set_aliases(self, module: nn.Module) -> None:
        """Set what was given under a further name of a shared submodule.

        Raises for the names that are none.
        """
        # `copy` uses the first name of a submodule, as named_modules() does.
        prefixes = {
            id(part): f"{path}." if path else ""
            for path, part in module.named_modules()
        }
        first_names = [
            prefixes[id(source)] + key
            for source in self.sources
            for key in _tensor_keys(source)
        ]
        used = {name: name for name in first_names if name in self.tensors}
        unknown: list[str] = []
        for name, given in self.tensors.items():
            if name in used:
                continue
            path, _, key = name.rpartition(".")
            owner = _submodule(module, path)
            if owner is None or key not in _tensor_keys(owner):
                unknown.append(name)
                continue
            rival = used.setdefault(prefixes[id(owner)] + key, name)
            if self.tensors[rival] is not given:
                raise OptionError(
                    f"{rival!r} and {name!r} are one tensor of a shared submodule, "
                    f"and can not have two values",
                    fix="give the tensor under one of these names",
                )
            self._set_alias(name, self.copies[id(owner)], key)
        if unknown:
            hints = (f"{name!r} ({nearest(name, first_names)}?)" for name in unknown)
            raise MissingKeyError(
                f"{type(module).__name__} has no such parameters or buffers: "
                + ", ".join(hints),
                fix="drop these entries, or pass the module that they belong to",
            )

    def _set_alias(self, name: str, replica: nn.Module, key: str) -> None:
        given = self.tensors[name]
        holder = replica.__dict__["_parameters"]
        if key in holder:
            holder[key] = given
            return
        holder = replica.__dict__["_buffers"]
        for i, slot in enumerate(self.buffers):
            if slot.holder is holder and slot.key == key:
                if slot.given is None:
                    self.buffers[i] = slot._replace(name=name, given=given)
                else:
                    self.buffers.append(slot._replace(name=name))
                return

    def tie_parameters(self) -> None:
        """Set the parameters that are tied to one that was given under its name."""
        given: dict[int, Tensor] = {}
        for source in self.sources:
            fresh = self.copies[id(source)].__dict__["_parameters"]
            for name, own in source.__dict__["_parameters"].items():
                if fresh[name] is not own:
                    given.setdefault(id(own), fresh[name])
        for fresh, name, own in self.unset:
            fresh[name] = given.get(id(own), own)

    def mapped_zero(self, arguments: Any) -> Tensor | None:
        """Return a zero that is batched wherever a tensor of the call is.

        None if no buffer has to be expanded. Added to an unbatched tensor it makes
        a batched copy, in operations that Dynamo can trace too.
        """
        if not inside_transform():
            return None
        values = (_mapped_value(slot) for slot in self.buffers)
        device = next((v.device for v in values if v is not None), None)
        if device is None:
            return None
        zero: Tensor | None = None
        for leaf in (*self.tensors.values(), *pytree.tree_leaves(arguments)):
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                one = leaf.new_zeros((), dtype=torch.float32, device=device)
                zero = one if zero is None else zero + one
        return zero

    def set_buffers(self, zero: Tensor | None) -> list[_Buffer]:
        """Put clones of the buffers into the copies; return those to report."""
        # By id of the original's tensor: the tensor that stands for it, its clone.
        clones: dict[int, tuple[Tensor, Tensor]] = {}
        for slot in self.buffers:
            given = slot.given
            if given is None:
                continue
            tied = clones.get(id(slot.own))
            if tied is not None and tied[0] is given:
                slot.holder[slot.key] = tied[1]
                continue
            clone = slot.holder[slot.key] = _clone(slot, given, zero)
            if slot.own is not None:
                clones.setdefault(id(slot.own), (given, clone))
        reported: list[_Buffer] = []
        for slot in self.buffers:
            own = slot.own
            if slot.given is None and own is not None:
                tied = clones.get(id(own))
                if tied is not None:
                    slot.holder[slot.key] = tied[1]
                    continue
                clone = slot.holder[slot.key] = _clone(slot, own, zero)
                clones[id(own)] = (own, clone)
            reported.append(slot)
        return reported

    def redirect(self) -> None:
        """Replace what leads to the originals from within the copies."""
        for hooks, fresh in self.hooks:
            for key, hook in hooks.items():
                fresh[key] = self.follow(hook)
        for replica, name, value in self.leads:
            replica.__dict__[name] = self.follow(value)
        for source in self.unlike:
            replica = self.copies[id(source)]
            if isinstance(source, nn.RNNBase):
                _set_flat_weights(source.__dict__, replica.__dict__)
            elif source.__dict__["max_norm"] is not None:
                self._protect_embedding(replica)

    def _protect_embedding(self, replica: nn.Module) -> None:
        weight = replica.__dict__["_parameters"].get("weight")
        if weight is None:  # parametrized: computed at every call
            return
        clone = weight.clone()
        # Every holder sees the rescaled rows, as it would without the clone.
        for other in self.copies.values():
            parameters = other.__dict__["_parameters"]
            for name, tensor in parameters.items():
                if tensor is weight:
                    parameters[name] = clone

    def follow(self, value: Any) -> Any:
        """Return `value`, or if it leads to an original, one that leads to its copy."""
        kind = type(value)
        if kind in _INERT_TYPES:
            return value
        key = id(value)
        result = self.copies.get(key)
        if result is None:
            result = self.followed.get(key)
        if result is not None:
            self.replaced += 1
            return result
        if key in self.seen:  # leads nowhere, or holds itself
            return value
        self.seen.add(key)
        # Counted, because Dynamo can not compare all containers by identity.
        before = self.replaced
        result = self._rebuild(kind, value)
        if self.replaced == before:
            return value
        self.followed[key] = result
        return result

    def _rebuild(self, kind: type, value: Any) -> Any:
        """Return `value` made anew of what its parts lead to."""
        result = value
        if kind in _SEQUENCE_TYPES:
            if not _INERT_TYPES.issuperset(map(type, value)):
                result = kind([self.follow(item) for item in value])
        elif kind in _MAPPING_TYPES:
            if not (
                _INERT_TYPES.issuperset(map(type, value.values()))
                and _INERT_TYPES.issuperset(map(type, value))
            ):
                items = [(self.follow(k), self.follow(v)) for k, v in value.items()]
                result = value.copy()  # keeps the factory of a defaultdict
                result.clear()
                result.update(items)
        elif kind is MethodType:
            owner = self.follow(value.__self__)
            # Dynamo can not trace the type of methods.
            bind = partial if is_compiling() else MethodType
            result = bind(value.__func__, owner)
        elif kind is partial:
            args, keywords = self.follow(value.args), self.follow(value.keywords)
            result = partial(self.follow(value.func), *args, **keywords)
        elif kind is FunctionType:
            result = self._rebuild_function(value)
        elif kind is weakref.ref:
            target = self.follow(value())
            result = value if target is None else weakref.ref(target)
        return result

    def _rebuild_function(self, function: FunctionType) -> FunctionType:
        before = self.replaced
        defaults = function.__defaults__
        if defaults is not None and is_compiling():
            defaults = _tuple_by_index(defaults)
        defaults = self.follow(defaults)
        keyword_defaults = self.follow(function.__kwdefaults__)
        contents: dict[int, Any] = {}  # of the cells that have to be made anew
        cells = function.__closure__ or ()
        for i, cell in enumerate(cells):
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            count = self.replaced
            other = self.follow(content)
            if self.replaced != count or content is function:
                contents[i] = other
        if self.replaced == before:
            return function
        # The other cells stay shared, so that a `nonlocal` counter counts on.
        closure = tuple(
            CellType(contents[i]) if i in contents else cell
            for i, cell in enumerate(cells)
        )
        result = FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            defaults,
            closure,
        )
        for i, content in contents.items():
            if content is function:  # it calls itself
                closure[i].cell_contents = result
        result.__kwdefaults__ = keyword_defaults
        result.__dict__.update(function.__dict__)
        return result


@traced_inline
def _decorated_methods(cls: type[nn.Module]) -> list[str]:
    found: list[str] = []
    for base in cls.__mro__:
        if base is nn.Module:
            break
        for name in base.__dict__:
            if not name.startswith("__"):
                method = base.__dict__[name]
                if (
                    isinstance(method, FunctionType)
                    # More than what `super()` looks for.
                    and method.__code__.co_freevars not in {(), ("__class__",)}
                ):
                    found.append(name)
    return found


@traced_inline
def _tuple_by_index(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the defaults of a function that Dynamo puts into the graph as it is.

    Such as the activations of torch: there it can index them, not iterate.
    """
    copied: list[Any] = []
    while True:
        try:
            copied.append(values[len(copied)])
        except IndexError:
            return tuple(copied)


@traced_inline
def _mapped_value(slot: _Buffer) -> Tensor | None:
    """Return the value of a buffer that forward may write mapped values into."""
    value = slot.own if slot.given is None else slot.given
    if (
        slot.trains
        and value is not None
        and (value.is_floating_point() or value.is_complex())
        and value.layout is torch.strided
    ):
        return value
    return None


@traced_inline
def _clone(slot: _Buffer, value: Tensor, zero: Tensor | None) -> Tensor:
    if zero is not None and _mapped_value(slot) is not None:
        return value + zero.to(value.device, value.dtype)
    return value.clone()


@traced_inline
def _set_flat_weights(own: dict[str, Any], attributes: dict[str, Any]) -> None:
    """Give the copy of a recurrent module its list of weights.

    With the weak references that go with it: otherwise forward would think that its
    weights have been replaced, and on CUDA move the storage of those given.
    """
    parameters = attributes["_parameters"]
    attributes["_flat_weights"] = weights = [
        # A normalised or parametrized weight is set by the module itself.
        parameters.get(name, weight)
        for name, weight in zip(
            own["_flat_weights_names"], own["_flat_weights"], strict=True
        )
    ]
    attributes["_flat_weight_refs"] = [
        None if weight is None else weakref.ref(weight) for weight in weights
    ]


@traced_inline
def _tensor_keys(module: nn.Module) -> list[str]:
    own = module.__dict__
    parameters = [key for key, value in own["_parameters"].items() if value is not None]
    return [*parameters, *own["_buffers"]]


@traced_inline
def _submodule(module: nn.Module, path: str) -> nn.Module | None:
    found: nn.Module | None = module
    for key in path.split(".") if path else ():
        if found is None:
            return None
        found = found.__dict__["_modules"].get(key)
    return found


@traced_inline
def _is_special(cls: type[nn.Module], prefix: str) -> bool:
    """Return whether the copies of a class need more; raise if they would not work."""
    if issubclass(cls, torch.jit.ScriptModule):
        raise OptionError(
            f"{_place(prefix)} is a {cls.__name__}: TorchScript runs its own copy of "
            f"the tensors",
            fix="pass the Python module that was scripted or traced",
        )
    if cls.__name__ == "OptimizedModule" and cls.__module__.startswith("torch."):
        raise _compiled_module(prefix)
    if issubclass(cls, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise OptionError(
            f"{_place(prefix)} is a {cls.__name__}, which holds copies of the tensors",
            fix="pass the module that it wraps, its attribute `module`",
        )
    return issubclass(cls, (nn.RNNBase, nn.Embedding, nn.EmbeddingBag))


@traced_inline
def _compiled_module(prefix: str) -> OptionError:
    return OptionError(
        f"{_place(prefix)} is compiled: the compiled code calls the original",
        fix="pass the module as it was before, and compile the function that makes "
        "this call",
    )


@traced_inline
def _uninitialized(name: str) -> OptionError:
    return OptionError(
        f"the parameter or buffer {name!r} is not initialised yet",
        fix="call the module once on an example input before",
    )


@traced_inline
def _check_parametrizations(prefix: str) -> None:
    # Torch keeps the cache by the id of the original, so that the copy would compute
    # with, or leave behind, the weights of another call.
    if parametrize_caches():
        raise OptionError(
            f"{_place(prefix)} is parametrized while parametrizations are cached, and "
            f"torch caches them for the original",
            fix="call outside of torch.nn.utils.parametrize.cached()",
        )


@traced_inline
def _place(prefix: str) -> str:
    return f"submodule {prefix[:-1]!r}" if prefix else "the module"
