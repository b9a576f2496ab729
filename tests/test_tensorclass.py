"""Records: how classes are declared, and what their instances hold and refuse."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import typing
from collections.abc import Callable  # noqa: TC003 - read at run time, as annotation
from typing import Annotated, Any, ClassVar, Generic, NewType, Protocol, TypeVar

import numpy as np
import pytest
import torch
from torch.utils import _pytree as torch_pytree

import tdfunc
from tdfunc import NonTensorData, TensorClass, TensorDict, tensorclass
from tdfunc.errors import (
    BatchSizeError,
    FieldError,
    InvalidLeafError,
    MissingKeyError,
    OptionError,
    PureNameError,
    StructureError,
)

T = TypeVar("T")
META: Any = type(TensorClass)
Metres = NewType("Metres", float)


class Inner(TensorClass):
    x: torch.Tensor


class Obs(TensorClass):
    pos: torch.Tensor
    vel: torch.Tensor | None = None
    inner: Inner | None = None
    name: str = "x"


class Chain(TensorClass):
    value: torch.Tensor
    next: Chain | None = None


def define(
    annotations: dict[str, Any], options: dict[str, Any] | None = None, **body: Any
) -> Any:
    body["__annotations__"] = annotations
    return META("Made", (TensorClass,), body, **(options or {}))


def obs(**fields: Any) -> Obs:
    return Obs(torch.arange(10.0).reshape(5, 2), **fields, batch_size=5)


class TestDeclaration:
    def test_fields_are_the_annotations(self) -> None:
        assert ["pos", "vel", "inner", "name"] == [
            f.name for f in dataclasses.fields(Obs)
        ]
        assert ("pos", "vel", "inner", "name") == Obs.__match_args__
        assert dataclasses.is_dataclass(Obs)

    def test_positional_and_keyword_arguments(self) -> None:
        x = torch.ones(2)

        assert Obs(x).pos is x
        assert Obs(x, x).vel is x
        assert Obs(vel=x, pos=x, name="y").name == "y"

    def test_kw_only_fields_follow_any_defaults(self) -> None:
        class A(TensorClass):
            a: int = 1
            _: dataclasses.KW_ONLY
            b: torch.Tensor

        class B(TensorClass, kw_only=True):
            a: int = 1
            b: torch.Tensor

        for cls in (A, B):
            assert cls(b=torch.ones(1)).a == 1
        with pytest.raises(TypeError, match="positional"):
            A(1, torch.ones(1))  # pyright: ignore[reportCallIssue]

    def test_default_factories_make_a_new_value_each_time(self) -> None:
        class A(TensorClass):
            x: torch.Tensor = dataclasses.field(default_factory=lambda: torch.ones(2))
            tags: list[str] = dataclasses.field(default_factory=list)

        assert A().tags == []
        assert A().tags is not A().tags
        assert A().x is not A().x

    def test_mutable_defaults_are_refused_as_in_dataclasses(self) -> None:
        with pytest.raises(ValueError, match="mutable default"):
            define({"tags": list[str]}, tags=[])

    def test_no_argument_without_default_after_one_with(self) -> None:
        with pytest.raises(TypeError, match="'b' without default follows 'a'"):
            define({"a": int, "b": int}, a=1)

    def test_fields_that_are_no_arguments(self) -> None:
        class A(TensorClass):
            x: torch.Tensor
            made: str = dataclasses.field(default="here", init=False)

        assert A(torch.ones(1)).made == "here"
        with pytest.raises(OptionError, match=r"Made\.x is no argument and has no"):
            define({"x": torch.Tensor}, x=dataclasses.field(init=False))

    def test_inheritance_adds_and_overrides(self) -> None:
        class Base(TensorClass):
            a: torch.Tensor
            k: int = 1

            def double(self) -> torch.Tensor:
                return self.a * 2

        class Derived(Base):
            k: int = 2
            c: torch.Tensor | None = None

        derived = Derived(torch.ones(2))
        assert ("a", "k") == derived.keys()
        assert derived.k == 2
        assert derived.double().tolist() == [2.0, 2.0]
        assert Derived.__match_args__ == ("a", "k", "c")
        assert isinstance(derived, Base)

    def test_what_is_static_in_a_base_is_static_below(self) -> None:
        """Case B55; for generics, `Annotated`, strings and made classes too."""

        class A(TensorClass):
            a: torch.Tensor
            b: int = 2

        class B(A):
            c: torch.Tensor = 0.0  # pyright: ignore[reportAssignmentType]

        class Of(TensorClass, Generic[T]):
            a: Annotated[torch.Tensor, "a note"]
            b: "Annotated[int, 2]"  # noqa: UP037 - a string in a string
            c: T | None = None

        body = {"__annotations__": {"a": torch.Tensor, "b": int}, "b": 2}
        made = META("Made", (TensorClass,), body)

        structures = [torch_pytree.tree_structure(A(1.0, b)) for b in (2, 2, 3)]  # pyright: ignore[reportArgumentType]
        assert structures[0] == structures[1] != structures[2]
        assert len(torch_pytree.tree_leaves(B(1.0, c=3.0))) == 2  # pyright: ignore[reportArgumentType]
        assert len(torch_pytree.tree_leaves(Of[int](1.0, 2))) == 1  # pyright: ignore[reportArgumentType]
        assert len(torch_pytree.tree_leaves(made(1.0))) == 1

    def test_annotations_decide(self) -> None:
        class A(TensorClass):
            leaf: torch.Tensor
            parameter: torch.nn.Parameter
            number: int
            length: Metres
            extent: tuple[int, int]
            choice: typing.Literal["a", "b"]
            fn: Callable[[int], int]
            device_: torch.dtype
            either: torch.Tensor | float
            anything: Any
            none: None = None
            shared: ClassVar[int] = 7

        p = torch.nn.Parameter(torch.ones(1))
        a = A(1.5, p, 2, Metres(3.0), (4, 5), "b", abs, torch.int8, 0.5, p)  # pyright: ignore[reportArgumentType]
        assert {"leaf", "parameter", "anything"} == {*a.keys(leaves_only=True)}
        assert a.leaf.shape == ()
        assert (2, 3.0, (4, 5), "b", abs) == (
            *(a.number, a.length, a.extent),
            *(a.choice, a.fn),
        )
        assert (torch.int8, 0.5, None) == (a.device_, a.either, a.none)
        assert a.anything is p
        assert A.shared == 7
        assert "shared" not in a

    def test_generics_make_no_class_and_bind_their_variables(self) -> None:
        class Box(TensorClass, Generic[T]):
            value: T

        class Of(Box[Inner]):
            pass

        assert Box[int](value=3).value == 3
        assert type(Box[int](value=3)) is Box
        assert type(Of(value={"x": 1.0}).value) is Inner  # pyright: ignore[reportArgumentType]

    def test_protocols_and_abstract_classes_mix_in(self) -> None:
        class HasPos(Protocol):
            pos: torch.Tensor

        @typing.runtime_checkable
        class HasNorm(Protocol):
            def length(self) -> torch.Tensor: ...

        class Base(abc.ABC):
            @abc.abstractmethod
            def length(self) -> torch.Tensor: ...

        class Abstract(TensorClass, Base):
            pos: torch.Tensor

        class Concrete(Abstract, HasPos, HasNorm):
            def length(self) -> torch.Tensor:
                return self.pos.norm()

        with pytest.raises(TypeError, match="abstract"):
            Abstract(torch.ones(1))  # pyright: ignore[reportAbstractUsage]
        concrete = Concrete(torch.tensor([3.0, 4.0]))
        assert concrete.length() == 5
        assert isinstance(concrete, HasNorm)
        assert type(type(concrete)).__mro__[2] is abc.ABCMeta
        with pytest.raises(AttributeError, match="no field 'speed'"):
            # A protocol without __slots__ gives a dict, which stays empty.
            concrete.speed = 1  # pyright: ignore[reportAttributeAccessIssue]

    def test_records_have_no_dict(self) -> None:
        o = obs()

        assert not hasattr(o, "__dict__")
        with pytest.raises(AttributeError, match="'Obs' object has no attribute 'spe"):
            o.speed = 1  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(AttributeError, match="'Obs' object has no attribute 'spe"):
            o.speed  # pyright: ignore[reportAttributeAccessIssue]

    def test_slots_are_refused(self) -> None:
        with pytest.raises(OptionError, match="declares slots"):
            define({}, __slots__=("cache",))

    def test_methods_properties_and_classmethods(self) -> None:
        class A(TensorClass):
            x: torch.Tensor

            @property
            def first(self) -> torch.Tensor:
                return self.x[0]

            def shifted(self, by: float) -> A:
                return self.replace(x=self.x + by)

            @classmethod
            def zeros(cls, rows: int) -> A:
                return cls(torch.zeros(rows), batch_size=rows)

        a = A.zeros(3).shifted(2)
        assert a.first == 2
        assert a.batch_size == (3,)
        assert type(a + 1) is A
        assert (a + 1).first == 3

    def test_a_record_without_fields(self) -> None:
        class Empty(TensorClass):
            pass

        assert Empty(batch_size=3).batch_size == (3,)

    def test_the_base_itself_makes_nothing(self) -> None:
        with pytest.raises(OptionError, match="TensorClass declares no fields"):
            TensorClass()

    def test_annotations_of_what_comes_later(self) -> None:
        class First(TensorClass):
            second: Second | None = None  # pyright: ignore[reportUndefinedVariable]  # noqa: F821

        with pytest.raises(OptionError, match=r"annotation of First\.second can not"):
            First()
        tail = Chain(torch.ones(2))
        assert Chain(torch.ones(2), tail).next is not tail
        assert type(Chain(torch.ones(2), {"value": 1.0}).next) is Chain  # pyright: ignore[reportArgumentType]

    def test_deep_chains(self) -> None:
        source: dict[str, Any] = {"value": 0}
        for i in range(2000):
            source = {"value": i + 1, "next": source}

        chain = Chain.from_dict(source)

        assert len(chain._leaves) == 2001
        assert type(chain[("next",) * 2000]) is Chain


class TestDecorator:
    def test_makes_what_deriving_makes(self) -> None:
        @tensorclass
        class Point:
            x: torch.Tensor
            name: str = "p"

            def __repr__(self) -> str:
                return f"<{super().__repr__()}>"

            @classmethod
            def one(cls) -> Point:
                return cls(torch.ones(1))

        point: Any = Point.one()
        assert issubclass(Point, TensorClass)
        assert (point + 1).x == 2
        assert "<Point(batch_size=[], fields={name: 'p', x: f32[1]})>" == repr(point)
        assert Point.__module__ == __name__

    def test_takes_options_and_bases(self) -> None:
        class Mixin:
            def length(self) -> int:
                return 3

        @tensorclass(autocast=True)
        class Count(Mixin, Generic[T]):
            n: int = 0
            of: T | None = None

        count: Any = Count(n="4")  # pyright: ignore[reportArgumentType]
        assert (count.n, count.length()) == (4, 3)

    def test_refuses_records_and_dataclasses(self) -> None:
        with pytest.raises(OptionError, match="Obs is a record already, since"):
            tensorclass(Obs)
        with pytest.raises(OptionError, match="already"):
            tensorclass(dataclasses.make_dataclass("Made", ["x"]))


class TestConstruction:
    def test_batch_size_device_and_names(self) -> None:
        o = Obs(
            torch.zeros(5, 3), batch_size=[5], device=torch.device("cpu"), names=["t"]
        )

        assert o.batch_size == torch.Size([5])
        assert o.names == ("t",)
        assert o.device == torch.device("cpu")
        meta = Obs(torch.zeros(5, 3), inner=Inner(torch.ones(5), batch_size=5),
                   batch_size=5, device="meta")  # fmt: skip
        assert meta.pos.is_meta
        assert meta["inner", "x"].is_meta

    @pytest.mark.parametrize("size", [5, [5], (5,), torch.Size([5]), np.int64(5)])
    def test_batch_sizes_in_every_form_twice(self, size: Any) -> None:
        """The second time takes the short way: same shapes, same schema."""
        first, second = [Obs(torch.zeros(5, 3), batch_size=size) for _ in range(2)]

        assert first.batch_size == second.batch_size == torch.Size([5])
        assert type(second.batch_size) is torch.Size
        assert first._schema is second._schema
        assert Obs(torch.zeros(5, 3, 1), batch_size=size).pos.dim() == 3

    def test_wrong_sizes_raise_each_time(self) -> None:
        Obs(torch.zeros(5, 3), batch_size=5)
        for _ in range(2):
            with pytest.raises(BatchSizeError, match=r"td\['pos'\].*starts with \[4\]"):
                Obs(torch.zeros(5, 3), batch_size=4)
        with pytest.raises(OptionError, match="batch_size is not a size"):
            Obs(torch.zeros(5, 3), batch_size="5")  # pyright: ignore[reportArgumentType]
        with pytest.raises(OptionError, match="names do not fit"):
            Obs(torch.zeros(5, 3), batch_size=5, names=["a", "b"])

    def test_the_signature_is_that_of_the_fields(self) -> None:
        names = [*inspect.signature(Obs).parameters]

        assert ["pos", "vel", "inner", "name"] == names[:4]
        assert ["batch_size", "device", "names"] == names[4:]

    def test_missing_and_unknown_arguments(self) -> None:
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            Obs()  # pyright: ignore[reportCallIssue]
        with pytest.raises(
            AttributeError, match=r"no field 'speed'.*pos, vel, inner, n"
        ):
            Obs(torch.ones(1), speed=1)  # pyright: ignore[reportCallIssue]
        with pytest.raises(TypeError, match="no field 'speed'"):
            Obs(torch.ones(1), speed=1)  # pyright: ignore[reportCallIssue]

    def test_an_optional_field_that_is_none_is_no_entry(self) -> None:
        o = obs()

        assert ("pos", "name") == o.keys()
        assert (o.vel, o.inner) == (None, None)
        assert "vel" not in o
        assert o.get("vel") is None
        assert o.get("vel", 3) == 3

    def test_numbers_and_arrays_become_tensors(self) -> None:
        assert Obs(2.5).pos == torch.tensor(2.5)  # pyright: ignore[reportArgumentType]
        array = np.arange(4.0)
        assert Obs(array, batch_size=4).pos.data_ptr() == array.ctypes.data  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize(
        ("fields", "parts"),
        [
            ({"pos": "text"}, ["annotated", "td['pos']", "a tensor, or", "got str"]),
            ({"pos": None}, ["td['pos']", "got NoneType"]),
            ({"pos": {"a": 1}}, ["td['pos']", "got dict"]),
            ({"pos": TensorDict()}, ["td['pos']", "got TensorDict"]),
            ({"pos": 1, "name": torch.ones(1)}, ["td['name']", "neither a tensor nor"]),
            ({"pos": 1, "inner": 3}, ["td['inner']", "such a tree", "got int"]),
            ({"pos": 1, "inner": Obs(1)}, ["td['inner']", "got Obs"]),  # pyright: ignore[reportArgumentType]
        ],
        ids=lambda value: str(value)[:20],
    )
    def test_the_annotation_refuses(self, fields: Any, parts: list[str]) -> None:
        with pytest.raises(InvalidLeafError) as raised:
            Obs(**fields)
        for part in parts:
            assert part in str(raised.value)

    def test_mappings_and_trees_become_the_annotated_record(self) -> None:
        plain = TensorDict({"x": torch.ones(5, 2)}, [5, 2])

        for value in ({"x": torch.ones(5)}, Inner(torch.ones(5), batch_size=5), plain):
            assert type(obs(inner=value).inner) is Inner
        assert obs(inner=plain).inner.batch_size == (5, 2)  # pyright: ignore[reportOptionalMemberAccess]
        with pytest.raises(
            FieldError, match=r"Inner has no field 'y' - at td\['inner',"
        ):
            obs(inner={"y": 1.0})
        with pytest.raises(StructureError, match=r"td\['inner'\].*no x"):
            obs(inner={})

    def test_a_mapping_inside_itself(self) -> None:
        loop: dict[str, Any] = {"value": 1.0}
        loop["next"] = loop
        with pytest.raises(StructureError, match="contains itself"):
            Chain.from_dict(loop)

    def test_a_list_of_text_is_one_for_every_row(self) -> None:
        names = ["a", "b", "a", "c", "d"]

        for o in (obs(name=names), obs().set("name", names), obs().replace(name=names)):
            assert names == o.name
            assert "b" == o[1].name
            assert ["d", "c"] == o[torch.tensor([4, 3])].name
            assert type(o * 2) is Obs
            assert (o * 2).name == names
            assert torch.vmap(lambda r: r.replace(pos=r.pos + 1))(o).name == names
        assert obs(name=np.array(names)).name == names
        assert obs(name=NonTensorData(["a"])).name == ["a"]
        both = tdfunc.stack([obs(name="u"), obs(name="v")])
        assert ["u", "v"] == [row[0].name for row in both]
        assert type(both) is Obs
        assert type(both[0]) is Obs

    def test_unbatched_tensors(self) -> None:
        class Table(TensorClass):
            x: torch.Tensor
            grid: torch.Tensor

        table = Table(torch.ones(5), tdfunc.unbatched(torch.ones(7)), batch_size=5)  # pyright: ignore[reportArgumentType]
        assert table[0].grid.shape == (7,)


class TestPostInit:
    def test_runs_when_a_user_makes_a_record_and_only_then(self) -> None:
        """Case B56."""
        calls: list[int] = []

        class L(TensorClass):
            k: torch.Tensor
            u: torch.Tensor | None = None

            def __post_init__(self) -> None:
                calls.append(1)

            @classmethod
            def of(cls, k: torch.Tensor) -> L:
                return cls(k, 2 * k)

        made = L.of(torch.tensor([1.0]))
        mapped = torch_pytree.tree_map(lambda t: t + 1, made)

        assert mapped.k == 2
        assert mapped.u == 3
        assert [1] == calls
        torch.vmap(lambda t: t * 2)(made)
        made.set("k", torch.ones(1))
        assert [1] == calls
        L.from_dict({"k": 1.0})
        assert [1, 1] == calls

    def test_may_refuse_but_not_assign_nor_return(self) -> None:
        class Positive(TensorClass):
            x: torch.Tensor

            def __post_init__(self) -> None:
                if (self.x < 0).any():
                    raise ValueError("negative")

        class Assigns(TensorClass):
            x: torch.Tensor

            def __post_init__(self) -> None:
                self.x = self.x + 1  # pyright: ignore[reportAttributeAccessIssue]

        class Returns(TensorClass):
            x: torch.Tensor

            def __post_init__(self) -> Any:
                return self

        for _ in range(2):
            with pytest.raises(ValueError, match="negative"):
                Positive(torch.tensor(-1.0))
        with pytest.raises(ValueError, match="negative"):
            Positive.from_dict({"x": -1.0})
        with pytest.raises(PureNameError, match=r"obj = obj.replace\(x=value\)"):
            Assigns(torch.ones(1))
        with pytest.raises(OptionError, match=r"Returns.__post_init__ returned someth"):
            Returns(torch.ones(1))

    def test_of_a_nested_record_made_of_a_mapping(self) -> None:
        class Small(TensorClass):
            x: torch.Tensor

            def __post_init__(self) -> None:
                assert self.batch_size == (2,)
                if self.x.max() > 1:
                    raise ValueError("large")

        class Holder(TensorClass):
            small: Small

        Holder({"x": torch.zeros(2)}, batch_size=2)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match="large"):
            Holder({"x": torch.ones(2) * 2}, batch_size=2)  # pyright: ignore[reportArgumentType]

    def test_init_variables_are_handed_on(self) -> None:
        seen: list[Any] = []

        class A(TensorClass):
            x: torch.Tensor
            limit: dataclasses.InitVar[int] = 3

            def __post_init__(self, limit: int) -> None:
                seen.append(limit)

        A(torch.ones(1), 5)
        A(torch.ones(1))
        assert [5, 3] == seen
        assert "limit" not in A(torch.ones(1))

    def test_own_initializer(self) -> None:
        """Case B56: flattens and rebuilds without it."""

        class A(TensorClass):
            k: torch.Tensor
            twice: torch.Tensor

            def __init__(self, *, y: torch.Tensor) -> None:
                super().__init__(k=y, twice=y * 2, batch_size=y.shape)

        a = A(y=torch.ones(2))
        assert a.twice.tolist() == [2, 2]
        assert a.batch_size == (2,)
        assert type(torch_pytree.tree_map(lambda t: t + 1, a)) is A
        assert A.from_dict({"k": 1.0, "twice": 3.0}).twice == 3

    def test_initializer_of_a_parent(self) -> None:
        class Base(TensorClass):
            a: torch.Tensor

        class Derived(Base):
            b: int = 4

            def __init__(self, a: torch.Tensor) -> None:
                Base.__init__(self, a * 2)

        assert Derived(torch.ones(1)).a == 2
        assert Derived(torch.ones(1)).b == 4


class TestOptions:
    def test_autocast_converts_to_the_annotation(self) -> None:
        class A(TensorClass, autocast=True):
            n: int
            x: float = 0.0
            name: str = ""
            leaf: torch.Tensor | None = None

        a = A("3", torch.tensor(2), 5, [1.0, 2.0])  # pyright: ignore[reportArgumentType]
        assert (a.n, a.x, a.name) == (3, 2.0, "5")
        assert a.leaf is not None
        assert a.leaf.tolist() == [1.0, 2.0]
        with pytest.raises(InvalidLeafError, match=r"'n' can not be cast.*int.*'x'"):
            A("x")  # pyright: ignore[reportArgumentType]

    def test_nocast_is_the_default_and_takes_it_back(self) -> None:
        class A(TensorClass, autocast=True):
            n: int

        class B(A):
            pass

        class C(A, nocast=True):
            pass

        values = [cls("3").n for cls in (A, B, C)]  # pyright: ignore[reportArgumentType]
        assert [3, 3, "3"] == values
        with pytest.raises(OptionError, match="autocast and nocast exclude each other"):
            define({"n": int}, {"autocast": True, "nocast": True})

    def test_tensor_only_refuses_other_fields(self) -> None:
        class A(TensorClass, tensor_only=True):
            x: torch.Tensor
            inner: Inner | None = None

        assert A(1).x == 1  # pyright: ignore[reportArgumentType]
        with pytest.raises(OptionError, match=r"is tensor_only.*name: <class 'str'>"):
            define({"name": str}, {"tensor_only": True})

    @pytest.mark.parametrize(
        "name", ["batch_size", "names", "keys", "shape", "_leaves"]
    )
    def test_fields_never_hide_what_trees_need(self, name: str) -> None:
        """Case B58: an error at definition, for what can not work."""
        body = {"__annotations__": {name: torch.Tensor}}
        for options in ({}, {"shadow": True}):
            with pytest.raises(OptionError, match=name):
                META("A", (TensorClass,), dict(body), **options)

    def test_fields_hide_methods_on_request_only(self) -> None:
        """Case B58: with it the field is what is read, stored and flattened."""
        with pytest.raises(OptionError) as raised:
            define({"set": torch.Tensor})
        assert "field Made.set would hide the method 'set' of trees" in str(
            raised.value
        )
        assert "shadow=True" in str(raised.value)
        assert "tdfunc.set(obj)" in str(raised.value)

        class A(TensorClass, shadow=True):
            data: torch.Tensor
            grad: torch.Tensor
            set: torch.Tensor
            at: torch.Tensor
            sum: torch.Tensor
            clear: torch.Tensor

        a = A(*[torch.full((2,), float(i)) for i in range(6)], batch_size=2)
        for i, name in enumerate(("data", "grad", "set", "at", "sum", "clear")):
            assert getattr(a, name)[0] == i
            assert getattr(torch.stack([a, a]), name)[0, 0] == i  # pyright: ignore[reportArgumentType]
        assert tdfunc.set(a, "data", torch.ones(2)).data[0] == 1
        assert tdfunc.at(a)[0].set(7).set[0] == 7
        assert (a * 2).sum[0] == 8

    def test_names_of_the_mutable_api_are_free(self) -> None:
        class A(TensorClass):
            pop: torch.Tensor

        assert A(torch.ones(1)).pop == 1

    def test_shapes_are_checked_on_request(self) -> None:
        jaxtyping = pytest.importorskip("jaxtyping")
        floats = jaxtyping.Float[torch.Tensor, "*batch n"]
        ints = jaxtyping.Int[torch.Tensor, "n"] | None
        body = {"__annotations__": {"x": floats, "n": ints}, "n": None}

        free = META("Free", (TensorClass,), dict(body))
        held = META("Held", (TensorClass,), dict(body), check_shapes=True)

        x, n = torch.zeros(5, 3), torch.arange(3)
        assert free(x.long()).keys() == ("x",)
        assert held(x, batch_size=5).x is x
        assert held(x, n).n is n
        for fields in ((x.long(),), (x, torch.arange(4)), (torch.tensor(0.5),)):
            with pytest.raises(InvalidLeafError, match="annotation of its field says"):
                held(*fields)


class TestEntries:
    def test_set_update_and_replace_obey_the_annotations(self) -> None:
        o = obs()

        assert o.set("vel", torch.ones(5)).keys() == ("pos", "name", "vel")
        assert type(o.set("inner", {"x": torch.ones(5)}).inner) is Inner
        assert type(o.set(("inner", "x"), torch.ones(5)).inner) is Inner
        assert type(o.update(inner={"x": torch.ones(5)}).inner) is Inner
        assert type(o.replace(inner={"x": torch.ones(5)}).inner) is Inner
        assert o.replace(vel=torch.ones(5)).vel is not None
        assert o.update({"name": 3}).name == 3
        for write in (
            o.set,
            lambda k, v: o.update({k: v}),
            lambda k, v: o.replace({k: v}),
        ):
            with pytest.raises(InvalidLeafError, match=r"'name' is annotated str"):
                write("name", torch.ones(5))
            with pytest.raises(InvalidLeafError, match=r"'pos' is annotated"):
                write("pos", "text")

    def test_none_leaves_an_optional_field_out(self) -> None:
        o = obs(vel=torch.ones(5))

        for new in (o.set("vel", None), o.update(vel=None), o.replace(vel=None)):
            assert new.keys() == ("pos", "name")
            assert type(new) is Obs
        assert obs().set("vel", None).keys() == ("pos", "name")

    def test_undeclared_fields_are_refused_by_name(self) -> None:
        o = obs()

        for write in (
            lambda: o.set("speed", 1.0),
            lambda: o.update(speed=1.0),
            lambda: o.replace(speed=1.0),
            lambda: o.replace({"speed": 1.0}),
            lambda: TensorDict(o=o, batch_size=5).set(("o", "speed"), torch.ones(5)),
            lambda: o.rename_key("vel", "speed") if "vel" in o else o.set("speed", 1),
        ):
            with pytest.raises(AttributeError, match="speed") as raised:
                write()
            assert "pos, vel, inner, name" in str(raised.value)

    def test_select_exclude_and_drop(self) -> None:
        o = obs(vel=torch.ones(5), inner=Inner(torch.ones(5), batch_size=5))

        assert type(o.select("pos", "name")) is Obs
        assert o.select("pos", "name").vel is None
        assert o.select("pos", "vel", "name").vel is o.vel
        assert obs().select("pos", "vel", "name").keys() == ("pos", "name")
        assert o.exclude("vel").keys() == ("pos", "inner", "name")
        assert o.drop("inner").inner is None
        plain = o.select("vel", ("inner", "x"), as_tensordict=True)
        assert type(plain) is type(plain["inner"]) is TensorDict
        assert plain.keys(True) == ("vel", "inner", ("inner", "x"))
        for refused in (
            lambda: o.select("vel"),
            lambda: o.exclude("pos"),
            lambda: o.drop("name"),
            lambda: o.drop(("inner", "x")),
            lambda: TensorDict(o=o, batch_size=5).drop(("o", "pos")),
            o.filter_non_tensor,
        ):
            with pytest.raises(StructureError, match=r"lose fields.*to_tensordict\(\)"):
                refused()
        with pytest.raises(MissingKeyError):
            o.select("speed")

    def test_rename_keys(self) -> None:
        class Two(TensorClass):
            a: torch.Tensor | None = None
            b: torch.Tensor | None = None

        two = Two(torch.zeros(1), torch.ones(1))
        swapped = two.rename_keys({"a": "b", "b": "a"})
        assert (swapped.a, swapped.b) == (1, 0)
        with pytest.raises(FieldError, match=r"td\['c'\].*one of a, b"):
            two.rename_key("a", "c")

    def test_at_writes_rows(self) -> None:
        o = obs()
        new = o.at[0].set({"pos": torch.tensor([7.0, 7.0])})

        assert type(new) is Obs
        assert new.pos[0].tolist() == [7, 7]
        assert new.pos[1].tolist() == [2, 3]
        assert type(o.at[1:].add(1)) is Obs

    def test_get_and_items(self) -> None:
        """Case B50, too."""
        o = obs(inner=Inner(torch.ones(5), batch_size=5))

        assert o.get("pos") is o.pos
        assert o["pos"] is o.pos
        assert o["inner", "x"] is o.inner.x  # pyright: ignore[reportOptionalMemberAccess]
        assert o.get("nofield") is None
        assert o.get("nofield", 2) == 2
        assert o.get(("inner", "missing"), default=None) is None
        assert o.get(("inner", "missing"), default=0.0) == 0.0
        with pytest.raises(KeyError, match=r"td\['inner', 'missing'\]"):
            o["inner", "missing"]

    def test_split_and_flatten_need_a_tree(self) -> None:
        o = obs(inner=Inner(torch.ones(5), batch_size=5))

        with pytest.raises(StructureError, match="to_tensordict"):
            o.split_keys(["pos"])
        with pytest.raises(FieldError, match=r"inner\.x"):
            o.flatten_keys()
        assert "inner.x" in o.to_tensordict().flatten_keys()
        assert type(obs().flatten_keys()) is Obs

    def test_parts_of_a_partition_name_what_they_lack(self) -> None:
        class Params(TensorClass):
            w: torch.Tensor
            step: torch.Tensor

        params = Params(torch.ones(2), torch.tensor(3))
        first, rest = tdfunc.partition(params, "floating")

        assert type(first) is type(rest) is Params
        with pytest.raises(
            AttributeError, match="part of a Params has no field 'step'"
        ):
            first.step
        assert first.set("w", torch.zeros(3)).w.shape == (3,)
        assert tdfunc.combine(first, rest).step == 3


class TestConversion:
    def test_from_dict_uses_defaults(self) -> None:
        o = Obs.from_dict({"pos": torch.ones(5), "inner": {"x": torch.ones(5)}},
                          batch_size=5, names=["t"], device="cpu")  # fmt: skip

        assert type(o.inner) is Inner
        assert o.name == "x"
        assert o.names == ("t",)
        with pytest.raises(
            StructureError, match=r"Obs has fields without a value.*no pos"
        ):
            Obs.from_dict({})
        with pytest.raises(FieldError, match="Obs has no field 'speed'"):
            Obs.from_dict({"pos": 1, "speed": 1})

    def test_from_dict_infers_the_batch_size(self) -> None:
        data = {"pos": torch.ones(5, 3), "vel": torch.ones(5, 2)}

        assert Obs.from_dict(data, auto_batch_size=True).batch_size == (5,)
        assert Obs.from_dict({"pos": torch.ones(5, 3)}, batch_dims=1).batch_size == (5,)
        with pytest.raises(OptionError, match="given and to be inferred"):
            Obs.from_dict(data, batch_size=5, auto_batch_size=True)

    def test_to_and_from_tensordict(self) -> None:
        o = obs(inner=Inner(torch.ones(5), batch_size=5)).with_names(["t"])
        plain = o.to_tensordict()

        assert type(plain) is type(plain["inner"]) is TensorDict
        assert plain.keys() == o.keys()
        again = Obs.from_tensordict(plain)
        assert type(again.inner) is Inner
        assert again.names == ("t",)
        full = o.to_tensordict(retain_none=True)
        assert full["vel"] is None
        assert Obs.from_tensordict(full).keys() == o.keys()
        assert type(TensorDict(o)) is TensorDict

    def test_to_dict_is_asdict(self) -> None:
        o = obs(inner=Inner(torch.ones(5), batch_size=5))

        as_dict = o.to_dict()
        assert as_dict["vel"] is None
        assert as_dict["inner"]["x"] is o["inner", "x"]
        assert {*as_dict} == {*dataclasses.asdict(o)} == {"pos", "vel", "inner", "name"}
        assert "vel" not in o.to_dict(retain_none=False)

    def test_dataclasses_replace_keeps_batch_size_and_names(self) -> None:
        o = obs().with_names(["t"])
        new = dataclasses.replace(o, vel=torch.ones(5))

        assert (new.batch_size, new.names) == (o.batch_size, ("t",))
        assert new.pos is o.pos
        assert new.vel is not None

    def test_from_dataclass(self) -> None:
        @dataclasses.dataclass
        class Sensor:
            x: torch.Tensor
            extent: tuple[int, int] = (1, 2)

        @dataclasses.dataclass
        class Robot:
            sensor: Sensor
            spare: Sensor | None
            rate: int = 3
            tags: list[str] = dataclasses.field(default_factory=list)

        robot = Robot(Sensor(torch.ones(4)), None, tags=["a"])
        record = tdfunc.from_dataclass(robot, as_tensorclass=True, batch_size=4)

        assert type(record).__name__ == "Robot"
        assert issubclass(type(record), TensorClass)
        assert issubclass(type(record.sensor), TensorClass)
        assert record.sensor.x is robot.sensor.x
        assert (record.sensor.extent, record.rate, record.tags) == ((1, 2), 3, ["a"])
        assert record.spare is None
        assert record.batch_size == (4,)
        other = tdfunc.from_dataclass(robot, as_tensorclass=True, batch_size=4)
        assert type(other) is type(record)
        robot.tags = None  # pyright: ignore[reportAttributeAccessIssue]
        plain = tdfunc.from_any(robot, auto_batch_size=True)
        assert type(plain) is type(plain["sensor"]) is TensorDict

    def test_from_dataclass_into_a_given_class(self) -> None:
        made = dataclasses.make_dataclass("Made", ["pos", "name"])

        o = tdfunc.from_dataclass(made(torch.ones(2), "n"), dest_cls=Obs, batch_size=2)

        assert type(o) is Obs
        assert o.name == "n"
        assert o.batch_size == (2,)

    def test_lists_of_records_stack_as_their_class(self) -> None:
        rows = [obs()[i] for i in range(5)]

        for back in (tdfunc.from_list(rows), tdfunc.from_any(rows)):
            assert type(back) is Obs
            assert torch.equal(back.pos, obs().pos)

    def test_state_dict_and_back(self) -> None:
        o = obs(inner=Inner(torch.ones(5), batch_size=5))
        back = (o * 0).load_state_dict(o.state_dict())

        assert type(back) is Obs
        assert type(back.inner) is Inner
        assert torch.equal(back.pos, o.pos)
