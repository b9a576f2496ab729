"""The parts: formulas by hand, composition, schedules, states, errors, purity."""

from __future__ import annotations

import io
import math
import time
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import NonTensorData, TensorDict, optim
from tdfunc._ops import training
from tdfunc.errors import (
    MissingKeyError,
    OperandError,
    OptionError,
    ShapeError,
    StructureError,
)
from tdfunc.optim import _base, _combine, _pick, _vector
from tests.cases import Case, cases, fingerprint, leaves_of

EVERY = {
    "sgd": optim.sgd(0.1, 0.9),
    "adam": optim.adam(0.1, amsgrad=True),
    "adamw": optim.adamw(0.1),
    "rmsprop": optim.rmsprop(0.1, centered=True),
    "adagrad": optim.adagrad(0.1),
    "lion": optim.lion(0.1),
    "lamb": optim.lamb(0.1),
    "accumulate": optim.accumulate(optim.adam(0.1), 3),
    "flat": optim.flat(optim.adam(0.1)),
    "chain": optim.chain(
        optim.clip_by_global_norm(1.0), optim.ema(0.9), optim.scale(-0.1)
    ),
}
WEIGHTS = torch.tensor([1.0, -2.0, 4.0], dtype=torch.float64)
GRADS = [
    torch.tensor(row, dtype=torch.float64)
    for row in ([0.5, -1.0, 2.0], [1.5, 1.0, -0.25], [-1.0, 0.5, 1.0])
]


def every() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", EVERY)


