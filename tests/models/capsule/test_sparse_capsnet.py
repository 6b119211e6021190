"""SparseCapsNet: counts, its objective against loops, CapsNet as its supervised form, training without labels."""

from pathlib import Path
from typing import Any

import pytest
import torch

import mereo
from mereo import create_model
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.models import SparseCapsNet, get_model_entry
from mereo.tasks.classification import ClassificationObjective
from mereo.tasks.reconstruction import ReconstructionObjective
from mereo.training.config import TrainConfig
from mereo.training.trainer import train

TINY = dict(get_model_entry("sparse_caps_mnist").tiny or {})


def tiny(**options: object) -> SparseCapsNet:
    torch.manual_seed(0)
    model = create_model("sparse_caps_mnist", **{**TINY, "num_classes": 0, **options})
    assert isinstance(model, SparseCapsNet)
    return model


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "encoder", "decoder"),
    [("sparse_caps_mnist", 7_689_216, 1_460_496), ("sparse_caps_affnist", 14_767_104, 2_296_896)],
)
def test_counts_of_the_paper(name: str, encoder: int, decoder: int) -> None:
    with torch.device("meta"):
        model = create_model(name, num_classes=0)
    assert count(model.decoder) == decoder and count(model) == encoder + decoder
    assert model.num_features == 256
    assert sum(b.numel() for b in model.buffers()) == 2 * 16
    if name == "sparse_caps_mnist":
        parts = (model.conv, model.primary, model.latent.routing)
        assert [count(part) for part in parts] == [20_992, 5_308_672, 2_359_296 + 256]


def test_start_is_that_of_the_authors() -> None:
    model = create_model("sparse_caps_mnist", conv_channels=64, num_classes=0)
    wide = (model.primary.conv.weight, model.latent.routing.weight, model.decoder.layers[2].weight)
    for parameter, std in ((model.conv.weight, 0.05), *((weight, 0.1) for weight in wide)):
        assert parameter.abs().max() <= 2 * std and abs(parameter.std().item() - 0.88 * std) < 0.01 * std + 2e-3
    assert (model.conv.bias == 0.1).all() and (model.latent.routing.bias == 0.1).all()


def test_features_are_the_unweighted_capsules() -> None:
    model = tiny().eval()
    images = torch.rand(3, *model.image_shape)
    rebuilt = model.rebuild(images)
    assert (rebuilt.mask == 0).any()
    torch.testing.assert_close(model(images), rebuilt.poses.flatten(1), rtol=1e-4, atol=1e-6)


def test_the_loss_is_the_squared_error_of_an_image_and_needs_no_labels() -> None:
    model = tiny().double().eval()
    images = torch.rand(3, *model.image_shape, dtype=torch.float64)
    loss, rebuilt = ReconstructionObjective(model)(Batch(images))
    total = 0.0
    for image in range(3):
        weighted = [w * x for w, pose in zip(rebuilt.mask[image], rebuilt.poses[image], strict=True) for x in pose]
        hidden = torch.stack(weighted)
        for layer in model.decoder.layers:
            hidden = layer.weight @ hidden + layer.bias if isinstance(layer, torch.nn.Linear) else hidden.clamp(min=0)
        made = 1 / (1 + (-hidden).exp())
        total += sum((a - b).item() ** 2 for a, b in zip(made, images[image].flatten(), strict=True))
    assert loss.item() == pytest.approx(total / 3, rel=1e-6)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_labels_as_the_mask_make_it_capsnet() -> None:
    ours = tiny(mask="label", latent_capsules=10, latent_dim=6).double()
    theirs = create_model(
        "capsnet", img_size=19, conv_channels=8, primary_types=2, primary_dim=4, class_dim=6, capsule_bias=True
    ).double()
    pairs = {"conv": ours.conv, "primary": ours.primary, "head": ours.latent.routing, "decoder": ours.decoder}
    for name, module in pairs.items():
        theirs.get_submodule(name).load_state_dict(module.state_dict())
    images, labels = torch.rand(5, 1, 19, 19, dtype=torch.float64), torch.tensor([3, 1, 4, 1, 9])
    batch = Batch(images, labels, images)
    mine, _ = ReconstructionObjective(ours, 0.0005)(batch)
    other, _ = ClassificationObjective(theirs, "margin", 0.0005)(batch)
    torch.testing.assert_close(mine, other, rtol=1e-6, atol=0)
    mine.backward()
    other.backward()
    for name, module in pairs.items():
        for a, b in zip(module.parameters(), theirs.get_submodule(name).parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-8)
    with pytest.raises(UsageError, match="labels"):
        ours.rebuild(images, labels.unsqueeze(1))


