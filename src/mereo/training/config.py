"""The configuration of a training run: plain values, readable as YAML, settable on the command line.

torch is not imported here, so that `--help` is quick.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml

from mereo.data.layout_options import LayoutOptions
from mereo.errors import (
    UsageError,
    check_choice,
    check_fraction,
    check_not_negative,
    check_positive,
    check_probability,
    check_seed,
    check_steps,
    unknown,
)
from mereo.files import read_regular
from mereo.training.arguments import fit
from mereo.training.option_values import LARGEST_NUMBER, ImageSize, ModelArguments, parse_size, read_yaml

OPTIMIZERS = ("adamw", "adam", "sgd", "rmsprop")
SCHEDULES = ("cosine", "exponential", "inverse", "constant", "plateau")
SAMPLERS = ("shuffle", "balanced")
_LONGEST_FILE = 2**20
_LARGEST_SETTING = 1_000_000
_LEAST_MIXING = 1e-3
"""Smallest parameter of the Beta distribution: weights are then nearly always 0 or 1, and float32 cannot sample from
smaller ones."""
_POSITIVE = (
    "epochs", "batch_size", "accumulate", "lr", "checkpoint_seconds", "minutes", "in_chans", "clip_norm", "limit",
    "decay_steps", "patience", "test_limit",
)  # fmt: skip
_RATES = ("weight_decay", "warmup_epochs", "warmup_start", "min_lr", "reconstruction_weight", "mixup", "cutmix")
_NOT_NEGATIVE = (*_RATES, "adversarial", "warmup_steps", "freeze_layers", "plateau_patience", "plateau_cooldown")
_LARGEST: dict[str, int] = {
    **dict.fromkeys(("lr", *_RATES), _LARGEST_SETTING),
    **dict.fromkeys(("warmup_steps", "freeze_layers"), LARGEST_NUMBER - 1),
    "adversarial": 1,
    "minutes": 100_000,
}
"""Largest values of fields; 100,000 minutes are 69 days."""


@dataclass(frozen=True)
class TrainConfig:
    """Train a network into a run folder with weights, results and pictures."""

    model: str = "mspcaps_tiny"
    """Name of the network (listed by `mereo models`); by default that of the task: mspcaps_tiny, for images in colour
    resnet14_64, and tnl_tiny for text. Other libraries' networks are named timm:resnet18 or torchvision:resnet18."""
    data: str = "digits"
    """Name of a data set (listed by `mereo datasets`), or path of images: a folder with {train,val,test}/<class>/*, a
    zip archive of one, tar shards, Parquet or Arrow files, a .csv of paths and labels, a .txt of text, or
    hf:owner/name."""
    task: str = "classification"
    """Kind of prediction that the network is trained for (listed by `mereo tasks`); by default classification, or what
    the images of --data are for, such as segmentation of images with masks."""
    task_options: ModelArguments = field(default_factory=dict)
    """Options of the task, as name=value; `--task.NAME VALUE` sets one of them, `mereo tasks NAME` lists them."""
    data_root: str | None = None
    """Folder of the data sets; by default the environment variable MEREO_DATA, then ./data."""
    classes: str = "auto"
    """Where the classes of images in folders are: top (the outermost folders), leaf (the innermost), path (the
    innermost with those around them), name (the names of files up to their number) or name:2 (the second field of the
    names). auto takes folders of images, and refuses what is unclear."""
    label_column: tuple[str, ...] = ()
    """Column of the labels in a table of images, or several columns: of 0 and 1 for a label each, or of numbers to
    predict. By default found by its name, such as label or class."""
    split_by: Literal["auto", "subject", "camera"] = "auto"
    """What divides .skeleton files named as NTU RGB+D does for training and testing: subject (cross-subject, auto where
    the files allow it) or camera (cross-view: cameras 2 and 3 are trained on, 1 is tested on)."""
    recipe: str | None = None
    """Published recipe to start from (listed by `mereo recipes`); by default none."""
    model_args: ModelArguments = field(default_factory=dict)
    """Further arguments of the network, as name=value; `mereo models NAME` lists them."""
    insert: tuple[str, ...] = ()
    """Mechanisms to put into the network, such as ela or se, with arguments after a colon:
    ela:preset=tiny,where=blocks. Each stands behind the stages, or where `where` says, and starts without effect
    (start=0); `mereo mechanisms` lists them. By default none."""
    tap: bool = False
    """Pool the tokens of a transformer before its attention, by averages of their neighbourhoods whose reach each
    token chooses (token-aware average pooling)."""
    img_size: ImageSize = None
    """Size that images are resized to: one side, or height x width such as 64x48; by default the network's."""
    in_chans: int | None = None
    """Number of colour channels; by default the number of the data."""

    minutes: float | None = None
    """Time of the training, with reading and testing: the learning rate and the end follow the clock. By default the
    number of epochs is fixed before the start."""
    epochs: int = 20
    """Passes over the training images; with --minutes the most of them."""
    patience: int | None = None
    """Stop early after this many epochs without a better one on the held-out images; by default never. The learning
    rate still follows --epochs."""
    batch_size: int = 128
    """Images per optimiser step, summed over processes and accumulated parts."""
    accumulate: int = 1
    """Number of parts a batch is split into, to save memory; gradients are accumulated."""
    optimizer: Literal["adamw", "adam", "sgd", "rmsprop"] = "adamw"
    """Optimiser; sgd has Nesterov momentum 0.9, and rmsprop averages squares with 0.9."""
    adam_beta2: float | None = None
    """Share that adamw and adam keep of their mean of squared gradients at each step, by default 0.999; transformers
    often train with 0.95 to 0.98."""
    lr: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 1e-4
    """Weight decay."""
    weight_decay_norm: bool = True
    """Apply weight decay to normalisations and biases (parameters of one dimension) too; timm does not."""
    layer_decay: float | None = None
    """Factor of the learning rate from each layer to the one before it, for fine-tuning; by default all layers share
    one rate."""
    freeze: tuple[str, ...] = ()
    """Modules by name, or parameters by pattern, that are not trained; `backbone` means everything but the classifier
    (linear probing). Frozen batch norms keep their statistics, and nothing is dropped in frozen modules. By default
    none."""
    freeze_layers: int = 0
    """Number of layers, counted from the images, that are not trained; a stage of the network is a layer, and the
    classifier the last one."""
    freeze_until: str | None = None
    """Module, such as stages.1, up to whose layer nothing is trained; by default none."""
    schedule: Literal["cosine", "exponential", "inverse", "constant", "plateau"] = "cosine"
    """How the learning rate falls after the warm-up; plateau multiplies it by --plateau-factor whenever the loss on the
    held-out images, or of the training without any, has not improved for --plateau-patience epochs."""
    warmup_epochs: float = 1.0
    """Epochs over which the learning rate rises linearly to its peak."""
    warmup_steps: int | None = None
    """Length of the warm-up in steps, which overrides --warmup-epochs; by default not used."""
    warmup_start: float = 0.1
    """Learning rate at the start of the warm-up, as a fraction of the peak."""
    min_lr: float = 1e-6
    """Lower bound of the learning rate."""
    decay_rate: float = 0.97
    """Factor of the exponential schedule, per epoch or per --decay-steps."""
    decay_steps: int | None = None
    """For the exponential schedule, steps in which the rate falls smoothly by the factor; by default it falls at the
    start of each epoch. For cosine, steps from the warm-up to the lowest rate; by default all remaining steps. For
    inverse, steps after which the rate is half; by default 10,000."""
    plateau_factor: float = 0.1
    """Factor of the schedule plateau."""
    plateau_patience: int = 10
    """Epochs without a better loss that the schedule plateau accepts."""
    plateau_cooldown: int = 0
    """Epochs after each fall of the rate that the schedule plateau does not count."""
    clip_norm: float | None = None
    """Largest norm of the gradient, beyond which it is clipped; by default no clipping."""
    ema_decay: float | None = None
    """Decay of an exponential moving average of the weights, which is then evaluated and saved; by default no
    average."""

    loss: str = "auto"
    """Training loss. For classification: margin, hard_margin (with stricter margins), cross_entropy or spread (with a
    margin that rises from 0.2 to 0.9); auto chooses by the network: margin for most capsule networks and
    cross_entropy for others."""
    label_smoothing: float = 0.0
    """Label smoothing of the cross-entropy: the fraction of the target spread evenly over all classes."""
    mixup: float = 0.0
    """Mix pairs of images and labels with a weight drawn from Beta(mixup, mixup); 0 turns it off."""
    cutmix: float = 0.0
    """Paste a rectangle of another image, with an area drawn from Beta(cutmix, cutmix); 0 turns it off. With mixup as
    well, each step uses one of the two."""
    adversarial: float = 0.0
    """Replace part of each batch by adversarial examples, in which no pixel differs by more than this from the image
    (pixels between 0 and 1); 0 turns it off."""
    adversarial_steps: int = 3
    """Steps of gradient ascent to each adversarial example; 1 is the fastest."""
    adversarial_share: float = 0.5
    """Fraction of the images of each batch that is replaced by adversarial examples."""
    attention_adversary: Literal["at", "iat", "vat", "ivat"] | None = None
    """Add a second loss under the change of attention scores that raises it most: at along the gradient, iat along
    differences of scores, vat and ivat likewise from predictions alone. It works for any network with couplings."""
    attention_adversary_args: ModelArguments = field(default_factory=dict)
    """Arguments of the attention adversary, as name=value: eps=1 (length of the change), lam=1 (weight of the loss),
    layers=last or all, direction=global, row or published, norm=example or row, queries=all or cls, and for vat and
    ivat xi=0.1 and power_iterations=1."""
    diversify_attention: bool = False
    """Add a loss that makes tokens attend to different tokens (attention diversification loss), of weight 1 unless
    `--loss-weights attention_diversity=0.5` says otherwise."""
    reconstruction_weight: float = 0.0005
    """Weight of the reconstruction loss (summed squared error) for networks with a decoder."""
    loss_weights: ModelArguments = field(default_factory=dict)
    """Weights of the losses that parts of the network add, as name=value, such as balance=0.02 for a mixture of heads;
    by default their own."""
    augment: tuple[str, ...] = ("auto",)
    """Augmentation such as rotate=15 crop=4 flip; auto takes the data set's own, none turns it off,
    help lists the operations."""
    sampler: Literal["shuffle", "balanced"] = "shuffle"
    """Images of an epoch: shuffle takes every image once, balanced takes every class equally often."""
    mean: tuple[float, ...] | None = None
    """Mean of each channel, for normalisation; by default the network's."""
    std: tuple[float, ...] | None = None
    """Standard deviation of each channel, for normalisation; by default the network's."""

    validation_fraction: float = 0.1
    """Fraction of the training images held out to choose the best epoch."""
    paper_protocol: bool = False
    """Choose the best epoch on the test images, as the papers do, and hold out nothing; the results state this."""
    limit: int | None = None
    """Largest number of training images; held-out images are reduced in proportion. By default all."""
    test_limit: int | None = None
    """Largest number of test images, classes in proportion. By default all."""
    strict: bool = False
    """Stop at the first unreadable image instead of skipping it."""
    stream: bool = False
    """Decode images during training instead of before it, so that they need not fit in memory; tar shards, Parquet and
    Arrow files and hf: data sets always are."""

    seed: int = 0
    """Seed of every random choice."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1, mps ..."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the network; sums, softmax and squash always use float32."""
    compile: bool = False
    """Compile the training step with torch.compile."""
    channels_last: bool | None = None
    """Use the channels-last memory layout for convolutions; by default the layout measured to be faster for the
    network."""
    sync_batchnorm: bool = True
    """Compute batch norm statistics over all processes instead of each process by itself."""

    name: str | None = None
    """Name of the run folder; by default <model>-<data>, with a number if that exists."""
    output: str = "runs"
    """Folder that holds the run folders."""
    weights: str | None = None
    """Weights to start from: a weight file, a run folder, bundled weights such as mspcaps_tiny.mnist (listed
    by `mereo models`), or `timm` (or timm.TAG) for those that timm has published; torchvision for networks of
    torchvision. With another number of classes, layers that depend on it are newly initialised; with another number of
    channels, the first convolution is adapted. By default random weights."""
    pretrained: bool = False
    """Start from published or bundled weights of the network, or from --weights: the classifier is trained alone for
    the first tenth of the training, then everything else too, at a tenth of its rate."""
    resume: bool = False
    """Resume the run of this name from its last checkpoint."""
    checkpoint_seconds: float = 60.0
    """Save a checkpoint after every epoch, and during an epoch whenever this many seconds have passed."""
    tensorboard: bool = True
    """Write TensorBoard events if TensorBoard is installed."""
    track: tuple[str, ...] = ()
    """Other programs that get the metrics of every epoch: wandb, mlflow, tensorboard and others that Accelerate knows.
    They write on this machine, unless WANDB_MODE or MLFLOW_TRACKING_URI says otherwise."""
    dry_run: bool = False
    """Print parameters, FLOPs, memory and time per epoch, without training."""

    def check(self) -> None:
        """UsageError for the first invalid field."""
        check_positive(**self._given(_POSITIVE))
        check_not_negative(**self._given(_NOT_NEGATIVE))
        check_probability(**self._given(("validation_fraction", "label_smoothing", "ema_decay", "adam_beta2")))
        check_fraction(**self._given(("adversarial_share", "decay_rate", "layer_decay", "plateau_factor")))
        for name, value in self._given(_LARGEST).items():
            if value > _LARGEST[name]:
                raise UsageError(f"{name} is {value}; it must be at most {_LARGEST[name]:,}.")
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        if self.adam_beta2 is not None and self.optimizer not in ("adamw", "adam"):
            raise UsageError(
                f"adam_beta2 is {self.adam_beta2} and optimizer {self.optimizer!r}, which has none; leave it out, or"
                " choose adamw or adam."
            )
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("sampler", self.sampler, SAMPLERS)
        check_choice("precision", self.precision, ("fp32", "bf16", "fp16"))
        check_seed(self.seed)
        self.layout.check()
        check_steps(1, adversarial_steps=self.adversarial_steps)
        for name in ("mixup", "cutmix"):
            if 0 < getattr(self, name) < _LEAST_MIXING:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be 0, or at least {_LEAST_MIXING}.")
        if self.batch_size % self.accumulate:
            raise UsageError(f"accumulate is {self.accumulate}; it must divide batch_size, {self.batch_size}.")
        if self.img_size is not None:
            parse_size(self.img_size)
        self._check_normalisation()
        if not self.data:
            raise UsageError("data is ''; give the name of a data set, or the path of a folder or file of images.")
        for name in ("output", "weights"):
            if getattr(self, name) == "":  # which would be the working folder
                raise UsageError(f"{name} is ''; give a path, or leave it out.")
        if self.name is not None and (self.name in ("", "..") or Path(self.name).name != self.name):
            raise UsageError(f"name is {self.name!r}; it must be the name of a folder, without slashes.")

    @property
    def layout(self) -> LayoutOptions:
        """What is stated of the layout of a folder or table of images."""
        return LayoutOptions(self.classes, self.label_column, self.task, split_by=self.split_by)

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        """The named fields that are not None, by name."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def _check_normalisation(self) -> None:
        if self.std is not None:
            check_positive(std=min(self.std, default=0))
        if not all(abs(value) < _LARGEST_SETTING for value in (*(self.mean or ()), *(self.std or ()))):
            raise UsageError(f"mean is {self.mean} and std is {self.std}; they must be below {_LARGEST_SETTING:,}.")
        if (self.mean is None) != (self.std is None):
            raise UsageError("mean and std belong together; give both or neither.")

    def replace(self, **changes: Any) -> "TrainConfig":
        """A copy with some fields changed; UsageError for an unknown field or a value of the wrong type."""
        return dataclasses.replace(self, **{name: _coerce(name, value) for name, value in changes.items()})

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values for YAML."""
        plain = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}

    def to_yaml(self) -> str:
        """The configuration as text that `from_yaml` reads."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    @classmethod
    def from_yaml(cls, path: Path) -> "TrainConfig":
        """Read a file; UsageError if it is missing, is not YAML or names unknown fields."""
        try:
            text = read_regular(path, _LONGEST_FILE).decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            images = path.parent if path.name == "config.yaml" and path.parent.is_dir() else None
            hint = f" To train on a folder of images use --data {images}." if images is not None else ""
            raise UsageError(f"cannot read the configuration {path}: {reason}.{hint}") from error
        try:
            content = read_yaml(text)
        except ValueError as error:
            raise UsageError(f"{path} is not YAML: {error}.") from error
        if not isinstance(content, dict):
            raise UsageError(f"{path} is not a configuration; it needs lines such as `model: mspcaps_tiny`.")
        return cls().replace(**{str(k): v for k, v in content.items() if k not in _FORMER or v != _FORMER[k]})


_FORMER: dict[str, Any] = {"find_lr": False, "callbacks": []}
"""Fields of earlier versions, with the value that has no effect on a training."""
FIELDS = {f.name: f for f in dataclasses.fields(TrainConfig)}
_HINTS = get_type_hints(TrainConfig)


def _coerce(name: str, value: Any) -> Any:
    """A value from YAML converted to the type of its field: lists become tuples, `1e-4` (text in YAML) a number."""
    if name not in FIELDS:
        raise unknown("field of the configuration", name, FIELDS)
    if isinstance(value, int) and abs(value) >= LARGEST_NUMBER:
        raise UsageError(f"{name} is too large a number.")
    if isinstance(value, str) and _HINTS[name] in (float, float | None):
        try:
            value = float(value)
        except ValueError:
            raise UsageError(f"{name} is {value!r}; it must be a number.") from None
    return fit(name, value, _HINTS[name])
