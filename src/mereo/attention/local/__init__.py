"""Attention inside a neighbourhood: windows, halos, grids, one file a mechanism."""

from mereo.attention.local.block_attention import BlockAttention
from mereo.attention.local.clear import ClearAttention, clear_attention
from mereo.attention.local.clear_bands import clear_attention_bands
from mereo.attention.local.grid_attention import GridAttention
from mereo.attention.local.halo import HaloAttention
from mereo.attention.local.neighborhood import NeighborhoodAttention, neighborhood_attention
from mereo.attention.local.outlook import OutlookAttention
from mereo.attention.local.window import WindowAttention

__all__ = [
    "BlockAttention",
    "ClearAttention",
    "GridAttention",
    "HaloAttention",
    "NeighborhoodAttention",
    "OutlookAttention",
    "WindowAttention",
    "clear_attention",
    "clear_attention_bands",
    "neighborhood_attention",
]
