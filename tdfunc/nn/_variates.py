"""Draws that no formula makes of uniform and normal numbers, from keys.

Gamma, Poisson, binomial and von Mises variates are made by rejection: how many random
words one takes is not known before. So the loops are hidden in operations that are
opaque to transforms and compilers, as the draws of `tdfunc.random` are, and what they
give under `vmap` is, bit for bit, the loop over keys. The words come from Philox-4x64,
whose key is the 128 bits of ours, and the loops are NumPy's.

References:
    J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel Random Numbers: As
    Easy as 1, 2, 3", 2011 (Philox).
    M. Figurnov, S. Mohamed, A. Mnih, "Implicit Reparameterization Gradients", 2018,
    https://arxiv.org/abs/1805.08498 (the derivative of gamma variates).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from tdfunc._core._torch import gamma_grad, inside_transform, is_tracing

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["binomial", "poisson", "standard_gamma", "von_mises"]


def standard_gamma(key: torch.Tensor, concentration: torch.Tensor) -> torch.Tensor:
    """Return gamma variates of scale 1, differentiable once in the concentration.

    A second derivative raises; in transforms within compiled code it is that of a
    linear function.

    Args:
        key: [2].
        concentration: [*shape], floating.
    """
    held = concentration.detach()
    variates = torch.ops.tdfunc.random_variate(key, "gamma", held, held)
    if is_tracing() and inside_transform():
        # Here Dynamo loses the derivative of an autograd function without a word.
        slope = torch.ops.tdfunc.gamma_grad(variates, held)
        return variates + (concentration - held) * slope
    return _Implicit.apply(variates, concentration)


def poisson(key: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    """Return Poisson variates of the shape and dtype of `rate`."""
    held = rate.detach()
    return torch.ops.tdfunc.random_variate(key, "poisson", held, held)


def binomial(
    key: torch.Tensor, count: torch.Tensor, probs: torch.Tensor
) -> torch.Tensor:
    """Return binomial variates of the shape and dtype of `probs`."""
    return torch.ops.tdfunc.random_variate(
        key, "binomial", probs.detach(), count.detach().to(probs.dtype)
    )


def von_mises(key: torch.Tensor, concentration: torch.Tensor) -> torch.Tensor:
    """Return angles around 0 of the shape and dtype of `concentration`."""
    held = concentration.detach()
    return torch.ops.tdfunc.random_variate(key, "von_mises", held, held)


def _gamma(generator: np.random.Generator, a: Any, b: Any) -> Any:
    del b
    return generator.standard_gamma(a)


def _poisson(generator: np.random.Generator, a: Any, b: Any) -> Any:
    del b
    return generator.poisson(np.minimum(a, _LARGEST_RATE))


def _binomial(generator: np.random.Generator, a: Any, b: Any) -> Any:
    return generator.binomial(np.rint(b).astype(np.int64), np.minimum(a, 1.0))


def _von_mises(generator: np.random.Generator, a: Any, b: Any) -> Any:
    del b
    return generator.vonmises(0.0, a)


# NumPy refuses rates whose variates do not fit 64 bits.
_LARGEST_RATE: Final = 9e18
_KINDS: Final[dict[str, Callable[[np.random.Generator, Any, Any], Any]]] = {
    "gamma": _gamma,
    "poisson": _poisson,
    "binomial": _binomial,
    "von_mises": _von_mises,
}


def _variate(
    key: torch.Tensor, kind: str, a: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """Draw for keys [*keys, 2] and parameters [*keys, *shape]."""
    make = _KINDS[kind]
    first = a.cpu().double().numpy()
    second = first if b is a else b.cpu().double().numpy()
    # NumPy raises for parameters that are none; what comes of NaN is NaN.
    bad = ~((first >= 0) & (second >= 0))
    if any_bad := bool(bad.any()):
        first, second = np.where(bad, 0, first), np.where(bad, 0, second)
    if key.dim() == 1:
        out = np.asarray(make(_generator(key.cpu().numpy()), first, second), np.float64)
    else:
        keys = key.reshape(-1, 2).cpu().numpy()
        shape = first.shape[key.dim() - 1 :]
        rows = zip(
            keys,
            first.reshape(len(keys), *shape),
            second.reshape(len(keys), *shape),
            strict=True,
        )
        drawn = [make(_generator(row), one, two) for row, one, two in rows]
        out = np.array(drawn, np.float64).reshape(first.shape)
    if any_bad:
        out = np.where(bad, np.nan, out)
    return torch.from_numpy(out).to(a.device, a.dtype)


def _generator(key: Any) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key.view(np.uint64)))


def _gamma_grad(variates: torch.Tensor, concentration: torch.Tensor) -> torch.Tensor:
    return gamma_grad(concentration, variates)


def _fake_variate(
    key: torch.Tensor, kind: str, a: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    del key, kind, b
    return torch.empty_like(a, memory_format=torch.contiguous_format)


def _fake_like(variates: torch.Tensor, concentration: torch.Tensor) -> torch.Tensor:
    del concentration
    return torch.empty_like(variates, memory_format=torch.contiguous_format)


def _front(x: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _mapped_variate(
    info: Any,
    in_dims: tuple[Any, ...],
    key: torch.Tensor,
    kind: str,
    a: torch.Tensor,
    b: torch.Tensor,
) -> tuple[torch.Tensor, int]:
    size = info.batch_size
    keys = _front(key, in_dims[0], size)
    first, second = _front(a, in_dims[2], size), _front(b, in_dims[3], size)
    return torch.ops.tdfunc.random_variate(keys, kind, first, second), 0


def _mapped_grad(
    info: Any,
    in_dims: tuple[Any, ...],
    variates: torch.Tensor,
    concentration: torch.Tensor,
) -> tuple[torch.Tensor, int]:
    size = info.batch_size
    first = _front(variates, in_dims[0], size)
    second = _front(concentration, in_dims[1], size)
    return torch.ops.tdfunc.gamma_grad(first, second), 0


class _Implicit(torch.autograd.Function):
    """Gives variates the derivative of their quantile in the concentration."""

    generate_vmap_rule = True

    @staticmethod
    def forward(variates: torch.Tensor, concentration: torch.Tensor) -> torch.Tensor:
        del concentration
        return variates.clone()

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor
    ) -> None:
        del output
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, grads[0] * torch.ops.tdfunc.gamma_grad(*ctx.saved_tensors)


_library = torch.library.Library("tdfunc", "FRAGMENT")
_library.define("random_variate(Tensor key, str kind, Tensor a, Tensor b) -> Tensor")
_library.define("gamma_grad(Tensor variates, Tensor concentration) -> Tensor")
_library.impl("random_variate", _variate, "CompositeExplicitAutograd")
_library.impl("gamma_grad", _gamma_grad, "CompositeExplicitAutograd")
torch.library.register_fake("tdfunc::random_variate", _fake_variate, lib=_library)
torch.library.register_fake("tdfunc::gamma_grad", _fake_like, lib=_library)
torch.library.register_vmap("tdfunc::random_variate", _mapped_variate, lib=_library)
torch.library.register_vmap("tdfunc::gamma_grad", _mapped_grad, lib=_library)
