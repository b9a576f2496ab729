"""All leaves in one tensor: columns in sorted order, and the tree back from them."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import OperandError, ShapeError, StructureError
from tests.cases import Case, Wider, cases, check, fingerprint, ramp, walk

Size = torch.Size


def uniform(case: Case) -> Case:
    """Return the case without statics, all leaves float64."""

    def bare(entries: Any) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, value in entries.items():
            if isinstance(value, Wider):
                kept[key] = Wider(bare(value.entries), value.batch)
            elif isinstance(value, dict):
                kept[key] = bare(value)
            elif isinstance(value, torch.Tensor):
                kept[key] = value.detach().to(torch.float64)
        return kept

    return Case(case.name, bare(case.entries), case.batch, case.names)


REAL = cases(lambda case: case.name != "mixed dtypes")


@pytest.mark.parametrize("dim", [0, -1])
@REAL
def test_pack_joins_flattened_leaves_in_sorted_order(case: Case, dim: int) -> None:
    case = uniform(case)
    nb = len(case.batch)
    td = case.tree
    before = fingerprint(case.leaves.values())

    flat, layout = td.pack(dim)

    columns = [
        x.reshape(*case.batch, math.prod(x.shape[nb:])) for x in case.leaves.values()
    ]
    if columns:
        expected = torch.cat(columns, -1).movedim(-1, dim)
        assert torch.equal(flat.nan_to_num(7), expected.nan_to_num(7))
        assert flat.is_contiguous()
    assert flat.shape.numel() == math.prod(case.batch) * layout.numel
    assert layout.keys == tuple([p[0] if len(p) == 1 else p for p in case.leaves])
    assert layout.shapes == tuple([x.shape[nb:] for x in case.leaves.values()])
    ends = [sum([c.shape[-1] for c in columns[:i]]) for i in range(len(columns))]
    assert layout.offsets == tuple(ends)
    assert layout.dim == (-1 if dim == -1 else -nb - 1)
    assert layout.cls is TensorDict
    assert fingerprint(case.leaves.values()) == before


@pytest.mark.parametrize("dim", [0, -1])
@REAL
def test_unpack_undoes_pack(case: Case, dim: int) -> None:
    case = uniform(case)
    flat, layout = case.tree.pack(dim)

    out = layout.unpack(flat)

    check(out, case.batch, case.leaves, {})
    assert out.keys(True) == case.tree.keys(True)
    for path, value in walk(case.entries):
        if isinstance(value, Wider):
            assert out[path].batch_size == Size(value.batch)
    for leaf in out.values(True, True):
        if leaf.numel():
            assert (
                leaf.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
            )


def test_pack_by_hand() -> None:
    td = TensorDict({"b": ramp(2), "a": {"x": 10 + ramp(2, 2)}}, 2)
    flat, layout = td.pack()
    assert flat.tolist() == [[10, 11, 0], [12, 13, 1]]
    assert repr(layout) == "PackLayout(a.x: [0:2] of [2], b: [2:3] of [], dim=-1)"
    assert layout.widths == (2, 1)
    assert tdfunc.pack is TensorDict.pack


def test_unpack_takes_other_batch_dims() -> None:
    td = TensorDict({"v": ramp(4, 3), "s": ramp(4)}, 4, names=["t"])
    flat, layout = td.pack()
    for other in (flat[1], flat[:0], flat.expand(2, 5, 4, 4), flat[[1, 1]]):
        out = layout.unpack(other)
        assert out.batch_size == other.shape[:-1]
        assert torch.equal(out["s"], other[..., 0])
        assert torch.equal(out["v"], other[..., 1:])
        assert out.names is None


def test_layouts_ignore_batch_size_and_order_and_see_all_else() -> None:
    td = TensorDict({"a": ramp(4, 3), "n": {"b": ramp(4)}}, 4)
    _, layout = td.pack()
    turned = TensorDict({"n": {"b": ramp(2, 2)}, "a": ramp(2, 2, 3)}, (2, 2))
    for same in (td[:2], td[0], turned):
        assert same.pack()[1] == layout
        assert hash(same.pack()[1]) == hash(layout)
    for other in (td.drop("a"), td.set("a", ramp(4, 4)), td.set("a", ramp(4, 3, 1))):
        assert other.pack()[1] != layout
    assert td.pack(0)[1] != layout
    assert layout != "layout"
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert copy.copy(layout) is copy.deepcopy(layout) is layout


def test_pack_follows_a_given_layout() -> None:
    td = TensorDict({"a": ramp(4, 3), "n": {"b": ramp(4)}}, 4)
    flat, layout = td.pack()
    turned = TensorDict({"n": {"b": td["n", "b"]}, "a": td["a"]}, 4)
    again, same = turned.pack(layout=layout)
    assert torch.equal(again, flat)
    assert same is layout


def test_pack_of_what_does_not_fit_the_layout_is_refused() -> None:
    td = TensorDict({"a": ramp(4, 3), "n": {"b": ramp(4)}}, 4)
    _, layout = td.pack()
    with pytest.raises(StructureError) as caught:
        td.drop("a").set("c", ramp(4)).pack(layout=layout)
    text = str(caught.value)
    assert "does not have the entries of the layout" in text
    assert "td['a'] is missing" in text
    assert "td['c'] is extra" in text
    assert isinstance(caught.value, KeyError)
    with pytest.raises(ShapeError, match=r"another shape .* at td\['a'\]") as caught:
        td.set("a", ramp(4, 2)).pack(layout=layout)
    assert "expected [3] behind the batch dims - got [2]" in str(caught.value)
    with pytest.raises(ShapeError, match=r"expected dim=-1 - got dim=-2"):
        td.pack(0, layout=layout)


def test_pack_names_the_leaf_of_another_dtype_or_device() -> None:
    td = TensorDict({"a": ramp(2), "n": {"b": ramp(2).double()}}, 2)
    with pytest.raises(OperandError) as caught:
        td.pack()
    text = str(caught.value)
    assert "leaves of several dtypes can not be one tensor - at td['n', 'b']" in text
    assert "expected torch.float32, the dtype of td['a'] - got torch.float64" in text
    assert "td.to(torch.float32)" in text
    assert isinstance(caught.value, TypeError)
    moved = td.set(("n", "b"), ramp(2).to("meta"))
    for fn in (tdfunc.pack, tdfunc.ravel):
        with pytest.raises(OperandError, match=r"several devices .* got meta"):
            fn(moved)


def test_pack_names_every_static() -> None:
    td = TensorDict({"a": ramp(2), "s": "x", "n": {"t": None}}, 2)
    with pytest.raises(OperandError) as caught:
        td.pack()
    text = str(caught.value)
    assert "values that are not tensors can not be packed" in text
    assert "such values at td['n', 't'], td['s']" in text
    assert "td.exclude(('n', 't'), ('s',)).pack()" in text
    flat, _ = td.exclude(("n", "t"), ("s",)).pack()
    assert flat.shape == (2, 1)


@pytest.mark.parametrize("dim", [3, -4, "t", 1.0], ids=repr)
def test_pack_at_no_dim_is_refused(dim: Any) -> None:
    with pytest.raises(ShapeError):
        TensorDict({"a": ramp(2, 3)}, (2, 3)).pack(dim)


@pytest.mark.parametrize("shape", [(2, 4), (), (0,), (3, 2)], ids=str)
def test_unpack_of_another_width_is_refused(shape: tuple[int, ...]) -> None:
    _, layout = TensorDict({"a": ramp(2, 3)}, 2).pack()
    with pytest.raises(ShapeError, match="size 3 at dim -1") as caught:
        layout.unpack(torch.zeros(shape))
    assert f"got shape {list(shape)}" in str(caught.value)
    with pytest.raises(OperandError, match="only a tensor can be unpacked"):
        layout.unpack([1.0])  # pyright: ignore[reportArgumentType]


def test_pack_and_unpack_are_differentiable_and_map() -> None:
    td = TensorDict({"a": ramp(3, 2), "n": {"b": ramp(3)}}, 3)
    weights = 1 + ramp(3, 3)

    def loss(td: TensorDict) -> torch.Tensor:
        flat, layout = td.pack()
        return (layout.unpack(flat * weights)).pack()[0].square().sum()

    grads = torch.func.grad(loss)(td)
    check(
        grads,
        (3,),
        {
            ("a",): 2 * td["a"] * weights[:, :2].square(),
            ("n", "b"): 2 * td["n", "b"] * weights[:, 2].square(),
        },
    )
    flat, layout = td.pack()
    assert torch.equal(torch.vmap(lambda t: t.pack()[0])(td), flat)
    assert torch.equal(torch.vmap(lambda t: t.pack(0)[0], out_dims=1)(td), flat.T)
    assert torch.vmap(layout.unpack)(flat).equal(td)


def test_pack_compiles_once_for_all_batch_sizes() -> None:
    count = 0

    def counted(graph: Any, _: Any) -> Any:
        nonlocal count
        count += 1
        return graph.forward

    @torch.compile(fullgraph=True, backend=counted)
    def double(td: TensorDict) -> tuple[TensorDict, torch.Tensor, Any]:
        flat, layout = td.pack()
        return layout.unpack(flat * 2), flat, layout

    for rows in (3, 4, 5, 6):
        td = TensorDict({"a": ramp(rows, 3), "n": {"b": ramp(rows)}}, rows)
        out, flat, layout = double(td)
        assert out.equal(td * 2)
        assert torch.equal(flat, td.pack()[0])
        assert layout == td.pack()[1]
    assert count == 2


@cases()
@pytest.mark.filterwarnings("error")
def test_unravel_undoes_ravel(case: Case) -> None:
    td = case.tree
    flat, unravel = tdfunc.ravel(td)
    assert flat.shape == (sum([x.numel() for x in case.leaves.values()]),)
    out = unravel(flat)
    check(out, case.batch, case.leaves, case.statics)
    assert out.names == case.names
    assert out.keys(True) == td.keys(True)
    assert out._schema is td._schema


def test_ravel_by_hand() -> None:
    td = TensorDict({"b": torch.tensor([True]), "a": {"x": ramp(2, 2)}, "c": 7})
    flat, unravel = tdfunc.ravel(td)
    assert flat.dtype == torch.float32
    assert flat.tolist() == [0, 1, 2, 3, 1, 7]
    out = unravel(flat + 1)
    assert out["a", "x"].tolist() == [[1, 2], [3, 4]]
    assert (out["b"].dtype, out["c"].dtype) == (torch.bool, torch.int64)
    assert out["c"] == 8
    again = pickle.loads(pickle.dumps(unravel))
    assert again(flat).equal(td)
    assert tdfunc.ravel is TensorDict.ravel


@pytest.mark.parametrize("shape", [(3,), (1, 4), ()], ids=str)
def test_unravel_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    _, unravel = tdfunc.ravel(TensorDict({"a": ramp(4)}))
    with pytest.raises(ShapeError, match=r"expected shape \[4\]") as caught:
        unravel(torch.zeros(shape))
    assert f"got shape {list(shape)}" in str(caught.value)
    with pytest.raises(OperandError, match="only a tensor can be unraveled"):
        unravel([1.0])  # pyright: ignore[reportArgumentType]


def test_ravel_is_differentiable_maps_and_compiles() -> None:
    td = TensorDict({"w": ramp(2, 3), "n": {"b": 1 + ramp(2)}, "i": torch.tensor(3)})
    flat, unravel = tdfunc.ravel(td)

    def loss(flat: torch.Tensor) -> torch.Tensor:
        tree = unravel(flat)
        return (tree["w"].square().sum() + tree["n", "b"].prod()) * tree["i"].detach()

    grad = torch.func.grad(loss)(flat)
    assert torch.equal(grad[-6:], 6 * td["w"].reshape(-1))
    assert torch.func.hessian(loss)(flat).shape == (9, 9)
    floats = td.drop("i")
    grads = torch.func.grad(lambda t: tdfunc.ravel(t)[0].square().sum())(floats)
    assert grads.equal(floats * 2)
    rows = torch.stack([flat, flat * 2])
    trees = torch.vmap(unravel)(rows)
    assert trees.batch_size == (2,)
    assert trees[1].equal(unravel(flat * 2))
    batched = TensorDict({"a": ramp(3, 2), "b": ramp(3)}, 3)
    expected = torch.cat([batched["a"], batched["b"][:, None]], 1)
    assert torch.equal(torch.vmap(lambda t: t.ravel()[0])(batched), expected)

    @torch.compile(fullgraph=True, backend="eager")
    def double(td: TensorDict) -> TensorDict:
        flat, unravel = td.ravel()
        return unravel(flat * 2)

    assert double(td).equal(td * 2)
    assert double(td.set("s", "text"))["s"] == "text"


def test_pack_agrees_with_the_peer() -> None:
    peer = pytest.importorskip("tensordict").TensorDict
    data = {
        "b": ramp(2, 3),
        "a": {"x": ramp(2, 3, 4, 2), "0": ramp(2, 3, 1)},
        "A": ramp(2, 3, 5),
    }
    theirs = peer(data, batch_size=[2, 3])
    mine = TensorDict(data, (2, 3))
    for dim in (0, 1, 2, -1, -2, -3):
        flat, layout = mine.pack(dim)
        expected, known = theirs.pack(dim)
        assert torch.equal(flat, expected)
        assert flat.stride() == expected.stride()
        assert (layout.keys, layout.shapes) == (known.keys, known.shapes)
        assert (layout.offsets, layout.numel) == (known.offsets, known.numel)
        assert layout.dim == known.dim
