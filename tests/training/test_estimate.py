"""The figures of a dry run, against counts by hand."""

from dataclasses import replace

import pytest

from mereo.training.config import TrainConfig
from mereo.training.estimate import estimate, warn_of_memory


def small(**changes):
    return TrainConfig(model="capsnet", data="digits", device="cpu").replace(
        **{"model_args": {"conv_channels": 8, "primary_types": 2, "decoder": False}, **changes}
    )


def test_parameters_and_flops_are_those_of_the_layers():
    found = estimate(small(), measure=False)
    senders = 2 * 6 * 6
    assert found.parameters == 8 * 81 + 8 + 16 * 8 * 81 + 16 + senders * 10 * 8 * 16
    convolutions = 8 * 81 * 20 * 20 + 16 * 8 * 81 * 6 * 6
    votes, passes = senders * 10 * 8 * 16, 5 * senders * 10 * 16
    assert found.flops == pytest.approx(2 * (convolutions + votes + passes), rel=0.02)


def test_memory_grows_with_the_batch_and_shrinks_with_its_parts():
    one, two = (estimate(small(batch_size=b), measure=False).memory for b in (64, 128))
    parts = estimate(small(batch_size=128, accumulate=2), measure=False).memory
    assert two > one
    assert parts == one


def test_time_is_measured_only_when_asked_for():
    assert estimate(small(), measure=False).epoch_seconds is None
    found = estimate(small(batch_size=16))
    assert found.epoch_seconds is not None and found.epoch_seconds > 0


def test_a_step_that_will_not_fit_is_warned_of(capsys):
    found = estimate(small(batch_size=2), measure=False)
    warn_of_memory(replace(found, available=found.memory))
    assert capsys.readouterr().out == ""
    warn_of_memory(replace(found, available=found.memory - 1))
    assert "smaller --batch-size" in capsys.readouterr().out


def test_a_batch_is_never_more_than_there_are_images():
    found = estimate(small(batch_size=2**62, limit=100), measure=False)
    assert found.batch_size == 100
    assert found.memory == estimate(small(batch_size=100, limit=100), measure=False).memory
