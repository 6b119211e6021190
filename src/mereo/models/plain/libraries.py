"""Differences between timm and torchvision: names, constructors, published weights, preprocessing.

A library is imported when a network of it is asked for. Networks are made by the library's own constructors, and only
by names that it has registered itself: never by an address of a hub or a folder, and nothing is imported by a name.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, nn

from mereo.errors import UsageError, first_line, unknown
from mereo.escape import cut
from mereo.models.registry import IMAGENET
from mereo.models.timm_access import import_timm, own_networks
from mereo.models.timm_cache import LONGEST_REASON, check_download, without_network

RATES = ("drop_rate", "drop_path_rate")


@dataclass(frozen=True)
class Facts:
    """Facts that a library states about one of its networks.

    Attributes:
        size: height and width of the images that it was made for.
        fixed: whether images must have the size that the network was made for.
        preprocessing: mean, std, interpolation and crop_pct, under timm's names.
    """

    size: tuple[int, int]
    fixed: bool
    preprocessing: Mapping[str, Any]


class Library(ABC):
    """One library of networks.

    Attributes:
        name: the text before the colon.
        source: its address.
        splits: whether the classifier is held apart from the rest of the network.
    """

    name: str
    source: str
    splits: bool

    @abstractmethod
    def names(self) -> list[str]:
        """The names of its networks; UsageError if it is not installed."""

    @abstractmethod
    def facts(self, network: str, tag: str | None = None) -> Facts:
        """What it states about a network, or about one of its published weights."""

    @abstractmethod
    def make(
        self, network: str, num_classes: int, in_chans: int, size: tuple[int, int], rates: Mapping[str, float]
    ) -> nn.Module:
        """A network with random weights."""

    @abstractmethod
    def published(
        self, network: str, tag: str | None, num_classes: int, in_chans: int, size: tuple[int, int]
    ) -> dict[str, Tensor]:
        """Published weights, under the library's names."""

    def check(self, network: str) -> None:
        """UsageError with the nearest names for a network that the library does not have."""
        names = self.names()
        if network not in names:
            raise unknown(f"network of {self.name}", network, names)


def cannot_make(library: str, network: str, error: Exception, what: str) -> UsageError:
    """The error for a constructor of a library that refuses its arguments."""
    return UsageError(f"{library}'s {network} cannot be made {what} ({cut(first_line(error), 200)}).")


class Timm(Library):
    """PyTorch Image Models."""

    name, source, splits = "timm", "https://github.com/huggingface/pytorch-image-models", False

    def names(self) -> list[str]:
        return list(own_networks())

    def _published_name(self, network: str, tag: str | None) -> str:
        """The name of published weights; UsageError if there are none."""
        timm, name = import_timm(), f"{network}.{tag}" if tag else network
        if not timm.is_model_pretrained(name):
            known = ", ".join(timm.list_pretrained(f"{network}.*")) or "none"
            raise UsageError(f"weights is {name!r}, which timm has not published; it has {known}.")
        return name

    def facts(self, network: str, tag: str | None = None) -> Facts:
        name = self._published_name(network, tag) if tag else network
        configuration = import_timm().get_pretrained_cfg(name)
        stated = {} if configuration is None else configuration.to_dict()
        _, height, width = stated.get("input_size") or (3, 224, 224)
        fields = {**IMAGENET, "crop_pct": 0.875}
        kept = {key: stated.get(key) or value for key, value in fields.items()}
        return Facts((height, width), bool(stated.get("fixed_input_size", False)), kept)

    def make(
        self, network: str, num_classes: int, in_chans: int, size: tuple[int, int], rates: Mapping[str, float]
    ) -> nn.Module:
        timm = import_timm()
        given: dict[str, Any] = {"num_classes": num_classes, "in_chans": in_chans, **rates}
        made: nn.Module
        if size != self.facts(network).size:
            try:
                made = timm.create_model(network, **given, img_size=size)
            except TypeError:  # a network without a table of positions takes no size
                pass
            except (AssertionError, RuntimeError, ValueError) as error:
                raise cannot_make("timm", network, error, f"for images of {size[0]}x{size[1]}") from error
            else:
                return made
        try:
            made = timm.create_model(network, **given)
        except (TypeError, AssertionError, RuntimeError, ValueError) as error:
            raise cannot_make("timm", network, error, f"with {given}") from error
        return made

    def published(
        self, network: str, tag: str | None, num_classes: int, in_chans: int, size: tuple[int, int]
    ) -> dict[str, Tensor]:
        timm, name = import_timm(), self._published_name(network, tag)
        given: dict[str, Any] = {"pretrained": True, "num_classes": num_classes, "in_chans": in_chans}
        try:
            given |= without_network(timm, name)
            try:
                made = timm.create_model(name, **given, img_size=size)
            except TypeError:  # a network without a table of positions takes no size
                made = timm.create_model(name, **given)
        except (OSError, RuntimeError, ValueError) as error:
            raise _out_of_reach("timm", name, error) from error
        return dict(made.state_dict())


