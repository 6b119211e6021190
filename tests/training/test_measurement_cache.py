"""Measurements that are kept, and the peak memory of a training step."""

from dataclasses import replace
from pathlib import Path

import pytest

from mereo.runtime.memory import status
from mereo.training.config import TrainConfig
from mereo.training.measurement_cache import cached_measurement
from mereo.training.peak import peak_memory
from mereo.training.plan import make_plan

MIB = 2**20


def test_a_measurement_is_repeated_only_where_its_settings_differ(tmp_path: Path) -> None:
    path, calls = tmp_path / "kept.json", []

    def measure() -> dict[str, object]:
        calls.append(1)
        return {"value": len(calls), "curve": [(0, 0.5)]}

    for _ in range(2):
        measured = cached_measurement(path, {"seed": 0, "changes": (1, 2)}, measure)
        assert measured == {"value": 1, "curve": [[0, 0.5]]}
    assert cached_measurement(path, {"seed": 1}, measure)["value"] == 2
    for content in ("no JSON", "[1]", '{"settings": {"seed": 1}}', '{"settings": {"seed": 1}, "measured": 3}'):
        path.write_text(content)
        assert cached_measurement(path, {"seed": 1}, measure)["value"] == len(calls)
    assert len(calls) == 6


@pytest.mark.long
def test_the_peak_of_a_step_holds_weights_gradients_and_moments() -> None:
    plan = make_plan(TrainConfig(model="capsnet_middle", img_size=20, batch_size=2, optimizer="adam", device="cpu"))
    weights = sum(4 * p.numel() for p in plan.build_model().parameters())
    peak = peak_memory(plan)
    if status("VmHWM") is not None:
        assert peak is not None and 4 * weights <= peak <= 4 * weights + 128 * MIB
    assert peak_memory(replace(plan, config=plan.config.replace(data="no_such_set"))) is None
