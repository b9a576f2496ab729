"""Records keep their class wherever they go: operations, transforms, processes."""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import multiprocessing
import pickle
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import optree
import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter
from torch.utils import _pytree as torch_pytree
from torch.utils.data import DataLoader, Dataset

import tdfunc
from tdfunc import TensorClass, TensorDict
from tdfunc.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


class In(TensorClass):
    x: torch.Tensor
    scale: float = 2.0


class Out(TensorClass):
    a: In
    y: torch.Tensor
    z: torch.Tensor | None = None
    name: str = "out"


class Checked(TensorClass):
    pos: torch.Tensor
    vel: torch.Tensor | None = None
    name: str = "x"

    def __post_init__(self) -> None:
        if self.pos.shape[-1] != 3:
            raise ValueError("three coordinates")


def out(rows: int = 4) -> Out:
    x = torch.arange(rows * 2.0).reshape(rows, 2)
    return Out(In(x, batch_size=rows), torch.arange(float(rows)), batch_size=rows)


def is_out(obj: Any) -> bool:
    return type(obj) is Out and type(obj.a) is In and obj.a.scale == 2.0


class TestOperations:
    @pytest.mark.parametrize(
        "operation",
        {
            "int": lambda o: o[0],
            "mask": lambda o: o[torch.tensor([True, False, True, False])],
            "none": lambda o: o[None],
            "arithmetic": lambda o: (o * 2 + o - 1) / 3,
            "tensor": lambda o: torch.ones(4) + o,
            "comparison": lambda o: o == o.clone(),
            "negative": lambda o: -o,
            "stack": lambda o: tdfunc.stack([o, o]),
            "cat": lambda o: tdfunc.cat([o, o]),
            "split": lambda o: o.split(2)[1],
            "chunk": lambda o: o.chunk(2)[0],
            "unbind": lambda o: o.unbind(0)[3],
            "iterate": lambda o: next(iter(o)),
            "gather": lambda o: o.gather(0, torch.tensor([0, 0])),
            "where": lambda o: tdfunc.where(torch.ones(4) > 0, o, 0),
            "expand": lambda o: o.expand(2, 4),
            "reshape": lambda o: o.reshape(2, 2),
            "permute": lambda o: o[None].permute(1, 0),
            "pad": lambda o: o.pad([1, 1]),
            "to": lambda o: o.to(torch.float64),
            "clone": lambda o: o.clone(),
            "apply": lambda o: o.apply(torch.sin),
            "mean": lambda o: o.mean(0),
            "sum": lambda o: o.sum(),
            "nested": lambda o: TensorDict({"o": o}, 4)["o"],
            "nested stack": lambda o: tdfunc.stack([TensorDict({"o": o}, 4)] * 2)["o"],
            "in_dims": lambda o: tdfunc.in_dims(o, 0),
            "partition": lambda o: tdfunc.combine(*tdfunc.partition(o, "floating")),
            "ravel": lambda o: (flat := tdfunc.ravel(o))[1](flat[0]),
        }.items(),
        ids=lambda item: item[0],
    )
    def test_keeps_the_class(self, operation: tuple[str, Callable[[Out], Any]]) -> None:
        """Cases B49 and B52."""
        assert is_out(operation[1](out()))

    @pytest.mark.parametrize(
        "function",
        {
            "stack": lambda o: torch.stack([o, o]),
            "cat": lambda o: torch.cat([o, o]),
            "zeros_like": torch.zeros_like,
            "ones_like": torch.ones_like,
            "full_like": lambda o: torch.full_like(o, 3.0),
            "unbind": lambda o: torch.unbind(o)[0],
            "split": lambda o: torch.split(o, 2)[0],
            "clone": torch.clone,
            "squeeze": torch.squeeze,
            "reshape": lambda o: torch.reshape(o, (2, 2)),
            "permute": lambda o: torch.permute(o, (0,)),
            "exp": torch.exp,
            "mul": lambda o: torch.mul(o, 2),
            "sum": torch.sum,
            "where": lambda o: torch.where(torch.ones(4) > 0, o, 0.0),
        }.items(),
        ids=lambda item: item[0],
    )
    def test_functions_of_torch_take_records(
        self, function: tuple[str, Callable[[Any], Any]]
    ) -> None:
        assert is_out(function[1](out()))

    def test_unbinding_gives_a_tuple_of_records(self) -> None:
        rows = out().unbind(0)

        assert type(rows) is tuple
        assert len(rows) == 4
        assert all(map(is_out, rows))

    def test_classes_do_not_mix(self) -> None:
        with pytest.raises(tdfunc.errors.StructureError, match="TensorDict"):
            tdfunc.cat([out(), out().to_tensordict()])
        with pytest.raises(tdfunc.errors.StructureError):
            out() + out().to_tensordict()

    def test_reading_shares_the_tensor(self) -> None:
        x = torch.ones(2)

        assert In(x).x is x
        assert Out(In(x), x).a.x is x


