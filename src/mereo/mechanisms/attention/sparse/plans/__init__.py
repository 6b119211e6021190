"""Plans of Combiner: which tokens a token attends to directly, and through which regions it reaches all the others."""

from mereo.mechanisms.attention.sparse.plans.axial import AxialHorizontal, AxialMixture, AxialRowMajor, AxialVertical
from mereo.mechanisms.attention.sparse.plans.base import POOLS, Joint, Plan
from mereo.mechanisms.attention.sparse.plans.fixed import Fixed
from mereo.mechanisms.attention.sparse.plans.learned import Learned
from mereo.mechanisms.attention.sparse.plans.log_sparse import LogSparse

PLANS: dict[str, type[Plan]] = {
    "fixed": Fixed,
    "logsparse": LogSparse,
    "axial_vertical": AxialVertical,
    "axial_horizontal": AxialHorizontal,
    "axial_rowmajor": AxialRowMajor,
    "axial_mixture": AxialMixture,
    "learned": Learned,
}
"""Every plan by its name."""

__all__ = [
    "PLANS",
    "POOLS",
    "AxialHorizontal",
    "AxialMixture",
    "AxialRowMajor",
    "AxialVertical",
    "Fixed",
    "Joint",
    "Learned",
    "LogSparse",
    "Plan",
]
