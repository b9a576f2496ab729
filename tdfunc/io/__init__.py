"""Trees in files: memory-mapped directories, archives, single files, safetensors."""

from tdfunc.io._pack import pack_memmap as pack_memmap
from tdfunc.io._pack import unpack_memmap as unpack_memmap

__all__ = ["pack_memmap", "unpack_memmap"]
