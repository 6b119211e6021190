"""A toy: 3 x 3 coded parts of a displaced reference are read, by attention with axial rotary positions.

Codes have the length sqrt(32), queries, keys and values are the codes themselves, and 16 more keys distract.
"""

import statistics
from typing import Any

import torch

from mereo.interventions.reference_attention import moved_cells
from mereo.models.sequence.tinydiff import axial_rotary
from papers.common.settings import Settings

SIDE, PARTS, CHANNELS, OTHERS = 16, 3, 32, 16
DISPLACEMENTS = (0, 1, 2, 4, 8)
REPORTED = (0.9066, 0.8453, 0.5045, 0.0388, 0.0236)


def found(displacement: int, moved: bool, seed: int) -> float:
    """The mean attention of the parts of a subject on the same parts of its reference."""
    draws = torch.Generator().manual_seed(seed)
    codes = torch.randn(PARTS**2 + OTHERS, CHANNELS, generator=draws, dtype=torch.float64)
    codes = codes / codes.norm(dim=1, keepdim=True) * CHANNELS**0.5
    here, there = (0, 0, PARTS, PARTS), (displacement, displacement, PARTS, PARTS)
    _, reads_at = moved_cells(here, here, SIDE)
    _, stands_at = moved_cells(here, here if moved else there, SIDE)
    others = torch.arange(OTHERS) % 4 * SIDE + torch.arange(OTHERS) // 4
    places = torch.cat((stands_at, others))

    def grid(cells: torch.Tensor) -> torch.Tensor:
        return torch.stack((cells // SIDE, cells % SIDE), -1)

    queries = axial_rotary(codes[None, None, : PARTS**2], grid(reads_at))[0, 0]
    keys = axial_rotary(codes[None, None], grid(places))[0, 0]
    shares = (queries @ keys.T / CHANNELS**0.5).softmax(1)
    return shares[: PARTS**2, : PARTS**2].diagonal().mean().item()


def run(settings: Settings) -> dict[str, Any]:
    """A row for each displacement."""
    rows = []
    for displacement, reported in zip(DISPLACEMENTS, REPORTED, strict=True):
        without, with_it = (
            [found(displacement, moved, seed) for seed in range(settings.seeds)] for moved in (False, True)
        )
        rows.append(
            {
                "displacement": displacement,
                "unmoved": statistics.mean(without),
                "moved": statistics.mean(with_it),
                "reported unmoved": reported,
                "reported moved": REPORTED[0],
            }
        )
    return {"tables": {f"attention on the same part, mean of {settings.seeds} draws of the codes": rows}, "notes": [],
            "pictures": []}  # fmt: skip
