"""Every operation leaves its inputs as they are: bytes, versions and identities.

One table of all operations with the arguments that are drawn for each; a new operation
needs a line here, which `test_table_has_every_operation` demands.
"""

from __future__ import annotations

import copy
import operator
import pickle
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import optree
import pytest
import torch
from hypothesis import assume, given
from torch.utils import _pytree as torch_pytree

import tdfunc
from property_tests import model as m
from tdfunc import TensorDict, nn, random
from tdfunc._ops import (
    arrays,
    autograd,
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
    losses,
    naming,
    order,
    pack,
    pieces,
    pointwise,
    pytrees,
    reduce,
    restructure,
    sequences,
    shape,
    special,
    state,
    storage,
    training,
    unary,
)
from tdfunc._ops import at as rows
from tdfunc.testing import (
    assert_pure,
    assert_valid,
    indices,
    keys,
    tensordicts,
    tensors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Draw = Any
Call = tuple[Any, ...]  # the function and its arguments, the tree among them


def dim_of(draw: Draw, td: TensorDict, extra: int = 0) -> int:
    dims = td.batch_dims + extra
    assume(dims)
    return draw(st.integers(-dims, dims - 1))


def key_for(draw: Draw) -> torch.Tensor:
    return random.key(draw(st.integers(0, 3)))


def path_in(draw: Draw, td: TensorDict) -> Any:
    assume(td.keys())
    return draw(st.sampled_from(td.keys(True)))


def leaf_in(draw: Draw, td: TensorDict) -> Any:
    leaves = td.keys(True, True)
    assume(leaves)
    return draw(st.sampled_from(leaves))


def entries_for(draw: Draw, td: TensorDict) -> dict[str, Any]:
    mapping = st.dictionaries(keys(), tensors(td.batch_size), max_size=2)
    return draw(mapping) | {
        "nested": draw(mapping),
        "list": [1.0] * (td.batch_size == ()),
    }


def operand_for(draw: Draw, td: TensorDict) -> Any:
    return draw(
        st.one_of(
            st.sampled_from([2, 0.5, True]),
            tensors(td.batch_size, feature_dims=0, dtypes=[torch.float32]),
            st.just(td),
        )
    )


@dataclass
class Holder:
    entry: Any


def uniform(td: TensorDict) -> TensorDict:
    """Return the tree of tensors of one dtype, without nested nodes and statics."""
    leaves = {key: td[key] for key in td.keys(leaves_only=True)}
    return TensorDict(leaves, td.batch_size).to(torch.complex128)


def mask_for(draw: Draw, td: TensorDict) -> torch.Tensor:
    return draw(tensors(td.batch_size, feature_dims=0, dtypes=[torch.bool]))


def just(fn: Callable[..., Any], *args: Any) -> Callable[[Draw, TensorDict], Call]:
    """Return a line for what takes the tree and nothing that is drawn."""
    return lambda _, td: (fn, td, *args)


def binary(fn: Callable[..., Any]) -> Callable[[Draw, TensorDict], Call]:
    return lambda draw, td: (fn, td, operand_for(draw, td))


def split(draw: Draw) -> Any:
    return draw(
        st.sampled_from(
            [
                "floating",
                "integer",
                "bool",
                torch.float32,
                lambda path, _: len(path) > 1,
            ]
        )
    )


OPTIMIZERS: dict[str, Callable[[], tdfunc.optim.GradientTransformation]] = {
    "adam": tdfunc.optim.adam,
    "amsgrad": lambda: tdfunc.optim.adamw(amsgrad=True),
    "sgd": lambda: tdfunc.optim.sgd(0.1, 0.9),
    "rmsprop": lambda: tdfunc.optim.rmsprop(centered=True, momentum=0.5),
    "adagrad": tdfunc.optim.adagrad,
    "lion": tdfunc.optim.lion,
    "lamb": tdfunc.optim.lamb,
    "clipped": lambda: tdfunc.optim.chain(
        tdfunc.optim.clip(0.5), tdfunc.optim.clip_by_global_norm(1.0)
    ),
    "accumulated": lambda: tdfunc.optim.accumulate(tdfunc.optim.adam(), 2),
    "masked": lambda: tdfunc.optim.masked(
        tdfunc.optim.adam(), lambda _, x: x.dim() > 1
    ),
    "flat": lambda: tdfunc.optim.flat(tdfunc.optim.adam()),
}


def step_of(
    make: Callable[[], tdfunc.optim.GradientTransformation],
) -> Callable[[Draw, TensorDict], Call]:
    """Return a line for a step of an optimizer, whose state must not change either."""

    def line(_: Draw, td: TensorDict) -> Call:
        tx = make()
        params, _ = tdfunc.partition(td, "inexact")
        state = tx.init(params)
        _, state = tx.update(params, state, params)
        return tx.update, params, state, params

    return line


# Operations by the name that the library lists them under.
CHUNKS = st.none() | st.integers(1, 2)


def squares(td: TensorDict) -> torch.Tensor:
    """Return the sum of the squares of all that is not an integer."""
    total = torch.zeros(())
    for path in td.keys(True, True):
        x = td[path]
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            total = total + (x * x).sum().float()
    return total


OPERATIONS: dict[str, Callable[[Draw, TensorDict], Call]] = {
    # _ops.entries
    "set": lambda draw, td: (
        TensorDict.set,
        td,
        draw(keys()),
        draw(tensors(td.batch_size)),
    ),
    "update": lambda draw, td: (tdfunc.update, td, entries_for(draw, td)),
    "replace": lambda draw, td: (
        lambda td, path: tdfunc.replace(td, {path: td[path]}),
        td,
        draw(st.sampled_from(td.keys() or ("",))),
    ),
    "drop": lambda draw, td: (tdfunc.drop, td, path_in(draw, td)),
    "select": lambda draw, td: (tdfunc.select, td, path_in(draw, td)),
    "exclude": lambda draw, td: (tdfunc.exclude, td, path_in(draw, td), "zzz"),
    "with_batch_size": lambda draw, td: (
        tdfunc.with_batch_size,
        td,
        td.batch_size[: draw(st.integers(0, td.batch_dims))],
    ),
    "with_names": lambda _, td: (
        tdfunc.with_names,
        td,
        [f"dim {i}" for i in range(td.batch_dims)],
    ),
    # _ops.restructure
    "rename_key": lambda draw, td: (
        tdfunc.rename_key,
        td,
        path_in(draw, td),
        (draw(keys()), "new"),
    ),
    "rename_keys": lambda draw, td: (
        tdfunc.rename_keys,
        td,
        {path_in(draw, td): path_in(draw, td), path_in(draw, td): draw(keys())},
    ),
    "flatten_keys": lambda draw, td: (tdfunc.flatten_keys, td, draw(keys())),
    "unflatten_keys": lambda _, td: (
        lambda td: tdfunc.unflatten_keys(tdfunc.flatten_keys(td, "/"), "/"),
        td,
    ),
    "split_keys": lambda draw, td: (
        tdfunc.split_keys,
        td,
        [path_in(draw, td)],
        lambda path, _: len(path) > 1,
    ),
    "empty": lambda draw, td: (tdfunc.empty, td, draw(st.booleans())),
    "filter_empty": just(tdfunc.filter_empty),
    "filter_non_tensor": just(tdfunc.filter_non_tensor),
    "auto_batch_size": lambda draw, td: (
        tdfunc.auto_batch_size,
        td,
        draw(st.sampled_from([None, 0, 1])),
    ),
    "update_with": lambda draw, td: (
        tdfunc.update_with,
        td,
        {path_in(draw, td): lambda x: x},
    ),
    "merge": lambda draw, td: (
        lambda *tds: tdfunc.merge(*tds, on_conflict=lambda x, _: x),
        td,
        *tdfunc.split_keys(td, [path_in(draw, td)]),
    ),
    # _ops.naming
    "refine_names": lambda _, td: (
        tdfunc.refine_names,
        td,
        *[name or f"dim {i}" for i, name in enumerate(td.names or [None] * td.ndim)],
    ),
    "rename": lambda _, td: (tdfunc.rename, td, *[f"d{i}" for i in range(td.ndim)]),
    # _ops.fuse
    **{
        name: lambda draw, td, name=name: (
            lambda td, key: getattr(tdfunc, name)(td, key, key, out_key=key, dim=-1),
            td,
            path_in(draw, td),
        )
        for name in ("cat_tensors", "stack_tensors")
    },
    # _ops.sequences
    "pad_sequence": lambda draw, td: (
        lambda td, dim: tdfunc.pad_sequence([td, td.narrow(dim, 0, 1)], dim)[0],
        td,
        dim_of(draw, td),
    ),
    "unpad_sequence": lambda draw, td: (
        tdfunc.unpad_sequence,
        td,
        mask_for(draw, td),
    ),
    # _ops.casts
    **{name: just(getattr(tdfunc, name)) for name in casts.__all__},
    "cuda": just(tdfunc.cuda if torch.cuda.is_available() else tdfunc.cpu),
    # _ops.facts
    **{name: just(getattr(tdfunc, name)) for name in facts.__all__},
    # _ops.at
    "at": lambda draw, td: (
        lambda td, index: tdfunc.at(td)[index].set(td[index]),
        td,
        draw(indices(td.batch_size)),
    ),
    "At": lambda draw, td: (
        lambda td, index, name: getattr(td.at[index], name)(2),
        td,
        draw(indices(td.batch_size)),
        draw(st.sampled_from(["add", "mul", "div", "pow", "min", "max"])),
    ),
    # _ops.convert
    "to": lambda draw, td: (
        lambda td, flag: tdfunc.to(
            td, torch.float64 if flag else torch.complex128, floating_only=flag
        ),
        td,
        draw(st.booleans()),
    ),
    "detach": just(tdfunc.detach),
    "clone": just(tdfunc.clone),
    "contiguous": just(tdfunc.contiguous),
    "consolidate": just(tdfunc.consolidate),
    "share": just(tdfunc.share),
    "with_statics": lambda _, td: (tdfunc.with_statics, td, tdfunc.clone(td)),
    "to_dict": just(tdfunc.to_dict),
    "from_dict": lambda draw, td: (
        lambda entries: tdfunc.from_dict(entries, auto_batch_size=True),
        entries_for(draw, td),
    ),
    # _ops.leafwise
    "apply": lambda _, td: (tdfunc.apply, td, lambda x, y: x == y, td),
    "named_apply": just(tdfunc.named_apply, lambda _, x: x[..., None]),
    # _ops.shape
    "reshape": lambda _, td: (tdfunc.reshape, td, (1, *td.batch_size, 1)),
    "unsqueeze": lambda draw, td: (tdfunc.unsqueeze, td, dim_of(draw, td, 1)),
    "squeeze": just(tdfunc.squeeze),
    "permute": lambda draw, td: (
        tdfunc.permute,
        td,
        draw(st.permutations(range(td.batch_dims))),
    ),
    "transpose": lambda draw, td: (
        tdfunc.transpose,
        td,
        dim_of(draw, td),
        dim_of(draw, td),
    ),
    "expand": lambda _, td: (tdfunc.expand, td, (2, *td.batch_size)),
    "unbind": lambda draw, td: (tdfunc.unbind, td, dim_of(draw, td)),
    "iterate": lambda _, td: (list, td[None]),
    "view": lambda draw, td: (
        tdfunc.view,
        td,
        draw(st.sampled_from([(1, *td.batch_size), torch.uint8])),
    ),
    "flatten": just(tdfunc.flatten),
    "unflatten": lambda draw, td: (tdfunc.unflatten, td, dim_of(draw, td), (1, -1)),
    **{
        name: lambda draw, td, name=name: (
            getattr(tdfunc, name),
            td,
            dim_of(draw, td),
            dim_of(draw, td),
        )
        for name in ("movedim", "moveaxis", "swapaxes", "swapdims")
    },
    "narrow": lambda draw, td: (tdfunc.narrow, td, dim_of(draw, td), 0, 1),
    "broadcast_to": lambda _, td: (tdfunc.broadcast_to, td, (2, *td.batch_size)),
    "expand_as": lambda _, td: (tdfunc.expand_as, td, td[None]),
    "atleast_1d": just(tdfunc.atleast_1d),
    "atleast_2d": just(tdfunc.atleast_2d),
    "atleast_3d": just(tdfunc.atleast_3d),
    # _ops.pieces
    "split": lambda draw, td: (tdfunc.split, td, 2, dim_of(draw, td)),
    "chunk": lambda draw, td: (tdfunc.chunk, td, 2, dim_of(draw, td)),
    "tensor_split": lambda draw, td: (
        tdfunc.tensor_split,
        td,
        draw(st.sampled_from([2, [1], [2, 1]])),
        dim_of(draw, td),
    ),
    "repeat": lambda _, td: (tdfunc.repeat, td, [2] * td.batch_dims),
    "tile": just(tdfunc.tile, 2),
    "repeat_interleave": lambda draw, td: (
        tdfunc.repeat_interleave,
        td,
        draw(st.sampled_from([2, torch.tensor(2)])),
        dim_of(draw, td),
    ),
    "roll": lambda draw, td: (
        tdfunc.roll,
        td,
        1,
        draw(st.sampled_from([None, *range(td.batch_dims)])),
    ),
    "flip": lambda draw, td: (tdfunc.flip, td, dim_of(draw, td)),
    "flipud": just(tdfunc.flipud),
    "fliplr": just(tdfunc.fliplr),
    "rot90": lambda draw, td: (tdfunc.rot90, td, draw(st.integers(-1, 3))),
    "pad": lambda _, td: (tdfunc.pad, td, [1, 2] * td.batch_dims),
    "gather": lambda draw, td: (
        tdfunc.gather,
        td,
        dim_of(draw, td),
        torch.zeros(td.batch_size, dtype=torch.int64),
    ),
    "index_select": lambda draw, td: (
        tdfunc.index_select,
        td,
        dim_of(draw, td),
        torch.tensor([0, 0]),
    ),
    "take": just(tdfunc.take, torch.tensor([[0], [-1]])),
    "masked_select": lambda draw, td: (tdfunc.masked_select, td, mask_for(draw, td)),
    "masked_fill": lambda draw, td: (tdfunc.masked_fill, td, mask_for(draw, td), 1),
    "where": lambda draw, td: (
        tdfunc.where,
        mask_for(draw, td),
        td,
        operand_for(draw, td),
    ),
    # _ops.index
    "at_index": lambda draw, td: (operator.getitem, td, draw(indices(td.batch_size))),
    "getitems": lambda _, td: (index.getitems, td, [0, -1]),
    # _ops.join
    "stack": lambda draw, td: (tdfunc.stack, [td, td], dim_of(draw, td, 1)),
    "cat": lambda draw, td: (tdfunc.cat, [td, td], dim_of(draw, td)),
    # _ops.lazy
    "lazy_stack": lambda draw, td: (
        lambda tds, dim: tdfunc.lazy_stack(tds, dim) * 2,
        [td, td],
        dim_of(draw, td, 1),
    ),
    "maybe_dense_stack": lambda draw, td: (
        tdfunc.maybe_dense_stack,
        [td, td[None][0] * 1.0],
        dim_of(draw, td, 1),
    ),
    "to_lazystack": lambda draw, td: (tdfunc.to_lazystack, td, dim_of(draw, td)),
    "densify": lambda _, td: (tdfunc.densify, tdfunc.lazy_stack([td, td])),
    # _ops.pack
    "pack": lambda draw, td: (
        lambda td, dim: (flat := tdfunc.pack(td, dim))[1].unpack(flat[0]),
        uniform(td),
        dim_of(draw, td, 1),
    ),
    "ravel": just(lambda td: (flat := tdfunc.ravel(td))[1](flat[0])),
    # _ops.create
    **{
        name: just(getattr(tdfunc, name))
        for name in ("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like")
    },
    "full_like": just(tdfunc.full_like, 3),
    "new_zeros": just(tdfunc.new_zeros, 2),
    "new_ones": just(tdfunc.new_ones, 2, 1),
    "new_empty": just(tdfunc.new_empty, []),
    "new_full": just(tdfunc.new_full, [2], 3),
    "from_schema": lambda _, td: (
        lambda td: tdfunc.from_schema(
            {key: (td[key].shape, td[key].dtype) for key in td.keys(True, True)}
        ),
        td,
    ),
    "fromkeys": lambda _, td: (lambda td: tdfunc.fromkeys(["a", "b"], td), td),
    # _ops.from_python
    "from_any": just(lambda td: tdfunc.from_any({"a": (td, [td])})),
    "from_dataclass": just(lambda td: tdfunc.from_dataclass(Holder(td))),
    "from_list": just(lambda td: tdfunc.from_list([td, td])),
    "from_namedtuple": just(lambda td: tdfunc.from_namedtuple(td.to_namedtuple())),
    "from_tuple": just(lambda td: tdfunc.from_tuple((td, td))),
    "to_namedtuple": just(tdfunc.to_namedtuple),
    "to_tensordict": just(tdfunc.to_tensordict),
    # _ops.pytrees
    "from_pytree": just(lambda td: tdfunc.from_pytree([td, {1: td}])[0]),
    "to_pytree": just(lambda td: tdfunc.to_pytree(*tdfunc.from_pytree(td.to_dict()))),
    # _ops.arrays
    "to_numpy": just(tdfunc.to_numpy),
    "from_numpy": just(lambda td: tdfunc.from_numpy(td.detach().to_numpy())),
    "to_struct_array": just(tdfunc.to_struct_array),
    "from_struct_array": just(
        lambda td: tdfunc.from_struct_array(td.detach().to_struct_array())
    ),
    "to_dlpack": just(tdfunc.to_dlpack),
    "from_dlpack": just(lambda td: tdfunc.from_dlpack(td.detach().to_dlpack())),
    # _ops.state
    "state_dict": lambda draw, td: (
        lambda td, flag: tdfunc.state_dict(td, flatten=flag),
        td,
        draw(st.booleans()),
    ),
    "load_state_dict": lambda draw, td: (
        lambda td, state, cast: tdfunc.load_state_dict(td, state, cast=cast),
        td,
        td.to(torch.complex128).state_dict(flatten=False),
        draw(st.sampled_from(["keep", "source"])),
    ),
    # _ops.reduce
    "sum": lambda draw, td: (tdfunc.sum, td, draw(st.sampled_from([None, "feature"]))),
    "mean": lambda _, td: (
        lambda td: tdfunc.mean(td, "feature", dtype=torch.complex64),
        td,
    ),
    **{
        name: lambda draw, td, name=name: (
            getattr(tdfunc, name),
            td,
            *(
                (0.5,)
                if name.endswith("quantile")
                else (1,)
                if name == "kthvalue"
                else (2,)
                if name == "norm"
                else ()
            ),
            draw(st.sampled_from([None, "feature", 0])),
        )
        for name in (
            *("amax", "amin", "argmax", "argmin", "max", "median", "min", "prod"),
            *("logsumexp", "nanmean", "nansum", "norm", "quantile"),
            *("count_nonzero", "nanmedian", "nanquantile", "kthvalue", "mode"),
            "aminmax",
        )
    },
    "any": just(tdfunc.any),
    "all": lambda draw, td: (tdfunc.all, td, dim_of(draw, td)),
    "var": just(lambda td: tdfunc.var(td, "feature", correction=0)),
    "std": just(lambda td: tdfunc.std(td, "feature", correction=0)),
    "var_mean": just(lambda td: tdfunc.var_mean(td, "feature", correction=0)),
    "std_mean": just(lambda td: tdfunc.std_mean(td, "feature", correction=0)),
    # _ops.order
    **{
        name: lambda draw, td, name=name: (
            getattr(tdfunc, name),
            td,
            *((1,) if name == "topk" else ()),
            dim_of(draw, td),
        )
        for name in order.__all__
    },
    # _ops.unary
    **{name: just(getattr(tdfunc, name)) for name in unary.__all__},
    # _ops.logic
    **{
        name: binary(getattr(tdfunc, name))
        for name in (
            *("allclose", "atan2", "clamp", "clamp_max", "clamp_min", "fmod"),
            *("bitwise_and", "bitwise_or", "bitwise_xor", "isclose"),
            *("bitwise_left_shift", "bitwise_right_shift"),
            *("logical_and", "logical_or", "logical_xor", "maximum", "minimum"),
            *(n for n in special.__all__ if n not in {"isin", "mvlgamma", "polygamma"}),
        )
    },
    **{
        name: lambda draw, td, name=name: (
            getattr(tdfunc, name),
            td,
            operand_for(draw, td),
            operand_for(draw, td),
        )
        for name in ("addcdiv", "addcmul", "lerp")
    },
    # _ops.special
    "isin": just(lambda td: tdfunc.isin(td, torch.tensor([0.0, 1.0]))),
    "polygamma": just(lambda td: tdfunc.polygamma(td, 1)),
    "mvlgamma": just(lambda td: tdfunc.mvlgamma(td, 2)),
    # _ops.pointwise
    **{
        name: binary(getattr(tdfunc, name))
        for name in (
            *("add", "sub", "mul", "div", "floor_divide", "remainder", "pow"),
            *("rsub", "eq", "ne", "lt", "le", "gt", "ge"),
        )
    },
    "neg": just(tdfunc.neg),
    "abs": just(tdfunc.abs),
    "equal": lambda _, td: (tdfunc.equal, td, tdfunc.clone(td)),
    # func
    "in_dims": lambda draw, td: (tdfunc.in_dims, td, dim_of(draw, td)),
    "dynamic_shapes": lambda draw, td: (
        tdfunc.dynamic_shapes,
        td,
        {dim_of(draw, td): "B"},
    ),
    "partition": lambda draw, td: (tdfunc.partition, td, split(draw)),
    "combine": lambda draw, td: (
        tdfunc.combine,
        *tdfunc.partition(td, split(draw)),
    ),
    # _ops.training
    "global_norm": just(tdfunc.global_norm),
    "tree_dot": lambda _, td: (tdfunc.tree_dot, td, td),
    "cosine_similarity": lambda _, td: (tdfunc.cosine_similarity, td, td),
    "polyak": lambda _, td: (tdfunc.polyak, td, td, 0.5),
    "check_finite": just(tdfunc.check_finite),
    "tree_where": lambda draw, td: (tdfunc.tree_where, mask_for(draw, td), td, td),
    # Transforms, of functions whose value depends on what can have a derivative.
    "vmap": lambda draw, td: (
        tdfunc.vmap(lambda t: t + t, dim_of(draw, td[None]), chunk_size=draw(CHUNKS)),
        td[None],
    ),
    "grad": just(tdfunc.grad(squares)),
    "grad_and_value": just(tdfunc.grad_and_value(squares)),
    "vjp": just(lambda td: tdfunc.vjp(squares, td)[1](torch.ones(()))),
    "jvp": just(lambda td: tdfunc.jvp(squares, (td,), (td,))),
    "linearize": just(lambda td: tdfunc.linearize(squares, td)[1](td)),
    "jacrev": just(tdfunc.jacrev(lambda t: (squares(t), t))),
    "jacfwd": just(tdfunc.jacfwd(lambda t: (squares(t), t))),
    "hessian": just(tdfunc.hessian(squares)),
    "scan": just(lambda td: tdfunc.scan(lambda c, x: (c + 1, x), torch.zeros(()), td)),
    "while_loop": just(
        lambda td: tdfunc.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1]), (torch.tensor(0), td)
        )
    ),
    "cond": just(
        lambda td: tdfunc.cond(torch.tensor(True), lambda t: t + t, lambda t: t, (td,))
    ),
    "associative_scan": just(
        lambda td: tdfunc.associative_scan(lambda a, b: a + b, td[None])
    ),
    "checkpoint": just(tdfunc.grad(tdfunc.checkpoint(squares))),
    "stop_gradient": just(tdfunc.stop_gradient),
}


