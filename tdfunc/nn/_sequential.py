"""Sequences of modules: each sees what those before it wrote; one tree is built."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

import torch
from torch import nn

from tdfunc._core._torch import has_global_module_hooks, is_tracing
from tdfunc._core.build import assemble
from tdfunc._core.keys import as_path, short
from tdfunc._core.node import Node, make
from tdfunc._core.schema import Schema
from tdfunc.errors import (
    InvalidKeyError,
    MissingKeyError,
    OperandError,
    OptionError,
    TdfuncError,
    nearest,
)
from tdfunc.nn._dispatch import input_names
from tdfunc.nn._module import (
    Output,
    TensorDictModule,
    TensorDictModuleBase,
    WrapModule,
    as_output,
    key_paths,
    needed_tree,
    selected,
    skips,
)
from tdfunc.nn._scope import Scope, bare, put, read_entry
from tdfunc.nn._skip import as_mode, skip_existing
from tdfunc.random._keys import lone_key, of_paths
from tdfunc.typing import MISSING

if TYPE_CHECKING:
    from tdfunc.typing import Path

__all__ = ["TensorDictSequential", "entry_of", "overlaps"]

_SequentialT = TypeVar("_SequentialT", bound="TensorDictSequential")


class TensorDictSequential(TensorDictModuleBase):
    """Modules in a row, as one module.

    It reads what a module reads and none before it wrote, and writes all that its
    modules write; a key that is written again counts where it is written last. Its
    parameters are a tree with one entry for each module, by its name: "0", "1", ... or
    what a dict names.

    A call is the composition of the calls, with one tree built in the end. Its ``key``
    gives every module one of its own, made of its name; ``buffers`` has an entry for
    each module, and other options go to the modules that take them.

    Args:
        modules: modules and functions ``(params, td) -> td``; or one dict or list of
            them.
        selected_out_keys: the outputs to write, None for all; the modules see all.
        output: ``"merge"`` returns the input with the outputs in it, ``"only"`` the
            outputs with batch size ``[]``, ``"empty"`` the outputs with the batch size
            of the input (of what comes out, where modules put dims in front).
        partial_tolerant: leave out modules whose inputs are missing.

    Raises:
        OperandError: one of them is no module of trees; in a call: parameters or
            buffers are no tree.
        InvalidKeyError: a name is no key.
        OptionError: an output is selected that there is not, two modules have one name,
            or two inputs have one name in a call with tensors.
        MissingKeyError: in a call: parameters or buffers are given for a module that
            there is not.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict, random
        >>> from tdfunc.nn import TensorDictModule, TensorDictSequential
        >>> seq = TensorDictSequential(
        ...     TensorDictModule(torch.nn.Linear(3, 4), ["x"], ["h"]),
        ...     TensorDictModule(torch.relu, ["h"], ["y"]),
        ... )
        >>> seq.in_keys, seq.out_keys
        (('x',), ('h', 'y'))
        >>> params = seq.init(random.key(0))
        >>> seq(params, TensorDict({"x": torch.ones(2, 3)}, 2))["y"].shape
        torch.Size([2, 4])
        >>> seq.select_subsequence(out_keys=["h"]).names
        ('0',)
    """

    __slots__ = (
        "_accepts",
        "_chain",
        "_ids",
        "_ins",
        "_members",
        "_names",
        "_output",
        "_outs",
        "_partial",
        "_selected",
    )

    def __init__(
        self,
        *modules: Any,
        selected_out_keys: Iterable[str | Path] | None = None,
        output: Output = "merge",
        partial_tolerant: bool = False,
    ) -> None:
        if len(modules) == 1 and isinstance(modules[0], (Mapping, list, tuple)):
            given: Any = modules[0]
        else:
            given = modules
        if not isinstance(given, Mapping):
            given = {str(i): module for i, module in enumerate(given)}
        names = tuple(map(_as_name, given))
        if len(set(names)) != len(names):
            raise OptionError("two modules have one name", got=list(given))
        self._output: Output = as_output(output)
        self._partial = partial_tolerant
        self._place(names, tuple([_as_member(module) for module in given.values()]))
        self._selected: tuple[Path, ...] | None = None
        if selected_out_keys is not None:
            self._selected = selected(selected_out_keys, self._outs)
        # Not of parts of a sequence, which may read what the whole one does not.
        input_names(self.in_keys)

    def _place(
        self, names: tuple[str, ...], members: tuple[TensorDictModuleBase, ...]
    ) -> None:
        """Take these modules, and what follows from which they are."""
        self._names = names
        self._members = members
        self._ids = _ids_of(names)
        accepts = self._words | {"key", "buffers", "skip_existing"}
        for member in members:
            accepts |= member._options
        self._accepts = accepts
        self._ins, self._outs = _ends(members)
        # Of members that can be called as a linear layer: what they read and write.
        self._chain = _as_chain(members)

    @property
    def _options(self) -> frozenset[str]:
        return self._accepts

    @property
    def in_keys(self) -> tuple[Any, ...]:
        """What the sequence reads."""
        return tuple(map(short, self._ins))

    @property
    def needed_keys(self) -> tuple[Any, ...]:
        """Which of `in_keys` a module can not do without."""
        needed = {as_path(key) for m in self._members for key in m.needed_keys}
        return tuple([short(path) for path in self._ins if path in needed])

    @property
    def out_keys(self) -> tuple[Any, ...]:
        """What the sequence writes."""
        chosen = self._outs if self._selected is None else self._selected
        return tuple(map(short, chosen))

    @property
    def out_keys_source(self) -> tuple[Any, ...]:
        """What the modules write, selected or not."""
        return tuple(map(short, self._outs))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the modules: the keys of the parameter tree."""
        return self._names

    @property
    def modules(self) -> tuple[TensorDictModuleBase, ...]:
        """The modules."""
        return self._members

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[TensorDictModuleBase]:
        return iter(self._members)

    @overload
    def __getitem__(self, index: int | str) -> TensorDictModuleBase: ...
    @overload
    def __getitem__(self, index: slice) -> TensorDictSequential: ...
    def __getitem__(self, index: int | str | slice) -> Any:
        if isinstance(index, slice):
            return self._of(zip(self._names[index], self._members[index], strict=True))
        if isinstance(index, str):
            if index not in self._names:
                raise MissingKeyError(
                    "the sequence has no module of this name",
                    path=(index,),
                    expected=nearest(index, self._names),
                )
            return self._members[self._names.index(index)]
        return self._members[index]

    def _of(
        self, members: Iterable[tuple[str, TensorDictModuleBase]]
    ) -> TensorDictSequential:
        """Return the sequence of some of the modules, with the same options."""
        return self._fill(TensorDictSequential.__new__(TensorDictSequential), members)

    def _fill(
        self, new: _SequentialT, members: Iterable[tuple[str, TensorDictModuleBase]]
    ) -> _SequentialT:
        new._output, new._partial, new._selected = self._output, self._partial, None
        pairs = dict(members)
        new._place(tuple(pairs), tuple(pairs.values()))
        return new

    def replace(
        self, index: int | str, module: TensorDictModuleBase | Callable[..., Any]
    ) -> TensorDictSequential:
        """Return the sequence with another module in the place of one.

        It has the name of the other, whose parameters it gets. As in all parts, outputs
        that were selected are no more.

        Args:
            index: place or name of a module.
            module: the module, or a function ``(params, td) -> td``.

        Raises:
            IndexError, MissingKeyError: there is no such module.
            OperandError: `module` is no module of trees.
        """
        at = self._place_of(index)
        return self._edited(at, at + 1, [(self._names[at], module)])

    def insert(
        self,
        index: int | str,
        module: TensorDictModuleBase | Callable[..., Any],
        name: str | None = None,
    ) -> TensorDictSequential:
        """Return the sequence with one more module.

        Args:
            index: place or name of the module that it is to stand before; ``len(seq)``
                puts it last.
            module: the module, or a function ``(params, td) -> td``.
            name: the key of its parameters, None for the first number that is free.

        Raises:
            IndexError, MissingKeyError: there is no such module.
            OperandError: `module` is no module of trees.
            InvalidKeyError: `name` is no key.
            OptionError: there is a module of that name.
        """
        at = len(self) if index == len(self) else self._place_of(index)
        if name is None:
            name = next(n for n in map(str, count()) if n not in self._names)
        name = _as_name(name)
        if name in self._names:
            raise OptionError(
                "the sequence has a module of this name",
                expected="another name",
                got=repr(name),
                fix="seq.replace(name, module) puts another one in its place",
            )
        return self._edited(at, at, [(name, module)])

    def drop(self, index: int | str) -> TensorDictSequential:
        """Return the sequence without one module.

        Args:
            index: place or name of the module.

        Raises:
            IndexError, MissingKeyError: there is no such module.

        Examples:
            >>> import torch
            >>> from tdfunc.nn import TensorDictModule, TensorDictSequential
            >>> tanh = TensorDictModule(torch.tanh, ["x"], ["y"])
            >>> seq = TensorDictSequential(tanh, tanh.replace(out_keys=["z"]))
            >>> seq.drop("0").names, seq.insert(0, tanh, "first").names
            (('1',), ('first', '0', '1'))
        """
        at = self._place_of(index)
        return self._edited(at, at + 1, [])

    def _place_of(self, index: int | str) -> int:
        if isinstance(index, str):
            _ = self[index]  # says which names there are
            return self._names.index(index)
        return range(len(self))[index]

    def _edited(
        self, start: int, stop: int, new: Iterable[tuple[str, Any]]
    ) -> TensorDictSequential:
        pairs = list(zip(self._names, self._members, strict=True))
        pairs[start:stop] = [(name, _as_member(module)) for name, module in new]
        out = self._of(pairs)
        input_names(out.in_keys)
        return out

    def select_out_keys(self, *keys: str | Path) -> Self:
        """Return the sequence that writes only some of its outputs.

        All modules run as before. What the input has at the other keys stays.

        Args:
            keys: some of `out_keys_source`.

        Raises:
            OptionError: a key is none of them.
        """
        new = copy.copy(self)
        new._selected = selected(keys, self._outs)
        return new

    def reset_out_keys(self) -> Self:
        """Return the sequence that writes all of its outputs again."""
        new = copy.copy(self)
        new._selected = None
        return new

    def select_subsequence(
        self,
        in_keys: Iterable[str | Path] | None = None,
        out_keys: Iterable[str | Path] | None = None,
    ) -> TensorDictSequential:
        """Return the sequence of the modules that are needed, under their names.

        First those are left out whose inputs are not there, then those that no output
        needs. Nested sequences are narrowed too. `project` gives its parameters.

        Args:
            in_keys: what will be there, `self.in_keys` by default.
            out_keys: what is wanted, `self.out_keys` by default.

        Raises:
            OptionError: nothing is left, or what a function reads and writes is not
                known (`WrapModule` takes its keys).
        """
        have = list(self._ins if in_keys is None else key_paths(in_keys))
        want = key_paths(self.out_keys if out_keys is None else out_keys)
        kept = self._with_inputs(have)
        kept = self._for_outputs(kept, set(want))
        if not kept:
            raise OptionError(
                "no modules are left after the selection",
                expected=f"in_keys among {list(self.in_keys)}, "
                f"out_keys among {list(self.out_keys_source)}",
                got=f"in_keys {[short(p) for p in have]}, "
                f"out_keys {[short(p) for p in want]}",
            )
        return self._of(kept)

    def _with_inputs(self, have: list[Path]) -> list[tuple[str, TensorDictModuleBase]]:
        kept: list[tuple[str, TensorDictModuleBase]] = []
        for name, member in zip(self._names, self._members, strict=True):
            _check_keyed(name, member)
            part: TensorDictModuleBase = member
            if isinstance(member, TensorDictSequential):
                inner = member._with_inputs(list(have))
                if not inner:
                    continue
                part = member if len(inner) == len(member) else member._of(inner)
            elif not all([_is_there(as_path(key), have) for key in member.needed_keys]):
                continue
            kept.append((name, part))
            have += [as_path(key) for key in part.out_keys]
        return kept

    def _for_outputs(
        self, members: list[tuple[str, TensorDictModuleBase]], want: set[Path]
    ) -> list[tuple[str, TensorDictModuleBase]]:
        kept: list[tuple[str, TensorDictModuleBase]] = []
        for name, member in reversed(members):
            outs = [as_path(key) for key in member.out_keys]
            if not any([overlaps(path, want) for path in outs]):
                continue
            part: TensorDictModuleBase = member
            if isinstance(member, TensorDictSequential):
                pairs = list(zip(member._names, member._members, strict=True))
                inner = member._for_outputs(pairs, set(want))
                part = member if len(inner) == len(member) else member._of(inner)
            kept.append((name, part))
            want.update([as_path(key) for key in part.in_keys])
        return kept[::-1]

    def project(self, params: Any) -> Any:
        """Return the entries of a parameter tree that belong to these modules.

        Args:
            params: the parameters of a sequence that this one is a part of.

        Examples:
            >>> from tdfunc import TensorDict, random
            >>> from tdfunc.nn import TensorDictModule, TensorDictSequential
            >>> import torch
            >>> layers = [torch.nn.Linear(2, 2) for _ in range(3)]
            >>> seq = TensorDictSequential(
            ...     *[TensorDictModule(layer, ["x"], ["x"]) for layer in layers]
            ... )
            >>> params = seq.init(random.key(0))
            >>> seq[1:].project(params).keys()
            ('1', '2')
        """
        found: dict[str, Any] = {}
        for name, member in zip(self._names, self._members, strict=True):
            value = entry_of(params, name)
            if value is not None:
                is_part = isinstance(member, TensorDictSequential)
                found[name] = member.project(value) if is_part else value
        return _tree_of(found, params.batch_size if isinstance(params, Node) else ())

    def init(self, key: torch.Tensor) -> Any:
        """Return the parameters of all modules, each drawn from a key of its own.

        The key of a module is made of its name: another module beside it does not
        change what it gets.

        Args:
            key: a key of `tdfunc.random`.
        """
        keys = self._keys(key)
        pairs = zip(self._names, self._members, keys, strict=True)
        return _tree_of({name: member.init(k) for name, member, k in pairs})

    def params(self) -> Any:
        """Return the parameters of the modules, by name; memory is shared."""
        pairs = zip(self._names, self._members, strict=True)
        return _tree_of({name: member.params() for name, member in pairs})

    def buffers(self) -> Any:
        """Return the buffers of the modules, by name; memory is shared."""
        pairs = zip(self._names, self._members, strict=True)
        return _tree_of({name: member.buffers() for name, member in pairs})

    def forward(
        self,
        params: Any,
        td: Any,
        *,
        key: Any = None,
        buffers: Any = None,
        skip_existing: Any = False,
        **options: Any,
    ) -> Any:
        """Return the tree with the outputs, as a call does."""
        scope = Scope(td)
        if is_tracing():
            options |= {"key": key, "skip_existing": skip_existing}
            self._run(params, scope, options, buffers, collect=False)
            return self._result(td, scope)
        start = 0
        try:
            if self._chain and key is None and buffers is None and not skip_existing:
                start = self._run_chain(params, scope)
            if start < len(self._names):
                options |= {"key": key, "skip_existing": skip_existing}
                self._run(params, scope, options, buffers, collect=False, start=start)
            return self._result(td, scope)
        except TdfuncError as error:
            self._note(error)
            raise

    def _note(self, error: TdfuncError) -> None:
        """Note which module wrote what does not fit, which shows in the end only."""
        for name, member in zip(self._names, self._members, strict=True):
            if error.path in [as_path(key) for key in member.out_keys]:
                error.add_note(f"tdfunc: module {name!r} writes it: {member!r}")

    def _run_chain(self, params: Any, scope: Scope) -> int:
        """Run the linear layers in front; return how many they were."""
        self._check_entries(params, "parameters")
        if (
            has_global_module_hooks()
            or not isinstance(params, Node)
            or scope.td._schema.lazy
        ):
            return 0
        index, leaves = params._schema.index, params._leaves
        written = scope.written
        slots, inputs = scope.td._schema.slots, scope.td._leaves
        done = 0
        for (member, read, write), name in zip(self._chain, self._names, strict=False):
            x, entry = written.get(read), index.get(name)
            if x is None and read[0] in slots:
                x = inputs[slots[read[0]]]
            if x is None or entry is None or not isinstance(entry[0], Schema):
                return done
            out = member._linear(entry[0], leaves, x, entry[1])
            if out is None:
                return done
            done += 1
            if len(write) > 1:
                scope.write(write, out)
                return done  # what is read next may be inside it
            written[write] = out
        return done

    def call_with_buffers(
        self, params: Any, buffers: Any, td: Any, **options: Any
    ) -> tuple[Any, Any]:
        """Return the tree with the outputs, and the buffers as the call leaves them.

        Args:
            params: the parameters.
            buffers: the buffers of all modules, by name; they do not change.
            td: the tree.
            options: as in a call.
        """
        if type(self).forward is not TensorDictSequential.forward:
            return super().call_with_buffers(params, buffers, td, **options)
        self._check_options(options)
        mode = options.pop("skip_existing", None)
        mode = skip_existing() if mode is None else as_mode(mode)
        scope = Scope(needed_tree(td, self))
        if mode and skips(self, mode, scope.has):
            return td, buffers
        options = {"key": None, **options, "skip_existing": mode}
        after = self._run(params, scope, options, buffers, collect=True)
        return self._result(td, scope), after

    def _step(
        self,
        params: Any,
        scope: Scope,
        options: dict[str, Any],
        buffers: Any = None,
        *,
        collect: bool = False,
    ) -> Any:
        whole = self._output == "merge" and self._selected is None
        if not whole or type(self).forward is not TensorDictSequential.forward:
            return super()._step(params, scope, options, buffers, collect=collect)
        mode = options["skip_existing"]
        if mode and skips(self, mode, scope.has):
            return buffers
        return self._run(params, scope, options, buffers, collect=collect)

    def _run(
        self,
        params: Any,
        scope: Scope,
        options: dict[str, Any],
        buffers: Any,
        *,
        collect: bool,
        start: int = 0,
        stop: int | None = None,
    ) -> Any:
        """Run modules in a scope; return their buffers after it if collected."""
        self._check_entries(params, "parameters")
        self._check_entries(buffers, "buffers")
        key = options["key"]
        keys = (None,) * len(self._names) if key is None else self._keys(key)
        after: dict[str, Any] = {}
        rows = zip(self._names, self._members, keys, strict=True)
        for name, member, own in islice(rows, start, stop):
            if self._leaves_out(member, scope.has):
                if collect:
                    after[name] = entry_of(buffers, name)
                continue
            given = None if buffers is None else entry_of(buffers, name)
            if own is not None:
                options = {**options, "key": own}
            done = member._step(
                entry_of(params, name), scope, options, given, collect=collect
            )
            if collect:
                after[name] = done
        if not collect:
            return None
        return _tree_of({k: v for k, v in after.items() if v is not None})

    def _leaves_out(self, member: Any, has: Callable[[Path], bool]) -> bool:
        """Return whether a module does not run, for inputs of it are missing."""
        return self._partial and not all([has(as_path(k)) for k in member.needed_keys])

    def _result(self, td: Any, scope: Scope) -> Any:
        if self._selected is None and self._output == "merge":
            return scope.tree()
        chosen = self._outs if self._selected is None else self._selected
        entries = {path: scope.read(path) for path in chosen}
        entries = {path: x for path, x in entries.items() if x is not MISSING}
        size = scope.td.batch_size  # modules may have put dims in front
        if self._output != "merge":
            into = bare(size if self._output == "empty" else torch.Size())
        elif size == td.batch_size:
            into = td
        else:
            into = _as_rows(td, scope.tree(), set(self._outs).difference(chosen))
        return put(into, entries) if entries else into

    def _keys(self, key: Any) -> tuple[torch.Tensor, ...]:
        return of_paths(lone_key(key, "a sequence"), self._ids)

    def _check_entries(self, tree: Any, what: str) -> None:
        """Check that parameters or buffers are a tree, and each for a module of it."""
        if tree is None:
            return
        if isinstance(tree, Node):
            names = tree._schema.keys
        elif isinstance(tree, Mapping):
            given: Mapping[str, Any] = tree
            names = tuple(given)
        else:
            raise OperandError(
                f"{what} of a sequence come as a tree",
                expected="a tree or a mapping with an entry for each module",
                got=type(tree).__name__,
                fix=f"sequence.{'params' if what == 'parameters' else what}() gives "
                "those of its modules",
            )
        if names != self._names:
            for name in names:
                if name not in self._names:
                    raise MissingKeyError(
                        f"{what} are given for a module that there is not",
                        path=(name,),
                        expected=nearest(name, self._names),
                        fix=f"sequence.project({what}) takes those of its modules",
                    )

    def __repr__(self) -> str:
        if not self._names:
            return f"{type(self).__name__}()"
        pairs = zip(self._names, self._members, strict=True)
        inner = "\n".join([f"{name}: {member!r}" for name, member in pairs])
        return f"{type(self).__name__}(\n    " + inner.replace("\n", "\n    ") + "\n)"


