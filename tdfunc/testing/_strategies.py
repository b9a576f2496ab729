"""Strategies: what hypothesis draws property tests of trees from.

All of them shrink: to few leaves, to small batch sizes, to keys of one letter, to
tensors that count 0, 1, 2, ... Every flag can be fixed by the caller, and a flag that
is a strategy or a sequence is drawn from.

Hypothesis is imported when the first strategy is made, by `load_strategies`, so that
the assertions of `tdfunc.testing` work without it.
"""

from __future__ import annotations

from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np
import torch

from tdfunc import NonTensorData, Schema, TensorDict, lazy_stack
from tdfunc._core.batch import as_size
from tdfunc._core.leaf import unbatched as mark_unbatched
from tdfunc._core.schema import ROWS, STATIC, UNBATCHED
from tdfunc.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

    from tdfunc._core.schema import Kid
    from tdfunc.typing import DimNames, Size

    # Gives, for the batch size of a node, a strategy for what is put into it.
    Marked: TypeAlias = Callable[[torch.Size], SearchStrategy[Any]]

__all__ = [
    "batch_sizes",
    "composite",
    "keys",
    "load_strategies",
    "schemas",
    "sizes",
    "tensordicts",
    "tensors",
]

P = ParamSpec("P")
T = TypeVar("T")

# Keys of one letter come first and most often: trees that share keys, and orders that
# differ from the sorted one, are what most laws are about.
_PLAIN_KEYS = "abcdefgh"

# Each of these was something else than a key in some library: a path, an attribute, a
# number, a dunder, a quote in a message, two code points that look like one.
_ODD_KEYS = (
    *("a.b", "batch_size", "_leaves", "keys", "0", "-1", "__class__", "names"),
    *(" ", "'", '"', "\n", "[0]", "é", "e\u0301", "\U0001f600", "A"),
)

# In this order: what a failing example shrinks to comes first.
_DTYPES = (
    *(torch.float32, torch.int64, torch.float64, torch.bool, torch.int32, torch.uint8),
    *(torch.float16, torch.bfloat16, torch.complex64),
)

_MOST_STATICS = 2
_MOST_MARKED = 2
_MOST_NODES = 3
_MOST_SURPLUS = 2
_MOST_CHANGES = 3


@cache
def load_strategies() -> Any:
    """Import `hypothesis.strategies`, which is optional.

    Raises:
        ImportError: hypothesis is not installed.
    """
    try:
        import hypothesis.strategies
    except ImportError as error:
        raise ImportError(
            "strategies need hypothesis, which is not installed"
            " - to fix: pip install 'tdfunc[testing]'"
        ) from error
    return hypothesis.strategies


def composite(
    draw_one: Callable[Concatenate[DrawFn, P], T],
) -> Callable[P, SearchStrategy[T]]:
    """Return what `hypothesis.strategies.composite` makes of a function."""
    return _composed(draw_one)


@cache
def _composed(draw_one: Callable[..., Any]) -> Any:
    # Made once: it compiles a signature, which would be most of the cost of a draw.
    return load_strategies().composite(draw_one)


def keys(*, odd: bool = True) -> SearchStrategy[str]:
    """Return a strategy for keys: non-empty strings.

    Args:
        odd: also draw keys that look like something else: dotted, attribute names,
            numbers, quotes, any text. False draws single letters only.

    Raises:
        ImportError: hypothesis is not installed.

    Examples:
        >>> from hypothesis import find
        >>> find(keys(), lambda key: key > "b")
        'c'
    """
    st = load_strategies()
    plain = st.sampled_from(_PLAIN_KEYS)
    if not odd:
        return plain
    return st.one_of(
        plain, plain, st.sampled_from(_ODD_KEYS), st.text(min_size=1, max_size=3)
    )


def batch_sizes(
    *, min_dims: int = 0, max_dims: int = 3, min_size: int = 0, max_size: int = 3
) -> SearchStrategy[torch.Size]:
    """Return a strategy for batch sizes; square ones and dims of size 0 included.

    Sizes shrink to 1: a 0 in a failing example matters.

    Args:
        min_dims: least number of dims.
        max_dims: most dims.
        min_size: least size of a dim.
        max_size: greatest size of a dim.

    Raises:
        ImportError: hypothesis is not installed.

    Examples:
        >>> from hypothesis import find
        >>> find(batch_sizes(min_dims=1, min_size=2), lambda size: True)
        torch.Size([2])
    """
    st = load_strategies()
    size = sizes(min_size, max_size)
    any_size = st.lists(size, min_size=min_dims, max_size=max_dims)
    # Where dims have one size, what was worked out from shapes goes wrong.
    square = st.builds(
        lambda size, dims: [size] * dims, size, st.integers(min_dims, max_dims)
    )
    return st.one_of(any_size, square).map(torch.Size)