# What reads a tree, or sends it somewhere, and is listed nowhere.
def in_folder(
    call: Callable[[TensorDict, Path], Any],
) -> Callable[[Draw, TensorDict], Call]:
    """Return a line for what writes to a path."""

    def run(td: TensorDict) -> Any:
        with TemporaryDirectory() as folder:
            return call(td, Path(folder) / "td")

    return just(run)


def built(td: Any, path: Path) -> Any:
    """Write a tree through a builder, with one more dim."""
    builder = tdfunc.memmap_like(td, path, batch_size=[2, *td.batch_size])
    builder.write(1, td)
    return builder.finish(partial=True)


def appended(td: Any, path: Path) -> None:
    """Append a tree to its own file."""
    rows = td[None]
    rows.save(path)
    tdfunc.append_memmap(path, rows)


OTHERS: dict[str, Callable[[Draw, TensorDict], Call]] = {
    # io._files
    "save": in_folder(TensorDict.save),
    "save_async": in_folder(lambda td, path: td.save_async(path).result()),
    "memmap": in_folder(TensorDict.memmap),
    "memmap_like": in_folder(built),
    "append_memmap": in_folder(appended),
    "save_safetensors": in_folder(tdfunc.save_safetensors),
    "load": in_folder(lambda td, path: td.save(path) or tdfunc.load(path)),
    "random.normal_like": lambda draw, td: (random.normal_like, key_for(draw), td),
    "random.uniform_like": lambda draw, td: (random.uniform_like, key_for(draw), td),
    "random.permutation": lambda draw, td: (
        random.permutation,
        key_for(draw),
        td,
        dim_of(draw, td),
    ),
    "random.choice": lambda draw, td: (random.choice, key_for(draw), td, [2]),
    **{name: step_of(make) for name, make in OPTIMIZERS.items()},
    "apply_updates": lambda _, td: (tdfunc.optim.apply_updates, td, td),
    "nn.ProbabilisticTensorDictModule": lambda draw, td: (
        nn.ProbabilisticTensorDictModule({"param": leaf_in(draw, td)}, ["drawn"]),
        None,
        td,
    ),
    "read": lambda draw, td: (operator.getitem, td, path_in(draw, td)),
    "get": lambda draw, td: (TensorDict.get, td, draw(keys())),
    "contains": lambda draw, td: (operator.contains, td, draw(keys())),
    "items": lambda _, td: (TensorDict.items, td, True),
    "repr": just(repr),
    "tree string": just(TensorDict.to_tree_string),
    "html": just(TensorDict._repr_html_),
    "construct": just(TensorDict),
    "construct from a mapping": lambda draw, td: (
        TensorDict,
        entries_for(draw, td),
        td.batch_size,
    ),
    "pickle": lambda draw, td: (pickle.dumps, td, draw(st.integers(2, 5))),
    "copy": just(copy.copy),
    "deepcopy": just(copy.deepcopy),
    "tree_map": lambda _, td: (torch_pytree.tree_map, lambda x: x[None], td),
    "optree.tree_map": lambda _, td: (optree.tree_map, lambda x: x[None], td),
    "torch.stack": lambda _, td: (torch.stack, [td, td]),
    "iadd": lambda draw, td: (operator.iadd, td, operand_for(draw, td)),
    "imul": lambda draw, td: (operator.imul, td, operand_for(draw, td)),
    **{
        name: lambda _, td, name=name: (getattr(torch.nn.functional, name), td, td + 1)
        for name in losses.__all__
    },
    "autograd.grad": just(
        lambda td: autograd.grad([(td * 1.5).sum()], [td], materialize_grads=True)
    ),
    "radd": lambda _, td: (operator.add, torch.ones(td.batch_size), td),
    "torch.vmap": lambda _, td: (
        torch.vmap(lambda t: t + t),
        td
        if td.batch_dims and td.batch_size[0]
        else td[None].expand(2, *td.batch_size),
    ),
}


