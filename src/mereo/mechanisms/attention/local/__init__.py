"""Attention inside a neighbourhood: windows, halos, grids, one file a mechanism."""

from mereo.mechanisms.attention.local.block_attention import BlockAttention
from mereo.mechanisms.attention.local.clear import ClearAttention, clear_attention
from mereo.mechanisms.attention.local.clear_bands import clear_attention_bands
from mereo.mechanisms.attention.local.grid_attention import GridAttention
from mereo.mechanisms.attention.local.halo import HaloAttention
from mereo.mechanisms.attention.local.neighborhood import NeighborhoodAttention, neighborhood_attention
from mereo.mechanisms.attention.local.outlook import OutlookAttention
from mereo.mechanisms.attention.local.window import WindowAttention

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
