"""Trees in files: memory-mapped directories, archives, single files, safetensors."""
