"""Studies: the variants of a table, resumable, with the parameter counts of the paper."""

import pytest

from mereo.errors import UsageError
from mereo.models import create_model
from mereo.training.studies import STUDIES, configurations, run_study

REPORTED_COUNTS = {
    "mspcaps_ablation": {
        "full": 344_320, "scale_32": 92_920, "scale_16": 86_904, "scale_8": 293_656, "two_scales": 87_696,
        "not_shared": 557_312, "patch_2": 899_392, "patch_3": 388_712, "dynamic": 483_584,
    },
    "mspcaps_large_ablation": {
        "full": 10_932_944, "shared": 7_913_664, "patch_2": 39_446_480, "patch_3": 13_702_704, "dynamic": 14_570_192,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTED_COUNTS)
def test_variants_have_the_counts_of_the_table(name):
    for (label, _), config in configurations(name, 1, "runs", {}).items():
        model = create_model(config.model, num_classes=10, in_chans=3, **config.model_args)
        assert sum(p.numel() for p in model.parameters()) == REPORTED_COUNTS[name][label], label


def test_a_round_of_seeds_is_a_whole_comparison():
    order = list(configurations("coupling_axis", 2, "runs", {}))
    assert order == [("receivers", 0), ("senders", 0), ("receivers", 1), ("senders", 1)]


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match="coupling_axis"):
        configurations("coupling_axes", 1, "runs", {})
    with pytest.raises(UsageError, match="unknown variant"):
        configurations("coupling_axis", 1, "runs", {}, ["sender"])


def test_a_study_goes_on_where_it_was_stopped(tmp_path):
    overrides = {"data": "digits", "epochs": 1, "limit": 32, "batch_size": 16, "device": "cpu", "warmup_epochs": 0.0}
    said: list[str] = []
    run_study("coupling_axis", 1, str(tmp_path), overrides, ["senders"], said.append)
    rows = run_study("coupling_axis", 1, str(tmp_path), overrides, [], said.append)
    assert said == ["1/1 senders, seed 0", "1/2 receivers, seed 0", "2/2 senders, seed 0: finished before"]
    assert [row["variant"] for row in rows] == list(STUDIES["coupling_axis"].variants)
    assert all(0 <= row["last"] <= 100 and row["spread"] is None for row in rows)
