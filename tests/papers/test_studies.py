"""Studies: the variants of a table, resumable, with the parameter counts of the paper."""

import pytest
import torch

from mereo.errors import UsageError
from mereo.models import create_model
from mereo.tasks.losses import reconstruction_loss, score_loss
from papers.common.studies import configurations, run_study
from papers.listing import STUDIES

REPORTED_COUNTS = {
    "mspcaps_ablation": {
        "full": 344_320, "scale_32": 92_920, "scale_16": 86_904, "scale_8": 293_656, "two_scales": 87_696,
        "not_shared": 557_312, "patch_2": 899_392, "patch_3": 388_712, "dynamic": 483_584,
    },
    "mspcaps_large_ablation": {
        "full": 10_932_944, "shared": 7_913_664, "patch_2": 39_446_480, "patch_3": 13_702_704, "dynamic": 14_570_192,
    },
    # 20,992 + 5,308,672 + 1,474,560, a prior of 11,520, a decoder of 1,411,344; with a middle layer
    # 20,992 + 2,654,336 + 589,824 + 20,480 and priors of 9,216 and 160.
    "kiefer_routing": {
        "routed_decoder": 8_227_088, "unrouted_decoder": 8_215_568, "routed": 6_815_744, "unrouted": 6_804_224,
        "middle_routed": 4_706_352, "middle_unrouted": 4_696_976,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTED_COUNTS)
def test_variants_have_the_counts_of_the_table(name):
    for (label, _), config in configurations(name, STUDIES[name], 1, "runs", {}).items():
        colours = 1 if config.data == "mnist" else 3
        model = create_model(config.model, num_classes=10, in_chans=colours, **config.model_args)
        assert sum(p.numel() for p in model.parameters()) == REPORTED_COUNTS[name][label], label


def test_the_kiefer_recipe_weighs_means():
    config = configurations("kiefer_routing", STUDIES["kiefer_routing"], 1, "runs", {})["routed_decoder", 0]
    lengths, labels, rebuilt, pixels = torch.rand(6, 10), torch.randint(10, (6,)), *torch.rand(2, 6, 1, 28, 28)
    ours = score_loss(lengths, labels, "margin") + config.reconstruction_weight * reconstruction_loss(rebuilt, pixels)
    entries = [
        max(0, 0.9 - v) ** 2 if j == labels[i] else 0.5 * max(0, v - 0.1) ** 2
        for i, row in enumerate(lengths.tolist())
        for j, v in enumerate(row)
    ]
    theirs = sum(entries) / len(entries) + 0.0005 * ((rebuilt - pixels) ** 2).mean().item()
    assert ours.item() == pytest.approx(10 * theirs, rel=1e-5)


def test_a_round_of_seeds_is_a_whole_comparison():
    order = list(configurations("coupling_axis", STUDIES["coupling_axis"], 2, "runs", {}))
    assert order == [("receivers", 0), ("senders", 0), ("receivers", 1), ("senders", 1)]


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match="unknown variant"):
        configurations("coupling_axis", STUDIES["coupling_axis"], 1, "runs", {}, ["sender"])


@pytest.mark.long
def test_a_study_goes_on_where_it_was_stopped(tmp_path):
    overrides = {"data": "digits", "epochs": 1, "limit": 32, "batch_size": 16, "device": "cpu", "warmup_epochs": 0.0}
    said: list[str] = []
    run_study("coupling_axis", STUDIES["coupling_axis"], 1, str(tmp_path), overrides, ["senders"], say=said.append)
    rows = run_study("coupling_axis", STUDIES["coupling_axis"], 1, str(tmp_path), overrides, [], say=said.append)
    assert said == ["1/1 senders, seed 0", "1/2 receivers, seed 0", "2/2 senders, seed 0: already finished"]
    assert [row["variant"] for row in rows] == list(STUDIES["coupling_axis"].variants)
    assert all(0 <= row["last"] <= 100 and row["spread"] is None for row in rows)