class TestPytrees:
    def test_maps_in_torch_and_optree(self) -> None:
        o = out()

        assert is_out(torch_pytree.tree_map(lambda x: x[0], o))
        tree: Any = o
        assert is_out(optree.tree_map(lambda x: x[0], tree))
        assert [(("a", "x"),), ("y",)] == optree.tree_paths(tree)
        assert torch_pytree.tree_map(lambda _: None, o).y is None

    def test_structures_differ_by_class_and_static(self) -> None:
        structure = torch_pytree.tree_structure

        assert structure(out()) == structure(out(7))
        assert structure(out()) != structure(out().to_tensordict())
        assert structure(out()) != structure(out().replace(name="b"))

    def test_dumped_structures_name_the_class(self) -> None:
        o = out()
        for tree in (o, TensorDict({"o": o}, 4)):
            spec = torch_pytree.tree_structure(tree)
            text = torch_pytree.treespec_dumps(spec)

            assert f"{__name__}.Out" in text
            assert torch_pytree.treespec_loads(text) == spec

    def test_local_classes_are_refused_by_name(self) -> None:
        class Local(TensorClass):
            x: torch.Tensor

        local = Local(torch.ones(2))
        assert type(torch_pytree.tree_map(lambda x: x + 1, local)) is Local
        with pytest.raises(NotImplementedError, match="Local"):
            torch_pytree.treespec_dumps(torch_pytree.tree_structure(local))
        with pytest.raises(OptionError, match="Local is local to a function"):
            torch_pytree.treespec_dumps(
                torch_pytree.tree_structure(TensorDict(o=local))
            )

    def test_unknown_names_are_never_imported(self) -> None:
        spec = torch_pytree.tree_structure(TensorDict({"o": out()}, 4))
        text = torch_pytree.treespec_dumps(spec).replace(f"{__name__}.Out", "os.path")

        with pytest.raises(OptionError, match=r"has not made.*os\.path"):
            torch_pytree.treespec_loads(text)

    def test_a_redefinition_takes_the_name_over(self) -> None:
        def define() -> Any:
            body = {"__annotations__": {"x": torch.Tensor}, "__module__": __name__}
            meta: Any = type(TensorClass)
            return meta("Again", (TensorClass,), body)

        old, new = define(), define()
        first, second = old(torch.ones(2)), new(torch.ones(2))

        for obj in (first, second):
            assert type(torch_pytree.tree_map(lambda x: x + 1, obj)) is type(obj)
            assert type(optree.tree_map(lambda x: x + 1, obj)) is type(obj)
            assert type(obj * 2) is type(obj)
        text = torch_pytree.treespec_dumps(torch_pytree.tree_structure(second))
        loaded = torch_pytree.treespec_loads(text)
        assert type(torch_pytree.tree_unflatten([torch.ones(2)], loaded)) is new

    def test_generic_aliases_register_nothing(self) -> None:
        class Box(TensorClass, Generic[T]):
            value: T

        # And the class itself is registered once, whatever is done with it.
        before = len(torch_pytree.SUPPORTED_NODES)
        assert Box in torch_pytree.SUPPORTED_NODES
        assert type(Box[int](value=3)) is Box
        assert before == len(torch_pytree.SUPPORTED_NODES)


