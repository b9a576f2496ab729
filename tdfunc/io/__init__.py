"""Trees in files: memory-mapped directories, archives, single files, safetensors."""

from tdfunc.io._append import append_memmap as append_memmap
from tdfunc.io._builder import Builder as Builder
from tdfunc.io._builder import memmap_like as memmap_like
from tdfunc.io._files import from_consolidated as from_consolidated
from tdfunc.io._files import load as load
from tdfunc.io._files import load_memmap as load_memmap
from tdfunc.io._files import load_safetensors as load_safetensors
from tdfunc.io._files import memmap as memmap
from tdfunc.io._files import save as save
from tdfunc.io._files import save_async as save_async
from tdfunc.io._files import save_safetensors as save_safetensors
from tdfunc.io._pack import pack_memmap as pack_memmap
from tdfunc.io._pack import unpack_memmap as unpack_memmap
from tdfunc.io._show import show as show

__all__ = [
    "Builder",
    "append_memmap",
    "from_consolidated",
    "load",
    "load_memmap",
    "load_safetensors",
    "memmap",
    "memmap_like",
    "pack_memmap",
    "save",
    "save_async",
    "save_safetensors",
    "show",
    "unpack_memmap",
]