def operations() -> Iterator[str]:
    """Yield what the operation modules list as theirs."""
    modules = (arrays, convert, create, entries, from_python, index, join, leafwise)
    more = (lazy, logic, order, pack, pieces, pointwise, pytrees, reduce, restructure)
    others = (rows, casts, facts, fuse, naming, sequences, shape, special, state, unary)
    for module in (*modules, *more, *others, storage, training):
        yield from module.__all__
    yield from tdfunc.func.__all__


# These take a module, and have a test of their own below.
OF_MODULES = {"from_module", "from_modules", "functional_call", "to_module"}
# These return no tree and take none.
HELPERS = {
    *(
        "as_dim",
        "PackLayout",
        "PyTreeDef",
        "ValuesIndices",
        "MinMax",
        "children",
        "unfolded",
    ),
    *("norm_of", "with_size"),
}


def test_table_has_every_operation() -> None:
    assert {*operations()} - OF_MODULES - HELPERS == OPERATIONS.keys()


@st.composite
def inputs(draw: st.DrawFn) -> TensorDict:
    """Draw a tree; in some, what torch can differentiate takes part in autograd."""
    td = draw(tensordicts(max_leaves=3))
    if draw(st.booleans()):
        td = td.apply(
            lambda x: (
                x.detach().requires_grad_()
                if x.is_floating_point() or x.is_complex()
                else x
            )
        )
    return td


