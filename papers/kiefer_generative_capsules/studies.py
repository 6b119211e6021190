"""The training conditions of appendix A."""

from typing import Any

from mereo.training.studies import Study, Variant


def _mnist(reported: float, **model_args: Any) -> Variant:
    return Variant(model_args=model_args, reported={"mnist": reported})


_MIDDLE = {"model": "capsnet_middle"}
# The authors count three updates, so there are four weighted sums; the initial logits are learned.
_ROUTED = {"routing_steps": 4, "learned_prior": True}
_UNROUTED = {"routing_steps": 0}

KIEFER_ROUTING = Study(
    "Does CapsNet need routing or a decoder to be accurate and sparse?",
    "arXiv:2209.02567",
    "capsnet_routing_study",
    {
        "routed_decoder": _mnist(99.23, **_ROUTED),
        "unrouted_decoder": _mnist(99.34, **_UNROUTED),
        "routed": _mnist(99.32, decoder=False, **_ROUTED),
        "unrouted": _mnist(99.29, decoder=False, **_UNROUTED),
        "middle_routed": Variant(_MIDDLE, _ROUTED),
        "middle_unrouted": Variant(_MIDDLE, _UNROUTED),
    },
)
