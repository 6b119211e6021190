"""The options of every command, as dataclasses. Imports no torch, so that `--help` answers at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from mereo.training.config import ImageSize, TrainConfig


@dataclass(frozen=True)
class TrainOptions(TrainConfig):
    """Train a network. Writes a run folder with weights, results, curves and pictures.

    Examples:
      mereo train                                     MSPCaps-T on the embedded digits
      mereo train --model capsnet --data mnist --epochs 5
      mereo train --recipe mspcaps_paper --data cifar10 --dry-run
      mereo train --data my_photos --img-size 64      folder my_photos/{train,val}/<class>/*
      mereo train --data my_photos --weights mspcaps_tiny.cifar10
      mereo train runs/capsnet-mnist/config.yaml      repeat a run
      mereo train runs/capsnet-mnist/config.yaml --resume
    """

    config: tyro.conf.Positional[Path | None] = None
    """A configuration to start from; other options change it."""


@dataclass(frozen=True)
class PredictOptions:
    """Predict what images show.

    Examples:
      mereo predict photo.png --weights runs/mspcaps_tiny-digits
      mereo predict photos/ 'more/*.jpg' --json
    """

    images: tyro.conf.Positional[tuple[str, ...]]
    """Files, folders or patterns."""
    weights: Path | None = None
    """File of weights, folder of a run, or weights of the package such as mspcaps_tiny.mnist (see
    `mereo models`); the newest run by default, or mspcaps_tiny.mnist where there is none."""
    top: int = 3
    """Classes to name for an image."""
    json: bool = False
    """Print one JSON document."""
    batch_size: int = 64
    """Images processed at once."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps ..."""
    strict: bool = False
    """Stop at a file that cannot be read instead of leaving it out."""


@dataclass(frozen=True)
class ExplainOptions:
    """Show what a network looked at, and why it predicts what it predicts. Writes a folder.

    Scores of the classes and couplings laid over the images; parse trees, which part voted for which, as
    pictures and as a page; gradients with respect to the image; what the decoder rebuilds as the predicted pose moves.

    Examples:
      mereo explain photo.png --weights runs/mspcaps_tiny-digits
      mereo explain photos/ --only page sweeps --out seen
      mereo explain photos/ --out seen.html
    """

    images: tyro.conf.Positional[tuple[str, ...]]
    """Files, folders or patterns."""
    weights: Path | None = None
    """File of weights, folder of a run, or weights of the package such as mspcaps_tiny.mnist (see
    `mereo models`); the newest run by default, or mspcaps_tiny.mnist where there is none."""
    out: Path | None = None
    """Folder to write; explanation, explanation-2, ... by default. NAME.png: the picture alone, of at most 12 images.
    NAME.html: the page alone."""
    only: tuple[Literal["picture", "gradients", "page", "trees", "sweeps"], ...] = ()
    """Of all there is: picture (scores, couplings, votes), gradients, page and trees (parse trees), sweeps (poses)."""
    keep: int = 4
    """Votes shown for each capsule of a parse tree, the strongest."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps ..."""
    strict: bool = False
    """Stop at a file that cannot be read instead of leaving it out."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Evaluate trained networks: accuracy, classes, calibration, corruption, attacks, equivariance. Writes a folder.

    Examples:
      mereo evaluate                                  the newest run on the data it was trained on
      mereo evaluate runs/capsnet-mnist --corruptions --equivariance
      mereo evaluate runs/t runs/l runs/capsnet --attack fgsm bim --epsilon 0 0.02 0.05 0.1 --steps 10
      mereo evaluate model.safetensors --data my_photos --split validation --json
    """

    weights: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Files of weights, folders of runs, or weights of the package such as mspcaps_tiny.mnist; the newest run by
    default."""
    data: str | None = None
    """Data set or folder of images; what the networks were trained on by default."""
    data_root: str | None = None
    """Folder of the data sets; else that of the run, the environment variable MEREO_DATA, ./data."""
    split: Literal["test", "validation", "train"] = "test"
    """Images to evaluate on; those held out in training for validation."""
    limit: int | None = None
    """Evaluate at most so many images, every class in its share."""
    corruptions: bool = False
    """Measure accuracy under rotation, translation, occlusion, noise and blur."""
    equivariance: bool = False
    """Measure how the poses of class capsules follow rotations and shifts of images."""
    attack: tuple[Literal["fgsm", "bim", "pgd", "apgd", "square"], ...] = ()
    """Attacks, in the maximum norm."""
    epsilon: tuple[float, ...] = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1)
    """Largest change of a pixel in [0, 1], before normalisation; in any order, 0 is added."""
    attack_loss: Literal["cross_entropy", "margin", "dlr"] = "cross_entropy"
    """The loss that attacks raise: cross-entropy of the scores, margin loss of capsules, or the ratio of APGD-DLR."""
    steps: int = 10
    """Steps of bim, pgd and apgd."""
    queries: int = 500
    """Queries of square."""
    restarts: int = 1
    """Runs of each attack, all but the first from random points."""
    attack_limit: int | None = 1000
    """Attack at most so many images, every class in its share; None for all."""
    masking_images: int = 64
    """Images on which gradient masking is searched for; 0 to leave it out."""
    out: Path | None = None
    """Folder to write; evaluation, evaluation-2, ... by default."""
    json: bool = False
    """Print one JSON document."""
    batch_size: int = 256
    """Images processed at once."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps ..."""
    seed: int = 0
    """Every random choice follows from it."""


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
    """List what is available."""

    pattern: tyro.conf.Positional[str] = "*"
    """Shell-style pattern or part of a name or description."""
    json: bool = False
    """Print one JSON document."""


@dataclass(frozen=True)
class ReproduceOptions:
    """Run a study (the variants of a published table under one protocol, several seeds each) or an experiment.

    Without a name, list them. Finished runs are not run again, and stopped ones are resumed. An option that an
    experiment does not use is refused.

    Examples:
      mereo reproduce
      mereo reproduce coupling_axis --data cifar10 --epochs 4 --limit 10000 --seeds 2
      mereo reproduce kiefer-routing --epochs 13 --seeds 3
    """

    study: tyro.conf.Positional[str | None] = None
    """Name of the study or experiment."""
    variants: tuple[str, ...] = ()
    """Only these variants."""
    seeds: int | None = None
    """Runs of each variant, with seeds 0, 1, ...; one by default."""
    data: str | None = None
    """Data set; the recipe's or the experiment's own by default."""
    data_root: str | None = None
    """Folder of the data sets; else the environment variable MEREO_DATA, else ./data."""
    epochs: int | None = None
    """Passes over the training images; the recipe's by default."""
    warmup_epochs: float | None = None
    """Epochs of warm-up; the recipe's by default."""
    limit: int | None = None
    """Use at most so many training images."""
    images: int | None = None
    """Test images that an experiment works on; its own number by default."""
    batch_size: int | None = None
    """Images of one optimiser step."""
    device: str | None = None
    """auto, cpu, cuda, cuda:1, mps ..."""
    precision: str | None = None
    """fp32, bf16 or fp16."""
    paper_protocol: bool | None = None
    """Choose the best epoch on the test images, as the papers do."""
    output: str = "runs"
    """Folder of the run folders, and of the experiment's own."""
    json: bool = False
    """Print one JSON document."""


@dataclass(frozen=True)
class ExportOptions:
    """Take a trained network away: as ONNX, as a PyTorch program, for timm, or as a folder for the Hugging Face hub.

    Every file is opened again and compared with the network, on random images and on test images where the data is at
    hand, before it is put in its place. With bf16 or int8 the accuracy and speed before and after are measured.

    Examples:
      mereo export runs/mspcaps_tiny-digits --to hub --out my_network
      mereo export runs/mspcaps_tiny-digits --to onnx torch timm hub --out my_network
      mereo export runs/mspcaps_tiny-digits --to onnx --precision int8
    """

    weights: tyro.conf.Positional[Path | None] = None
    """File of weights, folder of a run, weights of the package such as mspcaps_tiny.mnist, or folder made by this
    command; the newest run by default."""
    to: tuple[Literal["onnx", "torch", "timm", "hub"], ...] = ("hub",)
    """Forms: onnx (model.onnx), torch (model.pt2), timm (config.json, model.safetensors), hub (these and README.md)."""
    out: Path = Path("exported")
    """Folder to write."""
    license: str | None = None
    """Licence of the weights, for the model card, such as apache-2.0 or cc-by-4.0; none is named by default."""
    precision: Literal["fp32", "bf16", "int8"] = "fp32"
    """Arithmetic of the exported file: bf16 goes into torch, int8 into onnx (integer convolutions) and torch (integer
    weights)."""
    data: str | None = None
    """Data set of the test images; the one the network was trained on by default."""
    data_root: str | None = None
    """Folder of the data sets; else the environment variable MEREO_DATA, else ./data."""
    limit: int | None = None
    """Evaluate at most so many test images."""
    batch_size: int = 64
    """Images of a batch while accuracy and speed are measured."""
    json: bool = False
    """Print one JSON document."""


@dataclass(frozen=True)
class CompareOptions:
    """Train several networks under one protocol, several seeds each, and report what each reaches and what it costs.

    A table and a picture lie in <output>/compare-<data> at the end. Finished runs are not run again: a comparison that
    was stopped is resumed, and can be given more networks or seeds.

    Examples:
      mereo compare mspcaps_tiny capsnet:routing_steps=1,decoder=false --data digits --epochs 5 --seeds 3
      mereo compare mspcaps_paper efficient_capsnet_mnist --data mnist --epochs 3 --limit 10000
    """

    models: tyro.conf.Positional[tuple[str, ...]]
    """Networks, with arguments after a colon, or recipes (`mereo models`, `mereo recipes`)."""
    task: str | None = None
    """What is predicted, which decides the metric; classification by default."""
    data: str = "digits"
    """Name of the data set (`mereo datasets`), or an image folder."""
    data_root: str | None = None
    """Folder of the data sets; else the environment variable MEREO_DATA, else ./data."""
    recipe: str | None = None
    """Recipe by which networks are trained that are not named by one; the defaults of `mereo train` otherwise."""
    epochs: int | None = None
    """Passes over the training images."""
    seeds: int = 1
    """Runs of each network, with seeds 0, 1, ..."""
    limit: int | None = None
    """Use at most so many training images."""
    batch_size: int | None = None
    """Images of one optimiser step."""
    lr: float | None = None
    """Peak learning rate."""
    warmup_epochs: float | None = None
    """Epochs over which the rate rises."""
    img_size: ImageSize = None
    """Side to which images are brought, or height and width as 64x48; each network's own by default."""
    device: str | None = None
    """auto, cpu, cuda, cuda:1, mps ..."""
    precision: str | None = None
    """fp32, bf16 or fp16, in training."""
    output: str = "runs"
    """Folder of the comparison's folder."""
    json: bool = False
    """Print one JSON document."""


@dataclass(frozen=True)
class BenchOptions:
    """Measure time, memory and correctness of a suite; without a suite, list them.

    Contenders of a case are first compared in outputs and gradients, then timed in turn; peak memory is measured in a
    process of its own. Ctrl-C leaves what was measured.

    Examples:
      mereo bench
      mereo bench routing --threads 1 2 --report reports
      mereo bench routing --contender my_routing:route --sizes batch=8,32,128
      mereo bench models --models 'mspcaps*' --json now.json --against before.json
    """

    suite: tyro.conf.Positional[str | None] = None
    """Name of the suite, or module:name of one of yours."""
    list: bool = False
    """List the suites, with the sizes that --sizes can change."""
    quick: bool = False
    """Small sizes, few rounds, nothing compiled."""
    threads: tuple[int, ...] = ()
    """Numbers of threads, 0 for all; the suite's own by default."""
    batch_size: int | None = None
    """Short for --sizes batch=N."""
    sizes: tuple[str, ...] = ()
    """name=value or name=value,value: other sizes, several to sweep."""
    models: str = "*"
    """Pattern of networks, for the suite models."""
    contender: tuple[str, ...] = ()
    """module:callable of implementations to measure beside ours."""
    compile: bool = False
    """Measure every contender under torch.compile too."""
    memory: bool = True
    """Measure peak memory."""
    memory_limit: float | None = None
    """GiB that a contender may take where memory is measured; the suite's own by default."""
    seconds: float | None = None
    """Spent on each contender in each mode: 5, or 0.5 when quick. A few rounds are made all the same."""
    json: Path | None = None
    """File to write everything to, also while measuring."""
    report: Path | None = None
    """Folder for a report: SUITE.md, SUITE.png and SUITE.json."""
    against: Path | None = None
    """File of an earlier run on this machine to compare with."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 ..."""


@dataclass(frozen=True)
class DoctorOptions:
    """Report what this installation has: versions, devices, kernels, data sets; and what is missing, and why."""

    data_root: str | None = None
    """Folder of the data sets; else the environment variable MEREO_DATA, else ./data."""
    json: bool = False
    """Print one JSON document."""
