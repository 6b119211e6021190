"""The options of the commands that compare networks, settings or implementations. torch is not imported here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mereo.training.option_values import ImageSize


@dataclass(frozen=True)
class CompareOptions:
    """Train several networks under one protocol, with several seeds each, and compare their accuracy and cost.

    A table and a picture are written to <output>/compare-<data>. Finished runs are reused, so an interrupted comparison
    can be resumed and extended with more networks or seeds.

    Examples:
      mereo compare mspcaps_tiny --data my_photos
      mereo compare mspcaps_tiny capsnet:routing_steps=1,decoder=false --data digits --epochs 5 --seeds 3
      mereo compare mspcaps_paper efficient_capsnet_mnist --data mnist --epochs 3 --limit 10000
      mereo compare mspcaps_tiny --plain timm:resnet10t --data my_photos
      mereo compare --insert none se cbam eca ela polarized_self_attention ulsam --data cifar10 --seeds 3
      mereo compare --family capsule --data solids:viewpoints=azimuth --epochs 20 --seeds 3
    """

    models: tyro.conf.Positional[tuple[str, ...]]
    """Networks, optionally with arguments after a colon, or recipes; `mereo models` and `mereo recipes` list them. With
    --family, kinds of network in it, such as capsnet; by default all."""
    insert: tuple[str, ...] = ()
    """Mechanisms to compare in each network, such as none se ela:preset=tiny, as in mereo train; none is the network
    alone, which the others are compared with. Without a network, resnet20. By default no comparison of mechanisms."""
    family: Literal["capsule", "vision"] | None = None
    """Compare the smallest preset of each kind of network in a family with three plain networks of their size, on
    images of one size, trained upright, also under rotation, translation, occlusion, attack and at new viewpoints."""
    task: str | None = None
    """Kind of prediction, which decides the metric (listed by `mereo tasks`); by default classification."""
    data: str = "digits"
    """Name of a data set (listed by `mereo datasets`) or path of a folder of images."""
    data_root: str | None = None
    """Folder of the data sets; by default the environment variable MEREO_DATA, then ./data."""
    recipe: str | None = None
    """Recipe for networks that are not given as recipes themselves; by default none, and settings that are not given
    are chosen from the data and the first network, as `mereo train` does."""
    plain: str = "auto"
    """Plain network to compare them with, such as resnet20 or timm:resnet18, with a report on which is better at what;
    auto chooses one of about the same size unless a plain one is among them, none leaves it out."""
    epochs: int | None = None
    """Passes over the training images; by default the recipe's, or what --minutes allow the first network."""
    minutes: float | None = None
    """Time of a training of the first network, from which the epochs of all follow; by default by the number of
    images. Not with a recipe."""
    seeds: int = 1
    """Number of runs of each network, with seeds 0, 1, ..."""
    limit: int | None = None
    """Largest number of training images; by default all."""
    batch_size: int | None = None
    """Images per optimiser step; by default the recipe's, or chosen from the number of images."""
    lr: float | None = None
    """Peak learning rate; by default the recipe's, or chosen for each network."""
    warmup_epochs: float | None = None
    """Epochs of learning rate warm-up; by default the recipe's, or a tenth of the epochs."""
    img_size: ImageSize = None
    """Size that images are resized to: one side, or height x width such as 64x48; by default chosen from the images for
    each network."""
    device: str | None = None
    """Device to run on: auto, cpu, cuda, cuda:1, mps ...; by default the recipe's, usually auto."""
    precision: str | None = None
    """Arithmetic of the network in training: fp32, bf16 or fp16; by default the recipe's, or the faster of fp32 and
    bf16."""
    output: str = "runs"
    """Folder that holds the folder of the comparison."""
    json: bool = False
    """Print the result as one JSON document."""


