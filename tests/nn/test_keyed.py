"""Random layers and initial values come from keys, and from nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Beta, Dirichlet, Gamma
from torch.nn import functional as F

from tdfunc import TensorDict, random
from tdfunc.errors import InvalidLeafError, OperandError, OptionError
from tdfunc.nn import TensorDictModule, TensorDictSequential, draw
from tdfunc.nn._keyed import _DRAWING
from tests.nn.nets import X, mlp, tree

KEY = random.key(7)
BIG = TensorDict({"x": torch.ones(20, 50, 4, 4)}, batch_size=20)


def out(net: Any, key: Any = KEY, td: Any = BIG) -> Any:
    module = TensorDictModule(net, ["x"], ["y"])
    return module(module.params(), td, key=key)["y"]


@pytest.mark.parametrize(
    "net",
    [
        nn.Dropout(0.3),
        nn.Dropout2d(0.3),
        nn.AlphaDropout(0.3),
        nn.FeatureAlphaDropout(0.3),
        nn.RReLU(),
    ],
    ids=lambda net: type(net).__name__,
)
class TestLayers:
    def test_the_key_decides(self, net):
        td = BIG if not isinstance(net, nn.RReLU) else BIG * -1
        before = torch.get_rng_state()

        assert torch.equal(out(net, td=td), out(net, td=td))
        assert not torch.equal(out(net, td=td), out(net, random.key(8), td))
        assert torch.equal(before, torch.get_rng_state())

    def test_moments_are_those_of_torch(self, net):
        x = BIG["x"] * (-1 if isinstance(net, nn.RReLU) else 1)
        torch.manual_seed(0)
        expected = torch.stack([net(x) for _ in range(20)])
        got = torch.stack([out(net, k, BIG.set("x", x)) for k in random.split(KEY, 20)])

        torch.testing.assert_close(expected.mean(), got.mean(), atol=0.02, rtol=0)
        torch.testing.assert_close(expected.std(), got.std(), atol=0.02, rtol=0)
        if not isinstance(net, nn.RReLU):
            assert torch.allclose(expected.unique(), got.unique(), atol=1e-6)

    def test_in_eval_mode_no_key_is_needed(self, net):
        frozen = type(net)().eval()

        assert torch.equal(frozen(BIG["x"]), out(frozen, None))
        assert torch.equal(frozen(BIG["x"]), out(frozen))

    def test_without_a_key_it_raises(self, net):
        with pytest.raises(OptionError, match="draws random numbers") as caught:
            out(net, None)
        assert "key=tdfunc.random.key(0)" in str(caught.value)


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Dropout1d(), (50, 40)),
        (nn.Dropout1d(), (10, 50, 4)),
        (nn.Dropout2d(), (10, 50, 4, 4)),
        (nn.Dropout3d(), (50, 3, 4, 4)),
        (nn.Dropout3d(), (10, 50, 3, 4, 4)),
        (nn.FeatureAlphaDropout(), (10, 50, 4)),
    ],
)
def test_whole_channels_are_dropped(net, shape):
    got = out(net, td=TensorDict({"x": torch.ones(shape)}))
    kept = (
        1
        if len(shape) == 2 or (len(shape) == 4 and isinstance(net, nn.Dropout3d))
        else 2
    )
    flat = got.flatten(kept)

    assert torch.equal(flat[..., :1].expand_as(flat), flat)
    assert 2 == len(got.unique())


def test_rates_of_zero_and_one():
    assert torch.equal(BIG["x"], out(nn.Dropout(0.0)))
    assert torch.equal(torch.zeros_like(BIG["x"]), out(nn.Dropout(1.0)))


def test_functions_draw_from_the_key():
    def fn(x):
        noise = torch.randn_like(x) + torch.rand(x.shape) + torch.randn(*x.shape)
        return noise + torch.rand_like(x) + torch.bernoulli(torch.full_like(x, 0.5))

    module = TensorDictModule(fn, ["x"], ["y"])
    before = torch.get_rng_state()
    one, two = module(None, tree(), key=KEY)["y"], module(None, tree(), key=KEY)["y"]

    assert torch.equal(one, two)
    assert torch.equal(before, torch.get_rng_state())


def test_draws_of_one_call_differ():
    module = TensorDictModule(lambda: (torch.randn(5), torch.randn(5)), [], ["a", "b"])
    td = module(None, TensorDict({}), key=KEY)

    assert not torch.equal(td["a"], td["b"])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.normal(x, 1.0),
        lambda x: torch.empty_like(x).uniform_(),
        lambda x: x + torch.randperm(3),
        F.gumbel_softmax,
        lambda x: torch.dropout_(x.clone(), 0.5, train=True),
        lambda x: torch.native_dropout(x, 0.5, train=True)[0],
        lambda x: torch.feature_dropout_(x.clone(), 0.5, train=True),
        lambda x: torch.alpha_dropout_(x.clone(), 0.5, train=True),
        lambda x: torch.rrelu_(x.clone(), training=True),
        lambda x: torch.binomial(x.abs().round(), torch.full_like(x, 0.5)),
        lambda x: Gamma(x.abs() + 1, 1.0).rsample(),
        lambda x: Beta(x.abs() + 1, 1.0).rsample(),
        lambda x: nn.init.normal_(torch.empty_like(x)),
        lambda x: nn.init.kaiming_uniform_(torch.empty_like(x)),
    ],
    ids=[
        *("normal", "uniform_", "randperm", "gumbel_softmax", "dropout_"),
        *("native_dropout", "feature_dropout_", "alpha_dropout_", "rrelu_"),
        *("binomial", "Gamma", "Beta", "init.normal_", "init.kaiming_uniform_"),
    ],
)
def test_what_can_not_come_from_a_key_raises(fn):
    before = torch.get_rng_state()

    with pytest.raises(OptionError, match="can not draw from a key"):
        TensorDictModule(fn, ["x"], ["y"])(None, tree(), key=KEY)
    assert torch.equal(before, torch.get_rng_state())


def test_all_functions_of_torch_that_draw_are_known():
    drawing = set()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in getattr(packet, "overloads", list)():
            tags = getattr(packet, overload).tags
            if torch.Tag.nondeterministic_seeded in tags:
                drawing.add(name)
    # Attention and recurrent layers are asked for their dropout; the rest is below.
    below = {name for name in drawing if name.startswith(("_cudnn", "_scaled", "_fl"))}
    drawing -= {*below, "miopen_rnn", "lstm", "gru", "rnn_tanh", "rnn_relu"}
    found = [
        getattr(place, name)
        for place in (torch, torch.Tensor, F)
        for name in sorted(drawing)
        if hasattr(place, name)
    ]

    assert len(found) > 20
    assert not set(found).difference(_DRAWING)


def test_functions_take_the_options_of_torch():
    def fn(x):
        some = torch.rand(size=(4, 2), layout=torch.strided, pin_memory=False)
        more = torch.randn((4, 2), out=None, dtype=torch.float64)
        kept = torch.preserve_format
        return some, more, torch.rand_like(x, memory_format=kept, generator=None)

    module = TensorDictModule(fn, ["x"], ["a", "b", "c"])
    td = module(None, tree(), key=KEY)

    shapes = [td[name].shape for name in "abc"]
    assert [(4, 2), (4, 2), (4, 3)] == shapes
    assert td["b"].dtype == torch.float64
    for other in (
        lambda x: torch.rand(4, out=torch.empty(4)) + x,
        lambda x: torch.randn_like(x, memory_format=torch.channels_last),
        lambda x: torch.bernoulli(x.abs(), out=torch.empty_like(x)),
    ):
        with pytest.raises(OptionError, match="a draw from a key takes no"):
            TensorDictModule(other, ["x"], ["y"])(None, tree(), key=KEY)


def test_the_way_out_of_an_error_is_one():
    def fn(params, td, *, key):
        assert params is None
        return td.set("y", draw(Gamma(td["x"].abs() + 1, 1.0), key))

    with pytest.raises(OptionError, match=r"tdfunc.nn.draw in a function \(params, td"):
        TensorDictModule(torch.poisson, ["x"], ["y"])(None, tree().abs(), key=KEY)
    seq = TensorDictSequential(fn)
    assert torch.equal(seq(None, tree(), key=KEY)["y"], seq(None, tree(), key=KEY)["y"])


def test_a_generator_of_the_code_itself_is_left_to_it():
    def fn(x):
        own = torch.Generator().manual_seed(3)
        return torch.rand(4, generator=own), torch.poisson(x.abs(), own)

    expected = fn(X)
    td = TensorDictModule(fn, ["x"], ["a", "b"])(None, tree(), key=KEY)

    assert torch.equal(expected[0], td["a"])
    assert torch.equal(expected[1], td["b"])


@pytest.mark.parametrize(
    "net",
    [nn.LSTM(3, 4, num_layers=2, dropout=0.5), nn.GRU(3, 4, num_layers=2, dropout=0.5)],
    ids=["LSTM", "GRU"],
)
def test_dropout_inside_recurrent_layers_raises(net):
    module = TensorDictModule(net, ["x"], ["y", "_"])

    for key in (None, KEY):
        with pytest.raises(OptionError, match="draw"):
            module(module.params(), tree(), key=key)
    net.eval()
    assert (4, 4) == module(module.params(), tree(), key=KEY)["y"].shape


def test_dropout_inside_attention_raises():
    net = nn.MultiheadAttention(3, 1, dropout=0.5)
    module = TensorDictModule(net, ["x", "x", "x"], ["y", "_"])

    with pytest.raises(OptionError, match="multi_head_attention_forward with dropout"):
        module(module.params(), tree(), key=KEY)
    net.eval()
    assert (4, 3) == module(module.params(), tree(), key=KEY)["y"].shape


class Drawn(nn.Module):
    """A layer whose values are what a function draws."""

    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn
        self.w = nn.Parameter(torch.zeros(6, 5))

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.w.copy_(self.fn(torch.full_like(self.w, 0.5)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class TestInit:
    def test_a_default_device_changes_nothing(self):
        module = TensorDictModule(mlp(), ["x"], ["y"])
        expected = module.init(KEY)

        with torch.device("cpu"):
            assert expected.equal(module.init(KEY))

    @pytest.mark.parametrize(
        "fn",
        [
            torch.rand_like,
            torch.randn_like,
            lambda w: torch.randint_like(w, 50),
            lambda w: torch.poisson(20 * w),
            lambda w: torch.binomial(100 * w, w),
            torch.bernoulli,
            torch.Tensor.bernoulli,
            lambda w: w.multinomial(5),
            lambda w: torch.rrelu(-w, training=True),
            lambda w: Gamma(w, 1.0).sample(),
            lambda w: Beta(w, 1.0).sample(),
            lambda w: Dirichlet(w).sample(),
            nn.init.orthogonal_,
            nn.init.trunc_normal_,
            nn.init.kaiming_uniform_,
        ],
        ids=[
            *("rand_like", "randn_like", "randint_like", "poisson", "binomial"),
            *("bernoulli", "Tensor.bernoulli", "multinomial", "rrelu", "Gamma"),
            *("Beta", "Dirichlet", "orthogonal_", "trunc_normal_", "kaiming_uniform_"),
        ],
    )
    def test_all_that_draws_draws_from_the_key(self, fn):
        module = TensorDictModule(Drawn(fn), ["x"], ["y"])
        before = torch.get_rng_state()
        one, two, other = (module.init(random.key(i))["w"] for i in (0, 0, 1))

        assert torch.equal(one, two)
        assert not torch.equal(one, other)
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.parametrize("fn", [F.dropout, F.gumbel_softmax])
    def test_what_takes_no_generator_raises(self, fn):
        module = TensorDictModule(Drawn(fn), ["x"], ["y"])

        with pytest.raises(OptionError, match="can not draw from a key"):
            module.init(KEY)

    def test_equal_keys_give_equal_parameters(self):
        net = mlp()
        module = TensorDictModule(net, ["x"], ["y"])
        before = torch.get_rng_state(), [p.clone() for p in net.parameters()]
        one, two, three = (module.init(random.key(i)) for i in (0, 0, 1))

        assert one.equal(two)
        assert not torch.equal(one["0", "weight"], three["0", "weight"])
        assert torch.equal(before[0], torch.get_rng_state())
        for old, new in zip(before[1], net.parameters(), strict=True):
            assert torch.equal(old, new)

    def test_parts_do_not_draw_the_same(self):
        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        params = TensorDictModule(net, ["x"], ["y"]).init(random.key(0))

        assert not torch.equal(params["0", "weight"], params["1", "weight"])

    def test_values_are_those_of_the_layers_own_scheme(self):
        params = TensorDictModule(nn.Linear(100, 200), ["x"], ["y"]).init(random.key(0))
        bound = 0.1

        assert params["weight"].abs().max() <= bound
        torch.testing.assert_close(
            params["weight"].std(), torch.tensor(bound / 3**0.5), atol=1e-3, rtol=0
        )

    @pytest.mark.parametrize(
        "net",
        [
            nn.MultiheadAttention(4, 2),
            nn.Conv2d(2, 3, 3),
            nn.Embedding(5, 3),
            nn.LSTM(3, 4),
            nn.TransformerEncoderLayer(4, 2, 8),
            nn.Bilinear(2, 3, 4),
            nn.LayerNorm(3),
        ],
        ids=lambda net: type(net).__name__,
    )
    def test_layers_of_torch(self, net):
        module = TensorDictModule(net, ["x"], ["y"])
        before = torch.get_rng_state()

        assert module.init(KEY).equal(module.init(KEY))
        assert torch.equal(before, torch.get_rng_state())

    def test_lazy_layers_raise(self):
        with pytest.raises(InvalidLeafError, match="not initialised"):
            TensorDictModule(nn.LazyLinear(4), ["x"], ["y"]).init(KEY)

    def test_under_vmap_it_names_the_ensemble(self):
        module = TensorDictModule(mlp(), ["x"], ["y"])

        with pytest.raises(OptionError, match="EnsembleModule"):
            torch.vmap(module.init)(random.split(KEY, 3))

    def test_parameters_without_a_reset_keep_their_values(self):
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.full((3,), 2.0))

        params = TensorDictModule(Scale(), ["x"], ["y"]).init(KEY)

        assert [2.0] * 3 == params["scale"].tolist()
        assert X.shape == (4, 3)

    @pytest.mark.parametrize(
        "make",
        [
            mlp,
            lambda: nn.LSTM(3, 4),
            lambda: nn.MultiheadAttention(4, 2),
        ],
        ids=["mlp", "LSTM", "attention"],
    )
    def test_shapes_without_memory_are_enough(self, make):
        with torch.device("meta"):
            shapes = make()

        params = TensorDictModule(shapes, ["x"], ["y"]).init(KEY)

        assert params.equal(TensorDictModule(make(), ["x"], ["y"]).init(KEY))
        assert all(x.is_meta for x in shapes.parameters())

    def test_a_tie_without_memory_stays_one(self):
        with torch.device("meta"):
            net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        net[1].weight = net[0].weight

        assert 3 == len(TensorDictModule(net, ["x"], ["y"]).init(KEY)._leaves)

    def test_parameters_without_memory_need_a_reset(self):
        class Scaled(nn.Linear):
            def __init__(self):
                super().__init__(3, 3)
                self.scale = nn.Parameter(torch.ones(3))

        with torch.device("meta"):
            net = nn.Sequential(nn.ReLU(), Scaled())

        with pytest.raises(OperandError, match="meta device") as raised:
            TensorDictModule(net, ["x"], ["y"]).init(KEY)
        assert ("1", "scale") == raised.value.path
