"""The rows of the benchmark: for each, three spellings of the same work.

The floor is what one would write by hand without any library: a loop over a flat
tuple of tensors, or plain dicts where keys matter. Targets are those of section 7 of
the design notes: how many times longer than the floor ours may take.
"""

from __future__ import annotations

import dataclasses
import pickle
import shutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

import optree
import torch
import torch._dynamo
from torch.nn import functional as F
from torch.utils import _pytree as torch_pytree

import tdfunc
from tdfunc import TensorClass, TensorDict, random
from tdfunc.nn import ProbabilisticTensorDictModule
from tests.bench.algebra import ROWS
from tests.bench.files import FILES
from tests.bench.modules import MODULES
from tests.bench.row import Case, Sides, on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bench.trees import Data


# Entries


def construct(d: Data) -> Sides:
    source, batch, size, theirs = d.nested, d.batch, list(d.batch), type(d.peer)

    def floor() -> dict[str, torch.Tensor]:
        new = dict(source)
        for leaf in new.values():
            if leaf.shape[: len(batch)] != batch:
                raise ValueError
        return new

    return Sides(
        floor,
        lambda: TensorDict(source, batch_size=size),
        lambda: theirs(source, batch_size=size),
    )


def construct_unsorted(d: Data) -> Sides:
    keys = sorted(d.nested, key=lambda key: key[::-1])
    nested = {key: d.nested[key] for key in keys}
    return construct(d._replace(nested=nested))


def construct_nested(d: Data) -> Sides:
    source, batch, size, theirs = d.nested, d.batch, list(d.batch), type(d.peer)

    def floor(node: Any = source) -> Any:
        new = {}
        for key, value in node.items():
            if isinstance(value, dict):
                new[key] = floor(value)
            elif value.shape[: len(batch)] != batch:
                raise ValueError
            else:
                new[key] = value
        return new

    return Sides(
        floor,
        lambda: TensorDict(source, batch_size=size),
        lambda: theirs(source, batch_size=size),
    )


def read(d: Data) -> Sides:
    nested, td, peer = d.nested, d.td, d.peer
    key = next(iter(nested))
    return Sides(lambda: nested[key], lambda: td[key], lambda: peer[key])


def read_path(d: Data) -> Sides:
    nested, td, peer = d.nested, d.td, d.peer
    return Sides(
        lambda: nested["a1"]["b1"]["c1"]["d1"],
        lambda: td["a1", "b1", "c1", "d1"],
        lambda: peer["a1", "b1", "c1", "d1"],
    )


def read_chain(d: Data) -> Sides:
    nested, td, peer = d.nested, d.td, d.peer
    return Sides(
        lambda: nested["a1"]["b1"]["c1"]["d1"],
        lambda: td["a1"]["b1"]["c1"]["d1"],
        lambda: peer["a1"]["b1"]["c1"]["d1"],
    )


def set_one(d: Data) -> Sides:
    nested, td, peer = d.nested, d.td, d.peer
    value = torch.zeros(3, 4)

    def floor() -> dict[str, torch.Tensor]:
        new = dict(nested)
        new["k001"] = value
        return new

    return Sides(
        floor,
        lambda: td.set("k001", value),
        lambda: peer.copy().set("k001", value),
    )


def set_new(d: Data) -> Sides:
    nested, td, peer = d.nested, d.td, d.peer
    value = torch.zeros(3, 4)

    def floor() -> dict[str, torch.Tensor]:
        new = dict(nested)
        new["new"] = value
        return new

    return Sides(
        floor,
        lambda: td.set("new", value),
        lambda: peer.copy().set("new", value),
    )


def set_path(d: Data) -> Sides:
    nested, td, peer = d.nested, d.td, d.peer
    value = torch.zeros(3, 4)
    path = ("a1", "b1", "c1", "d1")

    def floor() -> dict[str, Any]:
        new = node = dict(nested)
        for key in path[:-1]:
            node[key] = node = dict(node[key])
        node[path[-1]] = value
        return new

    return Sides(
        floor, lambda: td.set(path, value), lambda: peer.copy().set(path, value)
    )


