"""Target functions: derivatives, drops and deletions of what a function makes of maps, embeddings and scores."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.explain import deletion_test, explain, input_gradients, integrated_gradients, observe, occlusion_maps
from mereo.explain.observation import normalised
from mereo.models import VisionModel
from networks import all_registered, tiny


@pytest.fixture(autouse=True)
def _own_networks() -> Iterator[None]:
    with all_registered():
        yield


def mean_of_one_map(maps: Tensor) -> Tensor:
    return maps[:, 1].mean((1, 2))


def similarity(embedding: Tensor) -> Tensor:
    other = torch.linspace(-1, 1, embedding.shape[1], dtype=embedding.dtype)
    return embedding @ other


TARGETS = {"map_cnn": mean_of_one_map, "embedding_cnn": similarity, "plain_cnn": lambda scores: scores[:, 2]}


@pytest.fixture(params=TARGETS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def value(model: VisionModel, images: Tensor, name: str) -> Tensor:
    with torch.no_grad():
        return TARGETS[name](model(normalised(model, images)))


def test_gradients_are_slopes_of_the_target(name: str) -> None:
    model = tiny((name, "")).double()
    images = torch.rand(2, *model.image_shape, dtype=torch.float64)
    found = input_gradients(model, images, TARGETS[name])
    assert found.abs().max() > 0
    for c, y, x in ((0, 3, 5), (2, 9, 9)):
        up, down = images.clone(), images.clone()
        up[:, c, y, x] += 1e-6
        down[:, c, y, x] -= 1e-6
        slope = (value(model, up, name) - value(model, down, name)) / 2e-6
        torch.testing.assert_close(found[:, c, y, x], slope, atol=1e-7, rtol=1e-3)
    risen = value(model, images, name) - value(model, torch.zeros_like(images), name)
    total = integrated_gradients(model, images, TARGETS[name], steps=128).flatten(1).sum(1)
    torch.testing.assert_close(total, risen, atol=float(0.05 * risen.abs().max()), rtol=0)


def test_drops_and_deletions_are_of_the_target(name: str) -> None:
    model = tiny((name, ""))
    images = torch.rand(2, *model.image_shape)
    drops, grid = occlusion_maps(model, images, TARGETS[name], cells=2, window=1)
    hidden = images.clone()
    hidden[:, :, :8, 8:] = images.mean((2, 3), keepdim=True)
    expected = value(model, images, name) - value(model, hidden, name)
    torch.testing.assert_close(drops[:, 0, 1], expected, atol=1e-5, rtol=1e-4)
    outputs = model(normalised(model, images)).detach()
    tested = deletion_test(model, images, outputs, TARGETS[name], torch.rand(2, 2, 2), grid)
    assert tested is not None
    torch.testing.assert_close(tested.falls, drops, atol=1e-5, rtol=1e-4)


def test_an_explanation_of_a_target(name: str) -> None:
    model = tiny((name, ""))
    images = torch.rand(2, *model.image_shape)
    found = explain(model, images, target=TARGETS[name])
    torch.testing.assert_close(found.value, value(model, images, name))
    assert found.explained.tolist() == [-1, -1] and found.occlusion_map is not None
    torch.testing.assert_close(found.occlusion_map.cells, occlusion_maps(model, images, TARGETS[name])[0])
    several = mereo.explain(model, list(images), target=TARGETS[name])
    assert several.classes == ["target", "target"] and several.names[0] in str(several)


def test_a_class_is_a_target() -> None:
    model = tiny(("plain_cnn", "")).double()
    images = torch.rand(2, *model.image_shape, dtype=torch.float64)
    by_number, by_function = (input_gradients(model, images, target) for target in (2, lambda scores: scores[:, 2]))
    torch.testing.assert_close(by_number, by_function)
    torch.testing.assert_close(by_number, input_gradients(model, images, torch.tensor([2, 2])))


def test_what_needs_a_target_or_is_none(name: str) -> None:
    model = tiny((name, ""))
    images = torch.rand(2, *model.image_shape)
    if model.output_kind != "scores":
        for ask in (observe, input_gradients, occlusion_maps, explain):
            ask(model, images)  # the task chooses
            with pytest.raises(UsageError) as refused:
                ask(model, images, target=1)
            assert model.output_kind in str(refused.value)
    for wrong, message in ((lambda outputs: outputs, r"it must give a tensor \(2,\)"), (lambda outputs: 3, "int")):
        with pytest.raises(UsageError, match=f"target gives .*{message}"):
            input_gradients(model, images, wrong)
    with pytest.raises(UsageError, match="do not depend on the outputs"):
        input_gradients(model, images, lambda outputs: torch.zeros(len(outputs)))
    with pytest.raises(UsageError, match=r"target is 'cat'.*a function"):
        mereo.explain(model, [images[0]], target="cat")
    with pytest.raises(UsageError, match="target is given"):
        mereo.explain(model, [images[0]], target=TARGETS[name], classes=1)