def is_number(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


NUMBERS = cases(lambda case: all(map(is_number, case.leaves.values())))


def walked(tx: optim.GradientTransformation) -> list[torch.Tensor]:
    """Return the parameters after each of three steps."""
    params, state, found = WEIGHTS, tx.init(WEIGHTS), []
    for grads in GRADS:
        updates, state = tx.update(grads, state, params)
        params = optim.apply_updates(params, updates)
        found.append(params)
    return found


class TestFormulas:
    """Optax's and the papers' formulas, written out for numbers."""

    def test_lion(self) -> None:
        params, mean = WEIGHTS, torch.zeros_like(WEIGHTS)
        for got, g in zip(walked(optim.lion(0.1, (0.8, 0.6), 0.5)), GRADS, strict=True):
            direction = torch.sign(0.8 * mean + (1 - 0.8) * g)
            mean = 0.6 * mean + (1 - 0.6) * g
            params = params - 0.1 * (direction + 0.5 * params)
            torch.testing.assert_close(got, params)

    def test_lamb(self) -> None:
        params, mean, square = WEIGHTS, WEIGHTS * 0, WEIGHTS * 0
        found = walked(optim.lamb(0.1, (0.8, 0.6), 1e-3, 0.5))
        for t, (got, g) in enumerate(zip(found, GRADS, strict=True), start=1):
            mean = 0.8 * mean + 0.2 * g
            square = 0.6 * square + 0.4 * g**2
            adam = mean / (1 - 0.8**t) / ((square / (1 - 0.6**t)).sqrt() + 1e-3)
            direction = adam + 0.5 * params
            ratio = params.norm() / direction.norm()
            params = params - 0.1 * ratio * direction
            torch.testing.assert_close(got, params)

    def test_adam_with_eps_inside_the_root(self) -> None:
        params, mean, square = WEIGHTS, WEIGHTS * 0, WEIGHTS * 0
        found = walked(optim.adam(0.1, (0.8, 0.6), 1e-3, eps_root=0.01))
        for t, (got, g) in enumerate(zip(found, GRADS, strict=True), start=1):
            mean = 0.8 * mean + 0.2 * g
            square = 0.6 * square + 0.4 * g**2
            root = (square / (1 - 0.6**t) + 0.01).sqrt()
            params = params - 0.1 * mean / (1 - 0.8**t) / (root + 1e-3)
            torch.testing.assert_close(got, params)

    @pytest.mark.parametrize("debias", [True, False])
    def test_ema(self, *, debias: bool) -> None:
        tx = optim.ema(0.75, debias=debias)
        state, mean = tx.init(WEIGHTS), WEIGHTS * 0
        for t, g in enumerate(GRADS, start=1):
            updates, state = tx.update(g, state)
            mean = 0.75 * mean + 0.25 * g
            torch.testing.assert_close(
                updates, mean / (1 - 0.75**t) if debias else mean
            )

    def test_trust_ratio_is_one_where_a_norm_is_zero(self) -> None:
        tx = optim.scale_by_trust_ratio(trust_coefficient=2.0, eps=0.5)
        params = {"a": torch.zeros(2), "b": torch.ones(2), "c": torch.tensor([3.0, 4])}
        grads = {"a": torch.ones(2), "b": torch.zeros(2), "c": torch.tensor([0.0, 2])}

        updates, _ = tx.update(grads, tx.init(params), params)

        assert [1.0, 1.0] == updates["a"].tolist()
        assert [0.0, 0.0] == updates["b"].tolist()
        assert [0.0, 2 * 2.0 * 5 / 2.5] == updates["c"].tolist()

    def test_clip_by_global_norm(self) -> None:
        tx = optim.clip_by_global_norm(6.5)
        grads = TensorDict(a=torch.tensor([3.0, 4.0]), b=torch.tensor(12.0))

        updates, _ = tx.update(grads, tx.init(grads))
        small, _ = tx.update(grads / 4, ())
        zero, _ = tx.update(grads * 0, ())

        assert [1.5, 2.0] == updates["a"].tolist()
        assert 6.0 == updates["b"].item()
        assert (small == grads / 4).all()
        assert (zero == 0).all()

    def test_nan_is_not_hidden(self) -> None:
        nan = updates = torch.tensor([math.nan, 1.0])
        for tx in (*EVERY.values(), optim.clip(1.0)):
            for params in (nan, nan.clone().requires_grad_()):
                state = tx.init(params)
                for _ in range(3):
                    updates, state = tx.update(params, state, params)
                assert updates[0].isnan()


class TestSchedules:
    def test_warmup_cosine_is_optax_s(self) -> None:
        schedule = optim.warmup_cosine(0.1, 1.0, 4, 12, end=0.2, exponent=2.0)
        for step in range(15):
            if step < 4:
                expected = 0.1 + (1.0 - 0.1) * step / 4
            else:
                part = min(step - 4, 8) / 8
                wave = 0.5 * (1 + math.cos(math.pi * part))
                expected = (1 - 0.2) * wave**2 + 0.2
            assert schedule(step).item() == pytest.approx(expected)

    @pytest.mark.parametrize("rate", [0.5, 2.0])
    @pytest.mark.parametrize("staircase", [True, False])
    @pytest.mark.parametrize("end", [None, 3.0])
    def test_exponential_decay_is_optax_s(
        self, rate: float, end: float | None, *, staircase: bool
    ) -> None:
        schedule = optim.exponential_decay(
            4.0 if rate < 1 else 2.0, rate, 3, 2, staircase=staircase, end=end
        )
        for step in range(12):
            part = max(0, step - 2) / 3
            part = math.floor(part) if staircase else part
            expected = (4.0 if rate < 1 else 2.0) * rate**part
            if end is not None:
                expected = max(expected, end) if rate < 1 else min(expected, end)
            assert schedule(step).item() == pytest.approx(expected)

    def test_linear_waits_goes_and_stays(self) -> None:
        schedule = optim.linear(1.0, 3.0, 4, begin=2)

        got = [schedule(step).item() for step in range(8)]

        assert [1.0, 1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.0] == got

    def test_joined_schedules_count_from_their_beginning(self) -> None:
        schedule = optim.join_schedules(
            [optim.linear(0.0, 1.0, 4), optim.constant(5.0), optim.linear(2.0, 0.0, 2)],
            [2, 4],
        )

        got = [schedule(step).item() for step in range(8)]

        assert [0.0, 0.25, 5.0, 5.0, 2.0, 1.0, 0.0, 0.0] == got

    @pytest.mark.parametrize("kind", [int, torch.tensor])
    def test_schedules_are_not_asked_before_or_after_their_turn(
        self, kind: Any
    ) -> None:
        def rising(count: Any) -> Any:
            assert 0 <= int(count) < 3
            return 1 / (3 - count)

        def falling(count: Any) -> Any:
            assert int(count) >= 0
            return 1 / (count + 1)

        schedule = optim.join_schedules([rising, falling, falling], [3, 3])

        got = [schedule(kind(step)).item() for step in range(5)]

        assert [1 / 3, 1 / 2, 1.0, 1.0, 0.5] == pytest.approx(got)

    def test_gradients_come_from_the_schedule_whose_turn_it_is(self) -> None:
        def value(rate: torch.Tensor, step: int) -> torch.Tensor:
            one, two = lambda c: rate / (1 - c), lambda c: rate / (c + 1)
            return optim.join_schedules([one, two], [1])(torch.tensor(step))

        for step in (0, 1):
            got = torch.func.grad(value)(torch.tensor(2.0), step)
            assert 1.0 == got.item()
        scale = optim.join_schedules([optim.constant(1.0), lambda c: 3 * c], [1])
        assert [1.0, 0.0, 3.0] == [scale(step).item() for step in range(3)]

    def test_warmup_cosine_maps_over_its_numbers(self) -> None:
        peaks = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)

        def value(peak: Any, step: int) -> torch.Tensor:
            return optim.warmup_cosine(0.1, peak, 2, 4, 0.2)(step)

        for step in range(6):
            got = torch.vmap(lambda peak, at=step: value(peak, at))(peaks)
            rows = [value(float(peak), step) for peak in peaks]
            torch.testing.assert_close(got, torch.stack(rows))
        assert 0.2 == value(0.0, 9).item()
        slope = torch.func.grad(lambda peak: value(peak, 3))(peaks[1])
        assert slope.item() == pytest.approx(0.5)

    def test_schedules_map_trace_and_differentiate(self) -> None:
        steps = torch.arange(15)
        for schedule in (
            optim.constant(0.5),
            optim.linear(0.0, 1.0, 5),
            optim.exponential_decay(1.0, 0.5, 3, end=0.1),
            optim.cosine_decay(1.0, 10, 0.1, 2.0),
            optim.warmup_cosine(0.0, 1.0, 3, 9),
        ):
            expected = torch.stack([torch.as_tensor(schedule(int(s))) for s in steps])
            torch.testing.assert_close(torch.vmap(schedule)(steps), expected)
            compiled = torch.compile(schedule, fullgraph=True, backend="eager")
            torch.testing.assert_close(compiled(steps[4]), expected[4])
        by_peak = torch.func.grad(lambda peak: optim.linear(0.0, peak, 4)(1))
        assert 0.25 == by_peak(torch.tensor(2.0)).item()

    @pytest.mark.parametrize(
        ("call", "part"),
        [
            (lambda: optim.linear(0.0, 1.0, 0), "at least 1"),
            (lambda: optim.cosine_decay(1.0, 0), "at least 1"),
            (lambda: optim.exponential_decay(1.0, 0.5, 0), "at least 1"),
            (lambda: optim.warmup_cosine(0.0, 1.0, 5, 5), "more than warmup=5"),
            (lambda: optim.join_schedules([optim.constant(1.0)], [3]), "0 rising"),
            (lambda: optim.join_schedules([], []), "at least one"),
            (
                lambda: optim.join_schedules([optim.constant(1.0)] * 3, [5, 2]),
                "2 rising",
            ),
            (lambda: optim.scale_by_schedule(0.1), "optim.scale"),  # pyright: ignore[reportArgumentType]
        ],
        ids=[
            "linear over no steps",
            "cosine over no steps",
            "exponential over no steps",
            "warmup as long as all",
            "one schedule and a boundary",
            "no schedule",
            "falling boundaries",
            "a number for a schedule",
        ],
    )
    def test_bad_schedules_are_refused(self, call: Any, part: str) -> None:
        with pytest.raises(OptionError, match=part):
            call()