@cache
def sizes(least: int, most: int) -> SearchStrategy[int]:
    """Return a strategy for the size of one dim that shrinks to 1."""
    st = load_strategies()
    some = range(max(1, least), most + 1)
    return st.sampled_from([*some, *some, *([0] if least == 0 else [])])


def tensors(
    shape_prefix: Size = (),
    *,
    dtypes: Sequence[torch.dtype] | SearchStrategy[torch.dtype] | None = None,
    feature_dims: int | tuple[int, int] = (0, 2),
    elements: SearchStrategy[Any] | None = None,
    special: bool = True,
    contiguous: bool | None = None,
) -> SearchStrategy[torch.Tensor]:
    """Return a strategy for tensors whose shape starts with `shape_prefix`.

    They count 0, 1, 2, ... in row-major order (modulo what the dtype holds), so that a
    value that ends up in the wrong place is seen, with a few elements changed.

    Args:
        shape_prefix: the leading dims.
        dtypes: what dtypes to draw from; None for floats of 16 to 64 bits, integers,
            bool and complex64.
        feature_dims: how many dims follow, or least and most.
        elements: a strategy for *all* elements, None to count.
        special: change some elements to any value of the dtype, infinities and NaN
            included; False keeps counting.
        contiguous: True for contiguous memory, False for strides and offsets, None
            for either.

    Raises:
        ImportError: hypothesis is not installed.
        OptionError: `shape_prefix` is no size, or `dtypes` is empty.

    Examples:
        >>> from hypothesis import find
        >>> find(tensors([2], special=False), lambda x: x.dim() == 1)
        tensor([0., 1.])
        >>> find(tensors(dtypes=[torch.int8]), lambda x: bool((x < 0).any()))
        tensor(-1, dtype=torch.int8)
    """
    least, most = (
        (feature_dims, feature_dims) if isinstance(feature_dims, int) else feature_dims
    )
    return composite(_draw_tensor)(
        as_size(shape_prefix, "shape_prefix"),
        _as_dtypes(dtypes),
        (least, most),
        elements,
        special,
        contiguous,
    )


def tensordicts(  # noqa: PLR0913 - every flag can be fixed
    batch_size: Size | SearchStrategy[torch.Size] | None = None,
    *,
    dtypes: Sequence[torch.dtype] | SearchStrategy[torch.dtype] | None = None,
    leaves: Callable[[torch.Size], SearchStrategy[torch.Tensor]] | None = None,
    key: SearchStrategy[str] | None = None,
    nested: bool = True,
    surplus: bool = True,
    shared: bool = True,
    statics: bool | SearchStrategy[Any] | None = True,
    rows: bool | SearchStrategy[Any] | None = False,
    unbatched: bool = False,
    names: bool | DimNames | None = None,
    lazy: bool = False,
    min_leaves: int = 0,
    max_leaves: int = 5,
) -> SearchStrategy[Any]:
    """Return a strategy for trees.

    Args:
        batch_size: the batch size or a strategy for it; None for any.
        dtypes: what dtypes to draw from; see `tensors`.
        leaves: a function from the batch size of a node to a strategy for its
            tensors; None for `tensors` with `dtypes`.
        key: a strategy for keys, of which it must have more than a node has entries;
            None for `keys()`.
        nested: put nodes into nodes; some of them are empty.
        surplus: give nested nodes more batch dims than their parent has.
        shared: put some tensors at two places.
        statics: put values that are not tensors in; False or None for none, or a
            strategy for such values.
        rows: put entries with one value per row in, wherever there are batch dims;
            False or None for none, or a strategy for the values.
        unbatched: put tensors in that the batch does not index.
        names: True to name batch dims, False to leave them without names, None for
            either, or the names.
        lazy: draw lazy stacks, too, and trees that hold one; some members have an
            entry that others lack.
        min_leaves: least number of tensors.
        max_leaves: most tensors.

    Raises:
        ImportError: hypothesis is not installed.
        OptionError: a batch size is no size, or `dtypes` is given twice: by itself
            and within `leaves`.

    Examples:
        >>> from hypothesis import find, given, settings
        >>> from tdfunc.testing import assert_equal, batch_sizes
        >>> @settings(max_examples=10, database=None)
        ... @given(tensordicts(batch_sizes(min_dims=1), statics=False))
        ... def test_reversing_twice_is_the_identity(td):
        ...     rows = list(range(len(td)))[::-1]
        ...     assert_equal(td[rows][rows], td)
        >>> test_reversing_twice_is_the_identity()
        >>> find(tensordicts(), lambda td: td.batch_dims > 1)
        TensorDict(batch_size=[1, 1], fields={})
    """
    if leaves is None:
        leaves = partial(tensors, dtypes=_as_dtypes(dtypes))
    elif dtypes is not None:
        raise OptionError(
            "dtypes are given twice",
            expected="dtypes, or leaves",
            got="both",
            fix="leaves=lambda size: tensors(size, dtypes=dtypes)",
        )
    if isinstance(statics, bool):
        statics = _statics() if statics else None
    if isinstance(rows, bool):
        rows = _row_values() if rows else None
    shape = _Shape(
        _as_sizes(batch_size),
        keys() if key is None else key,
        statics,
        (min_leaves, max_leaves),
        nested=nested,
        surplus=nested and surplus,
        marked=_marked(rows, unbatched=unbatched),
    )
    trees = composite(_draw_tree)(shape, leaves, names, shared)
    return composite(_draw_lazy)(trees) if lazy else trees