def update_all(d: Data) -> Sides:
    nested, td, peer, batch = d.nested, d.td, d.peer, d.batch
    entries = {key: torch.zeros(3, 4) for key in nested}

    def floor() -> dict[str, torch.Tensor]:
        new = dict(nested)
        for key, leaf in entries.items():
            if leaf.shape[: len(batch)] != batch:
                raise ValueError
            new[key] = leaf
        return new

    return Sides(floor, lambda: td.update(entries), lambda: peer.copy().update(entries))


def select_half(d: Data) -> Sides:
    nested, td, peer = d.nested, d.td, d.peer
    half = list(nested)[::2]
    return Sides(
        lambda: {key: nested[key] for key in half},
        lambda: td.select(*half),
        lambda: peer.select(*half),
    )


def exclude_one(d: Data) -> Sides:
    nested, td, peer = d.nested, d.td, d.peer
    return Sides(
        lambda: {key: leaf for key, leaf in nested.items() if key != "k001"},
        lambda: td.exclude("k001"),
        lambda: peer.exclude("k001"),
    )


def all_keys(d: Data) -> Sides:
    nested, td, peer = d.nested, d.td, d.peer

    def walk(node: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[Any]:
        for key, value in node.items():
            if isinstance(value, dict):
                yield from walk(value, (*prefix, key))
            else:
                yield (*prefix, key)

    return Sides(
        lambda: list(walk(nested)),
        lambda: list(td.keys(True, True)),
        lambda: list(peer.keys(True, True)),
    )


# Every leaf


def times_two(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(lambda: torch._foreach_mul(flat, 2), lambda: td * 2, lambda: peer * 2)


def plus_tree(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(
        lambda: torch._foreach_add(flat, flat), lambda: td + td, lambda: peer + peer
    )


def apply_function(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    return Sides(
        lambda: tuple([double(x) for x in flat]),
        lambda: td.apply(double),
        lambda: peer.apply(double),
    )


def clone(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(
        lambda: tuple([x.clone() for x in flat]),
        td.clone,
        lambda: peer.clone(),  # noqa: PLW0108 - there may be no peer
    )


def detach(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(
        lambda: tuple([x.detach() for x in flat]),
        td.detach,
        lambda: peer.detach(),  # noqa: PLW0108
    )


def to_float64(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(
        lambda: tuple([x.to(torch.float64) for x in flat]),
        lambda: td.to(torch.float64),
        lambda: peer.to(torch.float64),
    )


def pickled(d: Data) -> Sides:
    nested, td, peer = d.nested, d.td, d.peer

    def round_trip(value: Any) -> Any:
        return pickle.loads(pickle.dumps(value, protocol=5))

    return Sides(
        lambda: round_trip(nested), lambda: round_trip(td), lambda: round_trip(peer)
    )


# Batch dims


def at(index: Any) -> Callable[[Data], Sides]:
    def build(d: Data) -> Sides:
        flat, td, peer = d.flat, d.td, d.peer
        return Sides(
            lambda: tuple([x[index] for x in flat]),
            lambda: td[index],
            lambda: peer[index],
        )

    return build


def unsqueeze(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(
        lambda: tuple([x.unsqueeze(0) for x in flat]),
        lambda: td.unsqueeze(0),
        lambda: peer.unsqueeze(0),
    )


def unbind(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(
        lambda: tuple(zip(*[x.unbind(0) for x in flat], strict=True)),
        lambda: td.unbind(0),
        lambda: peer.unbind(0),
    )


def permute(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(
        lambda: tuple([x.permute(2, 0, 1, 3) for x in flat]),
        lambda: td.permute(2, 0, 1),
        lambda: peer.permute(2, 0, 1),
    )


def transpose(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(
        lambda: tuple([x.transpose(0, 2) for x in flat]),
        lambda: td.transpose(0, 2),
        lambda: peer.transpose(0, 2),
    )


def reshape(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(
        lambda: tuple([x.reshape(3, 1, 4) for x in flat]),
        lambda: td.reshape(3, 1),
        lambda: peer.reshape(3, 1),
    )


def flatten(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(
        lambda: tuple([x.flatten(0, 2) for x in flat]),
        lambda: td.flatten(),  # noqa: PLW0108 - as the others are called
        lambda: peer.flatten(0, 2),
    )


def unflatten(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(
        lambda: tuple([x.unflatten(0, (1, 3)) for x in flat]),
        lambda: td.unflatten(0, (1, 3)),
        lambda: peer.unflatten(0, (1, 3)),
    )


def split(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(
        lambda: tuple(zip(*[x.split(2) for x in flat], strict=True)),
        lambda: td.split(2),
        lambda: peer.split(2),
    )


def gather(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    index = torch.tensor([2, 0])
    wide = index[:, None].expand(2, 4)
    return Sides(
        lambda: tuple([x.gather(0, wide) for x in flat]),
        lambda: td.gather(0, index),
        lambda: peer.gather(0, index),
    )


def repeat(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    return Sides(
        lambda: tuple([x.repeat(2, 1) for x in flat]),
        lambda: td.repeat(2),
        lambda: peer.repeat(2),
    )


def where(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    mask = MASK[:, None]
    return Sides(
        lambda: tuple([torch.where(mask, x, x) for x in flat]),
        lambda: td.where(MASK, td),
        lambda: peer.where(MASK, peer),
    )


def stack_ten(d: Data) -> Sides:
    flats, tds, peers = [d.flat] * 10, [d.td] * 10, [d.peer] * 10
    return Sides(
        lambda: tuple([torch.stack(row) for row in zip(*flats, strict=True)]),
        lambda: tdfunc.stack(tds),
        lambda: torch.stack(peers),
    )


def cat_ten(d: Data) -> Sides:
    flats, tds, peers = [d.flat] * 10, [d.td] * 10, [d.peer] * 10
    return Sides(
        lambda: tuple([torch.cat(row) for row in zip(*flats, strict=True)]),
        lambda: tdfunc.cat(tds),
        lambda: torch.cat(peers),
    )


# Pytrees and transforms


def torch_round_trip(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer

    def round_trip(tree: Any) -> Any:
        leaves, spec = torch_pytree.tree_flatten(tree)
        return torch_pytree.tree_unflatten(leaves, spec)

    return Sides(
        lambda: round_trip(flat), lambda: round_trip(td), lambda: round_trip(peer)
    )


def optree_round_trip(d: Data) -> Sides:
    flat, td = d.flat, d.td

    def round_trip(tree: Any) -> Any:
        leaves, spec = optree.tree_flatten(tree)
        return optree.tree_unflatten(spec, leaves)

    # The peer is no node of optree's.
    return Sides(lambda: round_trip(flat), lambda: round_trip(td), None)


def torch_tree_map(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer

    def double(tree: Any) -> Any:
        return torch_pytree.tree_map(lambda x: x * 2, tree)

    return Sides(lambda: double(flat), lambda: double(td), lambda: double(peer))


def optree_tree_map(d: Data) -> Sides:
    flat, td = d.flat, d.td

    def double(tree: Any) -> Any:
        return optree.tree_map(lambda x: x * 2, tree)

    return Sides(lambda: double(flat), lambda: double(td), None)


# Records


def record_class(d: Data) -> Any:
    """Return a record class with the keys of flat data as fields."""
    body = {"__annotations__": dict.fromkeys(d.nested, torch.Tensor)}
    meta: Any = type(TensorClass)
    return meta("Record", (TensorClass,), body)


def frozen_class(d: Data) -> Any:
    fields = [(key, torch.Tensor) for key in d.nested]
    return dataclasses.make_dataclass("Frozen", fields, frozen=True)


def peer_record(d: Data) -> Any:
    """Return the peer's record of the leaves, None without the peer."""
    if d.peer is None:
        return None
    fields = dict.fromkeys(d.nested, torch.Tensor)
    plain = type("PeerRecord", (), {"__annotations__": fields})
    return import_module("tensordict").tensorclass(plain)(
        **d.nested, batch_size=list(d.batch)
    )


def construct_record(d: Data) -> Sides:
    flat, size, theirs = d.flat, list(d.batch), type(peer_record(d))
    frozen, record = frozen_class(d), record_class(d)
    return Sides(
        lambda: frozen(*flat),
        lambda: record(*flat, batch_size=size),
        lambda: theirs(*flat, batch_size=size),
    )


def read_field(d: Data) -> Sides:
    frozen = frozen_class(d)(*d.flat)
    record = record_class(d)(*d.flat, batch_size=d.batch)
    peer = peer_record(d)
    return Sides(lambda: frozen.k002, lambda: record.k002, lambda: peer.k002)


def replace_field(d: Data) -> Sides:
    frozen = frozen_class(d)(*d.flat)
    record = record_class(d)(*d.flat, batch_size=d.batch)
    peer = peer_record(d)
    value = torch.zeros(3, 4)
    return Sides(
        lambda: dataclasses.replace(frozen, k002=value),
        lambda: record.replace(k002=value),
        lambda: peer.replace(k002=value),
    )


def record_times_two(d: Data) -> Sides:
    flat, peer = d.flat, peer_record(d)
    record = record_class(d)(*flat, batch_size=d.batch)
    multiply: Any = torch._foreach_mul
    return Sides(lambda: tuple(multiply(flat, 2)), lambda: record * 2, lambda: peer * 2)


def vmap(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    mapped_flat = torch.vmap(lambda t: tuple([x * 2 + 1 for x in t]))
    mapped = torch.vmap(lambda t: t * 2 + 1)
    return Sides(lambda: mapped_flat(flat), lambda: mapped(td), lambda: mapped(peer))


def identity(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    floor, ours = torch.vmap(lambda t: t), tdfunc.vmap(lambda t: t)
    return Sides(lambda: floor(flat), lambda: ours(td), lambda: floor(peer))


def own_vmap(d: Data) -> Sides:
    td, sides = d.td, vmap(d)
    mapped = tdfunc.vmap(lambda t: t * 2 + 1)
    return sides._replace(tdfunc=lambda: mapped(td))


def _flat_loss(p: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = F.linear(x, p[1], p[0]).relu()
    hidden = F.linear(hidden, p[3], p[2]).relu()
    return F.mse_loss(F.linear(hidden, p[5], p[4]), y)


def _loss(p: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = F.linear(x, p["0", "weight"], p["0", "bias"]).relu()
    hidden = F.linear(hidden, p["1", "weight"], p["1", "bias"]).relu()
    return F.mse_loss(F.linear(hidden, p["2", "weight"], p["2", "bias"]), y)


def _rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(count, 8, generator=generator)
    return x, torch.rand(count, 2, generator=generator)


def grad(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    rows = _rows(8)
    return Sides(
        lambda: torch.func.grad(_flat_loss)(flat, *rows),
        lambda: torch.func.grad(_loss)(td, *rows),
        lambda: torch.func.grad(_loss)(peer, *rows),
    )


def own_grad(d: Data) -> Sides:
    td, rows = d.td, _rows(8)
    return grad(d)._replace(tdfunc=lambda: tdfunc.grad(_loss)(td, *rows))


def per_sample(d: Data) -> Sides:
    flat, td, peer = d.flat, d.td, d.peer
    rows, dims = _rows(64), (None, 0, 0)
    floor = torch.vmap(torch.func.grad(_flat_loss), dims)
    ours = tdfunc.vmap(tdfunc.grad(_loss), dims)
    theirs = torch.vmap(torch.func.grad(_loss), dims)
    return Sides(
        lambda: floor(flat, *rows), lambda: ours(td, *rows), lambda: theirs(peer, *rows)
    )


def adam_floor(d: Data) -> Callable[[], Any]:
    """Return a step of Adam by hand, functional, with multi-tensor kernels."""
    params, zeros = d.flat, tuple([torch.zeros_like(x) for x in d.flat])
    rate, b1, b2, eps, count = 1e-3, 0.9, 0.999, 1e-8, 1

    def floor() -> Any:
        mean = torch._foreach_lerp(zeros, params, 1 - b1)
        square = torch._foreach_mul(zeros, b2)
        square = torch._foreach_addcmul(square, params, params, 1 - b2)
        root = torch._foreach_div(torch._foreach_sqrt(square), (1 - b2**count) ** 0.5)
        root = torch._foreach_add(root, eps)
        new = torch._foreach_addcdiv(params, mean, root, -rate / (1 - b1**count))
        return new, mean, square

    return floor


def adam_step(d: Data) -> Sides:
    td, tx = d.td, tdfunc.optim.adam()
    start = tx.init(td)

    def ours() -> Any:
        params, state = tdfunc.optim.step(tx, td, start, td)
        return params, state.mean, state.square

    return Sides(adam_floor(d), ours, None)


def adam_updates(d: Data) -> Sides:
    td, tx = d.td, tdfunc.optim.adam()
    start = tx.init(td)

    def ours() -> Any:
        updates, state = tx.update(td, start)
        params = tdfunc.optim.apply_updates(td, updates)
        return params, state.mean, state.square

    return Sides(adam_floor(d), ours, None)


def adam_flat(d: Data) -> Sides:
    td, tx = d.td, tdfunc.optim.flat(tdfunc.optim.adam())
    start = tx.init(td)
    floor = adam_floor(d)

    def ours() -> Any:
        updates, _ = tx.update(td, start)
        return tdfunc.optim.apply_updates(td, updates)

    return Sides(lambda: floor()[0], ours, None)


def adam_raveled(d: Data) -> Sides:
    tx = tdfunc.optim.adam()
    vector, _ = d.td.ravel()
    start = tx.init(vector)
    floor = adam_floor(d)
    # The first element of the parameters is what is compared: to put the results of
    # one side into the layout of the other would be timed too.

    def ours() -> Any:
        params, _ = tdfunc.optim.step(tx, vector, start, vector)
        return params[0]

    return Sides(lambda: floor()[0][0][0, 0], ours, None)


def compiled(backend: str) -> Callable[[Data], Sides]:
    def build(d: Data) -> Sides:
        nested, td, peer = d.nested, d.td, d.peer
        # Cases share code, and Dynamo counts compilations of one code.
        torch._dynamo.reset()

        def by_key(t: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {key: leaf * 2 + 1 for key, leaf in t.items()}

        def whole(t: TensorDict) -> TensorDict:
            return t * 2 + 1

        def whole_peer(t: Any) -> Any:
            return t * 2 + 1

        floor = torch.compile(by_key, backend=backend, fullgraph=True)
        ours = torch.compile(whole, backend=backend, fullgraph=True)
        theirs = torch.compile(whole_peer, backend=backend, fullgraph=True)
        return Sides(lambda: floor(nested), lambda: ours(td), lambda: theirs(peer))

    return build


# Draws differ, so what is compared is what they have in common: their shape.


def drawn(
    ours: Callable[[torch.Tensor], torch.Tensor], *shape: int, keys: int | None = None
) -> Callable[[Data], Sides]:
    def build(_: Data) -> Sides:
        key = random.key(0)
        full = shape if keys is None else (keys, *shape)
        many = key if keys is None else random.split(key, keys)
        return Sides(lambda: torch.randn(full).shape, lambda: ours(many).shape, None)

    return build


def drawn_tree(d: Data) -> Sides:
    flat, td = d.flat, d.td
    key = random.key(0)
    return Sides(
        lambda: [torch.randn_like(leaf).shape for leaf in flat],
        lambda: [x.shape for x in random.normal_like(key, td).values(True, True)],
        None,
    )


def compiler_installed() -> bool:
    """Return whether Inductor finds a C++ compiler."""
    return any([shutil.which(name) for name in ("g++", "clang++", "c++")])


# Modules. What is drawn differs here too.


def probabilistic(d: Data) -> Sides:
    loc, scale, key = torch.zeros(3, 4), torch.ones(3, 4), random.key(0)
    entries = {"loc": loc, "scale": scale}
    options: dict[str, Any] = {
        "in_keys": ["loc", "scale"],
        "out_keys": ["x"],
        "distribution_class": torch.distributions.Normal,
        "return_log_prob": True,
        "default_interaction_type": "random",
    }
    module = ProbabilisticTensorDictModule(**options)
    td = TensorDict(entries, batch_size=3)

    def floor() -> torch.Size:
        dist = torch.distributions.Normal(loc, scale)
        value = dist.rsample()
        return dist.log_prob(value).shape

    def ours() -> torch.Size:
        return module(None, td, key=key)["x_log_prob"].shape

    peer = None
    if d.peer is not None:
        theirs = import_module("tensordict.nn").ProbabilisticTensorDictModule(**options)
        tree = import_module("tensordict").TensorDict(entries, batch_size=[3])
        peer = lambda: theirs(tree)["x_log_prob"].shape  # noqa: E731 - beside the two others
    return Sides(floor, ours, peer)


EVERY = ("flat4", "flat32", "nest100")
FLAT = ("flat4", "flat32")
RECORD = ("flat4",)
WIDE = ("flat32",)
ONE = ("plain tensors",)
NESTED = ("nest100",)
THREE_DIMS = ("nest100 of 3 batch dims",)
MASK = torch.tensor([True, False, True])

CASES: tuple[Case, ...] = (
    *on(FLAT, "construct", construct, 1.8, 1.5),
    *on(WIDE, "construct, keys unsorted", construct_unsorted, 1.5),
    *on(NESTED, "construct", construct_nested),
    *on(FLAT, "read a key", read, 3, 3),
    *on(NESTED, "read a path", read_path),
    *on(NESTED, "read key after key", read_chain),
    *on(FLAT, "set a key", set_one, 4.5, 4.5),
    *on(FLAT, "set a new key", set_new),
    *on(NESTED, "set a path", set_path),
    *on(FLAT, "update all keys", update_all),
    *on(FLAT, "select half", select_half),
    *on(FLAT, "exclude one", exclude_one),
    *on(EVERY, "list all keys", all_keys),
    *on(RECORD, "construct a record", construct_record, 2.2),
    *on(RECORD, "read a field", read_field, 3),
    *on(RECORD, "replace a field", replace_field, 1),
    *on(FLAT, "record * 2", record_times_two, 1.1),
    *on(EVERY, "td * 2", times_two, 1.1),
    *on(EVERY, "td + td", plus_tree, 1.1),
    *on(EVERY, "apply", apply_function, 1.1),
    *on(EVERY, "td[0]", at(0), 1.1),
    *on(NESTED, "td[1:3]", at(slice(1, 3)), 1.1),
    *on(NESTED, "td[mask]", at(MASK)),
    *on(NESTED, "unsqueeze", unsqueeze, 1.1),
    *on(NESTED, "unbind", unbind, 1.1),
    *on(THREE_DIMS, "permute", permute, 1.2),
    *on(THREE_DIMS, "transpose", transpose),
    *on(NESTED, "reshape", reshape, 1.6),
    *on(THREE_DIMS, "flatten", flatten, 1.2),
    *on(NESTED, "unflatten", unflatten, 1.2),
    *on(NESTED, "split", split, 1.7),
    *on(NESTED, "gather", gather, 1.7),
    *on(NESTED, "repeat", repeat, 1.7),
    *on(NESTED, "where", where, 1.7),
    *ROWS,
    *on(EVERY, "stack 10", stack_ten, 1.1),
    *on(EVERY, "cat 10", cat_ten, 1.1),
    *on(EVERY, "clone", clone),
    *on(EVERY, "detach", detach),
    *on(EVERY, "to(float64)", to_float64),
    *on(WIDE, "pytree round trip, torch", torch_round_trip, 1.1),
    *on(WIDE, "pytree round trip, optree", optree_round_trip, 1.4),
    *on(WIDE, "tree_map, torch", torch_tree_map),
    *on(WIDE, "tree_map, optree", optree_tree_map),
    *on(FLAT, "torch.vmap", vmap),
    *on(("3 layers",), "torch.func.grad of an MLP loss", grad),
    *on(("flat32", "nest100"), "Adam step", adam_step, 0.4, 0.4),
    *on(("flat32", "nest100"), "Adam, update and apply", adam_updates),
    *on(("flat32", "nest100"), "Adam, moments flat", adam_flat),
    *on(("flat32", "nest100"), "Adam step, all in one vector", adam_raveled),
    *on(FLAT, "tdfunc.vmap", own_vmap, 0.6, 0.6),
    *on(FLAT, "tdfunc.vmap of nothing", identity),
    *on(("3 layers",), "tdfunc.grad of an MLP loss", own_grad, 0.75),
    *on(("3 layers",), "gradients of 64 rows", per_sample, 0.7),
    *on(FLAT, "compiled, eager backend", compiled("eager"), 1.05, 1.05),
    *(
        on(FLAT, "compiled, inductor", compiled("inductor"), 1.05, 1.05)
        if compiler_installed()
        else ()
    ),
    *on(("flat4", "nest100"), "pickle and back", pickled),
    *on(ONE, "random.normal of 10", drawn(lambda k: random.normal(k, 10), 10), 10),
    *on(
        ONE,
        "random.normal of 1e6",
        drawn(lambda k: random.normal(k, 10**6), 10**6),
        1.2,
    ),
    *on(
        ONE,
        "random.normal, vmap of 1e4 keys of 10",
        drawn(torch.vmap(lambda k: random.normal(k, 10)), 10, keys=10**4),
        10,
    ),
    *on(FLAT, "random.normal_like", drawn_tree),
    *MODULES,
    *FILES,
    *on(ONE, "probabilistic sample + log_prob", probabilistic, 0.9),
)
