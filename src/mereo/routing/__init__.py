"""One file a routing algorithm: parts that choose among wholes."""

from mereo.routing.cross_agreement import CrossAgreementRouting
from mereo.routing.dynamic import DynamicRouting, dynamic_routing, route_by_agreement
from mereo.routing.em import EMRouting
from mereo.routing.self_attention import SelfAttentionRouting
from mereo.routing.self_routing import SelfRouting

__all__ = [
    "CrossAgreementRouting",
    "DynamicRouting",
    "EMRouting",
    "SelfAttentionRouting",
    "SelfRouting",
    "dynamic_routing",
    "route_by_agreement",
]