class TestPicking:
    def params(self) -> TensorDict:
        return TensorDict(
            {
                "enc": {"w": torch.ones(2, 2), "b": torch.ones(2)},
                "head": {"w": torch.ones(2, 2)},
            }
        )

    @pytest.mark.parametrize(
        "mask",
        [
            lambda path, x: x.dim() > 1 and path[0] == "enc",
            {("enc", "w"): True},
            {"enc": {"w": True, "b": False}, "head": False},
            {"enc": True, ("enc", "b"): False},
            TensorDict(
                {
                    "enc": {"w": torch.tensor(True), "b": torch.tensor(False)},
                    "head": {"w": torch.tensor(False)},
                }
            ),
        ],
        ids=["function", "paths", "nested", "later wins", "tree"],
    )
    @pytest.mark.parametrize("kind", ["TensorDict", "dict"])
    def test_masks_of_every_form(self, mask: Any, kind: str) -> None:
        params = self.params() if kind == "TensorDict" else self.params().to_dict()
        tx = optim.masked(optim.add_decayed_weights(0.5), mask)

        updates, _ = tx.update(params, tx.init(params), params)

        got = updates if kind == "TensorDict" else TensorDict(updates)
        assert (got["enc", "w"] == 1.5).all()
        assert (got["enc", "b"] == 1).all()
        assert (got["head", "w"] == 1).all()

    def test_state_has_nothing_for_what_is_left_out(self) -> None:
        tx = optim.masked(optim.adam(), {"head": True})

        state = tx.init(self.params())
        of_dict = tx.init(self.params().to_dict())

        assert (("head", "w"),) == state.mean.keys(True, True)
        assert 3 == len(pytree.tree_leaves(of_dict))
        assert optim.MaskedNode() == of_dict.mean["enc"]["w"]

    def test_decay_with_a_mask(self) -> None:
        tx = optim.lion(0.1, weight_decay=0.5, mask=lambda _, x: x.dim() > 1)
        params = self.params()

        updates, _ = tx.update(params * 0, tx.init(params), params)

        assert (updates["enc", "w"] == -0.05).all()
        assert (updates["enc", "b"] == 0).all()

    @pytest.mark.parametrize("kind", ["TensorDict", "dict", "list"])
    def test_labels_by_path(self, kind: str) -> None:
        params: Any = self.params()
        labels: Any = {"enc": "frozen", "head": "fast", ("enc", "b"): "slow"}
        if kind == "dict":
            params = params.to_dict()
        elif kind == "list":
            params = [params["enc", "w"], params["enc", "b"], params["head", "w"]]
            labels = ["frozen", "slow", "fast"]
        tx = optim.multi_transform(
            {
                "frozen": optim.set_to_zero(),
                "fast": optim.sgd(1.0),
                "slow": optim.sgd(0.25),
            },
            labels,
        )

        updates, state = tx.update(params, tx.init(params), params)

        w, b, head = (
            updates
            if kind == "list"
            else (updates["enc"]["w"], updates["enc"]["b"], updates["head"]["w"])
        )
        assert (w == 0).all()
        assert (b == -0.25).all()
        assert (head == -1).all()
        assert {"frozen", "fast", "slow"} == state.inner.keys()

    def test_bad_masks_and_labels_are_refused(self) -> None:
        params = self.params()
        sgd = {"a": optim.sgd(0.1)}
        with pytest.raises(MissingKeyError, match=r"enc\.w"):
            optim.masked(optim.adam(), {("enc", "v"): True}).init(params)
        with pytest.raises(StructureError, match="td\\['head', 'w'\\]"):
            optim.masked(optim.adam(), params.drop("head")).init(params)
        with pytest.raises(OptionError, match="lambda path, leaf: True"):
            optim.masked(optim.adam(), True).init(params)
        with pytest.raises(OptionError, match="no label") as raised:
            optim.multi_transform(sgd, {"enc": "a"}).init(params)
        assert ("head", "w") == raised.value.path
        with pytest.raises(OptionError, match="one of 'a' - got 'b'"):
            optim.multi_transform(sgd, lambda *_: "b").init(params)

    def test_nested_masks_see_paths(self) -> None:
        inner = optim.masked(optim.sgd(1.0), lambda path, _: path[-1] == "w")
        tx = optim.masked(inner, {"enc": True})

        updates, _ = tx.update(self.params(), tx.init(self.params()))

        assert (updates["enc", "w"] == -1).all()
        assert (updates["enc", "b"] == 1).all()
        assert (updates["head", "w"] == 1).all()


