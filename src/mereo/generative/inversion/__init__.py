"""Inversion of the capsule mixture: which parents, with what poses, explain these children.

The generative model of arXiv:2209.02567, equations 7 and 8, whose inversion the paper leaves open. The derivation is
ours and is written out in docs/generative.md.
"""

from mereo.generative.inversion.free import FreeParents
from mereo.generative.inversion.invert import Inversion, invert
from mereo.generative.inversion.sphere import SphereParents

__all__ = ["FreeParents", "Inversion", "SphereParents", "invert"]