# torch's own: a variance of no element, what vmap has no rule for, complex halves.
@pytest.mark.filterwarnings(
    "ignore:var",
    "ignore:std",
    "ignore:ComplexHalf",
    "ignore:Casting complex",
)
@pytest.mark.parametrize("name", [*OPERATIONS, *OTHERS])
@given(td=inputs(), data=st.data())
def test_operation_is_pure(name: str, td: TensorDict, data: st.DataObject) -> None:
    """It may refuse, and must not change anything on the way to the error either."""
    function, *args = (OPERATIONS | OTHERS)[name](data.draw, td)

    try:
        result = assert_pure(function, *args)
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError):
        # Not every dtype can do everything; what must raise is tested elsewhere.
        return
    for tree in result if isinstance(result, (list, tuple)) else [result]:
        if isinstance(tree, TensorDict) and name != "in_dims":
            assert_valid(tree)


MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    "linear": lambda: torch.nn.Linear(3, 2),
    "batch norm": lambda: torch.nn.Sequential(
        torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU(inplace=True)
    ),
    "dropout": lambda: torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(3, 1)),
    "shared": lambda: torch.nn.Sequential(*[torch.nn.Linear(3, 3)] * 2),
    "eval": lambda: torch.nn.BatchNorm1d(3).eval(),
}


