"""A step on random images is the step of the training: its batch, its frozen parameters, its adversarial images."""

from types import SimpleNamespace

import pytest
import torch

from mereo.data import Batch
from mereo.tasks.classification import ClassificationObjective
from mereo.training import trial_step
from mereo.training.peak import measure
from mereo.training.plan import make_plan
from mereo.training.trial_step import TrialStep
from plain_cnn import registered


@pytest.fixture(autouse=True)
def _plain():
    with registered():
        yield


@pytest.fixture
def plan(small_config):
    def make(**changes):
        return make_plan(small_config(model="plain_cnn", model_args={}, img_size=16, **changes))

    return make


def test_a_step_has_the_batch_of_the_training(plan):
    trial = TrialStep(plan(limit=50, batch_size=64, accumulate=4))
    assert (trial.images, trial.batch_size, trial.part_size) == (50, 50, 12)
    assert trial.example(3).images.shape == (3, 1, 16, 16)
    assert TrialStep(plan(limit=2, batch_size=64, accumulate=4)).part_size == 1


def test_frozen_parameters_are_neither_optimised_nor_in_training_mode(plan):
    whole, probe = TrialStep(plan()), TrialStep(plan(freeze=("backbone",)))
    assert whole.model.stages.training and not probe.model.stages.training and probe.model.head.training
    trained = [p for group in probe.make_optimizer().param_groups for p in group["params"]]
    assert {id(p) for p in trained} == {id(p) for p in probe.model.head.parameters()}
    probe.loss(probe.example(2)).backward()
    assert all(p.grad is None for p in probe.model.stages.parameters())


def test_the_peak_is_that_of_a_step_with_frozen_parameters(plan, monkeypatch):
    """What is measured: the parameters that get gradients, and the sizes of the batches."""
    seen = []
    loss = TrialStep.loss

    def watched(self, batch):
        seen.append((len(batch.images), {n for n, p in self.model.named_parameters() if p.requires_grad}))
        return loss(self, batch)

    monkeypatch.setattr(TrialStep, "loss", watched)
    measure(plan(freeze=("backbone",), batch_size=16, accumulate=2))
    assert {count for count, _ in seen} == {2, 8}
    assert all(names == {"head.weight", "head.bias"} for _, names in seen)


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_and_convolutions_have_the_memory_layout_of_the_training(plan, channels_last):
    # Images of one channel are contiguous in both layouts.
    trial = TrialStep(plan(channels_last=channels_last, in_chans=3))
    for tensor in (trial.example(2).images, trial.model.stages[1][0].weight):
        assert tensor.is_contiguous(memory_format=torch.channels_last) == channels_last


@pytest.mark.parametrize(("precision", "kind"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_loss_is_computed_in_the_precision_of_the_training(plan, precision, kind):
    trial = TrialStep(plan(precision=precision))
    kinds = []
    trial.model.stages[0].register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
    trial.loss(trial.example(2)).backward()
    assert kinds == [kind]


def test_the_loss_is_that_of_adversarial_images_where_the_plan_asks_for_them(plan):
    clean, attacked = (TrialStep(plan(adversarial=adversarial)) for adversarial in (0.0, 0.3))
    attacked.model.load_state_dict(clean.model.state_dict())
    batch = clean.example(8)
    assert attacked.loss(batch) > clean.loss(batch)


def test_a_slow_step_is_timed_on_a_part_of_its_batch(plan, monkeypatch):
    """A network of 10 ms an image, by a clock that only it moves, and a batch of 10 s."""
    counts: list[int] = []
    forward = ClassificationObjective.forward

    def slow(self, batch):
        counts.append(len(batch.images))
        return forward(self, Batch(*(None if field is None else field[:2] for field in batch)))

    monkeypatch.setattr(ClassificationObjective, "forward", slow)
    monkeypatch.setattr(trial_step, "time", SimpleNamespace(perf_counter=lambda: 0.01 * sum(counts)))
    assert TrialStep(plan(limit=None, batch_size=1024)).image_seconds(1.0) == pytest.approx(0.01)
    assert max(counts) > 2 and sum(counts) < 200


def test_the_first_batch_of_a_size_is_not_the_only_one_that_is_timed(plan, monkeypatch):
    taken = []

    def slow_at_first(self, count):
        taken.append(0.3 if not taken else 0.01)
        return taken[-1]

    monkeypatch.setattr(TrialStep, "_seconds", slow_at_first)
    monkeypatch.setattr(trial_step.time, "perf_counter", lambda: sum(taken))
    trial = TrialStep(plan(batch_size=2))
    assert trial.image_seconds(0.305) == 0.01 / 2 and len(taken) == 2
    taken.clear()
    assert trial.image_seconds(0.2) == 0.3 / 2 and len(taken) == 1
