"""Pictures of what a network saw, and the numbers behind them."""

from mereo.explain.contributions import vote_contributions
from mereo.explain.coupling_maps import CouplingMap, coupling_maps
from mereo.explain.explanation import ContributionMap, Explanation, explain
from mereo.explain.observation import Observation, observe
from mereo.explain.pictures import draw_explanation
from mereo.explain.places import sender_places, spread

__all__ = [
    "ContributionMap",
    "CouplingMap",
    "Explanation",
    "Observation",
    "coupling_maps",
    "draw_explanation",
    "explain",
    "observe",
    "sender_places",
    "spread",
    "vote_contributions",
]