class TestFlat:
    def test_one_vector_for_each_dtype(self) -> None:
        params = {
            "a": torch.ones(2, 3),
            "b": torch.ones(2, dtype=torch.float64),
            "c": torch.tensor(1.0),
            "z": torch.ones(2, dtype=torch.complex64),
        }
        tx = optim.flat(optim.adamw(0.1))

        state = tx.init(params)
        updates, _ = tx.update(params, state, params)

        assert ["complex64", "float32", "float64"] == list(state.mean)
        assert (7,) == state.mean["float32"].shape
        alone = optim.adamw(0.1)
        expected, _ = alone.update(params, alone.init(params), params)
        for key, x in params.items():
            assert updates[key].shape == x.shape
            torch.testing.assert_close(updates[key], expected[key])

    def test_updates_are_views_of_one_vector(self) -> None:
        params = TensorDict(a=torch.ones(2, 3), b=torch.ones(4))
        tx = optim.flat(optim.adam(0.1))

        updates, _ = tx.update(params, tx.init(params))

        storages = {x.untyped_storage().data_ptr() for x in updates.values()}
        assert 1 == len(storages)


@every()
@NUMBERS
def test_every_tree_can_be_optimized(name: str, case: Case) -> None:
    tx, params = EVERY[name], case.tree.detach()
    before = fingerprint(case.leaves.values())
    state = tx.init(params)
    held = [x for x in pytree.tree_leaves(state) if isinstance(x, torch.Tensor)]
    kept = fingerprint(held)

    updates, _ = tx.update(params, state, params)
    got = optim.apply_updates(params, updates)

    assert got.batch_size == case.tree.batch_size
    assert got.names == case.tree.names
    assert got.keys(True) == case.tree.keys(True)
    for path, x in leaves_of(got).items():
        assert (x.shape, x.dtype) == (case.leaves[path].shape, case.leaves[path].dtype)
    for path, value in case.statics.items():
        assert got[path] is value
    assert before == fingerprint(case.leaves.values())
    assert kept == fingerprint(held)


