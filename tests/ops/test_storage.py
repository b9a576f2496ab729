"""Trees in one piece of memory, against `clone`, and in shared memory."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tdfunc
from tdfunc import TensorDict, lazy_stack, unbatched
from tdfunc.errors import InvalidLeafError
from tests.cases import Case, cases, check, fingerprint, leaves_of, ramp, same

BOTH = [tdfunc.consolidate, tdfunc.share]
both = pytest.mark.parametrize("fn", BOTH)


def storages(tensors: Any) -> set[int]:
    return {x.untyped_storage().data_ptr() for x in tensors if x.numel()}


def jagged(*lengths: int) -> torch.Tensor:
    rows = [torch.arange(float(n)) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


class TestBoth:
    @both
    @cases()
    def test_values_structure_and_one_storage(self, fn: Any, case: Case) -> None:
        before = fingerprint(case.leaves.values())
        out = fn(case.tree)
        check(out, case.batch, case.leaves)
        assert out._schema is case.tree._schema
        assert out.names == case.names
        leaves = leaves_of(out).values()
        assert len(storages(leaves)) <= 1
        for x in leaves:
            assert x.is_contiguous()
            assert x.data_ptr() % 64 == 0 or not x.numel()
        assert fingerprint(case.leaves.values()) == before
        mine = {x.data_ptr() for x in case.leaves.values() if x.numel()}
        assert not mine & {x.data_ptr() for x in leaves if x.numel()}

    @both
    def test_the_storage_holds_nothing_else(self, fn: Any) -> None:
        td = TensorDict({"a": ramp(3), "b": ramp(100)[:17], "c": ramp(4, 4).t()})
        (x, *_) = fn(td).values()
        assert x.untyped_storage().nbytes() == 64 + 128 + 64

    @both
    def test_unbatched_tensors_codes_and_parts_of_jagged_tensors_are_in_it(
        self, fn: Any
    ) -> None:
        td = TensorDict(
            {
                "x": ramp(2, 3),
                "u": unbatched(ramp(5)),
                "text": ["a", "b"],
                "j": jagged(2, 3),
                "n": {"k": jagged(2, 3) * 2},
            },
            2,
        )
        td = td.set("l", td["j"] + 1)
        out = fn(td)
        parts = [out["x"], out["u"], *out._leaves]
        parts = [x for x in parts if not x.is_nested]
        for key in ["j", "l", ("n", "k")]:
            parts += [out[key].values(), out[key].offsets()]
        assert len(storages(parts)) == 1
        assert out["text"] == ["a", "b"]
        assert same(out["u"], ramp(5))
        # Rows that were of the same lengths by one tensor still are.
        assert (out["j"] + out["l"]).values().tolist() == [1, 3, 1, 3, 5]
        assert out["n", "k"].values().tolist() == [0, 2, 0, 2, 4]

    @both
    def test_jagged_tensors_with_holes(self, fn: Any) -> None:
        values, offsets = ramp(6), torch.tensor([0, 3, 6])
        lengths = torch.tensor([1, 2])
        nested = torch.nested.nested_tensor_from_jagged(values, offsets, lengths)
        out = fn(TensorDict({"j": nested}, 2))["j"]
        assert [x.tolist() for x in out.unbind()] == [[0], [3, 4]]

    @both
    def test_members_of_lazy_stacks_are_in_it(self, fn: Any) -> None:
        lazy = lazy_stack([TensorDict({"x": ramp(n)}) for n in (2, 3)])
        td = TensorDict({"n": lazy, "y": ramp(2)}, 2)
        out = fn(td)
        members = out["n"].unbind(0)
        assert [x["x"].tolist() for x in members] == [[0, 1], [0, 1, 2]]
        assert len(storages([x["x"] for x in members] + [out["y"]])) == 1
        assert [x["x"].tolist() for x in fn(lazy).unbind(0)] == [[0, 1], [0, 1, 2]]

    @both
    def test_ties_stay(self, fn: Any) -> None:
        x = ramp(3)
        out = fn(TensorDict({"a": x, "n": {"b": x}, "u": unbatched(x)}))
        assert out["a"] is out["n", "b"]
        assert out["a"] is out["u"]
        assert out["a"].untyped_storage().nbytes() == 64

    @both
    def test_leaves_are_no_views(self, fn: Any) -> None:
        out = fn(TensorDict({"a": ramp(3), "b": ramp(3)}))
        out["a"].add_(1)
        assert out["b"].tolist() == [0, 1, 2]
        assert out["b"]._version == fn(TensorDict({"b": ramp(3)}))["b"]._version
        assert not out["a"]._is_view()

    @both
    def test_empty_trees(self, fn: Any) -> None:
        for td in [
            TensorDict({}, 0),
            TensorDict({}, 4),
            TensorDict({"n": TensorDict({}, 4)}, 4),
            TensorDict({"s": "text"}),
            TensorDict({"x": torch.zeros(0, 3)}, 0),
        ]:
            out = fn(td)
            assert out.equal(td)
            assert pickle.loads(pickle.dumps(out)).equal(td)

    @both
    def test_lazy_bits_are_carried_out(self, fn: Any) -> None:
        z = torch.tensor([1 + 2j, 3 - 4j])
        out = fn(TensorDict({"z": z.conj(), "i": z.conj().imag}))
        assert not out["z"].is_conj()
        assert same(out["z"], z.conj().resolve_conj())
        assert out["i"].tolist() == [-2, 4]

    @both
    def test_it_pickles_leaf_by_leaf(self, fn: Any) -> None:
        out = fn(TensorDict({"a": ramp(3), "b": ramp(100_000), "i": ramp(3).long()}))
        assert len(pickle.dumps(out.select("a"))) < 1000
        file = io.BytesIO()
        torch.save(out, file)
        file.seek(0)
        assert torch.load(file, weights_only=True).equal(out)


class TestConsolidate:
    def test_gradients_flow(self) -> None:
        x = ramp(3).requires_grad_()
        td = TensorDict({"x": x, "y": ramp(2)})
        out = td.consolidate()
        assert not out["y"].requires_grad
        (out["x"] ** 2).sum().backward()
        assert x.grad is not None
        assert same(x.grad, 2 * ramp(3))

    def test_tensors_without_memory_are_cloned(self) -> None:
        sparse = torch.eye(2).to_sparse()
        td = TensorDict({"s": sparse, "m": torch.empty(2, device="meta"), "x": ramp(2)})
        out = td.consolidate()
        assert same(out["s"].to_dense(), torch.eye(2))
        assert out["m"].is_meta
        assert same(out["x"], ramp(2))
        with FakeTensorMode():
            fake = TensorDict({"x": torch.zeros(3)}).consolidate()
        assert fake["x"].shape == (3,)

    def test_inside_transforms_it_is_clone(self) -> None:
        td = TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2)}}, 2)
        out = tdfunc.vmap(lambda row: row.consolidate() + 1)(td)
        assert out.equal(td + 1)

        def loss(tree: TensorDict) -> torch.Tensor:
            one = tree.consolidate()
            return (one["x"] ** 2).sum() + one["n", "y"].sum()

        grads = tdfunc.grad(loss)(td)
        assert same(grads["x"], 2 * ramp(2, 3))
        assert same(grads["n", "y"], torch.ones(2))

    def test_compiled_it_is_clone(self) -> None:
        td = TensorDict({"x": ramp(2, 3), "s": "text"}, 2)

        @torch.compile(fullgraph=True, backend="eager")
        def fn(tree: TensorDict) -> TensorDict:
            return tree.consolidate() + 1

        assert fn(td).equal(td + 1)

    def test_records_keep_their_class(self) -> None:
        record = Point(x=ramp(2), y=ramp(2), batch_size=[2])
        out = record.consolidate()
        assert type(out) is Point
        assert len(storages([out.x, out.y])) == 1


class TestShare:
    def test_what_is_shared_is_returned(self) -> None:
        td = TensorDict({"x": ramp(3), "e": ramp(0), "u": unbatched(ramp(2))})
        out = td.share()
        assert out["x"].is_shared()
        assert out["u"].is_shared()
        assert out.share() is out
        assert out.set("y", ramp(2)).share()["y"].is_shared()

    def test_it_is_cut_from_autograd_and_keeps_the_mark(self) -> None:
        x = ramp(3).requires_grad_()
        out = TensorDict({"x": x, "y": x * 2, "z": ramp(2)}).share()
        assert out["x"].is_leaf
        assert out["y"].is_leaf
        assert [leaf.requires_grad for leaf in out.values()] == [True, True, False]

    @pytest.mark.parametrize(
        "leaf", [torch.eye(2).to_sparse(), torch.empty(2, device="meta")], ids=str
    )
    def test_what_has_no_memory_is_refused(self, leaf: torch.Tensor) -> None:
        with pytest.raises(InvalidLeafError) as error:
            TensorDict({"x": leaf}).share()
        assert "no memory" in str(error.value)
        assert "to_dense" in str(error.value)

    def test_transforms_are_refused(self) -> None:
        td = TensorDict({"x": ramp(2)}, 2)
        with pytest.raises(InvalidLeafError, match="outside transforms"):
            tdfunc.vmap(lambda row: row.share())(td)

    def test_the_mutable_name_tells_of_it(self) -> None:
        with pytest.raises(AttributeError, match=r"tdfunc\.share\(td\)"):
            TensorDict({"x": ramp(2)}).share_memory_()  # pyright: ignore[reportAttributeAccessIssue]


class Point(tdfunc.TensorClass):
    x: torch.Tensor
    y: torch.Tensor