def _ids_of(names: tuple[str, ...]) -> tuple[int, ...]:
    """Return what the keys of modules are made of: their names, as ints."""
    # Asked of a schema, whose methods run for real while Dynamo traces.
    schema = Schema(Node._plain, names, (0,) * len(names))
    found = dict(zip(schema.paths(), schema.path_ids(), strict=True))
    return tuple([found[name,] for name in names])


def _as_name(name: Any) -> str:
    """Return the name of a module, checked to be a key of its parameters.

    Raises:
        InvalidKeyError: it is none, or a path.
    """
    path = as_path(name)
    if len(path) != 1:
        raise InvalidKeyError(
            "a path is no name of a module",
            expected="one key",
            got=repr(name),
            fix="TensorDictSequential({'outer': TensorDictSequential({'inner': ...})})",
        )
    return path[0]


def _as_member(module: Any) -> TensorDictModuleBase:
    if isinstance(module, TensorDictModuleBase):
        return module
    if isinstance(module, nn.Module) or not callable(module):
        raise OperandError(
            "this is no module of trees",
            expected="a TensorDictModule, or a function of (params, td)",
            got=type(module).__name__,
            fix="TensorDictModule(net, in_keys, out_keys)",
        )
    ins, outs = getattr(module, "in_keys", None), getattr(module, "out_keys", None)
    fn: Callable[..., Any] = module
    return WrapModule(fn, ins, outs, init=getattr(module, "init", None))


