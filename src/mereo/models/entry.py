"""A row of the catalogue of networks."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mereo.core import Source
from mereo.core.shapes import image_size
from mereo.errors import UsageError
from mereo.models.arguments import absent_argument, as_tuples, check_arguments
from mereo.models.base import VisionModel
from mereo.models.network import Network

PerChannel = float | tuple[float, ...]

OF_IMAGES = ("num_classes", "in_chans", "img_size")
"""Arguments that `create_model` names, which networks of other inputs and outputs need not have."""


def per_channel(values: PerChannel, channels: int) -> tuple[float, ...]:
    """One value for each channel; values of another number of channels give their mean to all."""
    given = values if isinstance(values, tuple) else (values,)
    return given if len(given) == channels else (sum(given) / len(given),) * channels


def full_names(given: Mapping[str, Any], short: Mapping[str, str], preset: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by their full names.

    Args:
        given: arguments by either name.
        short: the full name of each short one.
        preset: completes its tables.
    """
    arguments = {name: value for name, value in given.items() if name not in short}
    for name, full in short.items():
        if name in given:
            place, _, key = full.partition(".")
            table = arguments.get(place, preset.get(place, {}))
            if not key:
                arguments[place] = given[name]
            elif isinstance(table, Mapping):  # anything else is refused with the other arguments
                arguments[place] = {**table, key: given[name]}
    return arguments


@dataclass(frozen=True)
class ModelEntry:
    """One published network; its name is timm's where timm has the same preset.

    Attributes:
        name: for `create_model`.
        module: the class, which says what the network reads and gives.
        summary: one sentence.
        arguments: of the constructor, where the preset differs from the defaults.
        source: an arXiv id, a DOI or a URL.
        parameters: number of parameters of the preset, decoder included.
        family: networks of one kind, which share a tiny preset; the name of the file by default.
        recipe: the published training recipe, a name of `mereo recipes`.
        tiny: arguments that make the smallest network of the family, on which compilers and exporters are tested;
            None for presets other than the first of a family.
        variants: changes of the tiny network that are tested as well, by a short name.
        aliases: other names that `create_model` takes for it.
        short: other names of arguments, such as `keep` for "mechanism_args.keep", an entry of a table; files of earlier
            versions have them too.
        reconstruction: why it is a reconstruction (its source's equations were not available); "" if it is none.
        mean, std: normalisation of images in [0, 1]: a number, or one for each channel.
        interpolation: how images are resized: one of INTERPOLATIONS.
        crop_pct: share of the resized image that the crop keeps.
        crop_mode: one of CROP_MODES.
        rate: usual peak rate, where the preset needs another than its class.
    """

    name: str
    module: type[Network]
    summary: str
    arguments: Mapping[str, Any]
    source: str
    parameters: int
    family: str
    recipe: str | None = None
    tiny: Mapping[str, Any] | None = None
    variants: Mapping[str, Mapping[str, Any]] | None = None
    aliases: tuple[str, ...] = ()
    short: Mapping[str, str] = field(default_factory=dict)
    reconstruction: str = ""
    mean: PerChannel = 0.0
    std: PerChannel = 1.0
    interpolation: str = "bilinear"
    crop_pct: float = 1.0
    crop_mode: str = "center"
    rate: float | None = None

    @property
    def usual_rate(self) -> float:
        """The peak rate of AdamW that the preset is trained with, in batches of 32 and more, by default."""
        return self.rate or self.module.usual_rate

    @property
    def defaults(self) -> dict[str, Any]:
        """Every argument of the network with the value that the preset gives it."""
        parameters = inspect.signature(self.module).parameters.values()
        return {p.name: p.default for p in parameters} | dict(self.arguments)

    @property
    def citation(self) -> Source:
        """The source, with a link and an entry of a bibliography."""
        return Source(self.source)

    @property
    def link(self) -> str:
        """The web page of the source."""
        return self.citation.link

    def full(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The same arguments by their full names; a table adds to the preset's table, or to the given one."""
        return full_names(given, self.short, self.arguments)

    def resolve(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument of the network: those given, checked, and the preset's for the rest.

        Raises:
            UsageError: for an argument that the network does not have, with the reason if it is one of timm's, or of
                another type than its default.
        """
        defaults, given = self.defaults, self.full(given)
        for argument in given:
            if argument not in defaults and argument in OF_IMAGES:
                raise UsageError(
                    f"{argument} is {given[argument]!r}, and {self.name} reads {self.module.input_kind} and gives"
                    f" {self.module.output_kind}; leave it out ({', '.join(list(defaults)[:3])})."
                )
            if argument not in defaults:
                raise absent_argument(self.name, argument, defaults)
        arguments = defaults | {k: as_tuples(v) for k, v in given.items()}
        check_arguments(self.name, self.module.__init__, defaults, arguments)
        return arguments

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel."""
        return per_channel(self.mean, channels), per_channel(self.std, channels)

    def pretrained_cfg(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Provenance and, for images, preprocessing, under timm's field names."""
        module = self.module
        outputs = 0 if module.outputs_argument is None else arguments[module.outputs_argument]
        own = {"architecture": self.name, "num_classes": outputs}
        if issubclass(module, VisionModel):
            channels = arguments["in_chans"]
            mean, std = self.normalisation(channels)
            own |= {
                "input_size": (channels, *image_size(arguments["img_size"])),
                "fixed_input_size": module.fixed_input_size,
                "interpolation": self.interpolation,
                "crop_pct": self.crop_pct,
                "crop_mode": self.crop_mode,
                "mean": mean,
                "std": std,
                "first_conv": module.first_conv,
                "classifier": module.classifier,
            }
        return own | {"paper_ids": self.source} | module.preprocessing_for(arguments)
