"""The answer of one network for one image: classes, maps over the image, the parse tree."""

import base64
import time
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from mereo.app.changes import change_image, silence
from mereo.app.networks import Networks, ShownNetwork
from mereo.app.question import Question
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
from mereo.models import CapsuleClassifier

SHOWN = 10
"""Classes in the table."""


def heat(name: str, values: Tensor, *, signed: bool = False) -> dict[str, Any]:
    """A map over the image as bytes: 0 to 255 from the smallest to the largest value; of a signed one 128 stands for 0.

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
    """The maps of one image that follow from a single pass: couplings, votes, attention."""
    _, height, width = observation.image_shape
    maps = [heat(f"couplings, {name}", each.heat[0]) for name, each in coupling_maps(observation, chosen).items()]
    for values, grid in placed_contributions(observation, chosen):
        cells = on_grid(values, grid, average=False)
        maps.append(heat("votes for and against", spread(cells, grid, height, width)[0], signed=True))
    if of_class := class_attention(observation):
        last = of_class[-1]
        maps.append(heat("class attention", spread(last.cells.mean(1), last.grid, height, width)[0]))
    if (rollout := attention_rollout(observation)) is not None:
        maps.append(heat("attention rollout", spread(rollout.cells, rollout.grid, height, width)[0]))
    return maps


def _picture(networks: Networks, network: ShownNetwork, question: Question) -> Any:
    if question.image is not None:
        return networks.uploaded(question.image, network)
    return networks.test_picture(networks.network(question.owner), network, question.index)


def answer(networks: Networks, number: int, question: Question) -> dict[str, Any]:
    """What a network makes of an image, as plain values."""
    start, network = time.perf_counter(), networks.network(number)
    model, picture = network.model, _picture(networks, network, question)
    if question.explain is not None and not 0 <= question.explain < model.num_classes:
        raise UsageError(f"explain is {question.explain}; the network has the classes 0 to {model.num_classes - 1}.")
    image = change_image(model, picture.image, picture.label, question.rotate, question.noise, question.attack)
    size, silenced = (image.shape[-2], image.shape[-1]), [0]
    with ExitStack() as stack:
        if question.couplings != "own":
            stack.enter_context(replace_couplings(model, question.couplings))
        if question.silence:
            stack.enter_context(silence(model, question.silence, size, silenced.append))
        observation = observe(model, image)
    scores, kind = observation.scores.float(), kind_of(model)
    predicted = int(scores.argmax(1))
    explained = predicted if question.explain is None else question.explain
    chosen = torch.tensor([explained], device=scores.device)
    calibration = calibration_of(model)
    if calibration is None:
        shares = confidences(scores, ways_of(kind)[0])
    else:
        shares = with_temperature(scores, calibration.temperature)
    probabilities = shares[0].tolist()
    return {
        "model": number,
        "title": picture.title,
        "truth": None if picture.truth is None else for_terminal(picture.truth),
        "correct": None if picture.label is None else predicted == picture.label,
        "predicted": predicted,
        "explained": explained,
        "kind": WORDINGS[kind].one,
        "classes": _classes(network, scores[0].tolist(), probabilities, {predicted, explained}),
        "image": image_data(image[0].cpu()),
        "rebuilt": _rebuilt(observation, chosen),
        "maps": maps_of(observation, chosen),
        "silenced": max(silenced),
        **_tree(observation, chosen, number, size),
        "milliseconds": round(1000 * (time.perf_counter() - start)),
    }


def _classes(
    network: ShownNetwork, scores: list[float], probabilities: list[float], wanted: set[int]
) -> list[dict[str, Any]]:
    """The classes with the highest scores, and those that are wanted."""
    order = sorted(range(len(scores)), key=lambda number: -scores[number])
    kept = sorted({*order[:SHOWN], *wanted}, key=lambda number: -scores[number])
    return [
        {"number": n, "name": for_terminal(network.classes[n]), "score": scores[n], "probability": probabilities[n]}
        for n in kept
    ]


def _rebuilt(observation: Observation, chosen: Tensor) -> str | None:
    """The decoder's reconstruction, where there is a decoder."""
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


def hidden_places(networks: Networks, number: int, question: Question) -> dict[str, Any]:
    """What hiding each square of the image costs the explained class, of the network as it is."""
    network = networks.network(number)
    picture = _picture(networks, network, question)
    image = change_image(network.model, picture.image, picture.label, question.rotate, question.noise, question.attack)
    classes = None
    if question.explain is not None:
        if not 0 <= question.explain < network.model.num_classes:
            raise UsageError(f"explain is {question.explain}; the network has {network.model.num_classes} classes.")
        classes = torch.tensor([question.explain], device=next(network.model.parameters()).device)
    drops, grid = occlusion_maps(network.model, image, classes)
    falls = spread(drops, grid, *image.shape[-2:])[0]
    return heat("fall of the score where a square is hidden", falls, signed=True)
