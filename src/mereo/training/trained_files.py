"""Which files a run was trained on, for runs of image folders and tables."""

import warnings
from pathlib import Path

from mereo.data.files import FileSplit
from mereo.data.sources import open_dataset
from mereo.data.split import hold_out
from mereo.errors import MereoError, UsageError
from mereo.training.config import TrainConfig
from mereo.training.run_folder import RunFolder


def trained_files(weights: Path) -> frozenset[Path]:
    """The real paths of the images that a run was trained on; empty where that cannot be known.

    Held-out images, by which the epoch was chosen, and test images are not among them.

    Args:
        weights: the folder of a run, or a file in its folder of weights.
    """
    folder = RunFolder(weights if weights.is_dir() else weights.parent.parent)
    if not folder.config.is_file():
        return frozenset()
    try:
        config = TrainConfig.from_yaml(folder.config)
        if not Path(config.data).exists():
            return frozenset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            splits = open_dataset(config.data, config.data_root, download=False).splits
        train = splits["train"]
        if not isinstance(train, FileSplit):
            return frozenset()
        if "validation" not in splits and config.validation_fraction:
            train = train.take(hold_out(train.labels, config.validation_fraction, config.seed)[0])
        return frozenset((train.tree.path / file).resolve() for file in train.files)
    except (UsageError, MereoError, OSError):
        return frozenset()
