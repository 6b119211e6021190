import base64
import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from mereo.bench.suite import Setting
from mereo.errors import UsageError
from mereo.measure.couplings import replace_couplings
from mereo.models import create_model, load, save_weights
from mereo.training.trainer import NonFiniteLossError
from papers.capsule_table import suite, trainings
from papers.capsule_table.controls import register_controls
from papers.capsule_table.differences import Difference, paired_difference
from papers.capsule_table.measured import Measured
from papers.capsule_table.protocol import CAPSULES, KINDS, LINEAR, OWN, PLAIN, RATES, UNIFORM, configuration, controls
from papers.capsule_table.table import largest_shown, summarise
from papers.capsule_table.trainings import Results, Training

SHAPE = {"num_classes": 10, "in_chans": 1, "img_size": 20}


@pytest.fixture(autouse=True, scope="module")
def _controls():
    register_controls()


def test_uniform_couplings_are_those_of_a_replacement(tmp_path):
    images = torch.rand(2, 1, 20, 20)
    own = create_model("rs_capsnet_small", **SHAPE).eval()
    uniform = create_model("uniform:rs_capsnet_small", **SHAPE).eval()
    uniform.load_state_dict(own.state_dict())
    with torch.no_grad():
        with replace_couplings(own, "uniform"):
            wanted = own(images)
        assert not torch.equal(wanted, own(images))
        torch.testing.assert_close(uniform(images), wanted)
        torch.testing.assert_close(uniform.capsules(images).activation, wanted)
        save_weights(tmp_path / "uniform.safetensors", uniform)
        torch.testing.assert_close(load(tmp_path / "uniform.safetensors")(images), wanted)


@pytest.mark.parametrize("name", ["mspcap_tiny", "linear:mspcap_tiny", "uniform:mspcap_tiny"])
def test_a_network_that_does_not_exist_is_named_beside_its_nearest(name):
    with pytest.raises(UsageError, match="did you mean 'mspcaps_tiny'"):
        create_model(name)


@pytest.mark.parametrize("kind", ["rs_capsnet", "mspcaps", "self_routing_capsnet", "matrix_capsnet"])
def test_a_linear_head_depends_on_no_coupling(kind):
    model = create_model(f"linear:{CAPSULES[kind]}", **SHAPE).eval()
    images = torch.rand(2, 1, 20, 20)
    with torch.no_grad():
        scores = model(images)
        with replace_couplings(model, "shuffled"):
            torch.testing.assert_close(model(images), scores, rtol=0, atol=0)
    torch.nn.functional.cross_entropy(model(images), torch.tensor([1, 2])).backward()
    for name, weight in model.named_parameters():
        assert weight.requires_grad == (weight.grad is not None), name


def test_a_linear_head_reads_the_capsules_of_all_scales():
    model = create_model(f"linear:{CAPSULES['mspcaps']}", **SHAPE)
    parts = model.encoder.patch_capsules(torch.rand(2, 1, 20, 20))
    assert len(parts) == 3
    assert model.num_features == sum(x[0].numel() for x in parts.values())


def test_a_paired_difference_equals_its_equations():
    generator = np.random.default_rng(0)
    one, other = (generator.integers(0, 2, (3, 50)).astype(float) for _ in range(2))
    apart = [[one[s][i] - other[s][i] for i in range(50)] for s in range(3)]
    of_seeds = [sum(row) / 50 for row in apart]
    of_images = [sum(apart[s][i] for s in range(3)) / 3 for i in range(50)]
    middle = sum(of_seeds) / 3
    a = sum((x - middle) ** 2 for x in of_seeds) / 2 / 3
    b = sum((x - middle) ** 2 for x in of_images) / 49 / 50
    found = paired_difference(one, other)
    assert found.mean == pytest.approx(middle)
    freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 49)
    assert 1.9 < (found.high - found.low) / 2 / math.sqrt(a + b) < 4.31  # Student's t of 2 to infinite degrees
    assert 2 < freedom < 51
    assert paired_difference(one, other, comparisons=17).low < found.low
    assert not paired_difference(one, one).is_clear


@pytest.mark.parametrize("control", [OWN, UNIFORM, LINEAR])
def test_every_network_can_be_timed_with_its_couplings_and_without(control):
    setting = Setting({"batch": 2, "couplings": control})
    images, labels = suite.inputs(setting, "training")
    found = {each.name: each for each in suite.contenders(setting)}
    assert [*found] == [*KINDS]
    for kind, contender in found.items():
        model = suite.make_network(kind, control if control in controls(kind) else OWN)
        scores = contender.build("forward").call(images, labels)
        assert scores.shape == (2, 10) and model.image_shape == images.shape[1:]
    for kind in ("deepcaps", "variational_capsnet"):  # whose transforms have five axes
        assert found[kind].build("training").call(images, labels).shape == ()


def test_results_are_read_back(tmp_path):
    results = Results(tmp_path / "mnist.csv")
    training = Training("capsnet", OWN, 1e-3, 0, 8, 0.9, 0.875, 0.01, 12, 3.5)
    results.add(training)
    assert Results(tmp_path / "mnist.csv").trainings == {training.key: training}


