"""Copies and pickles: equal trees, the interned structure, bytes out of band."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from tdfunc import TensorDict
from tests.cases import OBJECT, Case, cases, check, leaves_of, ramp, same, statics_of

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


def picklable(case: Case) -> bool:
    return OBJECT not in case.statics.values()


def whole(back: TensorDict, case: Case) -> None:
    check(back, case.batch, case.leaves)
    assert statics_of(back) == case.statics
    assert back.names == case.names
    assert back.keys(True) == case.tree.keys(True)
    assert back._schema is case.tree._schema
    for path, batch in case.batches.items():
        assert (back[path] if path else back).batch_size == torch.Size(batch)
    for path, x in leaves_of(back).items():
        assert x.requires_grad == case.leaves[path].requires_grad


@pytest.mark.parametrize("protocol", PROTOCOLS)
@cases(picklable)
def test_a_tree_pickles_in_every_protocol(case: Case, protocol: int) -> None:
    whole(pickle.loads(pickle.dumps(case.tree, protocol)), case)


@cases(picklable)
def test_a_tree_pickles_with_its_bytes_out_of_band(case: Case) -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(case.tree, 5, buffer_callback=buffers.append)
    whole(pickle.loads(data, buffers=buffers), case)


def test_bytes_out_of_band_are_shared_both_ways() -> None:
    x = ramp(1000)
    td = TensorDict({"x": x, "n": {"y": ramp(10)}})
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(td, 5, buffer_callback=buffers.append)
    assert len(buffers) == 2
    assert len(data) < 1000

    back = pickle.loads(data, buffers=buffers)
    # Nothing was copied: the same memory on both sides.
    assert back["x"].data_ptr() == x.data_ptr()


def test_read_only_buffers_are_copied() -> None:
    td = TensorDict({"x": ramp(3)})
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(td, 5, buffer_callback=buffers.append)
    frozen = [bytes(buffer.raw()) for buffer in buffers]
    back = pickle.loads(data, buffers=frozen)
    back["x"].add_(1)
    assert pickle.loads(data, buffers=frozen)["x"].tolist() == [0, 1, 2]


def test_a_view_sends_its_own_elements_only() -> None:
    big = ramp(100_000)
    td = TensorDict({"row": big[:3], "column": big.view(1000, 100)[:, 1][:2]})
    data = pickle.dumps(td, 5)
    assert len(data) < 2000
    back = pickle.loads(data)
    assert back["row"].tolist() == [0, 1, 2]
    assert back["column"].tolist() == [1, 101]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_leaf_that_occurs_twice_stays_one(protocol: int) -> None:
    x = ramp(1000)
    td = TensorDict({"a": x, "n": {"b": x}})
    data = pickle.dumps(td, protocol)
    assert len(data) < 6000
    back = pickle.loads(data)
    assert back["a"] is back["n", "b"]
    twice = copy.deepcopy(td)
    assert twice["a"] is twice["n", "b"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_parameters_conjugates_and_other_kinds_of_tensors_pickle(protocol: int) -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    leaves = {
        "parameter": torch.nn.Parameter(ramp(2)),
        "conj": z.conj(),
        "neg": z.conj().imag,
        "meta": torch.empty(3, device="meta"),
        "sparse": torch.eye(2).to_sparse(),
        "channels last": ramp(1, 2, 3, 4).to(memory_format=torch.channels_last),
    }
    back = pickle.loads(pickle.dumps(TensorDict(leaves), protocol))
    assert type(back["parameter"]) is torch.nn.Parameter
    assert same(back["parameter"], ramp(2))
    assert same(back["conj"], z.conj().resolve_conj())
    assert back["neg"].tolist() == [-2, 4]
    assert back["meta"].is_meta
    assert same(back["sparse"].to_dense(), torch.eye(2))
    assert same(back["channels last"], ramp(1, 2, 3, 4))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "leaves", [[1, "two"], [[1, 2], (0, 0)], [[ramp(2)], (0,)], [None, None]], ids=str
)
def test_a_tree_of_other_objects_pickles(leaves: list[Any], protocol: int) -> None:
    spec = pytree.tree_structure(TensorDict({"a": ramp(2), "b": ramp(2)}, 2))
    td = pytree.tree_unflatten(leaves, spec)
    back = pickle.loads(pickle.dumps(td, protocol))
    assert str([back["a"], back["b"]]) == str(leaves)


def test_a_tree_from_a_transform_pickles_its_true_batch_size() -> None:
    td = pytree.tree_map(lambda x: x[0], TensorDict({"x": ramp(2, 3)}, (2, 3)))
    assert pickle.loads(pickle.dumps(td)).batch_size == torch.Size((3,))


def test_unpickling_in_another_process_interns_the_structure() -> None:
    td = TensorDict({"x": ramp(3), "n": {"y": ramp(3)}}, 3)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        back = pool.apply(_same_structure, (td,))
    assert back._schema is td._schema
    assert same(back["n", "y"], ramp(3) + 1)


def _same_structure(td: TensorDict) -> TensorDict:
    made = TensorDict({"x": ramp(3), "n": {"y": ramp(3)}}, 3)
    assert made._schema is td._schema
    return td + 1


@cases()
def test_copy_is_the_tree_itself(case: Case) -> None:
    td = case.tree
    assert copy.copy(td) is td


@cases(lambda case: picklable(case) and case.name != "requires grad")
def test_deepcopy_shares_no_memory(case: Case) -> None:
    td = case.tree
    back = copy.deepcopy(td)
    whole(back, case)
    for path, x in leaves_of(back).items():
        if x.numel():
            assert x.data_ptr() != case.leaves[path].data_ptr()


def test_deepcopy_copies_statics_and_keeps_what_is_shared_with_other_objects() -> None:
    tags, x = ["a"], ramp(2)
    from tdfunc import NonTensorData

    td = TensorDict({"x": x, "tags": NonTensorData(tags)})
    both = copy.deepcopy({"td": td, "x": x, "tags": tags})
    assert both["td"]["tags"] == ["a"]
    assert both["td"]["tags"] is not tags
    assert both["td"]["tags"] is both["tags"]
    assert both["td"]["x"] is both["x"]


@cases(picklable)
def test_torch_save_and_load_keep_the_tree(case: Case) -> None:
    file = io.BytesIO()
    torch.save({"td": case.tree, "epoch": 3}, file)
    file.seek(0)
    whole(torch.load(file, weights_only=False)["td"], case)


@cases(picklable)
def test_torch_load_with_weights_only_takes_trees(case: Case) -> None:
    file = io.BytesIO()
    torch.save({"td": case.tree, "epoch": 3}, file)
    file.seek(0)
    whole(torch.load(file, weights_only=True)["td"], case)


class Rows(torch.utils.data.Dataset[TensorDict]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> TensorDict:
        return TensorDict({"i": torch.tensor(i), "s": "text"})


def test_trees_come_whole_out_of_data_loader_workers() -> None:
    from tdfunc import stack

    loader = DataLoader(Rows(), batch_size=4, num_workers=1, collate_fn=stack)
    rows = [(batch["i"].tolist(), batch["s"]) for batch in loader]
    assert rows == [([0, 1, 2, 3], "text"), ([4, 5, 6, 7], "text"), ([8, 9], "text")]
