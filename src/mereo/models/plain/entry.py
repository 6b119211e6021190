"""Rows of the catalogue for networks of other libraries, made when one is named."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from torch import nn

from mereo.core.meta_device import on_meta_device
from mereo.core.shapes import image_size
from mereo.models.entry import ModelEntry
from mereo.models.layout import register_layout
from mereo.models.plain.libraries import LIBRARIES
from mereo.models.plain.network import PlainNetwork, last_linear
from mereo.models.registry import register_library


@dataclass(frozen=True)
class PlainEntry(ModelEntry):
    """One network of another library.

    Attributes:
        size: of the images for which the library states the preprocessing; at other sizes nothing is cropped.
    """

    size: tuple[int, int] = (224, 224)

    def pretrained_cfg(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        cfg = super().pretrained_cfg(arguments)
        return cfg if image_size(arguments["img_size"]) == self.size else {**cfg, "crop_pct": 1.0}


@cache
def plain_entry(library: str, network: str) -> PlainEntry:
    """The row of one network; UsageError for a name that the library has not registered."""
    theirs = LIBRARIES[library]
    theirs.check(network)
    facts = theirs.facts(network)
    with on_meta_device():
        outline = theirs.make(network, 1000, 3, facts.size, {})
    first = next((name for name, module in outline.named_modules() if isinstance(module, nn.Conv2d)), "")
    parts = ("head",) if theirs.splits else _classifier(outline)
    sides = facts.size[0] if facts.size[0] == facts.size[1] else facts.size
    name = f"{library}:{network}"
    module = type(
        name,
        (PlainNetwork,),
        {
            "__module__": PlainNetwork.__module__, "__doc__": PlainNetwork.__doc__,
            "library_name": library, "network_name": network, "first_conv": f"network.{first}",
            "usual_rate": usual_rate(outline), "fixed_input_size": facts.fixed,
            "classifier": parts[0], "classifier_parts": parts,
        },
    )  # fmt: skip
    register_layout("official", module, PlainNetwork.names_in_library)
    parameters = sum(parameter.numel() for parameter in outline.parameters())
    summary = f"{network} as {library} makes it: a plain network to compare with."
    how = facts.preprocessing
    return PlainEntry(
        name, module, summary, {"img_size": sides}, theirs.source, parameters, name,
        mean=tuple(how["mean"]), std=tuple(how["std"]), interpolation=how["interpolation"], crop_pct=how["crop_pct"],
        tiny={}, size=facts.size,
    )  # fmt: skip


def usual_rate(network: nn.Module) -> float:
    """Twice the usual rate for a network that normalises by statistics of the batch only, as convolutional ones do."""
    modules = list(network.modules())
    of_batch = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules)
    others = any(isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.RMSNorm) for module in modules)
    return 2 * PlainNetwork.usual_rate if of_batch and not others else PlainNetwork.usual_rate


def _classifier(network: nn.Module) -> tuple[str, ...]:
    """Names of the classifiers of a network of timm's; the last linear layer if its configuration names none."""
    stated: Any = (getattr(network, "pretrained_cfg", None) or {}).get("classifier")
    names = (stated,) if isinstance(stated, str) else tuple(stated or ())
    return tuple(f"network.{name}" for name in names) or (f"network.{last_linear(network)}",)


def register_libraries() -> None:
    """Let the catalogue answer to "timm:NAME" and "torchvision:NAME"."""
    for library in LIBRARIES:
        register_library(library, partial(plain_entry, library))
