"""Rates of the parts of a pretrained network."""

import pytest

import mereo
from mereo.errors import UsageError
from mereo.tasks import get_task
from mereo.training.config import TrainConfig
from mereo.training.groups import group_rate, parameter_groups
from mereo.training.plan import make_plan


@pytest.mark.parametrize("name", ["timm:test_resnet", "torchvision:resnet18", "resnet20"])
def test_the_classifier_is_trained_first_and_the_rest_at_a_tenth_of_its_rate(name: str) -> None:
    model = mereo.create_model(name, num_classes=3, img_size=32)
    config = TrainConfig(model=name, pretrained=True)
    objective = get_task("classification")(("a", "b", "c"), {}).objective(model, config)
    groups = list(parameter_groups(config, objective, model))
    names = {id(parameter): each for each, parameter in model.named_parameters()}
    rates = {names[id(p)]: [group_rate(g, 1.0, share) for share in (0.0, 0.5)] for g in groups for p in g["params"]}
    assert rates.keys() == {each for each, _ in model.named_parameters()}
    heads = [each for each, values in rates.items() if values == [1.0, 1.0]]
    classifier = model.classifier
    assert set(heads) == {f"{classifier}.weight", f"{classifier}.bias"}
    assert all(values == [0.0, pytest.approx(0.1)] for each, values in rates.items() if each not in heads)


def test_pretrained_finds_the_weights_of_a_network() -> None:
    found = {name: make_plan(TrainConfig(model=name, pretrained=True)).config.weights for name in (
        "shvit_cifar", "timm:test_resnet", "torchvision:resnet18"
    )}  # fmt: skip
    assert found == {
        "shvit_cifar": "shvit_cifar.cifar10", "timm:test_resnet": "timm", "torchvision:resnet18": "torchvision"
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"resnet20.*timm:resnet18"):
        make_plan(TrainConfig(model="resnet20", pretrained=True))
