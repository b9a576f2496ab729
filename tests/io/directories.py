"""Saving and loading directories as the public functions do."""

from __future__ import annotations

from functools import partial

from tdfunc.io import _directory
from tests.io import one_file

save = partial(one_file.save, _directory)
outline = partial(one_file.outline, _directory)
load = partial(one_file.load, _directory)
