"""The options of every command, as dataclasses. Imports no torch, so that `--help` answers at once."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from mereo.training.config import TrainConfig


@dataclass(frozen=True)
class TrainOptions(TrainConfig):
    """Train a network. A run folder with weights, results, curves and pictures comes out.

    Examples:
      mereo train                                     MSPCaps-T on the embedded digits
      mereo train --model capsnet --data mnist --epochs 5
      mereo train --recipe mspcaps_paper --data cifar10 --dry-run
      mereo train --data my_photos --img-size 64      folder my_photos/{train,val}/<class>/*
      mereo train runs/capsnet-mnist/config.yaml      repeat a run
      mereo train runs/capsnet-mnist/config.yaml --resume
    """

    config: tyro.conf.Positional[Path | None] = None
    """A configuration to start from; other options change it."""


@dataclass(frozen=True)
class PredictOptions:
    """Say what images show.

    Examples:
      mereo predict photo.png --weights runs/mspcaps_tiny-digits
      mereo predict photos/ 'more/*.jpg' --json
    """

    images: tyro.conf.Positional[tuple[str, ...]]
    """Files, folders or patterns."""
    weights: Path | None = None
    """File of weights or folder of a run; the newest run by default."""
    top: int = 3
    """Classes to name for an image."""
    json: bool = False
    """Print one JSON document."""
    batch_size: int = 64
    """Images worked on at once."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps ..."""
    strict: bool = False
    """Stop at a file that cannot be read instead of leaving it out."""


@dataclass(frozen=True)
class ExplainOptions:
    """Draw what a network saw: lengths of its class capsules, and couplings laid over the images.

    Examples:
      mereo explain photo.png --weights runs/mspcaps_tiny-digits
    """

    images: tyro.conf.Positional[tuple[str, ...]]
    """Files, folders or patterns."""
    weights: Path | None = None
    """File of weights or folder of a run; the newest run by default."""
    out: Path = Path("explanation.png")
    """Picture to write."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps ..."""
    strict: bool = False
    """Stop at a file that cannot be read instead of leaving it out."""


@dataclass(frozen=True)
class DemoOptions:
    """Train MSPCaps-T on the embedded digits, and show the result and what the network saw."""

    epochs: int | None = None
    """Passes over the digits; the recipe's by default."""
    seed: int = 0
    """Every random choice follows from it."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps ..."""
    output: str = "runs"
    """Folder of the run folders."""


@dataclass(frozen=True)
class ListOptions:
    """List what there is."""

    pattern: tyro.conf.Positional[str] = "*"
    """Shell-style pattern or part of a name or description."""
    json: bool = False
    """Print one JSON document."""


@dataclass(frozen=True)
class ReproduceOptions:
    """Run the variants of a published table under one protocol, several seeds each; without a name, list the studies.

    Finished runs are not run again: a study that was stopped goes on.

    Examples:
      mereo reproduce
      mereo reproduce coupling_axis --data cifar10 --epochs 4 --limit 10000 --seeds 2
    """

    study: tyro.conf.Positional[str | None] = None
    """Name of the study."""
    variants: tuple[str, ...] = ()
    """Only these variants."""
    seeds: int = 1
    """Runs of each variant, with seeds 0, 1, ..."""
    data: str | None = None
    """Data set; the recipe's own by default."""
    data_root: str | None = None
    """Where data sets lie; else the environment variable MEREO_DATA, else ./data."""
    epochs: int | None = None
    """Passes over the training images; the recipe's by default."""
    warmup_epochs: float | None = None
    """Epochs of warm-up; the recipe's by default."""
    limit: int | None = None
    """Use at most so many training images."""
    batch_size: int | None = None
    """Images of one optimiser step."""
    device: str | None = None
    """auto, cpu, cuda, cuda:1, mps ..."""
    precision: str | None = None
    """fp32, bf16 or fp16."""
    paper_protocol: bool | None = None
    """Choose the best epoch on the test images, as the papers do."""
    output: str = "runs"
    """Folder of the run folders."""
    json: bool = False
    """Print one JSON document."""
