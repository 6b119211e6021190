"""Attention inside a neighbourhood: windows, halos, grids, one file a mechanism."""

from mereo.attention.local.outlook import OutlookAttention
from mereo.attention.local.window import WindowAttention

__all__ = ["OutlookAttention", "WindowAttention"]