@pytest.mark.parametrize("name", MODULES)
@given(rows=st.integers(2, 4), shift=st.integers(0, 3))
def test_what_takes_a_module_leaves_it_alone(name: str, rows: int, shift: int) -> None:
    """Statistics of batch norm included, and so the given parameters and inputs."""
    module = MODULES[name]()
    x = torch.arange(rows * 3, dtype=torch.float32).reshape(rows, 3) + shift

    params = assert_pure(tdfunc.from_module, module)
    stacked = assert_pure(tdfunc.from_modules, module, module)

    assert_valid(params)
    assert_valid(stacked)
    assert_pure(tdfunc.func.functional_call, module, params, (x,))
    assert_pure(_call_in_block, module, params, x)
    weights = tdfunc.from_module(module, params_only=True)
    assert_pure(torch.func.grad(_loss), weights, module, x)


def _call_in_block(
    module: torch.nn.Module, params: TensorDict, x: torch.Tensor
) -> torch.Tensor:
    """What the block writes into buffers goes into the copies."""
    with params.clone().to_module(module):
        return module(x)


def _loss(
    weights: TensorDict, module: torch.nn.Module, x: torch.Tensor
) -> torch.Tensor:
    return tdfunc.func.functional_call(module, weights, (x,)).square().sum()


@given(tensordicts(max_leaves=3), st.data())
def test_results_share_what_did_not_change(td: TensorDict, data: st.DataObject) -> None:
    """Setting, dropping and selecting entries copies nothing."""
    key = data.draw(keys())
    leaves = {path: x for path, x, _ in m.leaves(m.read(td)) if path[0] != key}

    for found in (
        td.set(key, torch.zeros(td.batch_size)),
        td.exclude(key),
        td.select(*{*td.keys()} - {key}),
        td.update({key: torch.zeros(td.batch_size)}),
        td.with_names(None),
        td.with_batch_size(()),
        copy.copy(td),
    ):
        for path, x in leaves.items():
            assert found[path] is x


@given(tensordicts(max_leaves=3))
def test_writing_into_a_copy_shows_nowhere_else(td: TensorDict) -> None:
    others = (td.clone(), copy.deepcopy(td), pickle.loads(pickle.dumps(td)))

    assert_pure(lambda _: [*map(_overwrite, others)], td)


def _overwrite(td: TensorDict) -> None:
    for path in td.keys(True, True):
        td[path].fill_(0)
        td[path].fill_(1)
