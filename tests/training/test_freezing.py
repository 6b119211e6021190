"""Fine-tuning: which layers keep their weights, what is printed of it, and that they do keep them."""

import pytest
import torch
from torch import nn

from mereo.cli.main import main
from mereo.models import create_model
from mereo.models.weights import load_tensors
from mereo.training.estimate import estimate
from mereo.training.freezing import describe_trained, freeze
from mereo.training.plan import make_plan
from mereo.training.show_estimate import print_estimate
from mereo.training.trainer import train
from plain_cnn import registered


@pytest.fixture(autouse=True)
def _plain():
    with registered():
        yield


def frozen_names(model):
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


@pytest.mark.parametrize(
    ("how", "stages"),
    [({"layers": 1}, 1), ({"layers": 3}, 3), ({"until": "stages.1"}, 2), ({"until": "stages.0.1", "layers": 2}, 2)],
)
def test_early_layers_are_frozen_with_their_norms(how, stages):
    model = create_model("plain_cnn")
    still = freeze(model, **how)
    assert frozen_names(model) == {
        n for n, _ in model.named_parameters() if n[:8] in [f"stages.{i}" for i in range(stages)]
    }
    # What is frozen as a whole is one module: all stages together, or each.
    expected = [model.stages] if stages == 3 else [model.stages[i] for i in range(stages)]
    assert still == expected


def test_a_backbone_is_everything_but_the_classifier():
    model = create_model("plain_cnn")
    freeze(model, ["backbone"])
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}
    capsules = create_model("mspcaps_tiny")
    freeze(capsules, ["backbone"])
    assert {n.partition(".")[0] for n, p in capsules.named_parameters() if p.requires_grad} == {"head"}


def test_a_module_of_that_name_is_what_it_says():
    model = create_model("plain_cnn")
    model.backbone = nn.Linear(2, 2)
    freeze(model, ["backbone"])
    assert frozen_names(model) == {"backbone.weight", "backbone.bias"}


def test_lines_on_what_trains():
    model = create_model("plain_cnn")
    assert describe_trained(model) == []
    assert describe_trained(model, 0.5, 0.1) == ["learning rate from 0.0125 in layer 1 to 0.1 in layer 4"]
    freeze(model, ["head.bias"], layers=2)
    one, two, three = describe_trained(model, 0.5, 0.1)
    whole = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert one == f"training {trained:,} of {whole:,} parameters"
    assert "stages.0, stages.1, head.bias (2 of 4 layers)" in two
    assert "from 0.05 in layer 3 to 0.1 in layer 4" in three


def test_a_probe_changes_the_classifier_and_no_statistics(small_config, silent):
    how = {"model": "plain_cnn", "model_args": {}, "img_size": 16, "epochs": 1}
    result = train(small_config(freeze=["backbone"], lr=0.1, weight_decay=0.1, **how), silent)
    after, _ = load_tensors(result.folder.last)
    start = make_plan(small_config(**how)).build_model().state_dict()
    changed = {name for name in after if not torch.equal(after[name], start[name])}
    assert changed == {"head.weight", "head.bias"}


@pytest.mark.long
def test_nothing_is_dropped_in_frozen_modules(small_config, silent, monkeypatch):
    from mereo.training.trainer import Trainer

    seen = []
    keep = Trainer.optimise

    def watched(self, *args):
        seen.append((self.model.stages.training, self.model.head.training, self.model.training))
        return keep(self, *args)

    monkeypatch.setattr(Trainer, "optimise", watched)
    train(small_config(model="plain_cnn", model_args={}, img_size=16, freeze=["backbone"]), silent)
    assert set(seen) == {(False, True, True)}


def test_frozen_layers_save_memory_in_the_estimate(small_config):
    config = small_config(model="plain_cnn", model_args={"widths": [32, 32, 32]}, img_size=16)
    whole = estimate(config, measure=False)
    probe = estimate(config.replace(freeze=["backbone"]), measure=False)
    assert whole.trained == whole.parameters == probe.parameters and probe.trained == 33 * 10
    assert probe.memory < whole.memory


def test_the_dry_run_says_what_trains(small_config, capsys):
    print_estimate(small_config(model="plain_cnn", model_args={}, img_size=16, freeze_layers=3, layer_decay=0.7))
    printed = capsys.readouterr().out
    assert "training 130 of" in printed and "(3 of 4 layers)" in printed and "learning rate" in printed


@pytest.mark.long
def test_the_time_of_a_long_training_comes_first(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--model", "plain_cnn", "--img-size", "16", "--limit", "64", "--epochs", "1", "--device", "cpu"]
    words += ["--no-tensorboard", "--freeze-layers", "2"]
    assert main([*words, "--name", "short"]) == 0
    assert "without evaluation" not in capsys.readouterr().out
    monkeypatch.setattr("mereo.training.estimate.LONG_FLOPS", 1.0)
    monkeypatch.setattr("mereo.training.estimate.TIMING_SECONDS", 0.01)
    assert main([*words, "--name", "long"]) == 0
    printed = capsys.readouterr().out
    assert printed.index("for 1 epoch of") < printed.index("epoch 1/1") and "(2 of 4 layers)" in printed
