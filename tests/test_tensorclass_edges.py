"""Records at the edges: what is given whole, hidden, mixed in, redefined or local."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from dataclasses import InitVar
from typing import Any, Generic, TypeVar

import pytest
import torch
from torch.utils import _pytree as torch_pytree

import tdfunc
from tdfunc import TensorClass, TensorDict, tensorclass
from tdfunc.errors import FieldError, InvalidLeafError, OptionError, StructureError

META: Any = type(TensorClass)
T = TypeVar("T")


class Leaf(TensorClass):
    pos: torch.Tensor
    vel: torch.Tensor | None = None
    name: str | None = None


class Other(TensorClass):
    pos: torch.Tensor


class Outer(TensorClass):
    leaf: Leaf


class Top(TensorClass):
    outer: Outer


class Base(TensorClass):
    a: torch.Tensor
    z: int = 1


class Plain(TensorClass):
    x: torch.Tensor


class Scaled(TensorClass):
    x: torch.Tensor
    scale: InitVar[float] = 2.0

    def __post_init__(self, scale: float) -> None:
        if scale != 2:
            raise ValueError(f"scale {scale}")


class Around(TensorClass):
    inner: Scaled


class Strict(TensorClass):
    x: torch.Tensor
    limit: InitVar[float]

    def __post_init__(self, limit: float) -> None:
        if self.x.max() > limit:
            raise ValueError(f"over {limit}")


class Held(TensorClass, Generic[T]):
    value: T


class Numbers(Held[int]):
    pass


@dataclasses.dataclass(frozen=True)
class Data:
    y: torch.Tensor
    unit: str = "m"


def old() -> Outer:
    leaf = Leaf(torch.zeros(5, 3), torch.ones(5), "old", batch_size=5)
    return Outer(leaf, batch_size=5)


WRITES: dict[str, Any] = {
    "set": lambda o, leaf: o.set("leaf", leaf),
    "replace": lambda o, leaf: o.replace(leaf=leaf),
    "replace of a mapping": lambda o, leaf: o.replace({"leaf": leaf}),
    "dataclasses.replace": lambda o, leaf: dataclasses.replace(o, leaf=leaf),
    "update": lambda o, leaf: o.update(leaf=leaf),
    "update with a mapping": lambda o, leaf: o.update({"leaf": leaf}),
    "update with a record": lambda o, leaf: o.update(Outer(leaf, batch_size=5)),
    "update with a tree": lambda o, leaf: o.update(
        TensorDict({"leaf": leaf}, batch_size=5)
    ),
    "update of some": lambda o, leaf: o.update({"leaf": leaf}, only=["leaf"]),
}


class TestWholeRecords:
    @pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
    def test_a_record_replaces_a_record_whole(self, write: Any) -> None:
        new = write(old(), Leaf(torch.ones(5, 3), batch_size=5))

        assert new.leaf.pos.unique().tolist() == [1.0]
        assert new.leaf.vel is None
        assert new.leaf.name is None

    @pytest.mark.parametrize("write", [*WRITES.values()][:6], ids=[*WRITES][:6])
    def test_a_record_of_another_class_is_refused(self, write: Any) -> None:
        with pytest.raises(InvalidLeafError, match=r"annotated Leaf.*got Other"):
            write(old(), Other(torch.ones(5), batch_size=5))

    def test_below_other_nodes_too(self) -> None:
        new = Leaf(torch.ones(5), batch_size=5)
        top = Top(old(), batch_size=5)
        td = TensorDict({"leaf": old().leaf}, batch_size=5)

        assert top.replace(outer={"leaf": new}).outer.leaf.vel is None
        assert top.update({"outer": {"leaf": new}}).outer.leaf.vel is None
        assert top.replace(outer=Outer(new, batch_size=5)).outer.leaf.vel is None
        assert td.replace(leaf=new)["leaf"].vel is None
        assert type(td.update(leaf=Other(torch.ones(5), batch_size=5))["leaf"]) is Other

    def test_mappings_trees_and_parts_are_merged(self) -> None:
        o = old()
        values, rest = tdfunc.partition(o, lambda path, _: path[-1] == "pos")

        for part in (
            {"leaf": {"pos": torch.ones(5)}},
            TensorDict({"leaf": {"pos": torch.ones(5)}}, batch_size=5),
        ):
            assert o.update(part).leaf.vel is o.leaf.vel
            assert o.replace(part).leaf.vel is o.leaf.vel
        assert tdfunc.combine(values, rest).leaf.vel is o.leaf.vel
        assert o.update(rest).leaf.pos is o.leaf.pos

    def test_compiled(self) -> None:
        @torch.compile(fullgraph=True, backend="eager")
        def step(o: Outer, pos: torch.Tensor) -> Outer:
            return o.replace(leaf=Leaf(pos, batch_size=5))

        assert step(old(), torch.ones(5)).leaf.vel is None

    def test_replace_names_the_fields(self) -> None:
        for write in (
            lambda: old().replace(leaf={"foo": 1}),
            lambda: TensorDict(o=old(), batch_size=5).replace(o={"leaf": {"foo": 1}}),
        ):
            with pytest.raises(FieldError, match="expected one of its fields pos, vel"):
                write()


class TestBatchSizes:
    def test_what_can_be_read_once_is_read_once(self) -> None:
        x = torch.ones(5, 3)

        for _ in range(2):
            assert Plain(x, batch_size=iter([5])).batch_size == (5,)  # pyright: ignore[reportArgumentType]
            for size in ([5], (5,), 5, torch.Size([5]), range(5, 6)):
                assert Plain(x, batch_size=size).batch_size == (5,)
        with pytest.raises(OptionError, match="is not a size"):
            Plain(x, batch_size=None)  # pyright: ignore[reportArgumentType]


class TestHiding:
    def test_an_attribute_of_the_class_hides_no_field(self) -> None:
        with pytest.raises(OptionError, match=r"attribute 'z' of Made.*Made\.z.*= 5"):
            META("Made", (Base,), {"z": 5})
        with pytest.raises(OptionError, match=r"method 'a' of Made hides.*Made\.a"):
            META("Made", (Base,), {"a": lambda self: self})
        with pytest.raises(OptionError, match=r"attribute 'a' of Made hides"):
            META("Made", (Base,), {"a": property(lambda self: self)}, shadow=True)

    def test_nor_one_that_is_mixed_in_before(self) -> None:
        class Mix:
            def a(self) -> int:
                return 3

        class Below(Base, Mix):
            pass

        with pytest.raises(
            OptionError, match=r"method 'a' of Mix hides the field Made\.a.*shadow=True"
        ):
            META("Made", (Mix, Base), {})
        made = META("Made", (Mix, Base), {}, shadow=True)
        assert made(torch.ones(1)).a.tolist() == [1.0]
        assert META("More", (made,), {})(torch.ones(1)).a.tolist() == [1.0]
        assert Below(torch.ones(1)).a.tolist() == [1.0]

    def test_annotated_again_it_is_another_default(self) -> None:
        class Five(Base):
            z: int = 5

        assert Five(torch.ones(1)).z == 5
        assert Five(torch.ones(1), z=9).z == 9

    def test_names_of_mixed_in_fields_are_checked(self) -> None:
        for name, options in (("sum", {}), ("keys", {"shadow": True})):
            data = dataclasses.make_dataclass("Data", [(name, torch.Tensor)])
            with pytest.raises(OptionError, match=rf"Made\.{name} would hide"):
                META("Made", (TensorClass, data), {}, **options)

    def test_a_hidden_constructor_is_not_needed(self) -> None:
        class Made(TensorClass, shadow=True):
            from_dict: torch.Tensor

        made: Any = Made
        td = TensorDict({"from_dict": torch.ones(2)})
        assert made.from_tensordict(td).from_dict.tolist() == [1.0, 1.0]


class TestNames:
    def test_fields_may_be_called_as_what_a_constructor_calls(self) -> None:
        names = (
            "type",
            "int",
            "list",
            "tuple",
            "next",
            "iter",
            "KeyError",
            "TypeError",
        )
        made = META(
            "Made",
            (TensorClass,),
            {
                "__annotations__": {
                    "x": torch.Tensor,
                    **dict.fromkeys(names, str),
                    "RuntimeError": str,
                },
                **dict.fromkeys(names, "a"),
                "RuntimeError": "b",
            },
            shadow=True,
        )

        for _ in range(2):
            obj = made(torch.ones(2), batch_size=[2])
            assert (obj.type, obj.RuntimeError, obj.batch_size) == ("a", "b", (2,))
        with pytest.raises(FieldError, match="no field 'foo'"):
            made(torch.ones(2), foo=1)

    def test_arguments_start_with_no_underscore(self) -> None:
        with pytest.raises(OptionError, match=r"argument Made\._key starts with"):
            META("Made", (TensorClass,), {"__annotations__": {"_key": InitVar[int]}})

    def test_signatures_show_factories_as_dataclasses_do(self) -> None:
        field = dataclasses.field(default_factory=list)
        body = {"__annotations__": {"e": list[int]}, "e": field}

        assert "= <factory>" in str(
            inspect.signature(META("Made", (TensorClass,), body))
        )

    def test_argument_order_names_the_class(self) -> None:
        body = {"__annotations__": {"x": int, "y": int}, "x": 1}
        with pytest.raises(TypeError, match="Made: argument 'y' without default"):
            META("Made", (TensorClass,), body)

    def test_type_hints_can_be_read(self) -> None:
        hints = typing.get_type_hints(Leaf)

        assert hints["pos"] is torch.Tensor
        assert hints["vel"] == torch.Tensor | None
        assert typing.get_type_hints(TensorClass)


class TestDataclassBases:
    def test_fields_of_a_mixed_in_dataclass_are_read(self) -> None:
        class Made(TensorClass, Data):
            x: torch.Tensor | None = None

        class More(Made):
            pass

        for cls in (Made, More):
            obj: Any = cls(torch.ones(2), x=torch.zeros(2), batch_size=2)
            assert obj.y.tolist() == [1.0, 1.0]
            assert obj.unit == "m"
            assert (obj + 1)[0].y == 2
            assert repr(obj).startswith(f"{cls.__name__}(batch_size=[2]")
            with pytest.raises(AttributeError, match="would change the record"):
                obj.y = torch.zeros(2)
        other = dataclasses.make_dataclass("Thawed", [("y", torch.Tensor)])
        made = META("Made", (TensorClass, other), {})
        assert made(torch.ones(2)).y.tolist() == [1.0, 1.0]

    def test_not_before_records(self) -> None:
        with pytest.raises(
            OptionError, match=r"Data would.*class Made\(TensorClass, D"
        ):
            META("Made", (Data, TensorClass), {})

    def test_decorated(self) -> None:
        @tensorclass
        class Made(Data):
            x: torch.Tensor | None = None

        assert Made(torch.ones(2)).y.tolist() == [1.0, 1.0]
        assert repr(Made(torch.ones(2))) == (
            "Made(batch_size=[], fields={unit: 'm', y: f32[2]})"
        )


def twice(function: Any) -> Any:
    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        return function(*args)

    return wrapped


class TestDecorator:
    def test_a_local_class_names_itself_and_what_comes_later(self) -> None:
        @tensorclass
        class Made:
            x: torch.Tensor

            def again(self) -> Any:
                return Made(self.x + later)

        later = 1
        again: Any = Made(torch.ones(2)).again()
        assert type(again) is Made
        assert again.x.tolist() == [2.0, 2.0]

    def test_super_in_whatever_holds_a_function(self) -> None:
        class Root:
            def name(self) -> str:
                return "root"

        @tensorclass
        class Made(Root):
            x: torch.Tensor

            @twice
            def wrapped(self) -> str:
                return super().name()

            @property
            def made(self) -> str:
                return super().name()

            @classmethod
            @twice
            def of_class(cls) -> Any:
                return super().name

            @functools.partialmethod
            def partial(self) -> str:
                return super().name()

        obj: Any = Made(torch.ones(1))
        assert obj.wrapped() == obj.made == obj.partial() == "root"
        assert obj.of_class()(obj) == "root"

    def test_refusals_say_what_the_class_is(self) -> None:
        class Derived(Base):
            pass

        with pytest.raises(
            OptionError, match=r"derives from one.*class Derived\(Base\)"
        ):
            tensorclass(Derived)
        with pytest.raises(OptionError, match="Data is a dataclass already"):
            tensorclass(Data)

    def test_the_base_of_all_records_has_no_fields(self) -> None:
        with pytest.raises(OptionError, match="TensorClass declares no fields"):
            TensorClass.from_dict({})
        with pytest.raises(OptionError, match="TensorClass declares no fields"):
            TensorClass()


class TestArgumentsOfHooks:
    def test_defaults_and_entries(self) -> None:
        x = torch.ones(2)

        ways: tuple[Any, ...] = (
            Scaled.from_dict,
            lambda entries: Around.from_dict({"inner": entries}),
            Around,
        )

        for make in ways:
            for entries in ({"x": x}, {"x": x, "scale": 2}):
                made: Any = make(entries)
                assert [leaf.tolist() for leaf in made.values(True, True)] == [[1, 1]]
            with pytest.raises(ValueError, match="scale 3"):
                make({"x": x, "scale": 3})
        assert Scaled.from_tensordict(TensorDict({"x": x})).keys() == ("x",)
        assert Scaled.from_dict({"x": x, "scale": 2}).keys() == ("x",)

    def test_one_without_default_has_to_be_there(self) -> None:
        with pytest.raises(StructureError, match=r"arguments without.*got no limit"):
            Strict.from_dict({"x": torch.ones(1)})
        with pytest.raises(ValueError, match=r"over 0\.5"):
            Strict.from_dict({"x": torch.ones(1), "limit": 0.5})
        assert Strict.from_dict({"x": torch.ones(1), "limit": 2.0}).x == 1


class TestShapes:
    @pytest.fixture
    def shaped(self) -> Any:
        jaxtyping = pytest.importorskip("jaxtyping")
        hints = {
            "x": jaxtyping.Float[torch.Tensor, "b 3"],
            "y": jaxtyping.Float[torch.Tensor, "b"] | None,
        }
        body = {"__annotations__": hints, "y": None}
        return META("Shaped", (TensorClass,), body, check_shapes=True)

    def test_every_way_from_fields_is_checked(self, shaped: Any) -> None:
        outer = META("Around", (TensorClass,), {"__annotations__": {"j": shaped}})
        good, bad = {"x": torch.ones(5, 3)}, {"x": torch.ones(5, 4)}
        ways: dict[str, Any] = {
            "constructor": lambda d: shaped(**d),
            "device": lambda d: shaped(**d, device="cpu"),
            "from_dict": shaped.from_dict,
            "inferred": lambda d: shaped.from_dict(d, auto_batch_size=True),
            "from_tensordict": lambda d: shaped.from_tensordict(TensorDict(d)),
            "replaced": lambda d: dataclasses.replace(shaped(**good), **d),
            "nested": outer,
            "nested from_dict": lambda d: outer.from_dict({"j": d}),
            "nested tree": lambda d: outer.from_tensordict(TensorDict({"j": d})),
        }

        for make in ways.values():
            assert isinstance(make(good), (shaped, outer))
            with pytest.raises(InvalidLeafError, match=r"'x'.*b 3.*\[5, 4\]"):
                make(bad)

    def test_the_message_says_what_was_bound_before(self, shaped: Any) -> None:
        with pytest.raises(
            InvalidLeafError, match=r"got torch.float32 of shape \[4\], after .* x of "
        ):
            shaped(torch.ones(5, 3), torch.ones(4))

    def test_compiled_code_makes_them(self, shaped: Any) -> None:
        @torch.compile(fullgraph=True, backend="eager")
        def step(x: torch.Tensor) -> Any:
            return shaped(x, batch_size=x.shape[:1])

        assert step(torch.ones(5, 3)).batch_size == (5,)


class TestDefinedAgain:
    def test_only_the_new_class_is_written_and_read(self) -> None:
        def define() -> Any:
            body = {"__annotations__": {"x": torch.Tensor}, "__qualname__": "Again"}
            return META("Again", (TensorClass,), body)

        first = define()
        one = first(torch.ones(1))
        text = torch_pytree.treespec_dumps(torch_pytree.tree_structure(one))
        assert torch_pytree.treespec_loads(text).type is first

        second = define()
        assert torch_pytree.treespec_loads(text).type is second
        for tree in (one, TensorDict({"n": one})):
            with pytest.raises(OptionError, match=r"Again was defined again.*older"):
                torch_pytree.treespec_dumps(torch_pytree.tree_structure(tree))
        two = torch_pytree.tree_structure(second(torch.ones(1)))
        assert torch_pytree.treespec_dumps(two) == text
        assert (one + 1).x == 2


@pytest.mark.parametrize(
    "join",
    [
        lambda a, b: a + b,
        lambda a, b: torch.stack([a, b]),
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.where(torch.ones(5) > 0, a, b),
        lambda a, b: TensorDict({"n": a}, 5) + TensorDict({"n": b}, 5),
    ],
    ids=["add", "stack", "cat", "where", "nested"],
)
def test_the_same_entries_in_other_classes(join: Any) -> None:
    leaf = Leaf(torch.zeros(5, 3), batch_size=5)
    td = leaf.to_tensordict()

    with pytest.raises(StructureError, match=r"to_tensordict\(\).*from_tensordict"):
        join(leaf, td)
    assert join(td, leaf.to_tensordict()).keys()
    assert join(leaf, Leaf.from_tensordict(td)).keys()
    with pytest.raises(StructureError) as raised:
        join(leaf, Scaled(torch.ones(5), batch_size=5))
    assert "to_tensordict" not in str(raised.value)


def test_an_error_names_what_a_type_variable_stands_for() -> None:
    with pytest.raises(InvalidLeafError, match=r"annotated int - .*int \| Tensor"):
        Numbers(torch.ones(1))  # pyright: ignore[reportArgumentType]


def test_classes_of_many_fields_are_defined_in_linear_time() -> None:
    def calls(count: int) -> int:
        seen = 0

        def profile(*_: Any) -> None:
            nonlocal seen
            seen += 1

        hints = {f"f{i}": torch.Tensor for i in range(count)}
        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            META("Made", (TensorClass,), {"__annotations__": hints})
        finally:
            sys.setprofile(before)
        return seen

    assert calls(400) < 2.5 * calls(200)
