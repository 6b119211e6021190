"""A network of another library under the protocol of `VisionModel`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from mereo.core.shapes import image_size
from mereo.errors import UsageError
from mereo.models.base import VisionModel
from mereo.models.layout import Pair
from mereo.models.plain.libraries import LIBRARIES, RATES, Library
from mereo.models.weight_sources import Statistics, TimmNetwork


class PlainNetwork(VisionModel):
    """Classify images with a network that timm or torchvision makes.

    A subclass for each network is made by `mereo.models.plain.entry`, so that saved weights need its name and plain
    arguments only.

    Args:
        num_classes, in_chans, img_size: as in timm. The size matters to networks that have a table of positions.
        drop_rate, drop_path_rate: dropout before the classifier and stochastic depth, of timm's networks.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes).

    Attributes:
        network: the library's network; its weights have the library's names behind "network.". torchvision's has no
            classifier, which is `head` here.
    """

    registered_with_timm = False
    network_name: ClassVar[str]
    network: Any
    _last: str = ""

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.image_shape, self.num_classes = (in_chans, *image_size(img_size)), num_classes
        rates = {name: rate for name, rate in zip(RATES, (drop_rate, drop_path_rate), strict=True) if rate}
        self.network = self.library().make(self.network_name, num_classes, in_chans, self.image_shape[1:], rates)
        if self.library().splits:
            self._last = last_linear(self.network)
            self.num_features = self.network.get_submodule(self._last).in_features
            put(self.network, self._last, nn.Identity())
            self.head = self.make_classifier() if num_classes else nn.Identity()
        else:
            self.num_features = self.network.num_features
            self.feature_info = stages(self.network)

    @classmethod
    def library(cls) -> Library:
        """The library that makes the network."""
        return LIBRARIES[cls.library_name]

    @classmethod
    def published_loader(cls, weights: str) -> Callable[[Any], None]:
        return partial(cls.load_published, tag=cls.check_library(weights))

    @classmethod
    def published_statistics(cls, weights: str) -> Statistics:
        stated = cls.library().facts(cls.network_name, cls.check_library(weights)).preprocessing
        return tuple(stated["mean"]), tuple(stated["std"])

    def as_timm_network(self) -> TimmNetwork:
        if self.library_name != "timm":
            raise UsageError(
                f"to is 'timm', and {self.config['model']} is a network of {self.library_name}; give --to hub, onnx or"
                " torch."
            )
        left_out = ("architecture", "paper_ids", "first_conv", "classifier", "fixed_input_size")
        own = dict(self.network.pretrained_cfg)
        cfg = {key: value for key, value in self.pretrained_cfg.items() if key not in left_out}
        cfg |= {key: own[key] for key in ("first_conv", "classifier") if key in own}
        arguments = {name: self.config["args"][name] for name in RATES}
        config = {
            "architecture": self.network_name,
            "num_classes": self.num_classes,
            "num_features": self.num_features,
            "pretrained_cfg": cfg,
            "model_args": {name: rate for name, rate in arguments.items() if rate},
        }
        if self.class_names:
            config["label_names"] = list(self.class_names)
        return TimmNetwork(config, self.network.state_dict())

    def names_in_library(self) -> list[Pair]:
        """Its modules and tensors with the names that files of the library have for them."""
        own = [*dict(self.network.named_children()), *dict(self.network.named_parameters(recurse=False))]
        own += dict(self.network.named_buffers(recurse=False))
        return [Pair(f"network.{name}", name) for name in own] + ([Pair("head", self._last)] if self._last else [])

    @property
    def head_hidden_size(self) -> int:
        return int(getattr(self.network, "head_hidden_size", self.num_features))

    def make_classifier(self) -> nn.Module:
        return nn.Linear(self.num_features, self.num_classes)

    def _renew_classifier(self) -> None:
        if self.library().splits:
            super()._renew_classifier()
        else:
            self.network.reset_classifier(self.num_classes)

    def get_classifier(self) -> nn.Module:
        return self.get_submodule(self.classifier)

    def forward(self, images: Tensor) -> Tensor:
        self.check_images(images)
        output = self.network(images)
        scores: Tensor = output[0] if isinstance(output, tuple) else output
        return self.head(scores) if self.library().splits else scores

    def forward_features(self, images: Tensor) -> Any:
        self.check_images(images)
        return self.network(images) if self.library().splits else self.network.forward_features(images)

    def forward_head(self, features: Any, pre_logits: bool = False) -> Tensor:
        scores: Tensor
        if self.library().splits:
            scores = features if pre_logits or self.num_classes == 0 else self.head(features)
        else:
            scores = self.network.forward_head(features, pre_logits=pre_logits)
        return scores

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        chosen = self.stage_numbers(indices)
        if not hasattr(self.network, "forward_intermediates"):
            raise UsageError(f"{self.library_name}'s {self.network_name} gives no intermediate maps.")
        self.check_images(images)
        return self.network.forward_intermediates(
            images, indices=chosen, norm=norm, stop_early=stop_early, output_fmt=output_fmt,
            intermediates_only=intermediates_only,
        )  # fmt: skip

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        if not hasattr(self.network, "set_grad_checkpointing"):
            raise UsageError(f"{self.library_name}'s {self.network_name} has no gradient checkpointing.")
        self.network.set_grad_checkpointing(enable)
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        theirs = getattr(self.network, "no_weight_decay", set)
        return {f"network.{name}" for name in theirs()}

    def layer_depths(self) -> dict[str, int]:
        """Blocks as timm counts them; in torchvision the entries of each sequence, or modules at the top."""
        raw = self._blocks()
        heads = tuple(f"{part}." for part in self.classifier_parts)
        last = max(raw.values(), default=0) + 1
        depths = {name: last if name.startswith(heads) else raw[name] for name, _ in self.named_parameters()}
        numbers = {depth: number for number, depth in enumerate(sorted(set(depths.values())))}
        return {name: numbers[depth] for name, depth in depths.items()}

    def _blocks(self) -> dict[str, int]:
        names = [name for name, _ in self.named_parameters()]
        if hasattr(self.network, "group_matcher"):
            from timm.models import group_parameters

            blocks = group_parameters(self.network, self.network.group_matcher(coarse=False), reverse=True)
            return {f"network.{name}": depth for name, depth in blocks.items()}
        units = []
        for name, child in self.network.named_children():
            inner = [f"network.{name}.{each}." for each, _ in child.named_children()]
            units += inner if isinstance(child, nn.Sequential) else [f"network.{name}."]
        return {name: next((i for i, unit in enumerate(units) if name.startswith(unit)), 0) for name in names}

    def load_published(self, tag: str | None = None) -> None:
        """Give the network weights that its library has published; a classifier of other classes stays as it is."""
        channels, *size = self.image_shape
        state = self.library().published(self.network_name, tag, self.num_classes, channels, (size[0], size[1]))
        own = self.network.state_dict()
        faults = [name for name in own if name not in state or state[name].shape != own[name].shape]
        if faults:
            raise UsageError(
                f"the published weights of {self.network_name} do not fit images of {size[0]}x{size[1]}: {faults[0]}"
                " differs; leave img_size out."
            )
        self.network.load_state_dict({name: state[name] for name in own})
        last = {part: state.get(f"{self._last}.{part}") for part in ("weight", "bias")} if self._last else {}
        if last and all(x is not None and x.shape[0] == self.num_classes for x in last.values()):
            self.head.load_state_dict(last)


def last_linear(network: nn.Module) -> str:
    """The name of the last linear layer of a network of torchvision, its classifier."""
    return [name for name, module in network.named_modules() if isinstance(module, nn.Linear)][-1]


def put(network: nn.Module, name: str, module: nn.Module) -> None:
    """Replace a module by its name."""
    parent, _, last = name.rpartition(".")
    setattr(network.get_submodule(parent), last, module)


def stages(network: nn.Module) -> list[dict[str, Any]]:
    """`feature_info` of a network of timm's, with names of modules as seen from outside."""
    stated: Any = getattr(network, "feature_info", None) or []
    stages = stated.info if hasattr(stated, "info") else stated
    return [{**stage, "module": f"network.{stage['module']}"} for stage in stages if "num_chs" in stage]