def test_boosts_change_every_fifty_steps() -> None:
    model = tiny()
    objective, seen = ReconstructionObjective(model), []
    for step in range(151):
        objective.at_step(step, 1000)
        seen.append(round(model.latent.boost[0].item(), 4))
    assert (seen[49], seen[50], seen[99], seen[100], seen[150]) == (1.0, 1.1, 1.1, 1.2, 1.3)


def test_record_shows_votes_and_weights_and_changes_nothing() -> None:
    model = tiny(num_classes=3).eval()
    images = torch.rand(2, *model.image_shape)
    with mereo.record(model) as trace:
        scores = model(images)
    torch.testing.assert_close(scores, model(images), rtol=1e-4, atol=1e-6)
    assert trace["latent.routing.coupling"].shape == (2, 1, 5, model.latent.routing.weight.shape[1])
    plain = model.forward_features(images)
    with model.latent.routing.register_forward_hook(lambda module, inputs, poses: 2 * poses), mereo.record(model):
        torch.testing.assert_close(model.forward_features(images), 2 * plain, rtol=1e-4, atol=1e-6)
    assert torch.equal(trace["latent.gates"], model.rebuild(images).mask)


@pytest.mark.parametrize("value", [0.0, 1e30])
def test_blank_and_huge_images_are_rebuilt(value: float) -> None:
    model = tiny()
    images = torch.full((2, *model.image_shape), value)
    rebuilt = model.rebuild(images)
    rebuilt.images.sum().backward()
    assert rebuilt.images.isfinite().all() and rebuilt.poses.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.long
def test_rebuilding_compiles_and_exports() -> None:
    model = tiny().eval()

    class Rebuild(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return model.rebuild(images).images

    module, images = Rebuild(), torch.rand(3, *model.image_shape)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), module(images), rtol=1e-4, atol=1e-5)
    program = torch.export.export(module, (images,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()
    other = torch.cat((images, images))
    torch.testing.assert_close(program(other), module(other), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_it_trains_without_labels_and_then_lends_its_features_to_a_classifier(tmp_path: Path) -> None:
    small = {key: value for key, value in TINY.items() if key != "img_size"}
    both: dict[str, Any] = {"model": "sparse_caps_mnist", "data": "digits", "limit": 200, "output": str(tmp_path)}
    both |= {"batch_size": 32, "device": "cpu", "model_args": small, "img_size": 19}
    first = train(TrainConfig(name="first", task="reconstruction", epochs=1, lr=1e-6, **both))
    last = train(TrainConfig(name="run", task="reconstruction", epochs=3, lr=3e-3, **both))
    assert last.test_last.values["error"] < 0.8 * first.test_last.values["error"]
    trained = mereo.load(tmp_path / "run")
    assert isinstance(trained, SparseCapsNet) and trained.num_classes == 0
    assert trained.latent.frequency.sum().item() == pytest.approx(1, abs=1e-5)
    train(TrainConfig(name="probe", weights=str(tmp_path / "run"), freeze=("backbone",), epochs=1, **both))
    probe = mereo.load(tmp_path / "probe")
    assert probe.num_classes == 10 and torch.equal(probe.conv.weight, trained.conv.weight)
    assert torch.equal(probe.latent.boost, trained.latent.boost)


def test_the_task_needs_such_a_network() -> None:
    with pytest.raises(UsageError, match="sparse_caps_mnist"):
        ReconstructionObjective(torch.nn.Linear(2, 2))
