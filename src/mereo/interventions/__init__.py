"""Interventions: changes to a running model (model -> context manager), one file each."""

from mereo.interventions.attencraft import attencraft
from mereo.interventions.isolate_and_reposition import isolate_and_reposition

__all__ = ["attencraft", "isolate_and_reposition"]
