"""Modules that take values from distributions, with explicit keys.

Which entries they write:

| | `aggregate_log_prob=False` | `aggregate_log_prob=True` |
|---|---|---|
| one sample key | ``<key>_log_prob``, or `log_prob_key` | `log_prob_key` |
| several | ``<key>_log_prob`` for each, or `log_prob_keys` | `log_prob_key` |

``<key>_log_prob`` stands beside its sample (``("n", "x")`` -> ``("n", "x_log_prob")``),
`log_prob_key` of a sum is ``"sample_log_prob"`` by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import distributions as D

from tdfunc._core.batch import as_size
from tdfunc._core.keys import as_path, short
from tdfunc._core.node import Node
from tdfunc.errors import (
    MissingKeyError,
    OperandError,
    OptionError,
    StructureError,
)
from tdfunc.nn._composite import CompositeDistribution
from tdfunc.nn._dispatch import input_names
from tdfunc.nn._distributions import Delta
from tdfunc.nn._draw import draw_and_log_prob, normal_jointly
from tdfunc.nn._interaction import (
    InteractionType,
    as_interaction,
    composite_lp_aggregate,
)
from tdfunc.nn._interaction import interaction_type as current_interaction
from tdfunc.nn._module import (
    TensorDictModuleBase,
    needed_tree,
    ordered_paths,
    skips,
)
from tdfunc.nn._scope import Scope, has_entry, put, read_entry
from tdfunc.nn._sequential import TensorDictSequential, entry_of, overlaps
from tdfunc.nn._skip import as_mode, skip_existing
from tdfunc.nn._values import (
    build,
    check_parameters,
    check_value,
    needed_key,
    overlap_of,
    recipe_of,
    value_of,
    with_suffix,
)
from tdfunc.typing import MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tdfunc.typing import Path, Size

__all__ = ["ProbabilisticTensorDictModule", "ProbabilisticTensorDictSequential"]

_SUM = ("sample_log_prob",)

# What every method that takes options of a call takes.
_OF_CALLS = frozenset({"key", "buffers", "skip_existing"})


class ProbabilisticTensorDictModule(TensorDictModuleBase):
    """Make a distribution of entries of a tree, and write a value of it.

    ``module(params, td, key=key)`` reads the parameters of the distribution at
    `in_keys`, takes a value as its interaction type says, and returns the tree with the
    value at `out_keys`. It has no parameters of its own: `params` is not read.

    Which interaction type counts: the argument of the call, else what
    `set_interaction_type` says, else the module's own. A draw (``"random"``) needs a
    key, and is differentiable in the parameters where the distribution can.

    Args:
        in_keys: keys and paths, each ending with the name of the argument that it is;
            or a dict from arguments to keys.
        out_keys: where the value goes; may be left out for a composite distribution,
            whose parts say so.
        distribution_class: a class of distributions, or a function that returns one.
        distribution_kwargs: more arguments of it.
        event_dims: how many last dims of the batch are one event: log-probabilities are
            summed over them (`torch.distributions.Independent`).
        default_interaction_type: an `InteractionType` or its name.
        return_log_prob: also write the log-probability of the value.
        log_prob_key: where it goes, if it is one; see the table above.
        log_prob_keys: where they go, one for each part.
        aggregate_log_prob: whether log-probabilities of parts are written as their sum;
            None for what `set_composite_lp_aggregate` says when the module is made.
        n_empirical_estimate: of how many draws a mean is that has no formula.
        num_samples: batch dims in front of the result, of independent draws; the rest
            of the tree is expanded, and so are values that are no draws.

    Raises:
        InvalidKeyError: a key is none.
        OptionError: the keys of log-probabilities do not fit the table, or one of them
            is a sample's; no `out_keys`, or one twice; no such interaction type or
            numbers; two of `in_keys` have one name in a call with tensors.
        MissingKeyError: in a call: the tree has no entry at one of `in_keys`.
        OperandError: keys are no list, or `distribution_class` can not be called; in a
            call: the entries are not the arguments of the distribution, or have values
            that it does not take (where they can be read: neither inside transforms
            nor while compiling).
        StructureError: in a call: there are more or fewer values than `out_keys`.

    Examples:
        >>> import torch
        >>> from torch.distributions import Normal
        >>> from tdfunc import TensorDict, random
        >>> from tdfunc.nn import ProbabilisticTensorDictModule
        >>> module = ProbabilisticTensorDictModule(
        ...     ["loc", "scale"],
        ...     ["action"],
        ...     distribution_class=Normal,
        ...     return_log_prob=True,
        ... )
        >>> td = TensorDict({"loc": torch.zeros(3), "scale": torch.ones(3)}, 3)
        >>> out = module(None, td, key=random.key(0), interaction_type="random")
        >>> out.keys()
        ('loc', 'scale', 'action', 'action_log_prob')
        >>> module(None, td)["action"]
        tensor([0., 0., 0.])
    """

    __slots__ = (
        "_aggregates",
        "_args",
        "_bare",
        "_cls",
        "_default",
        "_draws",
        "_event_dims",
        "_kwargs",
        "_log_keys",
        "_lost",
        "_num_samples",
        "_recipe",
        "_returns_log_prob",
        "_samples",
    )

    def __init__(  # noqa: PLR0913 - the peer's options
        self,
        in_keys: str | Iterable[str | Path] | Mapping[str, str | Path],
        out_keys: str | Iterable[str | Path] | None = None,
        *,
        distribution_class: Callable[..., Any] = Delta,
        distribution_kwargs: Mapping[str, Any] | None = None,
        event_dims: int = 0,
        default_interaction_type: InteractionType | str = InteractionType.DETERMINISTIC,
        return_log_prob: bool = False,
        log_prob_key: str | Path | None = None,
        log_prob_keys: Iterable[str | Path] | None = None,
        aggregate_log_prob: bool | None = None,
        n_empirical_estimate: int = 1000,
        num_samples: Size | None = None,
    ) -> None:
        if not callable(distribution_class):
            raise OperandError(
                "this makes no distribution",
                expected="a class of distributions, or a function that returns one",
                got=repr(distribution_class),
            )
        self._cls = distribution_class
        self._recipe = recipe_of(distribution_class)
        self._kwargs = dict(distribution_kwargs or {})
        if isinstance(in_keys, Mapping):
            self._args: dict[str, Path] = {
                str(arg): as_path(key) for arg, key in in_keys.items()
            }
        else:
            paths = ordered_paths(in_keys)
            self._args = {path[-1]: path for path in paths}
            if len(self._args) < len(paths):
                raise OptionError(
                    "two entries are the same argument of the distribution",
                    got=[short(path) for path in paths],
                    fix="in_keys={'loc': key, 'scale': other} names the arguments",
                )
        input_names(self._args.values())
        self._samples = self._sample_paths(out_keys)
        # A value that goes where a parameter is read.
        ins = self._args.values()
        self._lost = next((p for p in self._samples if overlaps(p, ins)), None)
        if not _is_number(event_dims, 0):
            raise OptionError("event_dims is a number of dims", got=repr(event_dims))
        if event_dims and self._is_composite:
            raise OptionError(
                "the parts of a composite distribution have events of their own",
                expected="event_dims=0",
                got=event_dims,
                fix="a function that returns D.Independent(...) as a part",
            )
        if not _is_number(n_empirical_estimate, 1):
            raise OptionError(
                "a mean is of at least one draw",
                got=f"n_empirical_estimate={n_empirical_estimate!r}",
            )
        self._event_dims = event_dims
        self._default = as_interaction(default_interaction_type)
        if aggregate_log_prob is None:
            aggregate_log_prob = composite_lp_aggregate()
        self._aggregates = aggregate_log_prob
        self._returns_log_prob = return_log_prob
        self._log_keys = self._log_prob_paths(log_prob_key, log_prob_keys)
        # What needs no more than a location and a scale, and writes both results.
        self._bare = (
            distribution_class is D.Normal
            and return_log_prob
            and not event_dims
            and not self._kwargs
            and self._args.keys() == {"loc", "scale"}
        )
        self._draws = n_empirical_estimate
        self._num_samples = (
            None if num_samples is None else as_size(num_samples, "num_samples")
        )

    @property
    def _is_composite(self) -> bool:
        return isinstance(self._cls, type) and issubclass(
            self._cls, CompositeDistribution
        )

    def _sample_paths(self, out_keys: Any) -> tuple[Path, ...]:
        paths = self._paths_of_values(out_keys)
        double = overlap_of(paths)
        if double is not None:
            raise OptionError(
                "two values go to one place",
                path=double,
                got=[short(path) for path in paths],
            )
        return paths

    def _paths_of_values(self, out_keys: Any) -> tuple[Path, ...]:
        parts = self._kwargs.get("distribution_map")
        if self._is_composite and parts is not None:
            names = self._kwargs.get("name_map") or {}
            moved = {as_path(k): as_path(v) for k, v in names.items()}
            own = [moved.get(as_path(name), as_path(name)) for name in parts]
            if out_keys is not None and set(ordered_paths(out_keys)) != set(own):
                raise OptionError(
                    "out_keys are not where the parts of the distribution go",
                    expected=[short(path) for path in own],
                    got=[short(path) for path in ordered_paths(out_keys)],
                    fix="name_map= in distribution_kwargs says where they go",
                )
            return tuple(own)
        paths = () if out_keys is None else ordered_paths(out_keys)
        if not paths:
            raise OptionError(
                "the module does not know where its value goes",
                expected="out_keys",
                fix='out_keys=["action"]',
            )
        return paths

    def _log_prob_paths(self, one: Any, several: Any) -> tuple[Path, ...]:
        count = len(self._samples)
        if several is not None and (self._aggregates or one is not None):
            raise OptionError(
                "log-probabilities go to one key or to several",
                expected="log_prob_key, for a sum"
                if self._aggregates
                else "one of both",
                got="log_prob_keys" if self._aggregates else "both",
                fix="aggregate_log_prob=False writes one for each part",
            )
        if one is not None and count > 1 and not self._aggregates:
            raise OptionError(
                "log-probabilities of several parts do not go to one key",
                expected="log_prob_keys",
                got=f"log_prob_key={one!r}",
                fix="aggregate_log_prob=True writes their sum",
            )
        if several is not None:
            paths = ordered_paths(several)
        elif one is not None:
            paths = (as_path(one),)
        elif self._aggregates:
            paths = (_SUM,)
        else:
            paths = tuple([with_suffix(path, "_log_prob") for path in self._samples])
            if not self._returns_log_prob:
                return paths  # in a tree of their own
        wanted = 1 if self._aggregates else count
        if len(set(paths)) != wanted:
            raise OptionError(
                "there is not one key for each log-probability",
                expected=f"{wanted} different keys",
                got=[short(path) for path in paths],
            )
        for path in paths:
            if overlaps(path, self._samples):
                raise OptionError(
                    "a log-probability would overwrite a sample",
                    path=path,
                    expected="a key that is none of "
                    f"{[short(sample) for sample in self._samples]}, nor inside one",
                )
        return paths

    # Keys

    @property
    def in_keys(self) -> tuple[Any, ...]:
        """Where the parameters of the distribution are read."""
        return tuple(map(short, self._args.values()))

    @property
    def out_keys(self) -> tuple[Any, ...]:
        """What is written: samples, and log-probabilities if they are returned."""
        logs = self._log_keys if self._returns_log_prob else ()
        return tuple(map(short, (*self._samples, *logs)))

    @property
    def dist_params_keys(self) -> tuple[Any, ...]:
        """Where the parameters of the distribution are read."""
        return self.in_keys

    @property
    def dist_sample_keys(self) -> tuple[Any, ...]:
        """Where the values go."""
        return tuple(map(short, self._samples))

    @property
    def log_prob_keys(self) -> tuple[Any, ...]:
        """Where log-probabilities go: one for each part, or one for their sum."""
        return tuple(map(short, self._log_keys))

    @property
    def log_prob_key(self) -> Any:
        """Where the log-probability goes.

        Raises:
            OptionError: there are several.
        """
        return _only(self.log_prob_keys)

    @property
    def return_log_prob(self) -> bool:
        """Whether log-probabilities are written."""
        return self._returns_log_prob

    @property
    def default_interaction_type(self) -> InteractionType:
        """How values are taken when nobody says otherwise."""
        return self._default

    @property
    def num_samples(self) -> torch.Size | None:
        """The batch dims that a call puts in front, None for none."""
        return self._num_samples

    # Calls

    def dist(self, params: Any, td: Node, **options: Any) -> Any:
        """Return the distribution of the parameters in a tree.

        Args:
            params: not read.
            td: the tree, with the parameters of the distribution at `in_keys`.
            options: those of a call; none are used.

        Raises:
            MissingKeyError: an entry is not there.
            OperandError: the entries are not the arguments of the distribution, or
                have values that it does not take.
        """
        del params
        self._check_scoring(td, options)
        entries = self._entries(td)
        dist = build(self._recipe, entries, self._kwargs, self._args)
        if self._event_dims:
            if self._event_dims > len(dist.batch_shape):
                raise OptionError(
                    "the distribution has fewer batch dims than event_dims",
                    expected=f"at most {len(dist.batch_shape)}, its batch shape is "
                    f"{list(dist.batch_shape)}",
                    got=f"event_dims={self._event_dims}",
                )
            dist = D.Independent(dist, self._event_dims, validate_args=False)
        return dist

    def _entries(self, td: Any) -> dict[str, Any]:
        """Return the parameters of the distribution, by the names of the arguments."""
        entries: dict[str, Any] = {}
        for arg, path in self._args.items():
            value = read_entry(td, path)
            if value is MISSING:
                raise self._lack(td)
            entries[arg] = value
        return entries

    def _lack(self, td: Any) -> MissingKeyError:
        absent = [p for p in self._args.values() if read_entry(td, p) is MISSING]
        return MissingKeyError(
            "the tree lacks parameters of the distribution",
            path=absent[0],
            expected=", ".join(map(repr, self.in_keys)),
            got=f"no {', '.join([repr(short(path)) for path in absent])}",
        )

    def _check_scoring(self, td: Any, options: Mapping[str, Any]) -> None:
        needed_tree(td, self)
        if options:
            self._check_options(options.keys() - _OF_CALLS)

    get_dist = dist

    def log_prob(
        self, params: Any, td: Node, *, dist: Any = None, **options: Any
    ) -> Any:
        """Return the log-probability of the values in a tree.

        Args:
            params: not read.
            td: the tree, with parameters at `in_keys` and values at `dist_sample_keys`.
            dist: the distribution, None to make it of the tree.
            options: those of a call; none are used.

        Returns:
            A tensor; for a composite distribution that does not aggregate a tree with
            the entries `log_prob_keys`.

        Raises:
            MissingKeyError: an entry is not there.
            OperandError: the distribution can not have these values, where they can be
                read.
            OptionError: the values go where the parameters are read, so that the tree
                has lost these.
        """
        self._check_scoring(td, options)
        if dist is None:
            self.check_kept()
            dist = self.dist(params, td)
        if isinstance(dist, CompositeDistribution):
            return self._of_parts(dist, dist.log_probs(td), dist.lead_of(td))
        values = [td[path] for path in self._samples]
        for path, value in zip(self._samples, values, strict=True):
            check_value(dist, value, path)
        return dist.log_prob(*values)

    def check_kept(self) -> None:
        """Check that a tree with the values still has the parameters.

        Raises:
            OptionError: the values go where the parameters are read.
        """
        if self._lost is not None:
            raise OptionError(
                "values have taken the place of the parameters of their distribution",
                path=self._lost,
                expected="out_keys that are not among in_keys",
                fix="return_log_prob=True computes it before, in the call",
            )

    def _of_parts(
        self, dist: CompositeDistribution, logs: dict[Path, Any], lead: torch.Size
    ) -> Any:
        if self._aggregates:
            return dist.sum_of(logs, lead)
        names = dict(zip(self._samples, self._log_keys, strict=True))
        return dist.tree_of({names[path]: log for path, log in logs.items()}, lead)

    def forward(
        self,
        params: Any,
        td: Node,
        *,
        key: torch.Tensor | None = None,
        interaction_type: InteractionType | str | None = None,
        num_samples: Size | None = None,
    ) -> Any:
        """Return the tree with a value of the distribution.

        Args:
            params: not read.
            td: the tree.
            key: [2], of `tdfunc.random`; needed where something is drawn.
            interaction_type: how the value is taken, before all other settings.
            num_samples: the batch dims in front, before the module's own.
        """
        how = self._interaction(interaction_type)
        lead = self._num_samples
        if num_samples is not None:
            lead = as_size(num_samples, "num_samples")
        shape = torch.Size() if lead is None else lead
        if self._bare and how is InteractionType.RANDOM and key is not None:
            done = self._normal(td, key, shape)
            if done is not None:
                return self._written(_expanded(td, lead) if lead else td, *done)
        dist = self.dist(params, td)
        logs: Any = None
        composite = isinstance(dist, CompositeDistribution)
        if how is not InteractionType.RANDOM or not self._returns_log_prob:
            value = value_of(dist, how, key, shape, self._draws, self._samples[0])
            if self._returns_log_prob and composite:
                logs = dist.log_probs(value, check=False)
            elif self._returns_log_prob:
                logs = dist.log_prob(*_as_tuple(value))
        else:
            key = needed_key(key, "a draw", self._samples[0])
            if composite:
                value, logs = dist.draw_parts(key, shape)
            else:
                value, logs = draw_and_log_prob(dist, key, shape)
        if lead:
            td = _expanded(td, lead)
        if composite:
            td = td.update(value)  # pyright: ignore[reportAttributeAccessIssue]
            return td if logs is None else self._scored(td, dist, logs, shape)
        return self._written(td, value, logs)

    def _normal(
        self, td: Node, key: torch.Tensor, shape: torch.Size
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return a normal draw and its log-probability, without torch's object.

        That costs a fifth of all. None if the parameters have to be broadcast.
        """
        entries = self._entries(td)
        loc, scale = entries["loc"], entries["scale"]
        if not (
            type(loc) is type(scale) is torch.Tensor
            and loc.shape == scale.shape
            and loc.dtype == scale.dtype
        ):
            return None
        check_parameters(self._recipe, entries, self._args)
        return normal_jointly(loc, scale, key, shape)

    def _scored(
        self, td: Any, dist: CompositeDistribution, logs: Any, lead: torch.Size
    ) -> Any:
        found = self._of_parts(dist, logs, lead)
        if self._aggregates:
            return td.set(self._log_keys[0], found)
        return td.update(found)

    def _written(self, td: Any, value: Any, logs: Any) -> Any:
        values = _as_tuple(value)
        if len(values) != len(self._samples):
            raise StructureError(
                "there is not one value for each key",
                expected=f"{len(self._samples)}: {list(self.dist_sample_keys)}",
                got=len(values),
            )
        entries = dict(zip(self._samples, values, strict=True))
        if logs is not None:
            entries[self._log_keys[0]] = logs
        return put(td, entries)

    def score(self, params: Any, td: Any, **options: Any) -> Any:
        """Return the tree with the log-probability of the values that it has.

        What a call does without taking new values.

        Args:
            params: not read.
            td: the tree, with parameters at `in_keys` and values at `dist_sample_keys`.
            options: those of a call; none are used.
        """
        self._check_scoring(td, options)
        if not self._returns_log_prob:
            return td
        found = self.log_prob(params, td)
        if isinstance(found, Node):
            return td.update(found)
        return td.set(self._log_keys[0], found)

    def _interaction(self, given: Any) -> InteractionType:
        if given is not None:
            return as_interaction(given)
        return current_interaction() or self._default

    def __repr__(self) -> str:
        name = getattr(self._cls, "__name__", repr(self._cls))
        ins, outs = list(self.in_keys), list(self.out_keys)
        return f"{type(self).__name__}(in_keys={ins}, out_keys={outs}, {name})"