def schemas(  # noqa: PLR0913 - every flag can be fixed
    *,
    key: SearchStrategy[str] | None = None,
    nested: bool = True,
    surplus: bool = True,
    statics: bool = True,
    rows: bool = False,
    unbatched: bool = False,
    max_rank: int = 3,
    min_leaves: int = 0,
    max_leaves: int = 5,
) -> SearchStrategy[Schema]:
    """Return a strategy for schemas: structure without tensors.

    Args:
        key: a strategy for keys, None for `keys()`.
        nested: put nodes into nodes; some of them are empty.
        surplus: give nested nodes more batch dims than their parent has.
        statics: put entries that are not tensors in.
        rows: put entries with one value per row in.
        unbatched: put tensors in that the batch does not index.
        max_rank: greatest feature rank.
        min_leaves: least number of leaves.
        max_leaves: most leaves.

    Raises:
        ImportError: hypothesis is not installed.

    Examples:
        >>> from hypothesis import find
        >>> find(schemas(), lambda schema: schema.n == 2)
        Schema(a: 0, b: 0)
    """
    st = load_strategies()
    shape = _Shape(
        st.just(torch.Size()),
        keys() if key is None else key,
        st.none() if statics else None,
        (min_leaves, max_leaves),
        nested=nested,
        surplus=nested and surplus,
        marked=_marked_kinds(max_rank, rows=rows, unbatched=unbatched),
    )
    return composite(_draw_schema)(shape, max_rank)


def _as_dtypes(
    dtypes: Sequence[torch.dtype] | SearchStrategy[torch.dtype] | None,
) -> SearchStrategy[torch.dtype]:
    st = load_strategies()
    if isinstance(dtypes, st.SearchStrategy):
        return cast("SearchStrategy[torch.dtype]", dtypes)
    given = _DTYPES if dtypes is None else tuple(cast("Sequence[torch.dtype]", dtypes))
    if not given:
        raise OptionError("dtypes is empty", expected="at least one dtype")
    return st.sampled_from(given)


def _as_sizes(
    batch_size: Size | SearchStrategy[torch.Size] | None,
) -> SearchStrategy[torch.Size]:
    st = load_strategies()
    if batch_size is None:
        return batch_sizes()
    if isinstance(batch_size, st.SearchStrategy):
        return cast("SearchStrategy[torch.Size]", batch_size)
    return st.just(as_size(batch_size))


# Tensors


