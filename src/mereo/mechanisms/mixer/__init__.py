"""Mixers: tokens mixed by weights that do not depend on them, fixed, learned or spectral, one file a mechanism."""

from mereo.core.calls import check_calls
from mereo.mechanisms.mixer.spectral_gating import SpectralGating

__all__ = ["SpectralGating"]

check_calls(globals(), __all__)
