"""Attention inside a neighbourhood: windows, halos, grids, one file a mechanism."""

from mereo.attention.local.halo import HaloAttention as HaloAttention