def _draw_tensor(  # noqa: PLR0917 - private
    draw: DrawFn,
    prefix: torch.Size,
    dtypes: SearchStrategy[torch.dtype],
    feature_dims: tuple[int, int],
    elements: SearchStrategy[Any] | None,
    special: bool,  # noqa: FBT001 - private
    contiguous: bool | None,  # noqa: FBT001
) -> torch.Tensor:
    st = load_strategies()
    dtype = draw(dtypes)
    least, most = feature_dims
    size = sizes(0, 3)
    if prefix:
        # Features as long as the batch are easily taken for batch dims.
        size = st.one_of(size, st.sampled_from(prefix))
    shape = (*prefix, *draw(st.lists(size, min_size=least, max_size=most)))
    count = prod(shape)
    if elements is not None:
        values = draw(st.lists(elements, min_size=count, max_size=count))
        flat = torch.tensor(values, dtype=dtype)
    else:
        flat = _counted(count, dtype)
        if special:
            # Drawn for an empty tensor, too, so that it can shrink to a fuller one.
            for place, value in draw(_changes(dtype)).items():
                if count:
                    flat[place % count] = value
    tensor = flat.reshape(shape)
    if contiguous is None:
        contiguous = not draw(st.booleans())
    return tensor if contiguous else _scattered(tensor)


