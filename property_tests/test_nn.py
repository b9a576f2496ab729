"""A sequence is the composition, and so are its parts; an ensemble is a loop."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import assume, given
from torch import nn
from torch.distributions import Normal

from tdfunc import TensorDict, random
from tdfunc.errors import OptionError
from tdfunc.nn import (
    EnsembleModule,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from tdfunc.testing import assert_equal, assert_pure, tensordicts

# Few, so that modules read what others wrote; one inside a node.
KEYS: list[Any] = ["a", "b", "c", ("n", "d"), ("n", "e")]
some_keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True)


class Mix(nn.Module):
    """Any number of inputs and outputs, each output of all inputs."""

    def __init__(self, outs: int) -> None:
        super().__init__()
        self.weights = nn.Linear(1, outs)
        self.drop = nn.Dropout(0.3)

    def forward(self, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.drop(torch.stack(xs).sum(0).unsqueeze(-1))
        return self.weights(x).unbind(-1)


@st.composite
def sequences(draw: st.DrawFn) -> TensorDictSequential:
    modules: list[Any] = []
    for _ in range(draw(st.integers(1, 5))):
        ins, outs = draw(some_keys), draw(some_keys)
        modules.append(TensorDictModule(Mix(len(outs)), ins, outs))
    nested = draw(st.integers(0, len(modules)))
    if nested:
        modules[:nested] = [TensorDictSequential(*modules[:nested])]
    return TensorDictSequential(*modules)


def inputs(seq: TensorDictSequential) -> TensorDict:
    td = TensorDict({"other": torch.arange(3)}, 3)
    for i, key in enumerate(seq.in_keys):
        td = td.set(key, torch.arange(3.0) + i)
    return td


seeds = st.integers(0, 100).map(random.key)


@given(sequences(), seeds)
def test_a_sequence_is_the_composition(seq: TensorDictSequential, seed: Any) -> None:
    for module in _ends(seq):
        module.module.eval()
    params, td = seq.init(seed), inputs(seq)
    step: Any = td
    for name, module in zip(seq.names, seq, strict=True):
        step = module(params[name], step)

    got = assert_pure(seq, params, td)
    assert_equal(step, got)


@given(sequences(), seeds, st.data())
def test_a_subsequence_gives_equal_outputs(
    seq: TensorDictSequential, key: Any, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(seq.out_keys), min_size=1, unique=True))
    part = seq.select_subsequence(out_keys=chosen)
    params, td = seq.init(key), inputs(seq)
    whole = seq(params, td, key=key)
    few = part(part.project(params), td, key=key)

    assert set(part.in_keys) <= set(seq.in_keys)
    for out in chosen:
        assert torch.equal(whole[out], few[out])
    selected = seq.select_out_keys(*chosen)(params, td, key=key)
    for path in seq.out_keys:
        if path in chosen:
            assert torch.equal(whole[path], selected[path])
        else:
            assert selected.get(path) is td.get(path)


@given(sequences(), seeds)
def test_keys_are_those_of_an_interpreter(seq: TensorDictSequential, key: Any) -> None:
    written: list[Any] = []
    read: list[Any] = []
    for module in _ends(seq):
        read += [k for k in module.in_keys if k not in written and k not in read]
        for out in module.out_keys:
            written = [k for k in written if k != out] + [out]

    assert tuple(read) == seq.in_keys
    assert tuple(written) == seq.out_keys
    assert set(written) <= set(seq(seq.init(key), inputs(seq), key=key).keys(True))


def _ends(seq: Any) -> list[Any]:
    """Return all modules, those of nested sequences too."""
    found: list[Any] = []
    for module in seq:
        found += _ends(module) if isinstance(module, TensorDictSequential) else [module]
    return found


@given(sequences(), st.integers(1, 4), seeds)
def test_an_ensemble_is_the_loop(seq: Any, count: int, key: Any) -> None:
    ensemble = EnsembleModule(seq, count)
    params, td = ensemble.init(key), inputs(seq)
    keys = random.split(key, count)
    out = assert_pure(lambda p, t: ensemble(p, t, key=key), params, td)

    assert (count, 3) == out.batch_size
    for i in range(count):
        one = seq(params[i], td, key=keys[i])
        for path in one.keys(True, True):
            torch.testing.assert_close(one[path], out[path][i])


@given(tensordicts(min_leaves=1), st.data())
def test_writing_outputs_is_setting_entries(
    td: TensorDict, data: st.DataObject
) -> None:
    paths = data.draw(
        st.lists(
            st.one_of(
                st.sampled_from(td.keys(True)),
                st.just("new"),
                st.just(("new node", "x")),
            ),
            min_size=1,
            max_size=3,
            unique=True,
        )
    )
    as_paths = [(p,) if isinstance(p, str) else p for p in paths]
    # One inside another has no order in which both stay.
    assume(not any(a != b and b[: len(a)] == a for a in as_paths for b in as_paths))
    value = torch.ones(td.batch_size)
    expected, fits = td, True
    try:
        for path in paths:
            expected = expected.set(path, value)
    except ValueError:  # a node with more batch dims
        fits = False
    assume(fits)
    module = TensorDictModule(lambda: [value] * len(paths), [], paths)

    assert_equal(expected, module(None, td))


@given(sequences(), seeds, st.data())
def test_two_parts_in_a_row_are_the_whole(
    seq: TensorDictSequential, key: Any, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(seq)))
    first, second = seq[:cut], seq[cut:]
    params, td = seq.init(key), inputs(seq)
    step = first(first.project(params), td, key=key)

    assert_equal(
        seq(params, td, key=key), second(second.project(params), step, key=key)
    )


@given(sequences(), seeds, st.data())
def test_a_subsequence_by_inputs_needs_no_others(
    seq: TensorDictSequential, key: Any, data: st.DataObject
) -> None:
    """It may read what modules that are left out would have written."""
    have = data.draw(st.lists(st.sampled_from(KEYS), min_size=1, unique=True))
    try:
        part = seq.select_subsequence(in_keys=have)
    except OptionError:
        assert not any(set(m.in_keys) <= set(have) for m in _ends(seq))
        return
    td = inputs(seq).exclude(*KEYS)
    for i, path in enumerate(have):
        td = td.set(path, torch.arange(3.0) + i)

    assert set(part.in_keys) <= set(have)
    out = part(part.project(seq.init(key)), td, key=key)
    assert set(part.out_keys) <= set(out.keys(True))


@given(sequences(), seeds, st.data())
def test_an_edit_is_undone_by_its_opposite(
    seq: TensorDictSequential, key: Any, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(seq)))
    more = seq.insert(at, TensorDictModule(Mix(1), [seq.in_keys[0]], ["new"]), "more")
    params, td = seq.init(key), inputs(seq)
    whole = seq(params, td, key=key)

    assert (*seq.names[:at], "more", *seq.names[at:]) == more.names
    assert_equal(whole, more.drop("more")(params, td, key=key))
    assert_equal(whole, seq.replace(0, seq[0])(params, td, key=key))


def unit(read: Any, write: Any) -> ProbabilisticTensorDictModule:
    return ProbabilisticTensorDictModule(
        {"loc": read},
        [write],
        distribution_class=Normal,
        distribution_kwargs={"scale": 2.0},
        return_log_prob=True,
        default_interaction_type="random",
    )


@given(st.lists(st.booleans(), min_size=1, max_size=5), seeds, st.data())
def test_log_probabilities_of_a_chain_add_up(
    draws: list[bool], key: Any, data: st.DataObject
) -> None:
    """Whatever the modules are, and in every part of the sequence."""
    draws[data.draw(st.integers(0, len(draws) - 1))] = True
    modules = [
        unit(f"h{i}", f"h{i + 1}")
        if drawn
        else TensorDictModule(torch.tanh, [f"h{i}"], [f"h{i + 1}"])
        for i, drawn in enumerate(draws)
    ]
    seq = ProbabilisticTensorDictSequential(*modules, return_composite=True)
    td = TensorDict({"h0": torch.arange(3.0)}, 3)
    out = seq(None, td, key=key)
    terms = {
        f"h{i + 1}_log_prob": Normal(out[f"h{i}"], 2.0).log_prob(out[f"h{i + 1}"])
        for i, drawn in enumerate(draws)
        if drawn
    }
    found = assert_pure(seq.log_prob, None, out)

    assert set(terms) == set(found.keys())
    for name, term in terms.items():
        torch.testing.assert_close(term, found[name])
        torch.testing.assert_close(term, out[name])
    stop = data.draw(st.integers(0, len(draws)))
    part: Any = seq[:stop]
    assert isinstance(part, ProbabilisticTensorDictSequential) is any(draws[:stop])
    if any(draws[:stop]):
        few = part.log_prob(None, out)
        for name in few.keys():  # noqa: SIM118 - a tree
            torch.testing.assert_close(terms[name], few[name])