def test_two_processes_may_add_rows_of_one_table(tmp_path):
    one, other = (Results(tmp_path / "mnist.csv") for _ in range(2))
    for kind, results in (("capsnet", one), ("deepcaps", other), ("mspcaps", one)):
        results.add(Training(kind, OWN, 1e-3, 0, 8, 0.9, 0.875, 0.01, 12, 3.5))
    assert [each.kind for each in Results(tmp_path / "mnist.csv").trainings.values()] == [
        "capsnet", "deepcaps", "mspcaps",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_configuration_names_a_network(kind):
    assert controls(kind) == ((OWN,) if kind in PLAIN else (OWN, UNIFORM, LINEAR))
    for control in controls(kind):
        config = configuration(kind, control, "digits", RATES[0], 0, 1, {})
        config.check()
        assert config.model_args is not None
        assert "rotate" not in " ".join(config.augment)


def test_a_rate_at_which_a_seed_diverges_is_left_out(tmp_path, monkeypatch):
    def stopped(config, *_, **__):
        raise NonFiniteLossError(f"the loss of {config.name} is nan.")

    def measured(kind, control, rate, seed, epochs, folder, data, given, images):
        used.append((control, folder.name.split("-")[2]))

    used: list = []
    monkeypatch.setattr(trainings, "train", stopped)
    monkeypatch.setattr(trainings, "measure", measured)
    monkeypatch.setattr(Results, "add_measured", lambda self, measured: None)
    results = Results(tmp_path / "mnist.csv")
    for rate, accuracy in zip(RATES, (0.5, 0.9, 0.7), strict=True):
        for seed in range(2):  # the best one has one seed only
            if rate != RATES[1] or seed == 0:
                results.add(Training("resnet_macs", OWN, rate, seed, 8, accuracy, 0.5, 0, 1, 1))
    table = trainings.Table("mnist", results, {"output": str(tmp_path)}, lambda line: None, seeds=2)
    for rate in RATES:
        for seed in range(2):
            (tmp_path / f"resnet_macs-own-{rate:g}-seed{seed}-epochs8").mkdir(exist_ok=True)
    table.complete("resnet_macs")
    assert results.trainings["resnet_macs", OWN, RATES[1], 1, 8].diverged
    assert used == [(OWN, f"{RATES[2]:g}")] * 2


def test_uniform_couplings_are_trained_at_the_rate_of_their_network(tmp_path):
    results = Results(tmp_path / "mnist.csv")
    for rate, accuracy in zip(RATES, (0.5, 0.9, 0.7), strict=True):
        results.add(Training("capsnet", OWN, rate, 0, 8, accuracy, 0.5, 0, 1, 1))
    table = trainings.Table("mnist", results, {"output": str(tmp_path)}, lambda line: None, seeds=2)
    assert table._chosen("capsnet", UNIFORM) == (RATES[1], 8)
    results.add(Training("capsnet", OWN, RATES[1], 1, 8, math.nan, math.nan, 0, 0, 0))
    assert table._chosen("capsnet", OWN) == table._chosen("capsnet", UNIFORM) == (RATES[2], 8)


def test_what_was_measured_at_another_rate_is_forgotten(tmp_path):
    results = Results(tmp_path / "mnist.csv")
    rest = {field.name: "" if field.name == "correct" else 0 for field in fields(Measured)}
    for seed, rate in ((0, 1e-2), (1, 1e-3)):
        for kind in ("capsnet", "aa_capsnet"):
            results.add_measured(Measured(**{**rest, "kind": kind, "control": OWN, "rate": rate, "seed": seed}))
    assert set(Results(tmp_path / "mnist.csv").measured) == set(results.measured)
    results.drop_measured("capsnet", OWN, 1e-3, 0)
    left = {("capsnet", OWN, 1), ("aa_capsnet", OWN, 0), ("aa_capsnet", OWN, 1)}
    assert set(results.measured) == set(Results(tmp_path / "mnist.csv").measured) == left


def test_a_linear_head_with_arguments_is_saved_and_loaded(tmp_path):
    model = create_model("linear:matrix_capsnet_68k", **SHAPE, network_args={"padding": 2}).eval()
    save_weights(tmp_path / "head.safetensors", model)
    assert load(tmp_path / "head.safetensors").config == model.config


def test_networks_that_were_trained_longer_than_what_they_are_compared_with_are_named(tmp_path):
    results = Results(tmp_path / "mnist.csv")
    numbers = {field.name: 0.5 for field in fields(Measured)}
    for kind, long in (("capsnet", False), ("aa_capsnet", True)):
        for control, right in ((OWN, False), (LINEAR, True)):
            correct = f"64:{base64.b64encode(bytes([255 * right] * 8)).decode()}"
            epochs = 16 if long and control == LINEAR else 8
            row = numbers | {"kind": kind, "control": control, "seed": 0, "epochs": epochs, "correct": correct}
            results.add_measured(Measured(**{**row, "parameters": 1, "macs": 1}))
    found = summarise(results, "mnist", tmp_path / "forest.png")
    rows = found["tables"]["Do capsules help? the network less its encoder with a linear head, points"]
    assert [(row["network"], row["clear"], row["epochs"]) for row in rows] == [
        ("capsnet", "worse", "8"), ("aa_capsnet", "worse", "8 against 16"),
    ]  # fmt: skip
    assert "Do capsules help: clearly worse for capsnet, aa_capsnet (8 epochs against 16) of 2." in found["notes"]


def test_a_picture_reaches_as_far_as_half_of_its_intervals():
    narrow, wide, wider = (Difference(0.0, -side, side) for side in (0.05, 0.2, 2.0))
    assert largest_shown([narrow, wide]) == 10
    assert largest_shown([narrow, wide, wider]) == 25
    assert largest_shown([wide, wider, wider]) == 50