@every()
def test_states_save_and_go_on(name: str) -> None:
    tx, params = (
        EVERY[name],
        TensorDict({"w": torch.ones(2, 3), "n": {"b": torch.ones(3)}}),
    )
    _, state = tx.update(params, tx.init(params), params)
    file = io.BytesIO()

    torch.save(state, file)
    file.seek(0)
    back = torch.load(file)

    assert type(back) is type(state)
    as_tree, treedef = tdfunc.from_pytree(state)
    for other in (back, tdfunc.to_pytree(as_tree, treedef)):
        expected, _ = tx.update(params, state, params)
        got, _ = tx.update(params, other, params)
        assert (got == expected).all()


@every()
def test_rows_and_statics_sit_out(name: str) -> None:
    tx = EVERY[name]
    params = TensorDict({"w": torch.ones(2, 3), "t": ["a", "b"], "s": "text"}, 2)

    updates, _ = tx.update(params, tx.init(params), params)
    got = optim.apply_updates(params, updates)

    assert ["a", "b"] == list(got["t"])
    assert "text" == got["s"]
    bare = TensorDict({"w": torch.ones(2, 3)}, 2)
    expected, _ = tx.update(bare, tx.init(bare), bare)
    torch.testing.assert_close(updates["w"], expected["w"])


@every()
def test_lazy_stacks_can_be_optimized(name: str) -> None:
    members = [TensorDict(x=torch.ones(2)), TensorDict(x=torch.ones(3) * 2)]
    params, tx = tdfunc.lazy_stack(members), EVERY[name]

    updates, _ = tx.update(params, tx.init(params), params)
    got = optim.apply_updates(params, updates)

    leaves = [m["x"] for m in members]
    expected, _ = tx.update(leaves, tx.init(leaves), leaves)
    for i in range(2):
        torch.testing.assert_close(got[i]["x"], leaves[i] + expected[i])


@every()
def test_none_and_empty_pytrees_are_no_parameters(name: str) -> None:
    tx, params = EVERY[name], {"w": torch.ones(2), "none": None}

    updates, _ = tx.update(params, tx.init(params), params)

    assert updates["none"] is None
    for empty in ({}, TensorDict({}), TensorDict({"s": "text"}, 3)):
        got, _ = tx.update(empty, tx.init(empty), empty)
        assert [] == pytree.tree_leaves(optim.apply_updates(empty, got))


@every()
@pytest.mark.parametrize(
    ("params", "path"),
    [
        (
            TensorDict({"w": torch.ones(2), "n": {"step": torch.tensor(3)}}),
            ("n", "step"),
        ),
        ({"w": torch.ones(2), "n": [torch.tensor(True)]}, ("n", "0")),
        ({"w": [torch.ones(2), 0.5]}, ("w", "1")),
    ],
    ids=["integer", "bool", "number"],
)
def test_what_has_no_gradient_is_refused_by_path(
    name: str, params: Any, path: tuple[str, ...]
) -> None:
    with pytest.raises(OperandError) as raised:
        EVERY[name].init(params)

    assert path == raised.value.path
    for part in ("init", "floating", "tdfunc.partition", "tdfunc.combine"):
        assert part in str(raised.value)
    with pytest.raises(OperandError, match="partition"):
        optim.apply_updates(params, params)


def test_gradients_that_do_not_fit_are_refused() -> None:
    params = TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(2, 2)}})
    tx = optim.adam()
    state = tx.init(params)

    with pytest.raises(ShapeError) as raised:
        tx.update(params.set(("n", "b"), torch.ones(2, 1)), state)
    assert ("n", "b") == raised.value.path
    assert "adam.update" in str(raised.value)
    with pytest.raises(ShapeError, match=r"expected \[2\] - got \[1\]"):
        torch.vmap(tx.update, in_dims=(0, None))(
            params[None].set("a", torch.ones(1, 2)),
            optim.adam().init(params.set("a", torch.ones(1))),
        )
    with pytest.raises(StructureError, match=r"td\['n'\] is missing"):
        tx.update(params, tx.init(params.drop("n")))
    with pytest.raises(StructureError, match=r"tx\.init"):
        tx.update(params.to_dict(), state)
    with pytest.raises(StructureError, match="other structure"):
        optim.apply_updates([torch.ones(2)], (torch.ones(2),))
    with pytest.raises(ShapeError, match="apply_updates"):
        optim.apply_updates(torch.ones(2), torch.ones(1))
    with pytest.raises(OperandError, match="2 states"):
        optim.chain(optim.clip(1.0), optim.identity()).update(params, ())