def _counted(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return 0, 1, 2, ... modulo what the dtype can hold."""
    numbers = torch.arange(count)
    if dtype is torch.bool:
        return numbers % 2 == 1
    return (numbers % 127).to(dtype)


@cache
def _changes(dtype: torch.dtype) -> SearchStrategy[dict[int, Any]]:
    st = load_strategies()
    places = st.integers(0, 31)
    return st.dictionaries(places, _elements(dtype), max_size=_MOST_CHANGES)


def _elements(dtype: torch.dtype) -> SearchStrategy[Any]:
    """Return a strategy for any value of a dtype."""
    st = load_strategies()
    if dtype is torch.bool:
        return st.booleans()
    if dtype.is_complex:
        return st.complex_numbers(max_magnitude=100)
    if dtype.is_floating_point:
        return st.one_of(
            st.floats(-100, 100, width=16),
            st.sampled_from([float("nan"), float("inf"), -float("inf"), -0.0]),
        )
    # A Python int that writes into a tensor may not exceed an int64.
    info = torch.iinfo(dtype)
    return st.integers(info.min, min(info.max, torch.iinfo(torch.int64).max))


def _scattered(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values in memory with an offset, gaps and other strides."""
    order = list(range(tensor.dim()))[::-1]
    shape = [tensor.shape[i] for i in order]
    room = tensor.new_zeros((2, *shape, 2))
    view = room[1, ..., 1].permute(order)
    view.copy_(tensor)
    return view


# Trees


class _Shape:
    """What a tree is drawn from, without its tensors."""

    __slots__ = ("key", "leaves", "marked", "nested", "sizes", "statics", "surplus")

    def __init__(
        self,
        sizes: SearchStrategy[torch.Size],
        key: SearchStrategy[str],
        statics: SearchStrategy[Any] | None,
        leaves: tuple[int, int],
        *,
        nested: bool,
        surplus: bool,
        marked: Marked | None,
    ) -> None:
        self.sizes = sizes
        self.key = key
        self.statics = statics
        self.marked = marked
        self.leaves = leaves
        self.nested = nested
        self.surplus = surplus


class _Draft:
    """A node that is being drawn: its batch size, and its entries so far."""

    __slots__ = ("entries", "extra", "size")

    def __init__(self, size: torch.Size, extra: int = 0) -> None:
        self.size = size
        self.extra = extra
        self.entries: dict[str, Any] = {}


def _draw_draft(
    draw: DrawFn,
    shape: _Shape,
    draw_leaf: Callable[[DrawFn, torch.Size], Any],
) -> _Draft:
    """Draw lists of nodes, leaves and statics, each of which chooses where it goes.

    Lists, because hypothesis knows how to leave out their elements: a failing tree
    shrinks to few entries. The parent of each is drawn among all nodes so far, so that
    it shrinks to the root.
    """
    st = load_strategies()
    root = _Draft(draw(shape.sizes))
    nodes = [root]
    if shape.nested:
        node = composite(_add_node)(nodes, shape)
        draw(st.lists(node, max_size=_MOST_NODES))
    leaf = composite(_add_leaf)(nodes, shape, draw_leaf)
    least, most = shape.leaves
    draw(st.lists(leaf, min_size=least, max_size=most))
    if shape.statics is not None:
        static = composite(_add_static)(nodes, shape, shape.statics)
        draw(st.lists(static, max_size=_MOST_STATICS))
    if shape.marked is not None:
        marked = composite(_add_marked)(nodes, shape, shape.marked)
        draw(st.lists(marked, max_size=_MOST_MARKED))
    for node in nodes:
        # Otherwise nodes would stand before leaves, and leaves before statics.
        if len(node.entries) > 1:
            items = draw(st.permutations(list(node.entries.items())))
            node.entries = dict(items)
    return root


def _add_node(draw: DrawFn, nodes: list[_Draft], shape: _Shape) -> str:
    """Draw a node into one of `nodes`, and return its key."""
    st = load_strategies()
    parent = draw(st.sampled_from(nodes))
    key = _new_key(draw, parent, shape.key)
    more = draw(_surplus()) if shape.surplus else ()
    node = _Draft(torch.Size((*parent.size, *more)), len(more))
    parent.entries[key] = node
    nodes.append(node)
    return key


def _add_leaf(
    draw: DrawFn,
    nodes: list[_Draft],
    shape: _Shape,
    draw_leaf: Callable[[DrawFn, torch.Size], Any],
) -> str:
    st = load_strategies()
    node = draw(st.sampled_from(nodes))
    key = _new_key(draw, node, shape.key)
    node.entries[key] = draw_leaf(draw, node.size)
    return key


def _add_static(
    draw: DrawFn, nodes: list[_Draft], shape: _Shape, statics: SearchStrategy[Any]
) -> str:
    st = load_strategies()
    node = draw(st.sampled_from(nodes))
    key = _new_key(draw, node, shape.key)
    node.entries[key] = draw(statics)
    return key


def _add_marked(
    draw: DrawFn, nodes: list[_Draft], shape: _Shape, marked: Marked
) -> str:
    """Draw rows or an unbatched tensor into one of `nodes`, and return its key."""
    st = load_strategies()
    node = draw(st.sampled_from(nodes))
    key = _new_key(draw, node, shape.key)
    node.entries[key] = draw(marked(node.size))
    return key


@cache
def _surplus() -> SearchStrategy[list[int]]:
    st = load_strategies()
    return st.lists(sizes(0, 3), max_size=_MOST_SURPLUS)


def _new_key(draw: DrawFn, node: _Draft, key: SearchStrategy[str]) -> str:
    """Draw a key that the node does not have yet."""
    for _ in range(3):
        drawn = draw(key)
        if drawn not in node.entries:
            return drawn
    # Last, because making a filtered strategy costs more than all draws before.
    return draw(key.filter(lambda k: k not in node.entries))


def _draw_tree(
    draw: DrawFn,
    shape: _Shape,
    leaves: Callable[[torch.Size], SearchStrategy[torch.Tensor]],
    names: bool | DimNames | None,  # noqa: FBT001 - private
    shared: bool,  # noqa: FBT001 - private
) -> TensorDict:
    st = load_strategies()
    seen: list[torch.Tensor] = []

    def draw_leaf(draw: DrawFn, size: torch.Size) -> torch.Tensor:
        if shared:
            fitting = [x for x in seen if x.shape[: len(size)] == size]
            if fitting and draw(st.integers(0, 3)) == 3:  # noqa: PLR2004 - one in four
                return draw(st.sampled_from(fitting))
        leaf = draw(leaves(size))
        seen.append(leaf)
        return leaf

    root = _draw_draft(draw, shape, draw_leaf)
    if isinstance(names, bool) or names is None:
        named = draw(st.booleans()) if names is None else names
        names = draw(_dim_names(len(root.size))) if named else None
    return TensorDict(_filled(root), root.size, names=names)


def _draw_lazy(draw: DrawFn, trees: SearchStrategy[TensorDict]) -> Any:
    """Draw a tree, a lazy stack of its rows, or the tree with that stack in it."""
    st = load_strategies()
    td = draw(trees)
    dims = [dim for dim, rows in enumerate(td.batch_size) if rows]
    kind = draw(st.integers(0, 2)) if dims else 0
    if not kind:
        return td
    dim = draw(st.sampled_from(dims))
    rows = td.unbind(dim)
    own = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    members = [
        row.set("own", torch.zeros((*row.batch_size, 2))) if more else row
        for row, more in zip(rows, own, strict=True)
    ]
    stack = lazy_stack(members, dim)
    if kind == 1:
        return stack if td.names is None else stack.with_names(td.names)
    return td.set("stack", stack)


def _filled(draft: _Draft) -> dict[str, Any]:
    """Return the entries that the constructor takes: nested mappings and trees."""
    out: dict[str, Any] = {}
    for key, value in draft.entries.items():
        if not isinstance(value, _Draft):
            out[key] = value
        elif value.extra:
            out[key] = TensorDict(_filled(value), value.size)
        else:
            out[key] = _filled(value)
    return out


def _dim_names(dims: int) -> SearchStrategy[list[str | None]]:
    st = load_strategies()
    names = st.lists(
        st.sampled_from(("time", "env", "x", "y", "dim 0")),
        min_size=dims,
        max_size=dims,
        unique=True,
    )
    gaps = st.lists(st.booleans(), min_size=dims, max_size=dims)
    return st.tuples(names, gaps).map(
        lambda both: [None if gap else name for name, gap in zip(*both, strict=True)]
    )


@cache
def _statics() -> SearchStrategy[Any]:
    """Return a strategy for values that are not tensors, equal by content."""
    st = load_strategies()
    plain = st.one_of(
        st.text(max_size=3), st.none(), st.binary(max_size=2), st.frozensets(keys())
    )
    # What would otherwise become a tensor, a node or an error.
    marked = st.one_of(
        st.integers(),
        st.booleans(),
        st.floats(),
        st.lists(st.integers(0, 3), max_size=2),
        st.dictionaries(keys(), st.integers(0, 3), max_size=2),
        st.lists(st.integers(0, 3), max_size=2).map(np.array),
        st.integers(0, 3).map(torch.arange),
    ).map(NonTensorData)
    return st.one_of(plain, marked)


@cache
def _row_values() -> SearchStrategy[Any]:
    """Return a strategy for the values of rows: few, so that some are equal."""
    st = load_strategies()
    return st.one_of(
        st.sampled_from(("a", "b", "")),
        st.text(max_size=2),
        st.none(),
        st.integers(0, 2),
        st.sampled_from((True, 1.0, -0.0, float("nan"), b"a", 2**70)),
        st.lists(st.integers(0, 1), max_size=1),
        st.dictionaries(keys(odd=False), st.integers(0, 1), max_size=1),
    )


def _marked(rows: SearchStrategy[Any] | None, *, unbatched: bool) -> Marked | None:
    """Return what draws rows or an unbatched tensor for a node of some batch size."""
    st = load_strategies()
    if rows is None and not unbatched:
        return None

    def of_size(size: torch.Size) -> SearchStrategy[Any]:
        # Without batch dims there are no rows, and something must be drawn.
        kinds: list[Any] = []
        if rows is not None and size:
            count = prod(size)
            values = st.lists(rows, min_size=count, max_size=count)
            kinds.append(values.map(lambda drawn: _array_of(drawn, size)))
        if unbatched:
            kinds.append(tensors().map(mark_unbatched))
        if not kinds:
            kinds.append(st.just("no rows here"))
        return st.one_of(kinds)

    return of_size


def _array_of(values: list[Any], size: torch.Size) -> np.ndarray[Any, Any]:
    """Return values row by row as what the constructor takes for this batch size."""
    array = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):
        array[at] = value
    return array.reshape(tuple(size))


