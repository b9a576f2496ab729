"""Strategies: what hypothesis draws property tests of trees from.

All of them shrink: to few leaves, to small batch sizes, to keys of one letter, to
tensors that count 0, 1, 2, ... Every flag can be fixed by the caller, and a flag that
is a strategy or a sequence is drawn from.

This is the one file that needs hypothesis, and it is imported when the first strategy
is made, so that the assertions of `tdfunc.testing` work without it.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch

from tdfunc import NonTensorData, Schema, TensorDict
from tdfunc._core.batch import as_size
from tdfunc._core.schema import STATIC
from tdfunc.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

    from tdfunc._core.schema import Kid
    from tdfunc.typing import DimNames, Index, Size

__all__ = ["batch_sizes", "indices", "keys", "schemas", "tensordicts", "tensors"]

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
_MOST_NODES = 3
_MOST_SURPLUS = 2
_MOST_CHANGES = 3


@cache
def _load() -> Any:
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


def _composite(
    draw_one: Callable[Concatenate[DrawFn, P], T],
) -> Callable[P, SearchStrategy[T]]:
    """Return what `hypothesis.strategies.composite` makes of a function."""
    return _composed(draw_one)


@cache
def _composed(draw_one: Callable[..., Any]) -> Any:
    # Made once: it compiles a signature, which would be most of the cost of a draw.
    return _load().composite(draw_one)


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
    st = _load()
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
    st = _load()
    sizes = _sizes(min_size, max_size)
    any_size = st.lists(sizes, min_size=min_dims, max_size=max_dims)
    # Where dims have one size, what was worked out from shapes goes wrong.
    square = st.builds(
        lambda size, dims: [size] * dims, sizes, st.integers(min_dims, max_dims)
    )
    return st.one_of(any_size, square).map(torch.Size)


@cache
def _sizes(least: int, most: int) -> SearchStrategy[int]:
    """Return a strategy for the size of one dim that shrinks to 1."""
    st = _load()
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
    return _composite(_draw_tensor)(
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
    statics: bool | SearchStrategy[Any] = True,
    names: bool | DimNames | None = None,
    min_leaves: int = 0,
    max_leaves: int = 5,
) -> SearchStrategy[TensorDict]:
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
        statics: put values that are not tensors in, or a strategy for such values.
        names: True to name batch dims, False to leave them without names, None for
            either, or the names.
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
        drawn = _as_dtypes(dtypes)

        def leaves(size: torch.Size) -> SearchStrategy[torch.Tensor]:
            return tensors(size, dtypes=drawn)

    elif dtypes is not None:
        raise OptionError(
            "dtypes are given twice",
            expected="dtypes, or leaves",
            got="both",
            fix="leaves=lambda size: tensors(size, dtypes=dtypes)",
        )
    if statics is True:
        values = _statics()
    else:
        values = None if statics is False else statics
    shape = _Shape(
        _as_sizes(batch_size),
        keys() if key is None else key,
        values,
        (min_leaves, max_leaves),
        nested=nested,
        surplus=nested and surplus,
    )
    return _composite(_draw_tree)(shape, leaves, names, shared)


def schemas(
    *,
    key: SearchStrategy[str] | None = None,
    nested: bool = True,
    surplus: bool = True,
    statics: bool = True,
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
    st = _load()
    shape = _Shape(
        st.just(torch.Size()),
        keys() if key is None else key,
        st.none() if statics else None,
        (min_leaves, max_leaves),
        nested=nested,
        surplus=nested and surplus,
    )
    return _composite(_draw_schema)(shape, max_rank)


def indices(
    batch_size: Size,
    *,
    advanced: bool = True,
    masks: bool = True,
    new_dims: bool = True,
    ellipsis: bool = True,
    arrays: bool = True,
) -> SearchStrategy[Index]:
    """Return a strategy for everything that torch takes in brackets.

    Ints, slices, None, Ellipsis and bools; lists, tuples, ranges, NumPy arrays and
    tensors of ints and bools; tuples of them in which what is advanced broadcasts.
    Left out is what torch warns about: uint8 masks, and a nested list outside a tuple.

    Args:
        batch_size: the shape to index.
        advanced: draw more than ints, slices, None and Ellipsis.
        masks: draw masks and bools.
        new_dims: draw None.
        ellipsis: draw Ellipsis.
        arrays: draw NumPy arrays and scalars.

    Raises:
        ImportError: hypothesis is not installed.
        OptionError: `batch_size` is no size.

    Examples:
        >>> from hypothesis import find
        >>> find(indices([3]), lambda index: torch.arange(3)[index].tolist() == [1, 2])
        slice(1, None, None)
    """
    return _composite(_draw_index)(
        as_size(batch_size),
        advanced=advanced,
        masks=advanced and masks,
        new_dims=new_dims,
        ellipsis=ellipsis,
        arrays=arrays,
    )


def _as_dtypes(
    dtypes: Sequence[torch.dtype] | SearchStrategy[torch.dtype] | None,
) -> SearchStrategy[torch.dtype]:
    st = _load()
    if isinstance(dtypes, st.SearchStrategy):
        return dtypes
    given = _DTYPES if dtypes is None else tuple(dtypes)
    if not given:
        raise OptionError("dtypes is empty", expected="at least one dtype")
    return st.sampled_from(given)


def _as_sizes(
    batch_size: Size | SearchStrategy[torch.Size] | None,
) -> SearchStrategy[torch.Size]:
    st = _load()
    if batch_size is None:
        return batch_sizes()
    if isinstance(batch_size, st.SearchStrategy):
        return batch_size
    return st.just(as_size(batch_size))


# Tensors


def _draw_tensor(
    draw: DrawFn,
    prefix: torch.Size,
    dtypes: SearchStrategy[torch.dtype],
    feature_dims: tuple[int, int],
    elements: SearchStrategy[Any] | None,
    special: bool,  # noqa: FBT001 - private
    contiguous: bool | None,  # noqa: FBT001
) -> torch.Tensor:
    st = _load()
    dtype = draw(dtypes)
    least, most = feature_dims
    sizes = _sizes(0, 3)
    if prefix:
        # Features as long as the batch are easily taken for batch dims.
        sizes = st.one_of(sizes, st.sampled_from(prefix))
    shape = (*prefix, *draw(st.lists(sizes, min_size=least, max_size=most)))
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
    st = _load()
    places = st.integers(0, 31)
    return st.dictionaries(places, _elements(dtype), max_size=_MOST_CHANGES)


def _elements(dtype: torch.dtype) -> SearchStrategy[Any]:
    """Return a strategy for any value of a dtype."""
    st = _load()
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

    __slots__ = ("key", "leaves", "nested", "sizes", "statics", "surplus")

    def __init__(
        self,
        sizes: SearchStrategy[torch.Size],
        key: SearchStrategy[str],
        statics: SearchStrategy[Any] | None,
        leaves: tuple[int, int],
        *,
        nested: bool,
        surplus: bool,
    ) -> None:
        self.sizes = sizes
        self.key = key
        self.statics = statics
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
    st = _load()
    root = _Draft(draw(shape.sizes))
    nodes = [root]
    if shape.nested:
        node = _composite(_add_node)(nodes, shape)
        draw(st.lists(node, max_size=_MOST_NODES))
    leaf = _composite(_add_leaf)(nodes, shape, draw_leaf)
    least, most = shape.leaves
    draw(st.lists(leaf, min_size=least, max_size=most))
    if shape.statics is not None:
        static = _composite(_add_static)(nodes, shape, shape.statics)
        draw(st.lists(static, max_size=_MOST_STATICS))
    for node in nodes:
        # Otherwise nodes would stand before leaves, and leaves before statics.
        if len(node.entries) > 1:
            items = draw(st.permutations(list(node.entries.items())))
            node.entries = dict(items)
    return root


def _add_node(draw: DrawFn, nodes: list[_Draft], shape: _Shape) -> str:
    """Draw a node into one of `nodes`, and return its key."""
    st = _load()
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
    st = _load()
    node = draw(st.sampled_from(nodes))
    key = _new_key(draw, node, shape.key)
    node.entries[key] = draw_leaf(draw, node.size)
    return key


def _add_static(
    draw: DrawFn, nodes: list[_Draft], shape: _Shape, statics: SearchStrategy[Any]
) -> str:
    st = _load()
    node = draw(st.sampled_from(nodes))
    key = _new_key(draw, node, shape.key)
    node.entries[key] = draw(statics)
    return key


@cache
def _surplus() -> SearchStrategy[list[int]]:
    st = _load()
    return st.lists(_sizes(0, 3), max_size=_MOST_SURPLUS)


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
    shared: bool,  # noqa: FBT001
) -> TensorDict:
    st = _load()
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
    st = _load()
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
    st = _load()
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


def _draw_schema(draw: DrawFn, shape: _Shape, max_rank: int) -> Schema:
    st = _load()
    ranks = st.integers(0, max_rank)
    return _schema_of(_draw_draft(draw, shape, lambda draw, _: _Rank(draw(ranks))))


class _Rank(int):
    """A feature rank in a draft: told apart from a static that is an int."""


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
            kid = int(value) if isinstance(value, _Rank) else STATIC
        kids.append(kid)
        surplus.append(extra)
    return Schema(TensorDict, tuple(draft.entries), tuple(kids), tuple(surplus))


# Indices


class _Advanced:
    """How the advanced items of one index broadcast, and what they may be.

    `shape` is what index tensors broadcast to, `length` the number of rows that a mask
    may choose: 1, or the last dim of `shape`. `spread` says that there is an Ellipsis.
    """

    __slots__ = ("arrays", "length", "masks", "shape", "spread")

    def __init__(
        self,
        shape: tuple[int, ...],
        length: int,
        *,
        masks: bool,
        arrays: bool,
        spread: bool,
    ) -> None:
        self.shape = shape
        self.length = length
        self.masks = masks
        self.arrays = arrays
        self.spread = spread


def _draw_index(
    draw: DrawFn,
    size: torch.Size,
    *,
    advanced: bool,
    masks: bool,
    new_dims: bool,
    ellipsis: bool,
    arrays: bool,
) -> Any:
    st = _load()
    # Where a tuple has an Ellipsis torch counts any sequence as one dim.
    spread = ellipsis and draw(st.booleans())
    how: _Advanced | None = None
    if advanced and draw(st.integers(0, 3)):
        shape = tuple(draw(st.lists(_sizes(0, 3), max_size=2)))
        length = shape[-1] if shape else draw(_sizes(0, 3))
        how = _Advanced(shape, length, masks=masks, arrays=arrays, spread=spread)
    front = draw(st.sampled_from([*range(len(size) + 1), len(size)]))
    items = _draw_items(draw, size[:front], how, new_dims=new_dims)
    if spread:
        back = draw(st.integers(0, len(size) - front))
        rest = size[len(size) - back :]
        items += [Ellipsis, *_draw_items(draw, rest, how, new_dims=new_dims)]
    if len(items) == 1 and not (_warns_alone(items[0]) or draw(st.booleans())):
        return items[0]
    return tuple(items)


def _warns_alone(item: Any) -> bool:
    """Return whether torch reads an item that stands alone as a tuple of items."""
    nested = isinstance(item, (list, tuple)) and any(
        [isinstance(part, (list, tuple)) for part in item]
    )
    return nested or isinstance(item, tuple)


def _draw_items(
    draw: DrawFn, size: torch.Size, how: _Advanced | None, *, new_dims: bool
) -> list[Any]:
    """Draw items that index every dim of `size`, with new dims between them."""
    st = _load()
    items: list[Any] = []
    dim = 0
    while True:
        if new_dims and draw(st.integers(0, 9)) == 9:  # noqa: PLR2004 - one in ten
            items.append(None)
        if how is not None and how.masks and draw(st.integers(0, 19)) == 19:  # noqa: PLR2004
            # False chooses no row, which broadcasts with nothing but 0 and 1.
            items.append(draw(_flags(how)))
        if dim == len(size):
            return items
        kinds = [_draw_slice] if not size[dim] else [_draw_slice, _draw_int]
        if how is not None:
            # More often: an index in which nothing is advanced is drawn anyway.
            kinds += [_draw_rows, _draw_rows, _draw_rows, _draw_range]
            kinds += [_draw_mask, _draw_mask] if how.masks else []
        item, used = draw(st.sampled_from(kinds))(draw, size[dim:], how)
        items.append(item)
        dim += used


def _flags(how: _Advanced) -> SearchStrategy[Any]:
    st = _load()
    values = [True, False] if how.length == 0 else [True]
    return st.sampled_from([*values, *map(torch.tensor, values)])


def _draw_slice(
    draw: DrawFn, size: torch.Size, how: _Advanced | None
) -> tuple[slice, int]:
    del how
    st = _load()
    n = size[0]
    edges = st.one_of(st.none(), st.integers(-n - 1, n + 1))
    steps = st.one_of(st.none(), st.integers(1, 3))
    return slice(draw(edges), draw(edges), draw(steps)), 1


def _draw_int(draw: DrawFn, size: torch.Size, how: _Advanced | None) -> tuple[Any, int]:
    st = _load()
    number = draw(st.integers(-size[0], size[0] - 1))
    kinds: list[Callable[[int], Any]] = [int]
    if how is not None:
        kinds += [torch.tensor, lambda n: torch.tensor(n, dtype=torch.int32)]
        kinds += [np.int64] if how.arrays else []
    return draw(st.sampled_from(kinds))(number), 1


def _draw_rows(
    draw: DrawFn, size: torch.Size, how: _Advanced | None
) -> tuple[Any, int]:
    """Draw an index of rows whose shape broadcasts to that of the others."""
    assert how is not None
    st = _load()
    start = draw(st.sampled_from([0, *range(len(how.shape) + 1)]))
    shape = list(how.shape[start:]) or [1]
    if draw(st.integers(0, 2)) == 2:  # noqa: PLR2004 - one in three
        shape[draw(st.integers(0, len(shape) - 1))] = 1
    if not size[0]:
        # There is no row to take, so none may be taken.
        if how.length:
            return slice(None), 1
        shape[-1] = 0
    count = prod(shape)
    numbers = st.integers(-size[0], size[0] - 1) if size[0] else st.nothing()
    rows = draw(st.lists(numbers, min_size=count, max_size=count))
    found = torch.tensor(rows, dtype=torch.int64).reshape(shape)
    kinds: list[Callable[[torch.Tensor], Any]] = [
        lambda x: x,
        lambda x: x.to(torch.int32),
    ]
    if how.arrays:
        kinds += [lambda x: x.numpy(), lambda x: x.to(torch.int32).numpy()]
    if count or len(shape) == 1:
        # An empty list has no second dim.
        kinds = [torch.Tensor.tolist, *kinds]
    if count:
        kinds.append(lambda x: tuple(x.tolist()))
    return draw(st.sampled_from(kinds))(found), 1


def _draw_range(
    draw: DrawFn, size: torch.Size, how: _Advanced | None
) -> tuple[Any, int]:
    assert how is not None
    st = _load()
    count = draw(st.sampled_from([how.length, 1]))
    if count > size[0]:
        return slice(None), 1
    start = draw(st.integers(0, size[0] - count))
    return range(start, start + count), 1


def _draw_mask(
    draw: DrawFn, size: torch.Size, how: _Advanced | None
) -> tuple[Any, int]:
    """Draw a mask of one or more dims that chooses as many rows as broadcast."""
    assert how is not None
    st = _load()
    dims = draw(st.integers(1, len(size)))
    count = prod(size[:dims])
    counts = [n for n in {how.length, 1} if n <= count]
    if not counts:
        return slice(None), 1
    chosen = draw(st.sampled_from(sorted(counts)))
    places = draw(st.permutations(range(count)))[:chosen]
    mask = torch.zeros(count, dtype=torch.bool)
    mask[list(places)] = True
    mask = mask.reshape(size[:dims])
    kinds: list[Callable[[torch.Tensor], Any]] = [lambda x: x]
    if dims == 1 or not how.spread:
        kinds += [torch.Tensor.numpy] if how.arrays else []
        kinds += [torch.Tensor.tolist] if count else []
    return draw(st.sampled_from(kinds))(mask), dims
