"""One file a routing algorithm: parts that choose among wholes."""

from mereo.core.calls import check_calls
from mereo.routing.attention_routing import AttentionRouting
from mereo.routing.competing_capsules import CompetingCapsules
from mereo.routing.convolution_3d import Convolution3DRouting
from mereo.routing.cross_agreement import CrossAgreementRouting
from mereo.routing.depthwise_attention import DepthwiseAttention
from mereo.routing.dynamic import DynamicRouting, DynamicVoteRouting, dynamic_routing, route_by_agreement
from mereo.routing.em import EMRouting, EMVoteRouting
from mereo.routing.inverted_dot_product import InvertedDotProductRouting, InvertedDotProductVoteRouting
from mereo.routing.linear_combination import LinearCombinationCaps
from mereo.routing.orth_attention import OrthAttention
from mereo.routing.position_routing import PositionRouting
from mereo.routing.self_attention import SelfAttentionRouting, SelfAttentionVoteRouting
from mereo.routing.self_routing import SelfRouting, SelfVoteRouting
from mereo.routing.sparse_axial import SparseAxialRouting
from mereo.routing.variational_bayes import BayesOptions, VariationalBayesRouting, VariationalBayesVoteRouting
from mereo.routing.vote_attention import VoteAttentionRouting
from mereo.routing.vote_routing import VOTE_ROUTINGS, VoteRouting, make_vote_routing, vote_routing

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

check_calls(globals(), __all__)
