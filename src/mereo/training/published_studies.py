"""Studies of papers that can be repeated: their variants, with what the papers report, and the table of their runs."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mereo.errors import unknown
from mereo.runtime import printing
from mereo.training.config import TrainConfig
from mereo.training.studies import Study, Variant, finish_runs, plan_runs


def _cifar(reported: float, **model_args: Any) -> Variant:
    return Variant(model_args=model_args, reported={"cifar10": reported})


def _mnist(reported: float, **model_args: Any) -> Variant:
    return Variant(model_args=model_args, reported={"mnist": reported})


_LARGE = {"model": "mspcaps_large"}
_MIDDLE = {"model": "capsnet_middle"}
# The authors count three updates, so there are four weighted sums; the initial logits are learned.
_ROUTED = {"routing_steps": 4, "learned_prior": True}
_UNROUTED = {"routing_steps": 0}

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
    "kiefer_routing": Study(
        "Does CapsNet need routing or a decoder to be accurate and sparse?",
        "arXiv:2209.02567",
        "kiefer",
        {
            "routed_decoder": _mnist(99.23, **_ROUTED),
            "unrouted_decoder": _mnist(99.34, **_UNROUTED),
            "routed": _mnist(99.32, decoder=False, **_ROUTED),
            "unrouted": _mnist(99.29, decoder=False, **_UNROUTED),
            "middle_routed": Variant(_MIDDLE, _ROUTED),
            "middle_unrouted": Variant(_MIDDLE, _UNROUTED),
        },
    ),
}


def get_study(name: str) -> Study:
    """The study of that name; UsageError with the nearest names if there is none."""
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    return STUDIES[name]


def configurations(
    name: str, seeds: int, output: str, overrides: Mapping[str, Any], only: Sequence[str] = ()
) -> dict[tuple[str, int], TrainConfig]:
    """The configuration of every run of a published study, by (variant, seed)."""
    study = get_study(name)
    for variant in only:
        if variant not in study.variants:
            raise unknown(f"variant of {name}", variant, study.variants)
    return plan_runs(study, name, seeds, output, overrides, only=only)


def run_study(
    name: str,
    seeds: int,
    output: str,
    overrides: Mapping[str, Any],
    only: Sequence[str] = (),
    *,
    say: Callable[[str], None] = printing.say,
) -> list[dict[str, Any]]:
    """Run what is not finished of a published study, and return its table with one row per variant."""
    results = finish_runs(configurations(name, seeds, output, overrides, only), say)
    return [_row(get_study(name).variants[label], label, rows) for label, rows in results.items()]


def _row(variant: Variant, label: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    last = [100 * row["test_last"]["accuracy"] for row in rows]
    best = [100 * row["test_best"]["accuracy"] for row in rows]
    return {
        "variant": label,
        "parameters": rows[0]["parameters"],
        "seeds": len(rows),
        "last": statistics.mean(last),
        "spread": statistics.stdev(last) if len(last) > 1 else None,
        "best": statistics.mean(best),
        "reported": variant.reported.get(rows[0]["data"]),
    }