@dataclass(frozen=True)
class ReproduceOptions:
    """Run a study (the variants of a published table under one protocol, with several seeds each) or an experiment.

    Without a name, list them. Finished runs are reused and interrupted ones resumed. An option that the experiment does
    not use is an error.

    Examples:
      mereo reproduce
      mereo reproduce coupling_axis --data cifar10 --epochs 4 --limit 10000 --seeds 2
      mereo reproduce kiefer-routing --epochs 13 --seeds 3
    """

    study: tyro.conf.Positional[str | None] = None
    """Name of the study or experiment."""
    variants: Annotated[tuple[str, ...], tyro.conf.arg(aliases=["--rows"])] = ()
    """Variants of a study, or rows of a table, to run; by default all."""
    seeds: int | None = None
    """Number of runs of each variant, with seeds 0, 1, ...; by default one."""
    data: str | None = None
    """Data set; by default the recipe's or the experiment's."""
    data_root: str | None = None
    """Folder of the data sets; by default the environment variable MEREO_DATA, then ./data."""
    epochs: int | None = None
    """Passes over the training images; by default the recipe's."""
    warmup_epochs: float | None = None
    """Epochs of warm-up; by default the recipe's."""
    limit: int | None = None
    """Largest number of training images; by default all."""
    images: int | None = None
    """Number of test images of an experiment; by default the experiment's."""
    minutes: float | None = None
    """Time of each training of an experiment that goes by the clock; by default the experiment's."""
    batch_size: int | None = None
    """Images per optimiser step; by default the recipe's."""
    device: str | None = None
    """Device to run on: auto, cpu, cuda, cuda:1, mps ...; by default the recipe's, usually auto."""
    precision: str | None = None
    """Arithmetic of the network in training: fp32, bf16 or fp16; by default the recipe's."""
    paper_protocol: bool | None = None
    """Choose the best epoch on the test images, as the papers do; by default the recipe's choice."""
    output: str = "runs"
    """Folder that holds the run folders and the results of experiments."""
    json: bool = False
    """Print the result as one JSON document."""


@dataclass(frozen=True)
class BenchOptions:
    """Measure the time, memory and correctness of the implementations in a suite. Without a suite, list the suites.

    For each case the implementations (contenders) are first compared in outputs and gradients, then timed in turn; peak
    memory is measured in a separate process. After Ctrl-C the results so far are kept.

    Examples:
      mereo bench
      mereo bench routing --threads 1 2 --report reports
      mereo bench routing --contender my_routing:route --sizes batch=8,32,128
      mereo bench models --models 'mspcaps*' --json now.json --against before.json
      mereo bench backbones --models davit_tiny
    """

    suite: tyro.conf.Positional[str | None] = None
    """Name of the suite, or module:name of your own."""
    list: bool = False
    """List the suites and the sizes that --sizes can change."""
    quick: bool = False
    """Use small sizes and few rounds, compile nothing and measure no memory."""
    threads: tuple[int, ...] = ()
    """Numbers of threads to measure with, 0 for all; by default the suite's."""
    batch_size: int | None = None
    """Short for --sizes batch=N; by default the suite's."""
    sizes: tuple[str, ...] = ()
    """Sizes to change, as name=value, or name=value,value to measure several; by default the suite's."""
    models: str = "*"
    """Shell-style pattern of networks, for the suites `models` and `backbones`."""
    contender: tuple[str, ...] = ()
    """Your own implementations to measure as well, as module:callable; by default none."""
    compile: bool = False
    """Also measure every implementation under torch.compile."""
    memory: bool = True
    """Measure peak memory; --quick does not."""
    memory_limit: float | None = None
    """Memory in GiB that an implementation may use when memory is measured; by default the suite's."""
    seconds: float | None = None
    """Seconds to time each implementation in each mode, with a few rounds at least; by default 5, or 0.5 with
    --quick."""
    json: Path | None = None
    """JSON file for all results, updated after each case; by default none."""
    report: Path | None = None
    """Folder for a report of SUITE.md, SUITE.json and, if a size was swept, SUITE.png; by default none."""
    against: Path | None = None
    """JSON file of an earlier run on this machine to compare with; by default none."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1 ..."""
