"""The ablations of the MSPCaps paper, and a question that it leaves open."""

from typing import Any

from mereo.training.studies import Study, Variant


def _cifar(reported: float, **model_args: Any) -> Variant:
    return Variant(model_args=model_args, reported={"cifar10": reported})


_LARGE = {"model": "mspcaps_large"}

STUDIES: dict[str, Study] = {
    "coupling_axis": Study(
        "Over which axis is the softmax of cross-agreement taken? The paper does not state it.",
        "arXiv:2508.16922",
        "mspcaps_paper",
        {
            "receivers": Variant(model_args={"coupling_over": "receivers"}),
            "senders": Variant(model_args={"coupling_over": "senders"}),
        },
    ),
    "mspcaps_ablation": Study(
        "How much do scales, weight sharing, patch size and routing matter in MSPCaps-T?",
        "arXiv:2508.16922",
        "mspcaps_paper",
        {
            "full": _cifar(88.71),
            "scale_32": _cifar(74.81, scales=[0]),
            "scale_16": _cifar(81.90, scales=[1]),
            "scale_8": _cifar(87.48, scales=[2]),
            "two_scales": _cifar(81.57, scales=[0, 1]),
            "not_shared": _cifar(87.59, share_weights=False),
            "patch_2": _cifar(88.01, patch_size=2),
            "patch_3": _cifar(86.34, patch_size=3),
            "dynamic": _cifar(87.46, routing="dynamic"),
        },
    ),
    "mspcaps_large_ablation": Study(
        "How much do weight sharing, patch size and routing matter in MSPCaps-L?",
        "arXiv:2508.16922",
        "mspcaps_paper",
        {
            "full": Variant(_LARGE, {}, {"cifar10": 92.88}),
            "shared": Variant(
                _LARGE,
                {"share_weights": True, "pose_dims": [16, 16, 32], "mid_dim": 32, "out_dim": 64},
                {"cifar10": 92.50},
            ),
            "patch_2": Variant(_LARGE, {"patch_size": 2}, {"cifar10": 93.16}),
            "patch_3": Variant(_LARGE, {"patch_size": 3}, {"cifar10": 93.30}),
            "dynamic": Variant(_LARGE, {"routing": "dynamic"}, {"cifar10": 92.56}),
        },
    ),
}
