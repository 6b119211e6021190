"""The options that `mereo reproduce` passes to an experiment."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mereo.errors import check_choice


@dataclass(frozen=True)
class Settings:
    """The options of an experiment; None means the experiment's own.

    Attributes:
        folder: for pictures and results.json; it exists.
        data, data_root, epochs, warmup_epochs, limit, batch_size, seeds, device: as in `mereo train`.
        variants: of a study that the experiment trains; all when empty.
        images: test images to work on.
        minutes: of a training, as in `mereo train`.
        say: called with lines of progress.
    """

    folder: Path
    data: str | None = None
    data_root: str | None = None
    epochs: int | None = None
    warmup_epochs: float | None = None
    limit: int | None = None
    batch_size: int | None = None
    seeds: int = 1
    device: str | None = None
    variants: tuple[str, ...] = ()
    images: int | None = None
    minutes: float | None = None
    say: Callable[[str], None] = field(default=print, repr=False)

    def chosen(self, names: Iterable[str]) -> list[str]:
        """The variants of an experiment that `variants` names, by default all; UsageError for an unknown name."""
        known = list(names)
        for name in self.variants:
            check_choice("variants", name, known)
        return [name for name in known if not self.variants or name in self.variants]
