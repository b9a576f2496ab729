"""A tree as named files, as the directory and the archive have them.

Every node is a directory with a ``meta.json``, every tensor a file of raw bytes, as
the peer has them. ``meta.json`` is one object: what is an object in it describes an
entry, the rest is about the node. What only we know about a node stands under
``_tdfunc``, a list ``[1, {...}]``, which the peer takes for nothing. Its members, all
optional:

=========  ===================================================================
order      the keys in order, where it is not that of the records
hidden     records of the entries that the peer must not see, by key
exact      values of statics that plain JSON does not give back, by key
ties       the number of the tensor that an entry shares with others, by key
single     the keys of values that are those of one row without a dim
record     the name of the record class of this node
names      the dim names of a lazy stack
count      how many members a lazy stack has
shape      the batch size of an empty lazy stack; the shape of rows
values     the values of rows that plain JSON does not give back
=========  ===================================================================

Sizes and dtypes are never there for what the peer sees as well: it may have written
over the file. Files of hidden entries are called ``%tdfunc-0.memmap`` and so on, by
their places; no key gives such a name, since ``%`` becomes ``%25``.
"""

from __future__ import annotations

from tdfunc.io._filing import files_of
from tdfunc.io._naming import META, Folder, Where
from tdfunc.io._outline import outline_of

__all__ = ["META", "Folder", "Where", "files_of", "outline_of"]
