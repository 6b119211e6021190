"""The base of all networks: an encoder and a head, and the kinds of inputs and outputs."""

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mereo.models.folding import folded
from mereo.models.layers import parameter_groups
from mereo.models.weight_sources import WeightSources

OUTPUT_KINDS = (
    "scores", "maps", "tokens", "embedding", "embeddings", "boxes", "pointers", "triples", "noise", "images"
)  # fmt: skip
"""What a network gives for each input: a score for each class, (batch, classes); a map for each class, (batch, classes,
height, width); scores of the next token at each place, (batch, tokens, vocabulary); a vector, (batch, dim), or one for
each condition, (batch, conditions, dim); boxes with their scores; at each step a score for each choice, (batch, steps,
choices); for a sentence of subject, predicate and object the logarithm of a probability for each concept, (batch,
measurements, concepts); the noise of its input; an image, (batch, channels, height, width). A network that supervises
several maps for each class gives them all in training, (batch, maps, classes, height, width)."""
INPUT_KINDS = ("images", "tokens", "points", "rows", "regions", "prompts", "sequences")
"""What a network reads: images (batch, channels, height, width), tokens int64 (batch, tokens), sets of points
(batch, points, coordinates), tables of numbers (batch, rows, columns), features of the attended regions of scenes
(batch, regions, features), prompts of what to draw, int64 (batch, words), or sequences of joints (batch, frames,
coordinates)."""


class NetworkConfig(dict[str, Any]):
    """{"model": name, "args": arguments}, and the "surgery" of a network that was changed.

    Hugging Face's Trainer sets `use_cache` on the config of any model, and its loggers call methods of it. This dict
    therefore has attributes and methods, which are not part of its content.
    """

    def to_dict(self) -> dict[str, Any]:
        """Its content."""
        return dict(self)

    def to_json_string(self) -> str:
        """Its content as JSON."""
        return json.dumps(self, indent=2)


