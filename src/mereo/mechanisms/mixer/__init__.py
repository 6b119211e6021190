"""Mixers: tokens mixed by weights that do not depend on them, fixed, learned or spectral, one file a mechanism."""

from mereo.mechanisms.mixer.spectral_gating import SpectralGating
from mereo.mechanisms.mixer.token_aware_pooling import TokenAwarePooling

__all__ = ["SpectralGating", "TokenAwarePooling"]
