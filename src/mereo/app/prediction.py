"""The prediction of one network for one image: scores of the classes, maps over the image, the parse tree."""

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from mereo.app.changes import change_image, silence
from mereo.app.request import PredictionRequest
from mereo.app.session import InputImage, ServedModel, Session
from mereo.errors import UsageError
from mereo.escape import for_terminal
from mereo.explain import (
    attention_rollout,
    class_attention,
    coupling_maps,
    observe,
    occlusion_maps,
    parse_trees,
    spread,
)
from mereo.explain.contributions import placed_contributions
from mereo.explain.observation import Observation
from mereo.explain.places import on_grid
from mereo.explain.trees.growth import why_no_tree
from mereo.explain.trees.page import image_data
from mereo.explain.trees.svg import patch_boxes, tree_svg
from mereo.explain.trees.words import describe
from mereo.explain.wording import WORDINGS, kind_of
from mereo.inference.calibration import confidences, ways_of
from mereo.inference.temperature import calibration_of
from mereo.inference.temperature import probabilities as with_temperature
from mereo.measure.couplings import replace_couplings
from mereo.models import CapsuleClassifier, VisionModel

MOST_CLASSES = 10
"""Number of classes in the table."""


def encode_map(name: str, values: Tensor, *, signed: bool = False) -> dict[str, Any]:
    """A map over the image, quantised to bytes: 0 to 255 from its minimum to its maximum; 128 is 0 in a signed map.

    Shapes: values (height, width).
    """
    values = values.float().cpu()
    low, high = float(values.amin()), float(values.amax())
    zero, scale = (128, 127 / max(-low, high, 1e-12)) if signed else (0, 255 / max(high - low, 1e-12))
    shares = zero + scale * (values if signed else values - low)
    content = shares.round().clamp(0, 255).to(torch.uint8).numpy().tobytes()
    return {
        "name": name, "signed": signed, "low": low, "high": high, "height": values.shape[0], "width": values.shape[1],
        "bytes": base64.b64encode(content).decode(),
    }  # fmt: skip


def maps_of(observation: Observation, chosen: Tensor) -> list[dict[str, Any]]:
    """The maps that a single forward pass gives: couplings, votes, attention."""
    _, height, width = observation.image_shape
    maps = [encode_map(f"couplings, {name}", each.heat[0]) for name, each in coupling_maps(observation, chosen).items()]
    for values, grid in placed_contributions(observation, chosen):
        cells = on_grid(values, grid, average=False)
        maps.append(encode_map("votes for and against", spread(cells, grid, height, width)[0], signed=True))
    if of_class := class_attention(observation):
        last = of_class[-1]
        maps.append(encode_map("class attention", spread(last.cells.mean(1), last.grid, height, width)[0]))
    if (rollout := attention_rollout(observation)) is not None:
        maps.append(encode_map("attention rollout", spread(rollout.cells, rollout.grid, height, width)[0]))
    return maps


def _input_image(session: Session, served: ServedModel, request: PredictionRequest) -> InputImage:
    if request.image is not None:
        return session.uploaded_image(request.image, served)
    return session.test_image(session.model(request.owner), served, request.index)


@contextmanager
def _changed(
    model: VisionModel, request: PredictionRequest, size: tuple[int, int], count: Callable[[int], None]
) -> Iterator[None]:
    """The requested changes of a network: couplings replaced, parts silenced; `count` gets the number of these."""
    with ExitStack() as stack:
        if request.couplings != "own":
            stack.enter_context(replace_couplings(model, request.couplings))
        if request.silence:
            stack.enter_context(silence(model, request.silence, size, count))
        yield


