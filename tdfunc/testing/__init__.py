"""For property tests of code that uses trees: what to draw, and what to assert.

Strategies for `hypothesis <https://hypothesis.readthedocs.io>`_ draw trees, tensors,
batch sizes and indices that shrink readably. They need the extra ``tdfunc[testing]``;
the assertions work without it.

Examples:
    >>> from hypothesis import given, settings
    >>> from tdfunc.testing import assert_pure, assert_valid, tensordicts
    >>> @settings(max_examples=10, database=None)
    ... @given(tensordicts())
    ... def test_adding_an_entry_is_pure(td):
    ...     assert_valid(assert_pure(lambda td: td.set("new", "text"), td))
    >>> test_adding_an_entry_is_pure()
"""

from tdfunc.testing._assert import assert_equal as assert_equal
from tdfunc.testing._assert import assert_valid as assert_valid
from tdfunc.testing._indices import indices as indices
from tdfunc.testing._pure import assert_pure as assert_pure
from tdfunc.testing._strategies import batch_sizes as batch_sizes
from tdfunc.testing._strategies import keys as keys
from tdfunc.testing._strategies import schemas as schemas
from tdfunc.testing._strategies import tensordicts as tensordicts
from tdfunc.testing._strategies import tensors as tensors

__all__ = [
    "assert_equal",
    "assert_pure",
    "assert_valid",
    "batch_sizes",
    "indices",
    "keys",
    "schemas",
    "tensordicts",
    "tensors",
]
