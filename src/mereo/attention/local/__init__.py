"""Attention inside a neighbourhood: windows, halos, grids, one file a mechanism."""

from mereo.attention.local.neighborhood import NeighborhoodAttention as NeighborhoodAttention
from mereo.attention.local.neighborhood import neighborhood_attention as neighborhood_attention
