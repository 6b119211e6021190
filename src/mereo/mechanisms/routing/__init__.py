"""One file a routing algorithm: parts that choose among wholes."""

from mereo.mechanisms.routing.attention_routing import AttentionRouting
from mereo.mechanisms.routing.competing_capsules import CompetingCapsules
from mereo.mechanisms.routing.convolution_3d import Convolution3DRouting
from mereo.mechanisms.routing.cross_agreement import CrossAgreementRouting
from mereo.mechanisms.routing.depthwise_attention import DepthwiseAttention
from mereo.mechanisms.routing.dynamic import DynamicRouting, DynamicVoteRouting, dynamic_routing, route_by_agreement
from mereo.mechanisms.routing.em import EMRouting, EMVoteRouting
from mereo.mechanisms.routing.inverted_dot_product import InvertedDotProductRouting, InvertedDotProductVoteRouting
from mereo.mechanisms.routing.linear_combination import LinearCombinationCaps
from mereo.mechanisms.routing.orth_attention import OrthAttention
from mereo.mechanisms.routing.position_routing import PositionRouting
from mereo.mechanisms.routing.self_attention import SelfAttentionRouting, SelfAttentionVoteRouting
from mereo.mechanisms.routing.self_routing import SelfRouting, SelfVoteRouting
from mereo.mechanisms.routing.sparse_axial import SparseAxialRouting
from mereo.mechanisms.routing.variational_bayes import (
    BayesOptions,
    VariationalBayesRouting,
    VariationalBayesVoteRouting,
)
from mereo.mechanisms.routing.vote_attention import VoteAttentionRouting
from mereo.mechanisms.routing.vote_routing import VOTE_ROUTINGS, VoteRouting, make_vote_routing, vote_routing

__all__ = [
    "VOTE_ROUTINGS",
    "AttentionRouting",
    "BayesOptions",
    "CompetingCapsules",
    "Convolution3DRouting",
    "CrossAgreementRouting",
    "DepthwiseAttention",
    "DynamicRouting",
    "DynamicVoteRouting",
    "EMRouting",
    "EMVoteRouting",
    "InvertedDotProductRouting",
    "InvertedDotProductVoteRouting",
    "LinearCombinationCaps",
    "OrthAttention",
    "PositionRouting",
    "SelfAttentionRouting",
    "SelfAttentionVoteRouting",
    "SelfRouting",
    "SelfVoteRouting",
    "SparseAxialRouting",
    "VariationalBayesRouting",
    "VariationalBayesVoteRouting",
    "VoteAttentionRouting",
    "VoteRouting",
    "dynamic_routing",
    "make_vote_routing",
    "route_by_agreement",
    "vote_routing",
]
