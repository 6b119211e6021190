"""The options that `mereo reproduce` passes to an experiment."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mereo.errors import UsageError, check_choice

if TYPE_CHECKING:
    import torch

    from mereo.data import Splits, TokenWindows


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

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of the settings that have a value."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def chosen_device(self) -> "torch.device":
        """The device to compute on."""
        from mereo.runtime.device import choose_device

        return choose_device(self.device or "auto")

    def splits(self, img_size: int, limit: int | None = None, *, single: bool = False, **how: Any) -> "Splits":
        """The data set without validation images, of which `limit` are trained on if the settings give no number.

        Args:
            single: whether it is an error if images hold several objects.
            how: for `load_splits`.
        """
        from mereo.data import load_splits

        how = {"limit": self.limit or limit, "validation_fraction": 0.0, **how}
        splits = load_splits(str(self.data), root=self.data_root, img_size=img_size, **how)
        if single and splits.train.labels_per_image > 1:
            raise UsageError(
                f"data is {self.data!r}, whose images hold several objects; this experiment takes one label each."
            )
        return splits

    def windows(self, length: int, limit: int) -> "tuple[TokenWindows, TokenWindows]":
        """Windows of a text for training, `limit` if the settings give no number, and for testing."""
        from mereo.data import TokenWindows, load_splits

        splits = load_splits(str(self.data), length=length, root=self.data_root, limit=self.limit or limit)
        assert isinstance(splits.train, TokenWindows) and isinstance(splits.test, TokenWindows)
        return splits.train, splits.test
