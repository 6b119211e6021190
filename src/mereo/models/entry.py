"""A row of the catalogue of networks, for networks that read images and for those that read tokens."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from mereo.core import Source
from mereo.models.arguments import absent_argument, as_tuples, check_arguments


@dataclass(frozen=True)
class NetworkEntry:
    """One published network.

    Attributes:
        name: for `create_model`.
        module: the class.
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
        reconstruction: why it is a reconstruction, where the equations of its source were not available; "" if not.
    """

    name: str
    module: type[nn.Module]
    summary: str
    arguments: Mapping[str, Any]
    source: str
    parameters: int
    family: str
    recipe: str | None = None
    tiny: Mapping[str, Any] | None = None
    variants: Mapping[str, Mapping[str, Any]] | None = None
    aliases: tuple[str, ...] = ()
    reconstruction: str = ""

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

    def resolve(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument of the network: those given, checked, and the preset's for the rest.

        Raises:
            UsageError: for an argument that the network does not have, with the reason where it is one of timm's, or of
                another type than its default.
        """
        defaults = self.defaults
        for argument in given:
            if argument not in defaults:
                raise absent_argument(self.name, argument, defaults)
        arguments = defaults | {k: as_tuples(v) for k, v in given.items()}
        check_arguments(self.name, self.module.__init__, defaults, arguments)
        return arguments
