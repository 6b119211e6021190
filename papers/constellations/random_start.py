"""Random responsibilities, from which inference for constellations starts."""

import torch
from torch import Tensor

SHARPNESS = 8


def random_responsibilities(mask: Tensor, columns: int, generator: torch.Generator, *, sharp: bool = False) -> Tensor:
    """r_mn = u_mn^p / sum_n u_mn^p, u uniform in (0, 1): p = 1, or 8 if `sharp`; absent points have 0.

    With p = 1 all starts put the objects near the middle. Where points may be clutter many then end there, and sharp
    starts, in which a point has few candidates, end in better places.

    Shapes: mask (images, slots) -> (images, slots, columns), float64.
    """
    r = torch.rand((*mask.shape, columns), generator=generator, dtype=torch.float64, device=generator.device)
    r = r.clamp(min=1e-6) ** (SHARPNESS if sharp else 1)
    return (r / r.sum(-1, keepdim=True)).to(mask.device) * mask.unsqueeze(-1)