class ProbabilisticTensorDictSequential(TensorDictSequential):
    """Modules in a row, of which some take values from distributions.

    A call runs them all. A distribution further on may depend on values drawn before:
    log-probabilities are conditional, ``log p(z | x, y)`` for a ``z`` whose parameters
    were computed from ``x`` and ``y``, and those of all modules add up to that of all
    values. If the modules before the last one write its sample keys, the last one takes
    no values and only scores these.

    A part of it (a slice, `select_subsequence`) is a plain `TensorDictSequential` if no
    probabilistic module is left in it.

    Args:
        modules: modules, or one dict or list of them, as of `TensorDictSequential`.
        return_composite: whether `dist` and `log_prob` are about all probabilistic
            modules, or about the last one; None for all if there are several or the
            last module is not probabilistic. Parts of the sequence have it too, but for
            False where they end with another module.
        kwargs: options of `TensorDictSequential`.

    Raises:
        OptionError: there is no probabilistic module, or ``return_composite=False`` and
            the last one is not.

    Examples:
        >>> import torch
        >>> from torch.distributions import Normal
        >>> from tdfunc import TensorDict, random
        >>> from tdfunc.nn import (
        ...     ProbabilisticTensorDictModule,
        ...     ProbabilisticTensorDictSequential,
        ... )
        >>> def normal(loc, out):
        ...     return ProbabilisticTensorDictModule(
        ...         {"loc": loc},
        ...         [out],
        ...         distribution_class=Normal,
        ...         distribution_kwargs={"scale": 1.0},
        ...         default_interaction_type="random",
        ...     )
        >>> seq = ProbabilisticTensorDictSequential(normal("x", "y"), normal("y", "z"))
        >>> td = TensorDict({"x": torch.zeros(3)}, 3)
        >>> out = seq(None, td, key=random.key(0))
        >>> seq.log_prob(None, out).keys()
        ('y_log_prob', 'z_log_prob')
    """

    __slots__ = ("_asked", "_composite", "_draws_last")

    def __init__(
        self, *modules: Any, return_composite: bool | None = None, **kwargs: Any
    ) -> None:
        if return_composite not in (True, False, None):
            raise OptionError(
                "return_composite is True, False or None", got=repr(return_composite)
            )
        self._asked = return_composite
        super().__init__(*modules, **kwargs)

    def _place(
        self, names: tuple[str, ...], members: tuple[TensorDictModuleBase, ...]
    ) -> None:
        super()._place(names, members)
        found = [member for member in members if _is_probabilistic(member)]
        if not found:
            raise OptionError(
                "there is no probabilistic module in the sequence",
                expected="a ProbabilisticTensorDictModule",
                got=f"{len(members)} others",
            )
        ends_with_one = _is_probabilistic(members[-1])
        if self._asked is False and not ends_with_one:
            raise OptionError(
                "the last module has no distribution to return",
                expected="a ProbabilisticTensorDictModule at the end",
                got=type(members[-1]).__name__,
                fix="return_composite=True",
            )
        self._composite = (
            len(found) > 1 or not ends_with_one if self._asked is None else self._asked
        )
        before = {as_path(key) for member in members[:-1] for key in member.out_keys}
        own = getattr(members[-1], "dist_sample_keys", ())
        self._draws_last = not own or not before.issuperset(map(as_path, own))

    def _of(
        self, members: Iterable[tuple[str, TensorDictModuleBase]]
    ) -> TensorDictSequential:
        """Return the sequence of some of the modules; probabilistic if one of them is.

        Its `return_composite` is what was given, as far as that can be.
        """
        pairs = list(members)
        if not any([_is_probabilistic(member) for _, member in pairs]):
            return super()._of(pairs)
        asked = self._asked
        if asked is False and not _is_probabilistic(pairs[-1][1]):
            asked = None
        new = ProbabilisticTensorDictSequential.__new__(
            ProbabilisticTensorDictSequential
        )
        new._asked = asked
        return self._fill(new, pairs)

    @property
    def return_composite(self) -> bool:
        """Whether `dist` and `log_prob` are about all probabilistic modules."""
        return self._composite

    @property
    def dist_params_keys(self) -> tuple[Any, ...]:
        """Where the modules read parameters of distributions, in their order."""
        return self._gathered("dist_params_keys")

    @property
    def dist_sample_keys(self) -> tuple[Any, ...]:
        """Where the modules write values, in their order."""
        return self._gathered("dist_sample_keys")

    @property
    def log_prob_keys(self) -> tuple[Any, ...]:
        """Where the modules write log-probabilities, in their order."""
        return self._gathered("log_prob_keys")

    @property
    def log_prob_key(self) -> Any:
        """Where the log-probability goes.

        Raises:
            OptionError: there are several.
        """
        return _only(self.log_prob_keys)

    @property
    def default_interaction_type(self) -> InteractionType:
        """What the last probabilistic module does when nobody says otherwise."""
        found = [m for m in self.modules if _is_probabilistic(m)]
        last: Any = found[-1]
        return last.default_interaction_type

    @property
    def num_samples(self) -> torch.Size:
        """The batch dims that a call puts in front: those of the last module first."""
        shape = torch.Size()
        for member in self.modules:
            shape = (getattr(member, "num_samples", None) or torch.Size()) + shape
        return shape

    def _gathered(self, name: str) -> tuple[Any, ...]:
        return tuple([key for m in self.modules for key in getattr(m, name, ())])

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
        all_of_it = stop is not None or self._draws_last
        stop = stop if all_of_it else len(self) - 1
        limits: Any = {"collect": collect, "start": start, "stop": stop}
        after = super()._run(params, scope, options, buffers, **limits)
        if all_of_it:
            return after
        name, last, own = list(self._rows(options["key"]))[-1]
        mode = options["skip_existing"]
        if not self._leaves_out(last, scope.has) and not (
            mode and skips(last, mode, scope.has)
        ):
            scorer: Any = last
            given = self._of_member(name, last, {**options, "buffers": buffers})
            given["key"] = own
            scope.become(scorer.score(entry_of(params, name), scope.tree(), **given))
        if collect and entry_of(buffers, name) is not None:
            after = after.set(name, entry_of(buffers, name))
        return after

    def score(self, params: Any, td: Any, *, key: Any = None, **options: Any) -> Any:
        """Return the tree with the log-probabilities of the values that it has.

        Every module runs but takes no new values.

        Args:
            params: the parameters of all modules.
            td: the tree, with the values of all probabilistic modules.
            key: [2], where other modules draw.
            options: as of a call.
        """
        self._check_options(options)
        needed_tree(td, self)
        for i, (name, member, own) in enumerate(self._rows(key)):
            part: Any = member
            if not _is_probabilistic(part):
                td = self._between(i, i + 1, params, td, key, options)
            elif not self._leaves_out(part, partial(has_entry, td)):
                more = self._of_member(name, part, options)
                td = part.score(entry_of(params, name), td, key=own, **more)
        return td

    def _of_member(
        self, name: str, member: Any, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the options of a probabilistic module in it."""
        own = {k: v for k, v in options.items() if k in member._options}
        if options.get("buffers") is not None and "buffers" in own:
            own["buffers"] = entry_of(options["buffers"], name)
        return own

    def _of_last(self, key: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the key and the options of the last module."""
        own = None if key is None else self._keys(key)[-1]
        more = self._of_member(self.names[-1], self.modules[-1], options)
        return {**more, "key": own}

    def _until_last(
        self, params: Any, td: Any, key: Any, options: Mapping[str, Any]
    ) -> Any:
        return self._between(0, len(self) - 1, params, td, key, options)

    def _between(
        self,
        start: int,
        stop: int,
        params: Any,
        td: Any,
        key: Any,
        options: Mapping[str, Any],
    ) -> Any:
        """Return the tree behind some of the modules, with all that they write."""
        self._check_options(options)
        given, buffers = _call_options(key, options)
        scope = Scope(needed_tree(td, self))
        self._run(params, scope, given, buffers, collect=False, start=start, stop=stop)
        return scope.tree()

    def _rows(self, key: Any) -> Iterable[tuple[str, TensorDictModuleBase, Any]]:
        keys = (None,) * len(self.names) if key is None else self._keys(key)
        return zip(self.names, self.modules, keys, strict=True)

    def get_dist_params(
        self, params: Any, td: Any, *, key: Any = None, **options: Any
    ) -> Any:
        """Return the tree as the last module sees it.

        Args:
            params: the parameters of all modules.
            td: the tree, which is left as it is.
            key: [2], where modules before the last one draw.
            options: as of a call.
        """
        return self._until_last(params, td, key, options)

    def build_dist_from_params(self, td: Any) -> Any:
        """Return the distribution of the last module, of a tree with its parameters.

        Args:
            td: what `get_dist_params` returns.

        Raises:
            OptionError: the last module is not probabilistic.
        """
        last: Any = self.modules[-1]
        if not _is_probabilistic(last):
            raise OptionError(
                "the last module has no distribution",
                expected="a ProbabilisticTensorDictModule at the end",
                got=type(last).__name__,
                fix="dist(params, td) of all modules",
            )
        return last.dist(None, td)

    def dist(self, params: Any, td: Any, *, key: Any = None, **options: Any) -> Any:
        """Return the distribution of the values, given the inputs.

        Args:
            params: the parameters of all modules.
            td: the tree, which is left as it is.
            key: [2]; needed where a module before the last one draws.
            options: as of a call.

        Returns:
            The distribution of the last module; with `return_composite` that of all
            values, a `CompositeDistribution` at their keys, each given the values that
            the modules before it took.

        Raises:
            OptionError: a draw has no key; a value is lost, for a later module writes
                its own to the same key.
            OperandError: parameters are not those of a distribution.
        """
        if not self._composite:
            td = self._until_last(params, td, key, options)
            last: Any = self.modules[-1]
            more = self._of_last(key, options)
            return last.dist(entry_of(params, self.names[-1]), td, **more)
        return self._joint(params, td, key, options, given=False)

    get_dist = dist

    def log_prob(
        self, params: Any, td: Any, *, dist: Any = None, key: Any = None, **options: Any
    ) -> Any:
        """Return the log-probability of the values in a tree.

        With `return_composite` every module runs on the values that are there: none is
        drawn, and each distribution is given what stands before it.

        Args:
            params: the parameters of all modules.
            td: the tree, with values at `dist_sample_keys` (without `return_composite`,
                at those of the last module).
            dist: the distribution, None to compute it.
            key: [2]; needed where a module draws on the way: a random layer or, without
                `return_composite`, a probabilistic module before the last one.
            options: as of a call.

        Returns:
            A tensor; with `return_composite` a tree with the entries `log_prob_keys`,
            or their sum if all modules aggregate.

        Raises:
            MissingKeyError: a value is not there.
            OperandError: a distribution can not have its value, where it can be read.
            OptionError: a value is lost: another module writes its own to the same key.
        """
        last: Any = self.modules[-1]
        needed_tree(td, self)
        if not self._composite:
            if dist is None:
                seen = self._until_last(params, td, key, options)
                # The values are those of the tree, whatever was taken on the way.
                for path in last.dist_sample_keys:
                    seen = seen.set(path, td[path])
            else:
                seen = td
            more = self._of_last(key, options)
            entry = entry_of(params, self.names[-1])
            return last.log_prob(entry, seen, dist=dist, **more)
        if dist is None:
            dist = self._joint(params, td, key, options, given=True)
        logs, lead = dist.log_probs(td), dist.lead_of(td)
        members = [m for m in self.modules if _is_probabilistic(m)]
        if all([_aggregates(m) for m in members]):
            return dist.sum_of(logs, lead)
        keys = [as_path(key) for key in self.dist_sample_keys]
        names = [as_path(key) for key in self.log_prob_keys]
        if len(names) != len(keys):
            names = [with_suffix(path, "_log_prob") for path in keys]
        where = dict(zip(keys, names, strict=True))
        return dist.tree_of({where[path]: log for path, log in logs.items()}, lead)

    def _joint(
        self, params: Any, td: Any, key: Any, options: Any, *, given: bool
    ) -> CompositeDistribution:
        """Return the distribution of all values.

        Args:
            params: the parameters of all modules.
            td: the tree.
            key: [2], or None.
            options: as of a call.
            given: whether the values are those of the tree, and none is taken.
        """
        self._check_options(options)
        dists: dict[Path, Any] = {}
        values = needed_tree(td, self)
        for i, (name, member, own) in enumerate(self._rows(key)):
            if not _is_probabilistic(member):
                td = self._between(i, i + 1, params, td, key, options)
                continue
            if self._leaves_out(member, partial(has_entry, td)):
                continue
            part: Any = member
            entry = entry_of(params, name)
            more = self._of_member(name, part, options)
            paths = [as_path(k) for k in part.dist_sample_keys]
            new = _parts_of(part, entry, td, own, more, given=given)
            if self._draws_last or i < len(self) - 1:
                _check_new(new, dists, name)
            dists |= new
            if given:
                for path in paths:
                    td = td.set(path, values[path])
                if isinstance(part, ProbabilisticTensorDictSequential):
                    td = part.score(entry, td, key=own, **more)
            elif i < len(self) - 1:
                td = self._between(i, i + 1, params, td, key, options)
        return CompositeDistribution.from_distributions(td, dists)


def _parts_of(
    module: Any, params: Any, td: Any, key: Any, options: Any, *, given: bool
) -> dict[Path, Any]:
    """Return the distributions of a probabilistic module, by where their values go."""
    if given and isinstance(module, ProbabilisticTensorDictSequential):
        return module._joint(params, td, key, options, given=True).dists
    if given:
        module.check_kept()
    dist = module.dist(params, td, key=key, **options)
    if isinstance(dist, CompositeDistribution):
        return dist.dists
    return {as_path(module.dist_sample_keys[-1]): dist}


def _check_new(new: Iterable[Path], known: Iterable[Path], name: str) -> None:
    """Check that values of a module do not take the place of others."""
    lost = set(new).intersection(known)
    if lost:
        raise OptionError(
            "a value that was taken before is lost, and with it the joint distribution",
            path=min(lost),
            got=f"module {name!r} writes its own value there",
            fix="other out_keys, or return_composite=False for the last one's",
        )


def _is_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and value >= least


def _is_probabilistic(module: Any) -> bool:
    return isinstance(
        module, (ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential)
    )


def _aggregates(module: Any) -> bool:
    if isinstance(module, ProbabilisticTensorDictModule):
        return module._aggregates
    return all([_aggregates(m) for m in module.modules if _is_probabilistic(m)])


def _call_options(key: Any, options: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return what `TensorDictSequential._run` takes: its options, and the buffers."""
    given = dict(options)
    buffers = given.pop("buffers", None)
    mode = given.pop("skip_existing", None)
    mode = skip_existing() if mode is None else as_mode(mode)
    return {**given, "key": key, "skip_existing": mode}, buffers


def _only(keys: tuple[Any, ...]) -> Any:
    if len(keys) != 1:
        raise OptionError(
            "there is not one log-probability",
            expected="log_prob_keys",
            got=list(keys),
        )
    return keys[0]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _expanded(td: Any, lead: torch.Size) -> Any:
    return td.expand(*lead, *td.batch_size)
