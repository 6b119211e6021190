"""Attention inside a neighbourhood: windows, halos, grids, one file a mechanism."""
