"""Draws inside transforms, compiled, exported, in threads: always the same numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

from tdfunc import TensorDict, random
from tests.bench.cases import compiler_installed
from tests.cases import fingerprint
from tests.meta.source import ROOT

KEY = random.key(3)
P = torch.tensor([0.5, 0.0, 2.0, 1.0])
TREE = TensorDict({"w": torch.zeros(2, 3), "n": {"b": torch.zeros(2)}, "s": "x"}, 2)
INTS = torch.int64

# Everything, each as a function of one key.
DRAWS: dict[str, Any] = {
    "split": lambda key: random.split(key, 3),
    "fold_in": lambda key: random.fold_in(key, 7),
    "fold_in a tensor": lambda key: random.fold_in(key, torch.arange(3)),
    "key": lambda key: random.key(key[0]),
    "uniform": lambda key: random.uniform(key, [4, 2]),
    "uniform bounds": lambda key: random.uniform(key, 5, None, -1, P.sum()),
    "normal": lambda key: random.normal(key, [5]),
    "normal of nothing": lambda key: random.normal(key, [2, 0]),
    "normal, one": random.normal,
    "normal, large": lambda key: random.normal(key, [4100]),
    "normal, float64": lambda key: random.normal(key, 5, torch.float64),
    "normal, bfloat16": lambda key: random.normal(key, 5, torch.bfloat16),
    "exponential": lambda key: random.exponential(key, 5),
    "gumbel": lambda key: random.gumbel(key, [4100]),
    "truncated_normal": lambda key: random.truncated_normal(key, -1, 1, 4),
    "randint": lambda key: random.randint(key, 5, 0, 10),
    "randint, wide": lambda key: random.randint(key, 5, -(2**62), 2**62),
    "bernoulli": lambda key: random.bernoulli(key, 0.3, 5),
    "bernoulli of a tensor": lambda key: random.bernoulli(key, P / 2),
    "categorical": lambda key: random.categorical(key, torch.zeros(3, 4)),
    "permutation": lambda key: random.permutation(key, 6),
    "permutation of rows": lambda key: random.permutation(key, TREE),
    "choice": lambda key: random.choice(key, 9, [2, 3]),
    "choice of rows": lambda key: random.choice(key, TREE, [3]),
    "choice without replacement": lambda key: random.choice(key, P, 3, False),
    "choice with p": lambda key: random.choice(key, 4, 3, p=P),
    "choice without, with p": lambda key: random.choice(key, 4, 3, False, P),
    "normal_like": lambda key: random.normal_like(key, TREE),
    "uniform_like": lambda key: random.uniform_like(key, TREE, dtype=torch.float64),
}


def assert_same(got: Any, expected: Any) -> None:
    """Assert equal structures with equal bits."""
    mine, theirs = tree_leaves(got), tree_leaves(expected)
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)


def loop(draw: Any, keys: torch.Tensor) -> Any:
    return tree_map(lambda *x: torch.stack(x), *[draw(key) for key in keys])


@pytest.mark.parametrize("name", DRAWS)
def test_mapped_draw_is_the_loop(name: str) -> None:
    draw = DRAWS[name]
    keys = random.split(KEY, 6)

    assert_same(torch.vmap(draw)(keys), loop(draw, keys))
    assert_same(torch.vmap(draw, 1)(keys.t().contiguous()), loop(draw, keys))
    assert_same(torch.vmap(draw, chunk_size=4)(keys), loop(draw, keys))
    shared = torch.vmap(lambda key, _: draw(key), (None, 0))(KEY, torch.zeros(2))
    assert_same(shared, loop(draw, KEY.expand(2, 2)))


@pytest.mark.parametrize("name", DRAWS)
def test_mapped_draw_is_the_loop_at_every_nesting(name: str) -> None:
    draw = DRAWS[name]
    keys = random.split(KEY, 12).reshape(2, 3, 2, 2)
    expected = loop(lambda k: loop(lambda q: loop(draw, q), k), keys)

    assert_same(torch.vmap(torch.vmap(torch.vmap(draw)))(keys), expected)
    split_inside = torch.vmap(lambda key: torch.vmap(draw)(random.split(key, 3)))
    keys = keys[0, :, 0]
    expected = loop(lambda key: loop(draw, random.split(key, 3)), keys)
    assert_same(split_inside(keys), expected)


def test_parameters_are_mapped_over() -> None:
    keys = random.split(KEY, 3)
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    p = logits.softmax(-1)
    rows = torch.arange(15.0).reshape(3, 5)
    td = TensorDict({"x": rows}, [3, 5])
    calls: list[tuple[Any, Any]] = [
        (lambda key, x: random.categorical(key, x, shape=7), logits),
        (random.categorical, logits),
        (random.bernoulli, p),
        (lambda key, x: random.choice(key, 4, 3, p=x), p),
        (lambda key, x: random.choice(key, 4, 3, False, x), p),
        (lambda key, x: random.uniform(key, 4, None, x - 1, x), p),
        (lambda key, x: random.randint(key, [2, 4], -2, (x * 50 + 3).long()), p),
        (lambda key, x: random.truncated_normal(key, x, 3.0, [2, 4]), p),
        (random.permutation, rows),
        (random.permutation, td),
        (random.normal_like, td),
        (lambda key, x: random.choice(key, x, 2, False), rows),
    ]
    for call, x in calls:
        both = [call(keys[i], x[i]) for i in range(3)]
        one = [call(KEY, x[i]) for i in range(3)]
        mapped: Any = torch.vmap
        assert_same(mapped(call)(keys, x), tree_map(lambda *y: torch.stack(y), *both))
        found = mapped(call, (None, 0))(KEY, x)
        assert_same(found, tree_map(lambda *y: torch.stack(y), *one))


def test_draws_inside_differentiation_are_constants() -> None:
    w = torch.tensor([1.0, 2.0, 3.0])
    keys = random.split(KEY, 4)
    noise = random.normal(KEY, 3)

    def loss(w: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (w * random.normal(key, 3)).sum()

    mapped: Any = torch.vmap
    assert torch.equal(noise, torch.func.grad(loss)(w, KEY))
    per_key = mapped(torch.func.grad(loss), (None, 0))(w, keys)
    assert torch.equal(random.normal(keys, 3), per_key)
    through = torch.func.grad(lambda w: mapped(loss, (None, 0))(w, keys).sum())(w)
    torch.testing.assert_close(through, random.normal(keys, 3).sum(0))
    tangent = torch.func.jvp(lambda w: w * random.normal(KEY, 3), (w,), (w,))[1]
    assert torch.equal(w * noise, tangent)
    hessian = torch.func.hessian(lambda w: (w**2 * random.normal(KEY, 3)).sum())(w)
    torch.testing.assert_close(hessian, torch.diag(2 * noise))
    with torch.inference_mode():
        assert torch.equal(noise, random.normal(KEY, 3))


@pytest.mark.parametrize("name", DRAWS)
def test_compiled_draw_is_the_draw(name: str) -> None:
    draw = DRAWS[name]
    torch._dynamo.reset()
    compiled = torch.compile(draw, fullgraph=True, backend="eager")
    mapped = torch.compile(torch.vmap(draw), fullgraph=True, backend="eager")
    keys = random.split(KEY, 3)

    assert_same(compiled(KEY), draw(KEY))
    assert_same(compiled(keys[1]), draw(keys[1]))
    assert_same(mapped(keys), loop(draw, keys))


@pytest.mark.skipif(not compiler_installed(), reason="Inductor needs a C++ compiler")
def test_draws_by_inductor_are_the_draws() -> None:
    """Truncated normals are computed around a draw, and may be rounded otherwise."""
    names = [name for name in DRAWS if name != "truncated_normal"]

    def every(key: torch.Tensor) -> list[Any]:
        return [DRAWS[name](key) for name in names]

    torch._dynamo.reset()
    assert_same(torch.compile(every, fullgraph=True)(KEY), every(KEY))
    keys = random.split(KEY, 3)
    normal = DRAWS["normal"]
    mapped = torch.compile(torch.vmap(normal), fullgraph=True)
    assert_same(mapped(keys), loop(normal, keys))
    near = torch.compile(DRAWS["truncated_normal"], fullgraph=True)(KEY)
    torch.testing.assert_close(near, DRAWS["truncated_normal"](KEY))


def test_compiled_code_takes_any_shape_and_any_step() -> None:
    torch._dynamo.reset()
    compilations: list[int] = []

    def count(graph: Any, _: Any) -> Any:
        compilations.append(1)
        return graph

    @torch.compile(fullgraph=True, backend=count)
    def noisy(x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return x + random.normal(key, x.shape)

    for rows in range(2, 7):
        x = torch.ones(rows, 3)
        assert torch.equal(x + random.normal(KEY, [rows, 3]), noisy(x, KEY))
    assert len(compilations) == 2
    compilations.clear()

    @torch.compile(fullgraph=True, backend=count)
    def stepped(key: torch.Tensor, step: int) -> torch.Tensor:
        return random.normal(random.fold_in(key, step), 2)

    for step in range(2, 7):
        expected = random.normal(random.fold_in(KEY, step), 2)
        assert torch.equal(expected, stepped(KEY, step))
    assert len(compilations) == 2


def test_default_device_is_where_new_keys_lie() -> None:
    expected = [DRAWS[name](KEY) for name in ("split", "fold_in", "normal, large")]

    with torch.device("meta"):
        found = [DRAWS[name](KEY) for name in ("split", "fold_in", "normal, large")]
        assert "meta" == random.key(0).device.type

    assert_same(found, expected)


@pytest.mark.parametrize("strict", [True, False])
def test_exported_draw_is_the_draw(*, strict: bool) -> None:
    class Noise(torch.nn.Module):
        def forward(self, key: torch.Tensor) -> torch.Tensor:
            one, two = random.split(key).unbind(0)
            return random.normal(one, 3) + random.fold_in(two, 1)[0]

    program = torch.export.export(Noise(), (KEY,), strict=strict)

    other = random.key(9)
    assert torch.equal(Noise()(other), program.module()(other))


def test_traced_draw_is_a_node_of_the_graph() -> None:
    traced = make_fx(DRAWS["normal"])(KEY)

    other = random.key(9)
    assert torch.equal(DRAWS["normal"](other), traced(other))
    with FakeTensorMode() as mode:
        fake = random.normal(mode.from_tensor(KEY), [3, 4])
    assert (3, 4) == fake.shape
    assert type(fake) is not torch.Tensor


@pytest.mark.parametrize("name", DRAWS)
def test_draw_is_pure_and_leaves_the_global_generator_alone(name: str) -> None:
    key = random.key(5)
    given = [key, P, *tree_leaves(TREE)]
    before = fingerprint(given)
    state = torch.get_rng_state()

    first = DRAWS[name](key)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(1)
    torch.randn(3)
    try:
        assert_same(DRAWS[name](key), first)
    finally:
        torch.set_rng_state(state)
    assert before == fingerprint(given)
    for leaf in tree_leaves(first):
        leaf.fill_(1)  # new memory: what is written into it shows nowhere else
    assert before == fingerprint(given)


def test_threads_draw_what_one_thread_draws() -> None:
    keys = random.split(KEY, 64)
    draws = [DRAWS["normal"], DRAWS["normal, large"], DRAWS["split"]]

    def work(key: torch.Tensor) -> list[torch.Tensor]:
        return [draw(key) for draw in draws]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, keys))

    assert_same(found, [work(key) for key in keys])


# Runs in a fresh interpreter.
FRESH = """
import json, sys, torch
import tdfunc
from tdfunc import random
key = random.key(0)
first, second = random.split(key)
drawn = random.normal(first, 3).tolist()
random.normal(second, 5000), random.randint(key, 3, 0, 5), random.permutation(key, 4)
random.categorical(key, torch.zeros(3)), random.truncated_normal(key, -1, 1)
random.normal_like(key, tdfunc.TensorDict({"x": torch.zeros(2)}))
plain = [name for name in ("torch._dynamo", "sympy") if name in sys.modules]
mapped = torch.vmap(lambda k: random.normal(k, 3))(random.split(key)).tolist()
inside = [name for name in ("torch._dynamo", "sympy") if name in sys.modules]
print(json.dumps([drawn, mapped, plain, inside, tdfunc.random is random]))
"""


def test_first_draw_in_a_process_imports_no_compiler_and_is_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FRESH],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    drawn, mapped, plain, inside, attribute = json.loads(done.stdout)

    keys = random.split(random.key(0))
    assert random.normal(keys[0], 3).tolist() == drawn
    assert random.normal(keys, 3).tolist() == mapped
    assert ([], [], True) == (plain, inside, attribute)