@pytest.mark.parametrize(
    "tx",
    [
        optim.adam(weight_decay=0.1),
        optim.adamw(),
        optim.sgd(weight_decay=0.1),
        optim.lamb(),
    ],
    ids=["adam", "adamw", "sgd", "lamb"],
)
def test_parameters_must_be_given_where_they_are_needed(tx: Any) -> None:
    grads = torch.ones(2)

    with pytest.raises(OperandError, match=r"tx.update\(grads, state, params\)"):
        tx.update(grads, tx.init(grads))


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: optim.adam(-0.1), "lr is out of range"),
        (lambda: optim.adam(betas=(1.0, 0.9)), r"betas\[0\] .* below 1.0"),
        (lambda: optim.adamw(betas=(0.9, -1.0)), r"betas\[1\]"),
        (lambda: optim.adam(eps=-1.0), "eps"),
        (lambda: optim.adam(weight_decay=-1.0), "weight_decay"),
        (lambda: optim.sgd(math.nan), "lr"),
        (lambda: optim.sgd(0.1, -0.5), "momentum"),
        (lambda: optim.sgd(0.1, nesterov=True), "nesterov"),
        (lambda: optim.sgd(0.1, 0.9, 0.1, nesterov=True), "dampening=0.1"),
        (lambda: optim.rmsprop(alpha=-1.0), "alpha"),
        (lambda: optim.adagrad(lr_decay=-1.0), "lr_decay"),
        (lambda: optim.adagrad(initial_accumulator_value=-1.0), "initial_acc"),
        (lambda: optim.lion(betas=(0.9, 1.0)), r"betas\[1\]"),
        (lambda: optim.clip(-1.0), "max_delta"),
        (lambda: optim.clip_by_global_norm("1"), "max_norm"),  # pyright: ignore[reportArgumentType]
        (lambda: optim.adam(torch.ones(3)), "shape .3. .* torch.vmap"),
        (lambda: optim.chain(optim.clip), "call it"),  # pyright: ignore[reportArgumentType]
        (lambda: optim.accumulate(optim.adam(), 0), "steps=0"),
        (lambda: optim.ema(1.0), "decay"),
        (lambda: optim.accumulate(optim.adam(), 2.5), "an int.*steps=2.5"),  # pyright: ignore[reportArgumentType]
        (lambda: optim.adam(betas=(0.9,)), r"two numbers.*\(0.9,\)"),  # pyright: ignore[reportArgumentType]
        (lambda: optim.lamb(betas=0.9), "two numbers"),  # pyright: ignore[reportArgumentType]
        (lambda: optim.lion(betas=(0.9, 0.9, 0.9)), "two numbers"),  # pyright: ignore[reportArgumentType]
    ],
    ids=range(23),
)
def test_bad_options_are_refused(call: Any, part: str) -> None:
    with pytest.raises(OptionError, match=part):
        call()


