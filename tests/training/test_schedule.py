"""The learning rate as a function of the step."""

import pytest

from mereo.training.config import TrainConfig
from mereo.training.recipes import apply_recipe
from mereo.training.schedule import learning_rate, plateau_share


def test_warm_up_rises_linearly_from_a_tenth_to_the_peak():
    config = TrainConfig(lr=1.0, warmup_epochs=5, epochs=10, warmup_start=0.1)
    assert learning_rate(config, 0, 10) == pytest.approx(0.1)
    assert learning_rate(config, 25, 10) == pytest.approx(0.55)
    assert learning_rate(config, 50, 10) == pytest.approx(1.0)


def test_cosine_ends_at_the_least_rate():
    config = TrainConfig(lr=1.0, warmup_epochs=0, epochs=10, min_lr=0.01)
    assert learning_rate(config, 50, 10) == pytest.approx((1.0 + 0.01) / 2)
    assert learning_rate(config, 100, 10) == pytest.approx(0.01)
    rates = [learning_rate(config, step, 10) for step in range(101)]
    assert rates == sorted(rates, reverse=True)


def test_exponential_is_smooth_in_steps_or_stepwise_in_epochs_with_a_floor():
    smooth = TrainConfig(lr=1.0, warmup_epochs=0, schedule="exponential", decay_rate=0.96, decay_steps=2000)
    assert learning_rate(smooth, 1000, 10) == pytest.approx(0.96**0.5)
    stepwise = TrainConfig(lr=1.0, warmup_epochs=0, schedule="exponential", decay_rate=0.97, min_lr=0.9)
    assert [learning_rate(stepwise, s, 10) for s in (0, 9, 10, 20, 1000)] == pytest.approx([1, 1, 0.97, 0.97**2, 0.9])


def test_inverse_is_half_after_its_steps():
    config = TrainConfig(schedule="inverse", lr=1e-3, warmup_epochs=0, decay_steps=100)
    assert [learning_rate(config, step, 10) for step in (0, 100, 300)] == pytest.approx([1e-3, 5e-4, 2.5e-4])
    by_default = config.replace(decay_steps=None)
    assert learning_rate(by_default, 1, 10) == pytest.approx(1e-3 / (1 + 1e-4))
    assert learning_rate(config.replace(min_lr=4e-4), 300, 10) == 4e-4


def test_constant_stays():
    config = TrainConfig(lr=0.3, warmup_epochs=0, schedule="constant")
    assert learning_rate(config, 10**6, 10) == 0.3


def test_the_published_mspcaps_schedule():
    config = apply_recipe("mspcaps_paper", data="cifar10")
    assert learning_rate(config, 0, 390) == pytest.approx(5e-5)
    assert learning_rate(config, 5 * 390, 390) == pytest.approx(5e-4)
    assert learning_rate(config, 300 * 390, 390) == pytest.approx(1e-6)


def test_the_rate_falls_at_a_plateau_of_the_loss():
    given = {"lr": 1.0, "warmup_epochs": 0, "plateau_factor": 0.1, "plateau_patience": 1, "plateau_cooldown": 1}
    config = TrainConfig(schedule="plateau", min_lr=0.005, **given)
    assert learning_rate(config, 10**6, 10) == 1.0
    # Better, worse, worse: it falls; the next epoch does not count; then two worse ones, and so on down to the bound.
    losses = [5.0, 4.0, 4.5, 4.1, 9.0, 4.2, 4.3, 4.4, 4.4, 4.4, 4.4]
    shares = [1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.005, 0.005]
    assert [plateau_share(config, losses[: n + 1]) for n in range(len(losses))] == pytest.approx(shares)
    assert plateau_share(config.replace(schedule="constant"), losses) == 1.0
    assert plateau_share(config, []) == 1.0