class TestTransforms:
    def test_vmap_over_rows(self) -> None:
        o = out()
        seen: list[Any] = []

        def row(r: Out) -> Out:
            seen.append((type(r), type(r.a), r.batch_size))
            return r.replace(z=r.y * r.a.scale)

        mapped = torch.vmap(row)(o)
        assert is_out(mapped)
        assert [(Out, In, torch.Size([]))] == seen
        assert mapped.batch_size == (4,)
        assert torch.equal(mapped["z"], o.y * 2)

    def test_records_are_made_under_vmap(self) -> None:
        made = torch.vmap(lambda p: Checked(p, p * 2))(torch.ones(4, 3))

        assert type(made) is Checked
        assert made.batch_size == (4,)

    def test_the_gradient_of_a_record_is_a_record(self) -> None:
        grads = torch.func.grad(lambda o: (o.y**2).sum() + o.a.x.sum())(out())

        assert is_out(grads)
        assert torch.equal(grads.y, out().y * 2)
        assert torch.equal(grads.a.x, torch.ones(4, 2))

    def test_per_sample_gradients(self) -> None:
        grads = torch.vmap(torch.func.grad(lambda o: (o.y**2).sum() + o.a.x.sum()))(
            out()
        )

        assert is_out(grads)
        assert grads.batch_size == (4,)

    def test_jacrev_of_a_record(self) -> None:
        jacobian = torch.func.jacrev(lambda o: o * 3)(In(torch.ones(2)))

        assert type(jacobian) is In
        assert type(jacobian.x) is In
        assert torch.equal(jacobian.x.x, torch.eye(2) * 3)

    def test_compiled_functions_take_and_return_records(self) -> None:
        @torch.compile(fullgraph=True, backend="eager")
        def f(o: Out) -> tuple[Any, ...]:
            p = o.replace(z=o.y * o.a.scale)
            both: Any = [o, o]
            return p, p.a, torch.stack(both)[0], o + 1, o.z, o.name

        for rows in (4, 5):
            p, a, first, more, z, name = f(out(rows))
            assert is_out(p)
            assert is_out(first)
            assert is_out(more)
            assert type(a) is In
            assert z is None
            assert name == "out"
            assert torch.equal(p.z, out(rows).y * 2)

    def test_records_are_made_in_compiled_code(self) -> None:
        """`__post_init__` included."""

        @torch.compile(fullgraph=True, backend="eager")
        def f(x: torch.Tensor) -> tuple[Any, ...]:
            c = Checked(x, name="made", batch_size=[x.shape[0]])
            o = Out({"x": x}, x.sum(-1), batch_size=x.shape[:1])  # pyright: ignore[reportArgumentType]
            return c, o, c * 2, c.set("vel", c.pos), Checked.from_dict({"pos": x})

        for rows in (4, 6):
            c, o, twice, more, again = f(torch.ones(rows, 3))
            assert {Checked} == {type(r) for r in (c, twice, more, again)}
            assert is_out(o)
            assert o.batch_size == (rows,)
            assert c.name == "made"
            assert twice.pos[0, 0] == 2
            assert more.vel is more.pos or torch.equal(more.vel, more.pos)
        with pytest.raises(Exception, match="three coordinates"):
            f(torch.ones(4, 2))  # torch wraps what is raised while it traces

    @pytest.mark.parametrize(
        "operation",
        {
            "update": lambda o: o.update({"a": {"x": o.y * 2}, "name": "out"}),
            "update by a tree": lambda o: o.update(TensorDict({"z": o.y}, 4)),
            "select": lambda o: o.select("a", "y", "name"),
            "drop": lambda o: o.set("z", o.y).drop("z"),
            "set none": lambda o: o.set("z", None),
            "set a path": lambda o: o.set(("a", "x"), o.y),
            "replace": lambda o: o.replace(z=o.y, name="out"),
            "dataclasses.replace": lambda o: dataclasses.replace(o, z=o.y),
            "a tree and back": lambda o: Out.from_tensordict(o.to_tensordict()),
            "to_dict and back": lambda o: Out.from_dict(o.to_dict()),
            "partition": lambda o: tdfunc.combine(*tdfunc.partition(o, "floating")),
            "nested": lambda o: TensorDict({"o": o}, 4).set(("o", "y"), o.y)["o"],
            "rename": lambda o: o.rename_keys({}),
            "at": lambda o: o.at[0].set(1),
            "split": lambda o: o.split(2)[0],
            "device": lambda o: Out(o.a, o.y, device="cpu"),
            "grad": torch.func.grad(lambda o: (o.y**2).sum() + o.a.x.sum()),
        }.items(),
        ids=lambda item: item[0],
    )
    def test_operations_on_fields_compile(
        self, operation: tuple[str, Callable[[Out], Any]]
    ) -> None:
        expected = operation[1](out())
        got = torch.compile(operation[1], fullgraph=True, backend="eager")(out())

        assert is_out(got)
        assert got.equal(expected)

    def test_local_classes_compile(self) -> None:
        class Local(TensorClass):
            x: torch.Tensor

        @torch.compile(fullgraph=True, backend="eager")
        def f(x: torch.Tensor) -> Any:
            return Local(x) * 2

        assert type(f(torch.ones(2))) is Local
        assert f(torch.ones(2)).x[0] == 2

    def test_many_texts_are_one_compilation(self) -> None:
        torch._dynamo.reset()
        counter = CompileCounter()
        f = torch.compile(lambda c: c * 2, fullgraph=True, backend=counter)

        for i in range(5):
            assert f(Checked(torch.ones(3), name=f"text {i}")).name == f"text {i}"
        assert counter.frame_count == 1

    def test_export_saves_the_class(self) -> None:
        class Model(torch.nn.Module):
            def forward(self, c: Checked) -> Checked:
                return c * 2

        program = torch.export.export(Model(), (Checked(torch.ones(3)),))
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        result = torch.export.load(file).module()(Checked(torch.full((3,), 2.0)))

        assert type(result) is Checked
        assert result.pos[0] == 4


