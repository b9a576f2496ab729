"""What is printed is true: read back, it gives the keys, shapes and dtypes."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tdfunc import NonTensorData, TensorDict
from tests.cases import Case, cases, ramp

SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.float8_e4m3fn: "f8_e4m3fn",
}


def test_the_compact_form_is_one_line_with_sorted_fields() -> None:
    td = TensorDict({"pos": ramp(5, 3), "hidden": ramp(5, 4)}, 5)
    assert (
        repr(td) == "TensorDict(batch_size=[5], fields={hidden: f32[4], pos: f32[3]})"
    )
    assert str(td) == repr(td)


def test_the_compact_form_shows_nesting_statics_and_odd_keys() -> None:
    td = TensorDict(
        {
            "z": {"b": ramp(2), "a": {}},
            "text": "it's",
            "none": None,
            "tags": NonTensorData(["x"]),
            "a.b": ramp(2, 3).long(),
            "日": ramp(2) > 0,
        },
        2,
    )
    assert repr(td) == (
        "TensorDict(batch_size=[2], fields={'a.b': i64[3], none: None, tags: ['x'], "
        'text: "it\'s", z: {a: {}, b: f32[]}, 日: bool[]})'
    )


def test_shapes_are_those_of_one_row_after_indexing_too() -> None:
    td = TensorDict({"k": {"a": torch.arange(300).view(150, 2)}}, 150)
    assert repr(td) == "TensorDict(batch_size=[150], fields={k: {a: i64[2]}})"
    assert repr(td[0]) == "TensorDict(batch_size=[], fields={k: {a: i64[2]}})"


def test_a_wider_node_shows_its_batch_size() -> None:
    inner = TensorDict({"o": ramp(2, 3, 4)}, (2, 3))
    td = TensorDict({"a": inner, "r": ramp(2)}, 2)
    assert repr(td) == (
        "TensorDict(batch_size=[2], fields={a: [2, 3]{o: f32[4]}, r: f32[]})"
    )


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_dtypes_have_short_names(dtype: torch.dtype) -> None:
    td = TensorDict({"x": torch.zeros(2, 3).to(dtype)}, 2)
    assert repr(td) == f"TensorDict(batch_size=[2], fields={{x: {SHORT[dtype]}[3]}})"


@cases(lambda case: case.name != "deep")
def test_the_compact_form_reads_back_to_keys_shapes_and_dtypes(case: Case) -> None:
    text = repr(case.tree)
    assert "\n" not in text
    assert f"batch_size={list(case.batch)}" in text
    for path, x in case.leaves.items():
        rank = len(case.batches[path[:-1]])
        key = path[-1] if path[-1].isidentifier() else repr(path[-1])
        assert f"{key}: {SHORT[x.dtype]}{list(x.shape[rank:])}" in text


@cases()
def test_the_full_form_has_a_line_for_every_entry(case: Case) -> None:
    td = case.tree
    title, *lines = td.to_tree_string().split("\n")
    assert title.startswith("TensorDict(batch_size=")
    assert f"batch_size={list(case.batch)}" in title
    assert f"leaves={len(case.leaves)}" in title
    keys = td.keys(True)
    assert len(lines) == len(keys)
    for key, line in zip(keys, lines, strict=True):
        path = key if isinstance(key, tuple) else (key,)
        indent = "  " * len(path)
        assert line.startswith(indent)
        assert line[len(indent)] != " "
        x = case.leaves.get(path)
        if x is not None:
            cells = re.split(r"  +", line.strip())
            name = path[-1] if path[-1].isidentifier() else repr(path[-1])
            assert cells[:3] == [name, SHORT[x.dtype], str(list(x.shape))]
            assert cells[4] == "cpu"


def test_the_full_form_by_hand() -> None:
    td = TensorDict(
        {"obs": ramp(2, 256), "n": {"i": torch.zeros(2, dtype=torch.int64)}, "s": "a"},
        2,
        names=["time"],
    )
    assert td.to_tree_string().split("\n") == [
        (
            "TensorDict(batch_size=[2], names=['time'], leaves=2, bytes=2.016 KiB, "
            "device=cpu)"
        ),
        "  obs  f32     [2, 256]  2 KiB  cpu",
        "  n",
        "    i  i64     [2]       16 B   cpu",
        "  s    static  'a'",
    ]


def test_html_is_a_table_with_everything_escaped() -> None:
    td = TensorDict({"<b>": "<script>alert(1)</script>", "x": ramp(2)}, 2)
    text = td._repr_html_()
    assert "<script>" not in text
    assert "<b>" not in text.replace("<body>", "")
    assert html.escape("'<script>alert(1)</script>'") in text
    assert "f32" in text
    assert text.count("<tr>") == 3
    assert text.count("<table>") == text.count("</table>") == 1


def test_long_statics_are_cut_and_multiline_ones_joined() -> None:
    td = TensorDict({"long": "x" * 500, "lines": NonTensorData(["a", "b"] * 100)})
    text = repr(td)
    assert len(text) < 200
    assert "..." in text

    class Table:
        def __repr__(self) -> str:
            return "two\nlines"

    assert "two lines" in repr(TensorDict({"t": Table()}))
    assert TensorDict({"t": Table()}).to_tree_string().count("\n") == 1


def test_a_static_whose_repr_raises_shows_its_class() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError

    td = TensorDict({"b": Broken()})
    assert "b: <Broken>" in repr(td)
    assert "<Broken>" in td.to_tree_string()
    assert "&lt;Broken&gt;" in td._repr_html_()


def test_sixty_keys_are_cut_and_counted() -> None:
    td = TensorDict({f"k{i:02}": {"x": ramp(2)} for i in range(60)}, 2)
    text = repr(td)
    shown = text.count(": {x: f32[]}")
    assert 0 < shown < 60
    assert re.search(r"\.\.\. (\d+) more\}", text)
    # The full form leaves out nothing.
    assert td.to_tree_string().count("\n") == 120


def test_a_deep_tree_is_cut_and_does_not_show_full_nodes_as_empty() -> None:
    level: dict[str, Any] = {"leaf": ramp(2)}
    for _ in range(20):
        level = {"n": level}
    text = repr(TensorDict(level, 2))
    assert len(text) < 200
    assert "more" in text
    assert "n: {}" not in text
    assert text.count("{") == text.count("}")


def test_cpu_trees_make_no_noise_about_the_device() -> None:
    assert "cpu" not in repr(TensorDict({"x": ramp(2)}, 2))


def test_trees_inside_vmap_and_of_other_objects_print() -> None:
    td = TensorDict({"x": ramp(3, 2), "s": "text"}, 3)
    texts: list[str] = []
    torch.vmap(lambda t: texts.append(repr(t) + t.to_tree_string()) or t)(td)
    assert "batch_size=[]" in texts[0]
    assert "x: f32[2]" in texts[0]
    out = pytree.tree_map(lambda _: "spec", td)
    assert repr(out) == "TensorDict(batch_size=[], fields={s: 'text', x: 'spec'})"
    assert "spec" in out.to_tree_string()
    assert "spec" in out._repr_html_()


def test_an_empty_tree_prints() -> None:
    assert repr(TensorDict({})) == "TensorDict(batch_size=[], fields={})"
    assert TensorDict({}).to_tree_string() == (
        "TensorDict(batch_size=[], leaves=0, bytes=0 B)"
    )