def _marked_kinds(max_rank: int, *, rows: bool, unbatched: bool) -> Marked | None:
    st = load_strategies()
    kinds: list[Any] = []
    if rows:
        kinds.append(st.integers(0, max_rank).map(lambda rank: _Kind(ROWS - rank)))
    if unbatched:
        kinds.append(st.just(_Kind(UNBATCHED)))
    return (lambda _: st.one_of(kinds)) if kinds else None


def _draw_schema(draw: DrawFn, shape: _Shape, max_rank: int) -> Schema:
    st = load_strategies()
    ranks = st.integers(0, max_rank)
    return _schema_of(_draw_draft(draw, shape, lambda draw, _: _Kind(draw(ranks))))


class _Kind(int):
    """A kind of entry in a draft: told apart from a static that is an int."""


def _schema_of(draft: _Draft) -> Schema:
    kids: list[Kid] = []
    surplus: list[int] = []
    for value in draft.entries.values():
        extra = 0
        if isinstance(value, _Draft):
            kid: Kid = _schema_of(value)
            # A node without leaves has the batch size of its parent.
            extra = value.extra if kid.n else 0
        else:
            kid = int(value) if isinstance(value, _Kind) else STATIC
        kids.append(kid)
        surplus.append(extra)
    return Schema(TensorDict, tuple(draft.entries), tuple(kids), tuple(surplus))