class Network(WeightSources, nn.Module):
    """An encoder and a head, saved as its name, its arguments and its weights.

    features = forward_features(inputs),   outputs = forward_head(features)

    A subclass states what it reads and gives, and defines `forward_features`, `forward_head`, `input_shape` and
    `layer_depths`; `VisionModel` and `SequenceModel` do this for images and tokens. The constructor's arguments are
    plain values: they are the configuration that is saved with the weights.

    Attributes:
        output_kind: one of OUTPUT_KINDS.
        input_kind: one of INPUT_KINDS.
        outputs_argument: the argument of the constructor that the data decide, such as the number of classes; None
            if the size of the output does not follow from the data.
        num_classes: number of scores at a place; 0 for a network without scores, such as an embedding.
        num_features: size of the features before the head.
        pretrained_cfg: preprocessing and provenance under timm's field names, set by `create_model`.
        class_names: of the scores, in order, set by `load`; empty if they have none.
        metadata: everything saved with the weights, set by `load`.
        classifier: name of the module that depends on `outputs_argument`.
        classifier_parts: names of the attributes that it consists of.
        unscored_parts: names of the parts on which no output depends, such as a decoder.
        default_loss: the loss it is trained with by default.
        usual_rate: the peak rate of AdamW that it is trained with, in batches of 32 and more, by default.
        has_capsules: whether its scores come from class capsules, which a method `capsules` returns.
        counted_from_shapes: whether the operations of a pass follow from the shapes of its inputs; not so where the
            values decide how many steps it takes.
        channels_last: whether its convolutions are faster on a CPU in channels-last memory. Images are then converted
            to it, whatever their layout, and the maps keep it; training also converts the filters of convolutions.
            `create_model` leaves them contiguous, as files of weights need them.
        grad_checkpointing: whether its layers are computed again in the backward pass, set by
            `set_grad_checkpointing`.
    """

    output_kind: ClassVar[str]
    input_kind: ClassVar[str]
    outputs_argument: ClassVar[str | None] = "num_classes"
    classifier: ClassVar[str] = "head"
    classifier_parts: ClassVar[tuple[str, ...]] = ("head",)
    unscored_parts: ClassVar[tuple[str, ...]] = ()
    has_capsules: ClassVar[bool] = False
    channels_last: ClassVar[bool] = False
    default_loss: ClassVar[str] = "cross_entropy"
    usual_rate: ClassVar[float] = 1e-3
    counted_from_shapes: ClassVar[bool] = True

    num_classes: int = 0
    num_features: int
    pretrained_cfg: dict[str, Any]
    class_names: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = MappingProxyType({})
    grad_checkpointing: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """{"model": name, "args": arguments}, set by `create_model`; a network made by its class has none."""
        if "config" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} was not made by create_model, so it has no config")
        return self.__dict__["config"]

    @config.setter
    def config(self, config: dict[str, Any]) -> None:
        self.__dict__["config"] = NetworkConfig(config)

    @property
    def default_cfg(self) -> dict[str, Any]:
        """timm's other name of `pretrained_cfg`."""
        return self.pretrained_cfg

    @property
    def headless(self) -> bool:
        """Whether it was made for 0 classes, without the head that they need: features come out."""
        return self.outputs_argument is not None and self.num_classes == 0

    # --- what follows from the arguments ----------------------------------------------------------------------------

    @classmethod
    def class_for(cls, arguments: Mapping[str, Any]) -> "type[Network]":
        """The class that is built for these arguments: itself, or the chosen form of a network with several forms."""
        return cls

    @classmethod
    def preprocessing_for(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of `pretrained_cfg` that follow from the arguments and take the place of the preset's."""
        return {}

    @classmethod
    def older_arguments(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments that older files do not contain, with the values that those files imply.

        Args:
            arguments: as a file states them.
        """
        return {}

    # --- what a network defines -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input that the network was made for, without the batch."""

    @abstractmethod
    def forward_features(self, inputs: Tensor) -> Any:
        """The encoder: what the head reads, a tensor or a tuple of tensors."""

    @abstractmethod
    def forward_head(self, features: Any, pre_logits: bool = False) -> Tensor:
        """The head: outputs from what `forward_features` returns, or with `pre_logits` the input of its last layer."""

    @abstractmethod
    def layer_depths(self) -> dict[str, int]:
        """The layer of each parameter by name, from 0; the head last."""

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs, of the shape that `output_kind` says."""
        return self.forward_head(self.forward_features(inputs))

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay, beyond biases and other vectors."""
        return set()

    # --- what every network has -------------------------------------------------------------------------------------

    def example_inputs(self, count: int) -> Tensor:
        """`count` random inputs of the shape that the network was made for, on its device, in [0, 1]."""
        like = next(self.parameters())
        return torch.rand(count, *self.input_shape, device=like.device, dtype=like.dtype)

    def get_classifier(self) -> nn.Module:
        """The module that makes the outputs."""
        return self.get_submodule(self.classifier)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trade time for memory in training: keep only what is between layers and compute the rest again."""
        self.grad_checkpointing = enable

    def group_matcher(self, coarse: bool = False) -> Callable[[str], int]:
        """timm's form of `layer_depths`: a function from the name of a parameter to its layer."""
        return self.layer_depths().__getitem__

    def parameter_groups(self, weight_decay: float = 0.0, layer_decay: float = 1.0) -> list[dict[str, Any]]:
        """Groups for an optimiser: `params`, `names`, `weight_decay`, and `lr_scale`, a factor of the learning rate.

        lr_scale of layer i of n = layer_decay^(n - 1 - i);  vectors and `no_weight_decay()` have no weight decay.
        """
        depths, undecayed = self.layer_depths(), self.no_weight_decay()
        return parameter_groups(self.named_parameters(), depths, undecayed, weight_decay, layer_decay)

    def fuse(self) -> Self:
        """A copy for inference that computes the same faster: see `mereo.models.folding`."""
        return folded(self)
