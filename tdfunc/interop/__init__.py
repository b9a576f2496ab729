"""Exchange with other libraries: the containers of the mutable `tensordict`."""

from tdfunc.interop._tensordict import from_tensordict as from_tensordict
from tdfunc.interop._tensordict import to_tensordict as to_tensordict

__all__ = ["from_tensordict", "to_tensordict"]