def _as_rows(td: Any, after: Any, unwanted: set[Path]) -> Any:
    """Return the input with the rows of another batch size, for outputs to go into.

    Args:
        td: the input.
        after: the tree as the modules leave it.
        unwanted: what they wrote that is not to be in the result.
    """
    old, new = td.batch_size, after.batch_size
    if new[len(new) - len(old) :] == old:
        return td.expand(new)
    # Other rows than those of the input: nothing of it can stand beside them.
    return after.exclude(*[short(path) for path in unwanted])


def _as_chain(
    members: Iterable[TensorDictModuleBase],
) -> tuple[tuple[TensorDictModule, Path, Path], ...]:
    """Return the members in front that may be bare linear layers, with their keys."""
    chain: list[tuple[TensorDictModule, Path, Path]] = []
    for member in members:
        if not isinstance(member, TensorDictModule) or not member._direct:
            break
        chain.append((member, member._reads[0], cast("Path", member._sinks[0])))
    return tuple(chain)


def _ends(
    members: Iterable[TensorDictModuleBase],
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return what is read before it is written, and what is written."""
    ins: dict[Path, None] = {}
    outs: dict[Path, None] = {}
    for member in members:
        for key in member.in_keys:
            path = as_path(key)
            if not _is_there(path, outs):
                ins[path] = None
        for key in member.out_keys:
            path = as_path(key)
            outs.pop(path, None)
            outs[path] = None
    return tuple(ins), tuple(outs)


def _is_there(path: Path, known: Iterable[Path]) -> bool:
    """Return whether the entry, or a node that it is in, is among those known."""
    return any([path[: len(other)] == other for other in known])


def overlaps(path: Path, wanted: Iterable[Path]) -> bool:
    """Return whether one of two entries is the other, or lies in it."""
    return any([path[: len(w)] == w or w[: len(path)] == path for w in wanted])


def _check_keyed(name: str, member: TensorDictModuleBase) -> None:
    if isinstance(member, WrapModule) and not member.keyed:
        raise OptionError(
            f"what module {name!r} reads and writes is not known",
            fix="WrapModule(fn, in_keys, out_keys)",
        )


def entry_of(tree: Any, name: str) -> Any:
    """Return what a tree or mapping has for a module, None if nothing."""
    if tree is None:
        return None
    if isinstance(tree, Node):
        value = read_entry(tree, (name,))
        return None if value is MISSING else value
    return tree.get(name)


def _tree_of(entries: dict[str, Any], batch_size: tuple[int, ...] = ()) -> Any:
    size = torch.Size(batch_size)
    part = assemble(entries, size, Node._plain)
    return make(part.kid, part.leaves, part.statics, size, None)  # pyright: ignore[reportArgumentType]