class Rows(Dataset[Out]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Out:
        return out()[index]


def _doubled(o: Out) -> Out:
    return o * 2


class TestProcessesAndFiles:
    @pytest.mark.parametrize("protocol", range(2, 6))
    def test_pickles(self, protocol: int) -> None:
        """Case B53."""
        o = out().with_names(["t"])
        back = pickle.loads(pickle.dumps(o, protocol))

        assert is_out(back)
        assert back.names == ("t",)
        assert torch.equal(back.a.x, o.a.x)
        assert back._schema is o._schema

    def test_copies(self) -> None:
        o = out()

        assert copy.copy(o) is o
        deep = copy.deepcopy(o)
        assert is_out(deep)
        assert deep.y.data_ptr() != o.y.data_ptr()
        assert is_out(dataclasses.replace(o, y=o.y + 1))

    @pytest.mark.parametrize("weights_only", [True, False])
    def test_torch_save_and_load(self, *, weights_only: bool) -> None:
        file = io.BytesIO()
        torch.save(out(), file)
        file.seek(0)

        assert is_out(torch.load(file, weights_only=weights_only))

    def test_classes_that_have_no_place_can_not_be_pickled(self) -> None:
        class Local(TensorClass):
            x: torch.Tensor

        with pytest.raises((AttributeError, pickle.PicklingError), match="Local"):
            pickle.dumps(Local(torch.ones(1)))

    def test_spawned_processes(self) -> None:
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            back = pool.apply(_doubled, (out(),))

        assert is_out(back)
        assert torch.equal(back.y, out().y * 2)

    def test_data_loader_with_workers(self) -> None:
        """Case B53."""
        loader = DataLoader(
            Rows(), batch_size=2, num_workers=2, collate_fn=tdfunc.stack
        )

        batches = [*loader]
        assert [(2,), (2,)] == [b.batch_size for b in batches]
        assert all(map(is_out, batches))


def test_classes_do_not_hold_what_is_around_them() -> None:
    """The local names are read at definition, to evaluate annotations, and let go."""

    class Big:
        pass

    def define() -> Any:
        big = Big()

        class Local(TensorClass):
            x: torch.Tensor

        assert big
        return Local

    kept = define()
    gc.collect()
    assert kept(torch.ones(1)).x == 1
    assert not [x for x in gc.get_objects() if type(x) is Big]