def test_modes_see_the_operations() -> None:
    """Kernels would hide from a mode what the formula does."""
    from torch.overrides import TorchFunctionMode

    class Recorder(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    params, tx = torch.ones(2), optim.adam()
    state = tx.init(params)

    with Recorder():
        tx.update(params, state)

    assert "sqrt" in seen
    assert not [name for name in seen if name.startswith("_f")]


def test_statics_that_are_no_numbers_do_not_matter() -> None:
    params = TensorDict({"w": torch.ones(2), "o": NonTensorData(object())})
    tx = optim.adam(0.1)

    updates, state = tx.update(params, tx.init(params))

    assert updates["o"] is params["o"]
    assert state.mean["o"] is params["o"]


def test_inference_mode_and_no_grad_change_nothing() -> None:
    leaf = torch.ones(3, requires_grad=True)
    params = {"w": leaf}
    for name, tx in EVERY.items():
        expected, _ = tx.update(
            {"w": leaf.detach()}, tx.init(params), {"w": leaf.detach()}
        )
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                got, _ = tx.update(params, tx.init(params), params)
                assert not got["w"].requires_grad
            torch.testing.assert_close(got["w"], expected["w"], msg=name)


@every()
def test_a_torch_without_kernels_gives_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every private name of torch has its fallback."""
    params = TensorDict({"w": torch.linspace(-1, 1, 6).view(2, 3), "s": torch.ones(())})

    def run() -> TensorDict:
        tree, tx = params, EVERY[name]
        state = tx.init(tree)
        for _ in range(4):
            tree, state = optim.step(tx, tree, state, tree)
        return tree

    expected = run()
    for module in (_vector, _base, _combine, training):
        for key in vars(module).copy():
            if key.startswith(("foreach_", "fused_")) and key != "foreach_works":
                monkeypatch.setattr(module, key, None)
    monkeypatch.setattr(_vector, "_HAS_KERNELS", False)
    for key in ("as_one_vector", "vector_as"):
        monkeypatch.setattr(_combine, key, None)

    got = run()

    for key in ("w", "s"):
        torch.testing.assert_close(got[key], expected[key])


@every()
def test_what_sits_out_does_so_in_compiled_code(name: str) -> None:
    torch._dynamo.reset()
    tx = EVERY[name]
    compiled = torch.compile(tx.update, fullgraph=True, backend="eager")
    rows = TensorDict({"w": torch.ones(2, 3), "t": ["a", "b"], "s": "text"}, 2)
    state = tx.init(rows)

    got, _ = compiled(rows, state, rows)

    expected, _ = tx.update(rows, state, rows)
    torch.testing.assert_close(got["w"], expected["w"])
    assert ["a", "b"] == list(got["t"])
    assert "text" == got["s"]
    partly = {"w": torch.ones(2), "none": None}
    got, _ = compiled(partly, tx.init(partly), partly)
    expected, _ = tx.update(partly, tx.init(partly), partly)
    assert got["none"] is None
    torch.testing.assert_close(got["w"], expected["w"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_an_infinite_or_great_norm_bounds_nothing(
    dtype: torch.dtype,
    *,
    as_tensor: bool,
) -> None:
    grads = {
        "a": torch.tensor([300.0, -4.0], dtype=dtype),
        "b": torch.ones((), dtype=dtype),
    }

    for bound in (math.inf, 1e5):
        given = torch.tensor(bound) if as_tensor else bound
        got, _ = optim.clip_by_global_norm(given).update(grads, ())

        for name, x in grads.items():
            torch.testing.assert_close(got[name], x, rtol=0, atol=0)


def test_half_precision_is_clipped_by_a_norm_that_it_can_not_hold() -> None:
    grads = torch.full((10_000,), 1000.0, dtype=torch.float16)

    got, _ = optim.clip_by_global_norm(100.0).update(grads, ())

    torch.testing.assert_close(got, torch.ones_like(grads))


def test_gradients_pass_an_infinite_norm() -> None:
    def clipped(x: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
        return optim.clip_by_global_norm(bound).update(x, ())[0].sum()

    both = torch.func.grad(clipped, argnums=(0, 1))(
        torch.zeros(2), torch.tensor(math.inf)
    )

    assert [1.0, 1.0] == both[0].tolist()
    assert 0.0 == both[1].item()


@pytest.mark.parametrize("kind", ["tree", "dict"])
def test_later_entries_of_a_mapping_win_nested_or_not(kind: str) -> None:
    tree = TensorDict(n={"a": torch.ones(2), "b": torch.ones(2)}, m=torch.ones(2))
    params: Any = tree if kind == "tree" else tree.to_dict()
    sgds = {"x": optim.sgd(1.0), "y": optim.sgd(2.0)}

    def steps(labels: Any) -> list[float]:
        tx = optim.multi_transform(sgds, labels)
        updates, _ = tx.update(params, tx.init(params))
        parts = (updates["n"]["a"], updates["n"]["b"], updates["m"])
        return [-x[0].item() for x in parts]

    nested = {"n": {"a": "y", "b": "y"}}
    assert [1.0, 2.0, 1.0] == steps({**nested, ("n", "a"): "x", "m": "x"})
    assert [2.0, 2.0, 1.0] == steps({("n", "a"): "x", "m": "x", **nested})
    assert [2.0, 2.0, 2.0] == steps({**nested, ("n", "a"): "x", "m": "y", ("n",): "y"})
    assert [2.0, 1.0, 2.0] == steps({"n": "x", "m": "y", ("n", "a"): "y"})


def test_a_mapping_is_looked_up_once_for_each_structure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = TensorDict(a=torch.ones(2), b=torch.ones(2))
    labels = {"a": "x", "b": "y"}
    tx = optim.multi_transform({"x": optim.sgd(1.0), "y": optim.sgd(2.0)}, labels)
    labels["a"] = "nowhere"  # what was given counts
    calls: list[int] = []
    inner = _pick._Names._found

    def counted(*args: Any) -> Any:
        calls.append(1)
        return inner(*args)

    monkeypatch.setattr(_pick._Names, "_found", counted)
    state = tx.init(params)
    for tree in (params, params * 2, params.to_dict(), params.to_dict(), params):
        if isinstance(tree, dict):
            state = tx.init(tree)
        elif tree is params:
            state = tx.init(params)
        updates, state = tx.update(tree, state)
        assert (-1.0 * tree["a"] == updates["a"]).all()

    assert 3 == len(calls)


def test_many_labels_do_not_cost_their_square() -> None:
    names = [str(i) for i in range(3000)]
    params = TensorDict({name: torch.ones(()) for name in names})
    tx = optim.multi_transform({"x": optim.sgd(1.0)}, dict.fromkeys(names, "x"))

    start = time.process_time()
    tx.update(params, tx.init(params))

    assert time.process_time() - start < 2.0  # 9e6 looks took 4 s


STATED = {
    **{name: EVERY[name] for name in ("sgd", "adam", "adamw", "rmsprop", "adagrad")},
    **{name: EVERY[name] for name in ("lion", "lamb", "accumulate", "flat", "chain")},
    "schedule": optim.sgd(optim.constant(0.1)),
    "decayed": optim.adagrad(lr_decay=0.1),
    "not centered": optim.rmsprop(0.1),
    "multi": optim.multi_transform({"x": optim.sgd(0.1)}, lambda *_: "x"),
    "masked": optim.masked(optim.adam(), lambda *_: True),
}


@pytest.mark.parametrize("name", STATED)
def test_the_state_of_another_transformation_is_refused(name: str) -> None:
    tx, x = STATED[name], torch.ones(2)
    own = tx.init(x)
    others = [other.init(x) for other in STATED.values()]

    for state in (None, x, (), [], {}, (optim.EmptyState(),) * 3, *others):
        if pytree.tree_structure(state) == pytree.tree_structure(own):
            tx.update(x, state, x)
            continue
        with pytest.raises((OperandError, StructureError), match="state") as raised:
            tx.update(x, state, x)
        assert raised.value.fix is not None
        assert "tx.init" in raised.value.fix


def test_states_of_other_labels_are_refused() -> None:
    x = torch.ones(2)
    one, two = [
        optim.multi_transform({label: optim.sgd(0.1)}, lambda *_, at=label: at)
        for label in "ab"
    ]

    with pytest.raises(OperandError, match="states of 'a' - got 'b'"):
        one.update(x, two.init(x))


@pytest.mark.parametrize(
    "tx", [optim.adam(), optim.trace(0.9), optim.add_decayed_weights(0.1)]
)
def test_imaginary_parts_are_not_dropped(tx: Any) -> None:
    x = torch.ones(2)

    with pytest.raises(OperandError, match=r"complex64.*torch\.real") as raised:
        tx.update({"a": x * 1j}, tx.init({"a": x}), {"a": x})
    assert ("a",) == raised.value.path
    with pytest.raises(OperandError, match=r"imaginary.*torch\.real") as raised:
        optim.apply_updates({"a": x}, {"a": x * 1j})
    assert ("a",) == raised.value.path
    assert [2.0, 2.0] == optim.apply_updates(x * 1j, x * 1j).imag.tolist()


def test_how_pytrees_differ_is_said_by_path() -> None:
    x = torch.ones(2)
    params = {"b": x, "a": {"d": x, "c": x}}
    tx = optim.adam()

    swapped = {"a": {"c": x, "d": x}, "b": x}
    order = r"another order - at td\['b'\] - expected the order b, a\.d, a\.c"
    with pytest.raises(StructureError, match=order) as raised:
        tx.update(params, tx.init(swapped))
    assert raised.value.fix is not None
    assert "key in params" in raised.value.fix
    with pytest.raises(StructureError, match=order):
        optim.apply_updates(params, swapped)
    with pytest.raises(
        StructureError, match=r"b'. is missing, .*'e'. is extra"
    ) as raised:
        optim.apply_updates(params, {"e": x, "a": params["a"]})
    assert raised.value.fix is None
    many = {str(i): x for i in range(100)}
    with pytest.raises(StructureError, match="and 93 more"):
        optim.apply_updates(params, many)
    with pytest.raises(ShapeError) as shaped:
        optim.apply_updates(params, {**params, "b": torch.ones(3)})
    assert shaped.value.fix is None


@pytest.mark.parametrize("make", [optim.adam, optim.adamw])
@pytest.mark.parametrize("eps_root", [0.0, 1e-8])
@pytest.mark.parametrize("kind", ["plain", "mixed", "complex", "differentiated"])
def test_a_step_asks_the_schedule_once(make: Any, eps_root: float, kind: str) -> None:
    asked: list[int] = []

    def schedule(count: Any) -> float:
        asked.append(int(count))
        return 0.1

    params = {"a": torch.ones(2), "b": torch.full((3,), 2.0)}
    if kind == "mixed":
        params["b"] = params["b"].double()
    elif kind == "complex":
        params["b"] = params["b"] * 1j
    elif kind == "differentiated":
        params["b"].requires_grad_()
    tx = make(schedule, eps_root=eps_root)
    grads = {key: 3 * x for key, x in params.items()}

    got, state = optim.step(tx, grads, tx.init(params), params)

    assert [0] == asked
    assert 1 == state.step.item()
    updates, expected = tx.update(grads, tx.init(params), params)
    torch.testing.assert_close(got, optim.apply_updates(params, updates))
    torch.testing.assert_close(state, expected)
    with pytest.raises((OperandError, StructureError), match=r"parameters"):
        optim.step(tx, grads, tx.init(params), None)
