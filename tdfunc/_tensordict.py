"""The trees that users make: operations bound as methods, and the constructor.

An operation is written once, as a function on the abstract node; here the same
function object becomes the method of the same name. `Tree` is that table;
`TensorDict` adds how one is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast, final

from tdfunc._core import repr as _repr
from tdfunc._core.batch import as_device, as_names, as_size
from tdfunc._core.build import assemble, assemble_flat
from tdfunc._core.leaf import check_own
from tdfunc._core.node import Node
from tdfunc._core.statics import NO_STATICS
from tdfunc._ops import (
    arrays,
    casts,
    convert,
    create,
    entries,
    facts,
    from_python,
    fuse,
    index,
    join,
    lazy,
    leafwise,
    logic,
    naming,
    order,
    pack,
    pieces,
    pointwise,
    pytrees,
    reduce,
    restructure,
    shape,
    special,
    state,
    storage,
    training,
    unary,
)
from tdfunc._ops import at as _at
from tdfunc._ops.torch_functions import torch_function
from tdfunc.errors import InvalidLeafError, OptionError
from tdfunc.func import _modules, _swap
from tdfunc.io import _files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc._core.schema import Schema
    from tdfunc.typing import Device, DimNames, Entries, Size

__all__ = ["TensorDict", "Tree"]


class Tree(Node):
    """A node with all operations bound as methods; the base of every kind of tree."""

    __slots__ = ()

    # Entries
    set = entries.set
    update = entries.update
    replace = entries.replace
    drop = entries.drop
    select = entries.select
    exclude = entries.exclude
    with_batch_size = entries.with_batch_size
    with_names = entries.with_names
    refine_names = naming.refine_names
    rename = naming.rename
    with_statics = convert.with_statics
    update_with = restructure.update_with
    rename_key = restructure.rename_key
    rename_keys = restructure.rename_keys
    flatten_keys = restructure.flatten_keys
    unflatten_keys = restructure.unflatten_keys
    split_keys = restructure.split_keys
    filter_empty = restructure.filter_empty
    filter_non_tensor = restructure.filter_non_tensor
    merge = restructure.merge
    empty = restructure.empty
    auto_batch_size = restructure.auto_batch_size
    cat_tensors = fuse.cat_tensors
    stack_tensors = fuse.stack_tensors

    # Leaves
    apply = leafwise.apply
    named_apply = leafwise.named_apply
    to = convert.to
    float = casts.float
    double = casts.double
    half = casts.half
    bfloat16 = casts.bfloat16
    int = casts.int
    long = casts.long
    bool = casts.bool
    cpu = casts.cpu
    cuda = casts.cuda
    detach = convert.detach
    clone = convert.clone
    contiguous = convert.contiguous
    consolidate = storage.consolidate
    share = storage.share
    densify = lazy.densify
    to_lazystack = lazy.to_lazystack
    to_dict = convert.to_dict
    to_tensordict = from_python.to_tensordict
    to_namedtuple = from_python.to_namedtuple
    to_pytree = pytrees.to_pytree
    to_numpy = arrays.to_numpy
    to_struct_array = arrays.to_struct_array
    to_dlpack = arrays.to_dlpack
    zeros_like = create.zeros_like
    ones_like = create.ones_like
    empty_like = create.empty_like
    full_like = create.full_like
    rand_like = create.rand_like
    randn_like = create.randn_like
    new_zeros = create.new_zeros
    new_ones = create.new_ones
    new_empty = create.new_empty
    new_full = create.new_full
    ravel = pack.ravel
    pack = pack.pack
    state_dict = state.state_dict
    load_state_dict = state.load_state_dict

    # Files
    save = _files.save
    save_async = _files.save_async
    memmap = _files.memmap

    # Facts
    depth = property(facts.depth)
    is_cpu = property(facts.is_cpu)
    is_cuda = property(facts.is_cuda)
    is_meta = property(facts.is_meta)
    bytes = facts.bytes
    param_count = facts.param_count
    is_contiguous = facts.is_contiguous
    is_floating_point = facts.is_floating_point

    # Shape
    _at_index = index.at_index  # pyright: ignore[reportAssignmentType]
    __getitems__ = index.getitems
    at = property(_at.at)
    reshape = shape.reshape
    unsqueeze = shape.unsqueeze
    squeeze = shape.squeeze
    permute = shape.permute
    transpose = shape.transpose
    expand = shape.expand
    unbind = shape.unbind
    view = shape.view
    flatten = shape.flatten
    unflatten = shape.unflatten
    movedim = shape.movedim
    moveaxis = shape.moveaxis
    swapaxes = shape.swapaxes
    swapdims = shape.swapdims
    expand_as = shape.expand_as
    broadcast_to = shape.broadcast_to
    narrow = shape.narrow
    atleast_1d = shape.atleast_1d
    atleast_2d = shape.atleast_2d
    atleast_3d = shape.atleast_3d
    __iter__ = shape.iterate

    # Pieces
    split = pieces.split
    chunk = pieces.chunk
    tensor_split = pieces.tensor_split
    repeat = pieces.repeat
    tile = pieces.tile
    repeat_interleave = pieces.repeat_interleave
    roll = pieces.roll
    flip = pieces.flip
    fliplr = pieces.fliplr
    flipud = pieces.flipud
    rot90 = pieces.rot90
    pad = pieces.pad
    gather = pieces.gather
    index_select = pieces.index_select
    take = pieces.take
    masked_select = pieces.masked_select
    masked_fill = pieces.masked_fill
    where = pieces.where_of

    # Arithmetic
    add = pointwise.add
    sub = pointwise.sub
    rsub = pointwise.rsub
    mul = pointwise.mul
    div = pointwise.div
    floor_divide = pointwise.floor_divide
    remainder = pointwise.remainder
    pow = pointwise.pow
    neg = pointwise.neg
    abs = pointwise.abs
    eq = pointwise.eq
    ne = pointwise.ne
    lt = pointwise.lt
    le = pointwise.le
    gt = pointwise.gt
    ge = pointwise.ge
    equal = pointwise.equal
    __add__ = pointwise.add
    __radd__ = pointwise.radd
    __sub__ = pointwise.sub
    __rsub__ = pointwise.rsub
    __mul__ = pointwise.mul
    __rmul__ = pointwise.rmul
    __truediv__ = pointwise.div
    __rtruediv__ = pointwise.rtruediv
    __floordiv__ = pointwise.floor_divide
    __rfloordiv__ = pointwise.rfloordiv
    __mod__ = pointwise.remainder
    __rmod__ = pointwise.rmod
    __pow__ = pointwise.pow
    __rpow__ = pointwise.rpow
    __neg__ = pointwise.neg
    __abs__ = pointwise.abs
    __lt__ = pointwise.lt
    __le__ = pointwise.le
    __gt__ = pointwise.gt
    __ge__ = pointwise.ge
    if TYPE_CHECKING:
        # Elementwise: type checkers would take object's, which return a bool.
        def __eq__(self, other: object) -> Self: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def __ne__(self, other: object) -> Self: ...  # pyright: ignore[reportIncompatibleMethodOverride]
    else:
        __eq__ = pointwise.eq_operator
        __ne__ = pointwise.ne_operator
    # By identity, as for tensors: equality is elementwise.
    __hash__ = object.__hash__

    # Logic and bounds
    addcdiv = logic.addcdiv
    addcmul = logic.addcmul
    allclose = logic.allclose
    atan2 = logic.atan2
    bitwise_and = logic.bitwise_and
    bitwise_left_shift = logic.bitwise_left_shift
    bitwise_or = logic.bitwise_or
    bitwise_right_shift = logic.bitwise_right_shift
    bitwise_xor = logic.bitwise_xor
    clamp = logic.clamp
    clamp_max = logic.clamp_max
    clamp_min = logic.clamp_min
    fmod = logic.fmod
    isclose = logic.isclose
    lerp = logic.lerp
    logical_and = logic.logical_and
    logical_or = logic.logical_or
    logical_xor = logic.logical_xor
    maximum = logic.maximum
    minimum = logic.minimum
    copysign = special.copysign
    float_power = special.float_power
    fmax = special.fmax
    fmin = special.fmin
    gcd = special.gcd
    heaviside = special.heaviside
    hypot = special.hypot
    igamma = special.igamma
    igammac = special.igammac
    isin = special.isin
    lcm = special.lcm
    ldexp = special.ldexp
    logaddexp = special.logaddexp
    logaddexp2 = special.logaddexp2
    mvlgamma = special.mvlgamma
    nextafter = special.nextafter
    polygamma = special.polygamma
    xlogy = special.xlogy
    __and__ = logic.bitwise_and
    __rand__ = logic.bitwise_and
    __or__ = logic.bitwise_or
    __ror__ = logic.bitwise_or
    __xor__ = logic.bitwise_xor
    __rxor__ = logic.bitwise_xor
    __lshift__ = logic.bitwise_left_shift
    __rlshift__ = logic.rlshift
    __rshift__ = logic.bitwise_right_shift
    __rrshift__ = logic.rrshift

    # Functions of every element
    acos = unary.acos
    acosh = unary.acosh
    angle = unary.angle
    asin = unary.asin
    asinh = unary.asinh
    atan = unary.atan
    atanh = unary.atanh
    bitwise_not = unary.bitwise_not
    ceil = unary.ceil
    conj = unary.conj
    cos = unary.cos
    cosh = unary.cosh
    deg2rad = unary.deg2rad
    digamma = unary.digamma
    erf = unary.erf
    erfc = unary.erfc
    erfinv = unary.erfinv
    exp = unary.exp
    exp2 = unary.exp2
    expm1 = unary.expm1
    floor = unary.floor
    frac = unary.frac
    i0 = unary.i0
    imag = unary.imag
    isfinite = unary.isfinite
    isinf = unary.isinf
    isnan = unary.isnan
    isneginf = unary.isneginf
    isposinf = unary.isposinf
    isreal = unary.isreal
    lgamma = unary.lgamma
    log = unary.log
    log10 = unary.log10
    log1p = unary.log1p
    log2 = unary.log2
    logical_not = unary.logical_not
    logit = unary.logit
    nan_to_num = unary.nan_to_num
    positive = unary.positive
    rad2deg = unary.rad2deg
    real = unary.real
    reciprocal = unary.reciprocal
    relu = unary.relu
    round = unary.round
    rsqrt = unary.rsqrt
    sgn = unary.sgn
    sigmoid = unary.sigmoid
    sign = unary.sign
    signbit = unary.signbit
    sin = unary.sin
    sinc = unary.sinc
    sinh = unary.sinh
    softplus = unary.softplus
    sqrt = unary.sqrt
    square = unary.square
    tan = unary.tan
    tanh = unary.tanh
    trunc = unary.trunc
    __invert__ = unary.bitwise_not
    __pos__ = unary.positive

    # Reductions
    sum = reduce.sum
    mean = reduce.mean
    all = reduce.all
    any = reduce.any
    amax = reduce.amax
    amin = reduce.amin
    argmax = reduce.argmax
    argmin = reduce.argmin
    count_nonzero = reduce.count_nonzero
    logsumexp = reduce.logsumexp
    max = reduce.max
    median = reduce.median
    min = reduce.min
    nanmean = reduce.nanmean
    nanmedian = reduce.nanmedian
    nansum = reduce.nansum
    norm = reduce.norm
    prod = reduce.prod
    quantile = reduce.quantile
    std = reduce.std
    var = reduce.var
    aminmax = reduce.aminmax
    kthvalue = reduce.kthvalue
    mode = reduce.mode
    nanquantile = reduce.nanquantile
    std_mean = reduce.std_mean
    var_mean = reduce.var_mean

    # As one vector
    check_finite = training.check_finite
    cosine_similarity = training.cosine_similarity
    global_norm = training.global_norm
    polyak = training.polyak
    tree_dot = training.tree_dot

    # Along one dim
    argsort = order.argsort
    cummax = order.cummax
    cummin = order.cummin
    cumprod = order.cumprod
    cumsum = order.cumsum
    log_softmax = order.log_softmax
    logcumsumexp = order.logcumsumexp
    softmax = order.softmax
    sort = order.sort
    topk = order.topk

    # Printing
    __repr__ = _repr.compact  # pyright: ignore[reportAssignmentType]
    _repr_html_ = _repr.html
    to_tree_string = _repr.full

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return torch_function(func, types, args, kwargs)

    stack = staticmethod(join.stack)
    cat = staticmethod(join.cat)
    lazy_stack = staticmethod(lazy.lazy_stack)
    maybe_dense_stack = staticmethod(lazy.maybe_dense_stack)


@final
class TensorDict(Tree, plain=True):
    """An immutable dictionary of tensors that share leading batch dims.

    Args:
        source: a mapping of names to tensors, numbers, arrays, nested mappings and
            trees; or a tree. Any other object becomes a static: one value for the
            whole node. None for an empty tree or keyword entries.
        batch_size: the leading dims that every tensor has, ``[]`` by default (for a
            tree as source: its own). Nested mappings get the same; nested trees may
            have more batch dims.
        device: where to move the tensors, None to leave them where they are.
        names: one name (or None) for every batch dim.
        entries: entries by keyword, instead of `source`.

    Tensors are taken by reference, and so are writable NumPy arrays: who writes into
    them afterwards changes what the tree shows. `clone` first if that can happen.

    Raises:
        BatchSizeError: a tensor does not start with the batch size.
        InvalidKeyError: a key is not a non-empty string.
        InvalidLeafError: a value can not be an entry.
        OptionError: both `source` and keyword entries, a batch size or names that
            are none.
        StructureError: a mapping contains itself.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"pos": torch.zeros(5, 3), "hidden": torch.zeros(5, 4)}, 5)
        TensorDict(batch_size=[5], fields={hidden: f32[4], pos: f32[3]})
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> NoReturn:
        del kwargs
        raise TypeError(
            "TensorDict is final: an operation would lose what a subclass adds"
        )

    def __init__(
        self,
        source: Entries | Node | None = None,
        batch_size: Size | None = None,
        *,
        device: Device | None = None,
        names: DimNames | None = None,
        **entries: Any,
    ) -> None:
        if source is None:
            source = entries
        elif type(source) is dict and device is None and not entries:
            # The hot path, before the checks that cost more than it does.
            size = as_size(() if batch_size is None else batch_size)
            flat = assemble_flat(source, size, TensorDict)
            if flat is not None:
                self._schema, self._leaves = flat
                self._statics = NO_STATICS
                self._batch_size = size
                self._names = None if names is None else as_names(names, len(size))
                return
        elif entries:
            raise OptionError(
                "entries are given twice",
                expected="a mapping, or keyword entries",
                got=f"both, with keywords {sorted(entries)}",
                fix="TensorDict({**mapping, **keywords}, batch_size)",
            )
        if isinstance(source, Node) and batch_size is None:
            batch_size = source.batch_size
            names = source.names if names is None else names
        elif not isinstance(source, (Mapping, Node)):
            check_own(source, ())
            raise InvalidLeafError(
                "a tree is made of a mapping",
                expected="a mapping or a tree",
                got=type(source).__name__,
            )
        size = as_size(() if batch_size is None else batch_size)
        part = assemble(source, size, TensorDict, device=as_device(device))
        self._schema = cast("Schema", part.kid)
        self._leaves = part.leaves
        self._statics = part.statics
        self._batch_size = size
        self._names = None if names is None else as_names(names, len(size))

    from_dict = staticmethod(convert.from_dict)
    from_list = staticmethod(from_python.from_list)
    from_tuple = staticmethod(from_python.from_tuple)
    from_namedtuple = staticmethod(from_python.from_namedtuple)
    from_dataclass = staticmethod(from_python.from_dataclass)
    from_any = staticmethod(from_python.from_any)
    from_pytree = staticmethod(pytrees.from_pytree)
    from_numpy = staticmethod(arrays.from_numpy)
    from_struct_array = staticmethod(arrays.from_struct_array)
    from_dlpack = staticmethod(arrays.from_dlpack)
    from_schema = staticmethod(create.from_schema)
    fromkeys = staticmethod(create.fromkeys)
    from_module = staticmethod(_modules.from_module)
    from_modules = staticmethod(_modules.from_modules)
    to_module = _swap.to_module
    load = staticmethod(_files.load)
    load_memmap = staticmethod(_files.load_memmap)
    load_safetensors = staticmethod(_files.load_safetensors)
    from_consolidated = staticmethod(_files.from_consolidated)