def predict_image(session: Session, number: int, request: PredictionRequest) -> dict[str, Any]:
    """Predict the class of an image and explain the prediction; values of JSON."""
    start, served = time.perf_counter(), session.model(number)
    model, source = served.model, _input_image(session, served, request)
    if request.explain is not None and not 0 <= request.explain < model.num_classes:
        raise UsageError(f"explain is {request.explain}; the network has the classes 0 to {model.num_classes - 1}.")
    image = change_image(model, source.image, source.label, request.rotate, request.noise, request.attack)
    size, silenced = (image.shape[-2], image.shape[-1]), [0]
    with _changed(model, request, size, silenced.append):
        observation = observe(model, image)
    scores, kind = observation.scores.float(), kind_of(model)
    predicted = int(scores.argmax(1))
    explained = predicted if request.explain is None else request.explain
    chosen = torch.tensor([explained], device=scores.device)
    calibration = calibration_of(model)
    if calibration is None:
        shares = confidences(scores, ways_of(kind)[0])
    else:
        shares = with_temperature(scores, calibration.temperature)
    probabilities = shares[0].tolist()
    return {
        "model": number,
        "title": source.title,
        "truth": None if source.truth is None else for_terminal(source.truth),
        "correct": None if source.label is None else predicted == source.label,
        "predicted": predicted,
        "explained": explained,
        "kind": WORDINGS[kind].one,
        "classes": _classes(served, scores[0].tolist(), probabilities, {predicted, explained}),
        "image": image_data(image[0].cpu()),
        "reconstruction": _reconstruction(observation, chosen),
        "maps": maps_of(observation, chosen),
        "silenced": max(silenced),
        **_tree(observation, chosen, number, size),
        "milliseconds": round(1000 * (time.perf_counter() - start)),
    }


def _classes(
    served: ServedModel, scores: list[float], probabilities: list[float], required: set[int]
) -> list[dict[str, Any]]:
    """The classes with the highest scores, and any others that must be shown."""
    order = sorted(range(len(scores)), key=lambda number: -scores[number])
    kept = sorted({*order[:MOST_CLASSES], *required}, key=lambda number: -scores[number])
    return [
        {"number": n, "name": for_terminal(served.classes[n]), "score": scores[n], "probability": probabilities[n]}
        for n in kept
    ]


def _reconstruction(observation: Observation, chosen: Tensor) -> str | None:
    """The decoder's reconstruction; None for a network without a decoder."""
    model = observation.model
    if not isinstance(model, CapsuleClassifier) or model.decoder is None or observation.capsules is None:
        return None
    with torch.no_grad():
        return image_data(model.reconstruct(observation.capsules, chosen)[0].float().clamp(0, 1).cpu())


def _tree(observation: Observation, chosen: Tensor, number: int, size: tuple[int, int]) -> dict[str, Any]:
    """The parse tree as SVG, or the reason why there is none."""
    if (reason := why_no_tree(observation.model)) is not None:
        return {"tree": None, "boxes": "", "words": f"{reason}, so there is no parse tree."}
    tree, prefix = parse_trees(observation, chosen)[0], f"m{number}"
    return {
        "tree": tree_svg(tree, size, prefix), "boxes": patch_boxes(tree, prefix), "words": describe(tree, 0),
    }  # fmt: skip


def occlusion(session: Session, number: int, request: PredictionRequest) -> dict[str, Any]:
    """The drop in the score of the explained class when a square of the image is occluded, for each square."""
    served = session.model(number)
    source = _input_image(session, served, request)
    image = change_image(served.model, source.image, source.label, request.rotate, request.noise, request.attack)
    classes = None
    if request.explain is not None:
        if not 0 <= request.explain < served.model.num_classes:
            raise UsageError(f"explain is {request.explain}; the network has {served.model.num_classes} classes.")
        classes = torch.tensor([request.explain], device=next(served.model.parameters()).device)
    size = (image.shape[-2], image.shape[-1])
    with _changed(served.model, request, size, lambda number: None):
        drops, grid = occlusion_maps(served.model, image, classes)
    drop = spread(drops, grid, *image.shape[-2:])[0]
    return encode_map("drop in score when a square is hidden", drop, signed=True)
