"""How a network declares the trained weights that it can start from, and how timm lays it out.

`create_model`, `mereo train` and `mereo export` read these declarations, and know no network. The defaults suit a
network of mereo; a network that differs overrides them in its own file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from mereo.errors import UsageError, check_choice

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel."""


@dataclass(frozen=True)
class TimmNetwork:
    """A network that timm makes without mereo.

    Attributes:
        config: the content of its config.json.
        state: its tensors under timm's names.
    """

    config: Mapping[str, Any]
    state: Mapping[str, Tensor]


class WeightSources:
    """Which weights of other networks a network starts from, and whether timm has it.

    Attributes:
        library_name: the library that published weights of such a network come from.
        part_with_weights: the part that takes the weights of another network, such as "backbone", which is also the
            argument that names that network, and its arguments with "_args" behind it; "" without such a part.
        registered_with_timm: whether timm makes it by mereo's class, under the name of its preset.
    """

    library_name: ClassVar[str] = "timm"
    part_with_weights: ClassVar[str] = ""
    registered_with_timm: ClassVar[bool] = True

    @classmethod
    def published_loader(cls, weights: str) -> Callable[[Any], None] | None:
        """How a new network of this class gets the weights that its library has published.

        Args:
            weights: the name of a library, also with a tag behind a dot.

        Returns:
            None for the usual way: timm's weights of the preset of the same name, through the network's layout.
        """
        return None

    @classmethod
    def published_statistics(cls, weights: str) -> Statistics | None:
        """The normalisation of those weights; None for timm's preset of the same name."""
        return None

    @classmethod
    def check_library(cls, weights: str) -> str | None:
        """The tag of published weights, if there is one; UsageError for weights of another library."""
        library, _, tag = weights.partition(".")
        check_choice("weights", library, (cls.library_name,))
        return tag or None

    def load_part(self, weights: str) -> None:
        """Give the part in `part_with_weights` its trained weights."""
        raise UsageError(f"weights is {weights!r}, and {type(self).__name__} has no part with weights of its own.")

    def as_timm_network(self) -> TimmNetwork | None:
        """The network as timm makes it without mereo; None if timm needs mereo's class.

        Raises:
            UsageError: if timm cannot have it at all.
        """
        return None