class Torchvision(Library):
    """torchvision's classification networks."""

    name, source, splits = "torchvision", "https://pytorch.org/vision", True
    _refused = ("regnet", "squeezenet")

    def _models(self) -> Any:
        try:
            from torchvision import models
        except ImportError as error:
            raise UsageError("torchvision is not installed; install it with: pip install torchvision.") from error
        return models

    @cache  # noqa: B019 - as above
    def names(self) -> list[str]:
        models = self._models()
        # The constructors of regnets need memory for every description, and squeezenets have no linear classifier.
        return [name for name in models.list_models(module=models) if not name.startswith(self._refused)]

    def check(self, network: str) -> None:
        if network.startswith(self._refused):
            raise UsageError(f"network is {network!r}, which mereo does not take from torchvision; use one of timm's.")
        super().check(network)

    def facts(self, network: str, tag: str | None = None) -> Facts:
        side = 299 if network == "inception_v3" else 224
        preprocessing = {**IMAGENET, "interpolation": "bilinear", "crop_pct": 0.875}
        return Facts((side, side), network.startswith(("vit_", "maxvit")), preprocessing)

    def make(
        self, network: str, num_classes: int, in_chans: int, size: tuple[int, int], rates: Mapping[str, float]
    ) -> nn.Module:
        given: dict[str, Any] = {}
        if network in ("inception_v3", "googlenet"):
            given = {"aux_logits": False, "init_weights": True}
        elif network.startswith("vit_"):
            if size[0] != size[1]:
                raise UsageError(f"img_size is {size[0]}x{size[1]}; torchvision's {network} takes squares.")
            given = {"image_size": size[0]}
        elif network.startswith("maxvit"):
            given = {"input_size": size}
        if rates:
            raise UsageError(f"{', '.join(rates)} cannot be set for networks of torchvision; leave it out.")
        try:
            # A classifier of one class stands in for none.
            made: nn.Module = self._models().get_model(network, weights=None, num_classes=max(num_classes, 1), **given)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            raise cannot_make("torchvision", network, error, f"for images of {size[0]}x{size[1]}") from error
        if in_chans != 3:
            _replace_first(made, in_chans)
        return made

    def published(
        self, network: str, tag: str | None, num_classes: int, in_chans: int, size: tuple[int, int]
    ) -> dict[str, Tensor]:
        models = self._models()
        known = [weight.name for weight in models.get_model_weights(network)]
        if tag is not None and tag not in known:
            raise UsageError(f"weights is {f'torchvision.{tag}'!r}; {network} has {', '.join(known)}.")
        if in_chans != 3:
            raise UsageError(f"in_chans is {in_chans}; torchvision's weights are for 3 channels: --in-chans 3.")
        listed = models.get_model_weights(network)
        weights = listed[tag] if tag else listed.DEFAULT
        try:
            check_download(weights.url)
            state = weights.get_state_dict(check_hash=True, progress=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise _out_of_reach("torchvision", network, error) from error
        return dict(state)


def _out_of_reach(library: str, name: str, error: Exception) -> UsageError:
    reason = cut(first_line(error), LONGEST_REASON)
    return UsageError(
        f"{library}'s weights of {name} could not be loaded ({reason}); with a network they are downloaded once, and"
        " without one give their file as weights."
    )


def _replace_first(model: nn.Module, in_chans: int) -> None:
    """Let the first convolution take another number of channels."""
    name, old = next((n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d))
    new = nn.Conv2d(
        in_chans, old.out_channels, old.kernel_size, old.stride, old.padding, old.dilation,  # type: ignore[arg-type]
        bias=old.bias is not None, device=old.weight.device,
    )  # fmt: skip
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)


LIBRARIES: dict[str, Library] = {library.name: library for library in (Timm(), Torchvision())}
