"""The tiny network of every family, of whatever it reads and gives, for what every network promises."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.models import MODELS, Network, get_model_entry
from mereo.models.registry import families
from plain_cnn import OTHERS, registered

Case = tuple[str, str]

PLAIN = "plain_cnn"
OWN = (PLAIN, *OTHERS)
"""Networks that only the tests register."""
OUTPUTS: dict[str, Callable[[Any, int], tuple[int | None, ...]]] = {
    "scores": lambda model, count: (count, model.num_classes),
    "maps": lambda model, count: (count, model.num_classes, *model.image_shape[1:]),
    "tokens": lambda model, count: (*model.example_inputs(count).shape[:2], model.num_classes),
    "embedding": lambda model, count: (count, None),
    "embeddings": lambda model, count: (count, model.num_classes, None),
    "boxes": lambda model, count: (count, None, None),
    "pointers": lambda model, count: (count, None, None),
    "triples": lambda model, count: (count, len(model.measured), model.num_classes),
    "noise": lambda model, count: (count, *model.input_shape),
    "images": lambda model, count: (count, *model.start.shape),
}
"""The shape of the outputs by their kind; None for any size."""


@contextmanager
def all_registered() -> Iterator[None]:
    """The networks of the tests are in the catalogue inside the block."""
    with ExitStack() as stack:
        stack.enter_context(registered())
        for name, (module, parameters) in OTHERS.items():
            stack.enter_context(registered(name, module, parameters=parameters))
        yield


def cases(kind: str | None = None) -> tuple[list[Case], list[Case]]:
    """The tiny network of each family that reads such inputs, and its variants."""
    entries = families(kind).values()
    tiny = [(entry.name, "") for entry in entries]
    return tiny, [(entry.name, variant) for entry in entries for variant in entry.variants or {}]


def parametrized(chosen: list[Case], costly: list[Case] = []) -> pytest.MarkDecorator:  # noqa: B006
    """A test of each of these networks; of the costly ones only where long tests run."""
    rows = [*chosen, *(pytest.param(case, marks=pytest.mark.long) for case in costly)]
    return pytest.mark.parametrize("case", rows, ids=lambda case: " ".join(case).strip())


def arguments_of(case: Case) -> dict[str, Any]:
    """The arguments of a tiny network or a variant of it."""
    name, variant = case
    entry = get_model_entry(name)
    return {**(entry.tiny or {}), **((entry.variants or {})[variant] if variant else {})}


def tiny(case: Case, **overrides: Any) -> Any:
    """A tiny network in eval mode, with batch norms that have seen images and parameters away from their start."""
    model: Any = mereo.create_model(case[0], **{**arguments_of(case), **overrides})
    images = model.input_kind == "images"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((0.02 if images else 0.05) * torch.randn_like(parameter))
        if images:
            model(some_inputs(model, 4))
    return model.eval()


def some_inputs(model: Network, count: int = 3) -> Tensor:
    """Inputs; images with values that keep the parts of tiny networks away from zero."""
    inputs = model.example_inputs(count)
    return 10 * inputs if model.input_kind == "images" else inputs


def fits(outputs: Tensor, model: Network, count: int) -> bool:
    """Whether outputs have the shape that their kind promises."""
    expected = OUTPUTS[model.output_kind](model, count)
    return outputs.dim() == len(expected) and all(
        size is None or size == found for size, found in zip(expected, outputs.shape, strict=True)
    )


def difference(output: Tensor, expected: Tensor) -> float:
    """The largest difference as a share of the largest expected entry."""
    assert output.shape == expected.shape
    return ((output.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


ALL = sorted(MODELS)
"""Names of the catalogue, without the networks of the tests."""
