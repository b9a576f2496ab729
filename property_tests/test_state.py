"""State dicts: loading a state gives the tree that it was taken from."""

from __future__ import annotations

import io

import hypothesis.strategies as st
import torch
from hypothesis import given

from tdfunc import NonTensorData, TensorDict
from tdfunc.testing import assert_equal, assert_valid, tensordicts

PLAIN = ["text", None, NonTensorData(1), NonTensorData([0.5, "x"])]


@given(tensordicts(), st.sampled_from(["keep", "source"]))
def test_loading_the_state_is_identity(td: TensorDict, cast: str) -> None:
    zeros = td.with_batch_size(()).apply(torch.zeros_like)

    out = zeros.load_state_dict(td.state_dict(flatten=False), cast=cast)  # pyright: ignore[reportArgumentType]

    assert_valid(out)
    assert_equal(out, td, key_order=True, names=True)


@given(tensordicts(statics=st.sampled_from(PLAIN)))
def test_states_survive_a_file(td: TensorDict) -> None:
    file = io.BytesIO()
    torch.save(td.state_dict(flatten=False), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)

    out = td.apply(torch.zeros_like).load_state_dict(state)

    assert_equal(out, td, key_order=True, names=True)
