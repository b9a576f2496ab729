"""Several distributions as one over trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import distributions as D

from tdfunc._core.keys import as_path
from tdfunc._core.node import Node, size_at
from tdfunc._tensordict import TensorDict
from tdfunc.errors import (
    MissingKeyError,
    OperandError,
    OptionError,
    ShapeError,
    nearest,
)
from tdfunc.nn._draw import draw, draw_and_log_prob, has_rsample, keyless
from tdfunc.nn._interaction import InteractionType, composite_lp_aggregate
from tdfunc.nn._values import (
    build,
    check_value,
    is_known,
    overlap_of,
    recipe_of,
    value_of,
    with_suffix,
)
from tdfunc.random._keys import lone_key, of_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tdfunc.typing import Path, Size

__all__ = ["CompositeDistribution"]

_NO_SHAPE = torch.Size()


class CompositeDistribution(D.Distribution):
    """Independent distributions, one for each entry of a tree.

    ``log_prob(tree) = sum(part.log_prob(tree[path]))``, as one number for each row or
    as one entry for each part. Its values are trees of the parts' values.

    Each part belongs to the node that its parameters are in: log-probabilities and
    entropies have the batch size of that node in front, and a sum over parts that of
    the shortest one.

    Args:
        params: a tree with a node of parameters, by argument name, for each part; its
            batch size is the batch shape.
        distribution_map: the class of distributions (or a function that returns one)
            of each part, by key or path.
        name_map: where the value of a part goes, for those that go elsewhere than the
            parameters come from.
        extra_kwargs: more arguments of a part, by key or path.
        log_prob_key: where `log_prob` writes a sum beside the parts.
        entropy_key: where `entropy` writes a sum beside the parts.
        aggregate: whether `log_prob` and `entropy` return one sum; None for what
            `set_composite_lp_aggregate` says when they are called.
        validate_args: as of torch's distributions, for each part; by default parameters
            are checked where they can be read, and values are not.

    Raises:
        MissingKeyError: there are no parameters for a part.
        OperandError: `params` is no tree; the parameters are not those of the class,
            or have values that it does not take.
        OptionError: there are no parts, two go to one place (or into each other), or
            `name_map` or `extra_kwargs` names none.

    Examples:
        >>> import torch
        >>> from torch.distributions import Categorical, Normal
        >>> from tdfunc import TensorDict, random
        >>> from tdfunc.nn import CompositeDistribution, draw
        >>> params = TensorDict(
        ...     {
        ...         "x": {"loc": torch.zeros(3), "scale": torch.ones(3)},
        ...         "n": {"i": {"logits": torch.zeros(3, 2)}},
        ...     },
        ...     batch_size=3,
        ... )
        >>> parts = {"x": Normal, ("n", "i"): Categorical}
        >>> dist = CompositeDistribution(params, parts)
        >>> tree = draw(dist, random.key(0))
        >>> dist.log_prob(tree).keys(True, True)
        ('x_log_prob', ('n', 'i_log_prob'))
        >>> dist.log_prob(tree, aggregate=True).shape
        torch.Size([3])
    """

    arg_constraints: Any = {}  # noqa: RUF012 - torch's form

    def __init__(
        self,
        params: Node,
        distribution_map: Mapping[Any, Any],
        *,
        name_map: Mapping[Any, Any] | None = None,
        extra_kwargs: Mapping[Any, Mapping[str, Any]] | None = None,
        log_prob_key: str | Path = "sample_log_prob",
        entropy_key: str | Path = "entropy",
        aggregate: bool | None = None,
        validate_args: bool | None = None,
    ) -> None:
        extra = {as_path(k): v for k, v in (extra_kwargs or {}).items()}
        unknown = extra.keys() - set(map(as_path, distribution_map))
        if unknown:
            raise OptionError(
                "extra_kwargs names no part",
                expected=f"some of {list(distribution_map)}",
                got=sorted(unknown),
            )
        _check_tree(params)
        made: dict[Path, Any] = {}
        for name, cls in distribution_map.items():
            path = as_path(name)
            node = params.get(path, None)
            if not isinstance(node, Node):
                raise MissingKeyError(
                    "there are no parameters for a part of the distribution",
                    path=path,
                    expected=nearest(path[-1], [k[-1] for k in _paths_of(params)]),
                    got=type(node).__name__,
                )
            options = dict(extra.get(path, {}))
            if validate_args and is_known(cls):
                options["validate_args"] = True
            entries = dict(node.items())
            places = {key: (*path, key) for key in entries}
            made[path] = build(recipe_of(cls), entries, options, places)
        self._set(
            params, made, name_map, log_prob_key, entropy_key, aggregate=aggregate
        )

    @classmethod
    def from_distributions(
        cls,
        params: Node,
        distributions: Mapping[Any, D.Distribution],
        *,
        name_map: Mapping[Any, Any] | None = None,
        log_prob_key: str | Path = "sample_log_prob",
        entropy_key: str | Path = "entropy",
        aggregate: bool | None = None,
    ) -> CompositeDistribution:
        """Return the distribution of parts that are made already.

        Args:
            params: a tree of which only batch sizes are read: its own is the batch
                shape.
            distributions: the parts, by key or path.
            name_map: as of the class.
            log_prob_key: as of the class.
            entropy_key: as of the class.
            aggregate: as of the class.

        Raises:
            OperandError: `params` is no tree.
            OptionError: there are no parts, two go to one place, or `name_map` names
                none.
        """
        _check_tree(params)
        self = cls.__new__(cls)
        made = {as_path(name): dist for name, dist in distributions.items()}
        self._set(
            params, made, name_map, log_prob_key, entropy_key, aggregate=aggregate
        )
        return self

    def _set(
        self,
        params: Node,
        made: dict[Path, Any],
        name_map: Mapping[Any, Any] | None,
        log_prob_key: str | Path,
        entropy_key: str | Path,
        *,
        aggregate: bool | None,
    ) -> None:
        names = {as_path(k): as_path(v) for k, v in (name_map or {}).items()}
        unknown = [path for path in names if path not in made]
        if unknown or not made:
            raise OptionError(
                "name_map names no part" if made else "there are no parts",
                expected=f"some of {list(made)}"
                if made
                else "at least one distribution",
                got=unknown if made else "none",
            )
        root = params.batch_size
        dists: dict[Path, Any] = {}
        # Batch sizes of the nodes that the values go to.
        sizes: dict[Path, torch.Size] = {}
        for path, dist in made.items():
            target = names.get(path, path)
            if target in dists:
                raise OptionError("two parts go to one place", path=target)
            dists[target] = dist
            own = _node_size(params, path[:-1])
            home = target[:-1]
            if home not in sizes or len(own) < len(sizes[home]):
                sizes[home] = own
        inside = overlap_of(dists)
        if inside is not None:
            raise OptionError("two parts go to one place", path=inside)
        for home in list(sizes):
            for end in range(len(home)):
                sizes.setdefault(home[:end], _node_size(params, home[:end]))
        sizes[()] = root
        self.dists = dists
        self._sizes = sizes
        self.log_prob_key = as_path(log_prob_key)
        self.entropy_key = as_path(entropy_key)
        self.aggregate = aggregate
        super().__init__(root, _NO_SHAPE, validate_args=False)

    # Parts

    def keys(self) -> tuple[Path, ...]:
        """Return the paths of the parts' values."""
        return tuple(self.dists)

    def __iter__(self) -> Iterator[Path]:
        return iter(self.dists)

    def __len__(self) -> int:
        return len(self.dists)

    def __getitem__(self, key: str | Path) -> D.Distribution:
        path = as_path(key)
        if path not in self.dists:
            raise MissingKeyError(
                "the distribution has no such part",
                path=path,
                expected=nearest(path[-1], [own[-1] for own in self.dists]),
            )
        return self.dists[path]

    def __repr__(self) -> str:
        parts = ", ".join([f"{path}: {dist}" for path, dist in self.dists.items()])
        return f"CompositeDistribution({{{parts}}})"

    @property
    def has_rsample(self) -> bool:
        """Whether draws of all parts are differentiable."""
        return all([has_rsample(dist) for dist in self.dists.values()])

    def tree_of(
        self, values: dict[Path, Any], lead: torch.Size = _NO_SHAPE
    ) -> TensorDict:
        """Return a tree of values at, or beside, the paths of the parts.

        Args:
            values: by path.
            lead: batch dims in front of the batch shape.
        """
        nodes: dict[Path, dict[str, Any]] = {home: {} for home in self._sizes}
        for path, value in values.items():
            _nested(nodes, path[:-1])[path[-1]] = value
        # From the deepest up: a node with more batch dims than its parent is built
        # before that.
        for home in sorted(nodes, key=len, reverse=True):
            if home and nodes[home]:
                size = self._sizes.get(home, self.batch_shape)
                node = TensorDict(nodes[home], batch_size=lead + size)
                _nested(nodes, home[:-1])[home[-1]] = node
        return TensorDict(nodes[()], batch_size=lead + self.batch_shape)

    def _keys_of_parts(self, key: torch.Tensor) -> dict[Path, torch.Tensor]:
        """Return the key of each part: of its path alone, whatever the others are."""
        key = lone_key(key, "draw")
        nest: dict[str, Any] = {}
        for path in self.dists:
            node = nest
            for name in path[:-1]:
                node = node.setdefault(name, {})
            node[path[-1]] = key
        schema = TensorDict(nest)._schema
        own = of_paths(key, schema.path_ids())
        return dict(zip(schema.paths(), own, strict=True))

    # Values

    def draw(self, key: torch.Tensor, sample_shape: Size = _NO_SHAPE) -> TensorDict:
        """Return a tree of draws; each part has a stream of its own.

        Args:
            key: [2].
            sample_shape: batch dims in front.

        Returns:
            A tree of batch size ``[*sample_shape, *batch_shape]``.
        """
        keys = self._keys_of_parts(key)
        lead = _as_lead(sample_shape)
        values = {p: draw(dist, keys[p], lead) for p, dist in self.dists.items()}
        return self.tree_of(values, lead)

    def rsample(self, sample_shape: Size = _NO_SHAPE) -> TensorDict:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Raise: as `sample`, it has no key.

        Raises:
            OptionError: always; `draw` draws.
        """
        del sample_shape
        raise keyless(self)

    def draw_and_log_prob(
        self,
        key: torch.Tensor,
        sample_shape: Size = _NO_SHAPE,
        *,
        aggregate: bool | None = None,
    ) -> tuple[TensorDict, Any]:
        """Return what `draw` does, and its log-probability as `log_prob` does.

        Args:
            key: [2].
            sample_shape: batch dims in front.
            aggregate: as of `log_prob`.
        """
        lead = _as_lead(sample_shape)
        value, logs = self.draw_parts(key, lead)
        return value, self._scores(logs, lead, aggregate=aggregate)

    def draw_parts(
        self, key: torch.Tensor, lead: torch.Size
    ) -> tuple[TensorDict, dict[Path, Any]]:
        """Return a tree of draws, and the log-probability of each part by its path.

        Args:
            key: [2].
            lead: batch dims in front.
        """
        keys = self._keys_of_parts(key)
        pairs = {
            path: draw_and_log_prob(dist, keys[path], lead)
            for path, dist in self.dists.items()
        }
        values = {path: pair[0] for path, pair in pairs.items()}
        return self.tree_of(values, lead), {
            path: pair[1] for path, pair in pairs.items()
        }

    def value_of(
        self,
        interaction: InteractionType,
        key: torch.Tensor | None,
        sample_shape: torch.Size = _NO_SHAPE,
        draws: int = 1000,
    ) -> TensorDict:
        """Return a tree of the parts' values, taken as an interaction type says."""
        keys = {} if key is None else self._keys_of_parts(key)
        values = {
            path: value_of(dist, interaction, keys.get(path), sample_shape, draws, path)
            for path, dist in self.dists.items()
        }
        return self.tree_of(values, sample_shape)

    @property
    def mode(self) -> TensorDict:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The tree of the parts' modes."""
        return self.value_of(InteractionType.MODE, None)

    @property
    def mean(self) -> TensorDict:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The tree of the parts' means."""
        return self.value_of(InteractionType.MEAN, None)

    @property
    def median(self) -> TensorDict:
        """The tree of the parts' medians."""
        return self.value_of(InteractionType.MEDIAN, None)

    @property
    def deterministic_sample(self) -> TensorDict:
        """The tree of the parts' deterministic values."""
        return self.value_of(InteractionType.DETERMINISTIC, None)

    # Log-probabilities

    @overload
    def log_prob(
        self, value: Node, *, aggregate: Literal[True], include_sum: bool = False
    ) -> torch.Tensor: ...

    @overload
    def log_prob(
        self, value: Node, *, aggregate: Literal[False], include_sum: bool = False
    ) -> TensorDict: ...

    @overload
    def log_prob(
        self, value: Node, *, aggregate: bool | None = None, include_sum: bool = False
    ) -> Any: ...

    def log_prob(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, value: Node, *, aggregate: bool | None = None, include_sum: bool = False
    ) -> Any:
        """Return the log-probability of a tree.

        Args:
            value: a tree with the values of the parts, as `draw` returns it.
            aggregate: True for the sum over the parts, a tensor; False for a tree with
                ``<key>_log_prob`` for each part; None for what the distribution was
                made with.
            include_sum: also the sum, at `log_prob_key`, in a tree.

        Raises:
            MissingKeyError: the tree has no value of a part.
            OperandError: a part can not have its value, where it can be read.
            ShapeError: a part has fewer batch dims than the node it belongs to.
        """
        logs = self.log_probs(value)
        lead = self.lead_of(value)
        return self._scores(logs, lead, aggregate=aggregate, include_sum=include_sum)

    def log_probs(self, value: Node, *, check: bool = True) -> dict[Path, torch.Tensor]:
        """Return the log-probability of each part, by the path of its value.

        Args:
            value: a tree with the values of the parts.
            check: whether to check them, where they can be read.
        """
        logs: dict[Path, torch.Tensor] = {}
        for path, dist in self.dists.items():
            own = value[path]
            if check:
                check_value(dist, own, path)
            logs[path] = dist.log_prob(own)
        return logs

    def lead_of(self, value: Node) -> torch.Size:
        """Return the batch dims of a tree in front of the batch shape."""
        size = value.batch_size
        return size[: max(len(size) - len(self.batch_shape), 0)]

    def _scores(
        self,
        logs: dict[Path, torch.Tensor],
        lead: torch.Size,
        *,
        aggregate: bool | None,
        include_sum: bool = False,
    ) -> Any:
        if self._aggregates(aggregate):
            return self.sum_of(logs, lead)
        named = {with_suffix(p, "_log_prob"): log for p, log in logs.items()}
        if include_sum:
            named[self.log_prob_key] = self.sum_of(logs, lead, root=True)
        return self.tree_of(named, lead)

    def _aggregates(self, given: Any) -> bool:
        aggregate: bool | None = self.aggregate if given is None else given
        return composite_lp_aggregate() if aggregate is None else aggregate

    def sum_of(
        self, parts: dict[Path, torch.Tensor], lead: torch.Size, *, root: bool = False
    ) -> torch.Tensor:
        """Return the sum of the parts over all dims that are of no common batch.

        Args:
            parts: a tensor for each part, by the path of its value.
            lead: batch dims in front of the batch shape.
            root: whether to keep the batch dims of the tree only.
        """
        sizes = [len(self._sizes[path[:-1]]) for path in parts]
        dims = len(lead) + (len(self.batch_shape) if root else min(sizes))
        total: Any = 0
        for path, part in parts.items():
            if part.dim() < dims:
                raise ShapeError(
                    "a part has fewer batch dims than the node it belongs to",
                    path=path,
                    expected=f"at least {dims}",
                    got=f"shape {list(part.shape)}",
                )
            total = total + (part.flatten(dims).sum(-1) if part.dim() > dims else part)
        return total

    # Other functions

    def entropy(
        self,
        *,
        aggregate: bool | None = None,
        include_sum: bool = False,
        key: torch.Tensor | None = None,
        draws: int = 1,
    ) -> Any:
        """Return the entropy of every part, or their sum.

        Args:
            aggregate: as of `log_prob`; the entries are ``<key>_entropy``.
            include_sum: also the sum, at `entropy_key`, in a tree.
            key: [2], for parts without a formula, whose entropy is the mean of
                ``-log_prob`` over draws.
            draws: how many.

        Raises:
            OptionError: a part has no formula, and there is no key.
        """
        keys = {} if key is None else self._keys_of_parts(key)
        found: dict[Path, torch.Tensor] = {}
        for path, dist in self.dists.items():
            try:
                found[path] = dist.entropy()
            except NotImplementedError:
                if key is None:
                    raise OptionError(
                        "the entropy of a part has no formula, and draws need a key",
                        path=path,
                        got=f"{type(dist).__name__}, key=None",
                        fix="key=tdfunc.random.key(0), draws=100",
                    ) from None
                shape = torch.Size((draws,))
                _, logs = draw_and_log_prob(dist, keys[path], shape)
                found[path] = -logs.mean(0)
        if self._aggregates(aggregate):
            return self.sum_of(found, _NO_SHAPE)
        named = {with_suffix(p, "_entropy"): x for p, x in found.items()}
        if include_sum:
            named[self.entropy_key] = self.sum_of(found, _NO_SHAPE, root=True)
        return self.tree_of(named)

    def cdf(self, value: Node) -> TensorDict:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return a tree with the distribution functions, at ``<key>_cdf``.

        Args:
            value: a tree with the values of the parts, which is left as it is.

        Raises:
            MissingKeyError: the tree has no value of a part.
            OptionError: a part has no distribution function.
        """
        return self._mapped(value, "cdf", "", "_cdf")

    def icdf(self, value: Node) -> TensorDict:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return a tree with the quantiles, at the keys of the parts' values.

        ``dist.icdf(dist.cdf(tree))`` is the tree, where the parts are continuous.

        Args:
            value: a tree with a probability for each part, at ``<key>_cdf``.

        Raises:
            MissingKeyError: the tree has no probability for a part.
            OptionError: a part has no quantile function.
        """
        return self._mapped(value, "icdf", "_cdf", "")

    def _mapped(self, value: Node, name: str, read: str, write: str) -> TensorDict:
        found: dict[Path, torch.Tensor] = {}
        for path, dist in self.dists.items():
            own = value[with_suffix(path, read)]
            try:
                found[with_suffix(path, write)] = getattr(dist, name)(own)
            except NotImplementedError:
                raise OptionError(
                    f"a part of the distribution has no {name}",
                    path=path,
                    got=type(dist).__name__,
                ) from None
        return self.tree_of(found, self.lead_of(value))


def _check_tree(params: Any) -> None:
    if not isinstance(params, Node):
        raise OperandError(
            "the parameters of the parts come as a tree",
            expected="a tree with a node for each part",
            got=type(params).__name__,
        )


def _as_lead(shape: Size | Sequence[int]) -> torch.Size:
    return torch.Size((shape,) if isinstance(shape, int) else shape)


def _paths_of(params: Node) -> list[Path]:
    return [as_path(key) for key in params.keys(include_nested=True)]


def _node_size(params: Node, path: Path) -> torch.Size:
    """Return the batch size of a nested node, that of the tree if there is none."""
    if not path or not isinstance(params.get(path, None), Node):
        return params.batch_size
    return size_at(params, path)


def _nested(nodes: dict[Path, dict[str, Any]], path: Path) -> dict[str, Any]:
    """Return the entries of a node, making it."""
    for end in range(len(path) + 1):
        nodes.setdefault(path[:end], {})
    return nodes[path]
