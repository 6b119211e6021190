"""The base of vision networks: timm's protocol, intermediate maps, parameter groups by layer."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mereo.core import Capsules, Coupling, Grid
from mereo.core.kernels.transforms import transformed
from mereo.errors import UsageError, check_choice, type_of
from mereo.models.checkpointing import checkpointed
from mereo.models.layers import layer_depths
from mereo.models.network import Network

Features = Tensor | tuple[Tensor, ...]
"""The input of a head: one tensor, or several (such as a NamedTuple)."""


def check_sides(given: str, sides: tuple[int, int], steps: tuple[int, int]) -> None:
    """UsageError, beginning with what was given, unless (height, width) are multiples of `steps`."""
    remedies = []
    for name, side, step in zip(("height", "width"), sides, steps, strict=True):
        if side % step:
            nearest = [str(size) for size in (side // step * step, (side // step + 1) * step) if size]
            remedies.append(f"a {name} of {' or '.join(nearest)}")
    if remedies:
        raise UsageError(
            f"{given}; heights must be multiples of {steps[0]} and widths of {steps[1]}, such as"
            f" {' and '.join(remedies)}. Resize them, or create the model with other in_chans and img_size."
        )


def grid_of_cells(height: int, width: int, step: int, *, prefix: int = 0, partial: bool = True) -> Grid:
    """The cells of a map with one cell for every `step` pixels of an image.

    Args:
        prefix: number of tokens before the cells, which have no position.
        partial: whether leftover pixels at the end, too few for a cell, get one.
    """
    rest = step - 1 if partial else 0
    return Grid((height + rest) // step, (width + rest) // step, 1, step / 2, step, prefix=prefix)


class VisionModel(Network):
    """A network of images under timm's protocol; its outputs are scores of classes unless a subclass says otherwise.

    x_i = stage_i(x_{i-1}),   features = neck(the maps x_i of neck_inputs),   scores = head(pool(features))

    A subclass sets `image_shape`, `num_features` and `feature_info`, defines `make_classifier`, and `stage` unless its
    stages are modules in `stages`, and ends its constructor with `reset_classifier(num_classes)`. The other methods
    have defaults. A network that is not a sequence of stages leaves `feature_info` empty and defines `forward_features`
    instead. A network of another `output_kind` overrides `classify`; if its output has no classes it sets
    `outputs_argument` to None, and its constructor ends with `self.head = self.make_classifier()`.

    Attributes:
        num_classes: number of scores; 0 means none, and `forward` returns the pooled features.
        num_features: size of the pooled features.
        image_shape: (channels, height, width) the network was made for.
        feature_info: of each stage, in order: {"num_chs": channels, "reduction": pixels per cell, "module": name of
            the last module of the stage}.
        neck_inputs: numbers of the stages whose maps the neck takes; the last one by default.
        grad_checkpointing: whether stages are computed again in the backward pass, set by `set_grad_checkpointing`.
        first_conv, classifier: names of the modules that depend on in_chans and num_classes.
        classifier_parts: names of the attributes that `reset_classifier` replaces.
        fixed_input_size: whether images must have the height and width of `image_shape`.
        size_step: what heights and widths must be multiples of, where `fixed_input_size` is False.
        partial_cells: whether pixels at the end of an image that do not fill a cell of a map have a cell.

    See `Network` for the other attributes.
    """

    output_kind = "scores"
    input_kind = "images"
    first_conv: str
    fixed_input_size: ClassVar[bool] = True
    partial_cells: ClassVar[bool] = True
    channels_last: ClassVar[bool] = True

    image_shape: tuple[int, int, int]
    head: nn.Module
    feature_info: Sequence[Mapping[str, Any]] = ()
    neck_inputs: tuple[int, ...] = ()
    size_step: tuple[int, int] = (1, 1)
    _placed: tuple[int, int] | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.image_shape

    @property
    def score_kind(self) -> str:
        """The kind of scores: "logits", or "lengths" or "activations" of class capsules, which lie between 0 and 1."""
        return "logits"

    @property
    def head_hidden_size(self) -> int:
        """Size of what `forward_head(pre_logits=True)` gives: `num_features`."""
        return self.num_features

    def capsules(self, images: Tensor) -> Capsules | None:
        """The class capsules of images; None for a network without them."""
        return None

    # --- what a network defines -------------------------------------------------------------------------------------

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        """The map of stage `index` from the map of the stage before, or from the images.

        By default a module of `stages`, the first after the `stem`, where the network has one.
        """
        stages, stem = getattr(self, "stages", None), getattr(self, "stem", None)
        if stages is None:
            raise UsageError(
                f"{type(self).__name__} has no stage {index}; call forward_features, which every network has."
            )
        return stages[index](inputs if stem is None or index > 0 else stem(inputs))

    def neck(self, maps: list[Tensor]) -> Features:
        """The input of the head, from the maps of the stages in `neck_inputs`."""
        return maps[-1]

    def pool(self, features: Any) -> Tensor:
        """The features as (batch, num_features); by default all of them, flattened and side by side."""
        if isinstance(features, tuple):
            return torch.cat([part.flatten(1) for part in features], 1)
        return features.flatten(1)

    def classify(self, features: Any) -> Tensor:
        """The outputs of the features: scores (batch, classes)."""
        return self.head(self.pool(features))

    def as_map(self, tensor: Tensor, norm: bool) -> Tensor:
        """The output of a stage as (batch, channels, rows, columns), through the network's last norm if asked.

        Convolutional networks return such maps and have no norm of that kind, so that this changes nothing.
        """
        return tensor

    @abstractmethod
    def make_classifier(self) -> nn.Module:
        """A new head for `num_classes`, which is above 0."""

    def place_couplings(self, height: int, width: int) -> None:
        """Store in the couplings the positions of their senders and receivers on images of this size.

        By default the senders and receivers of a stage are the cells of its map, one for every `reduction` pixels.
        """
        for stage in self.feature_info:
            grid = grid_of_cells(height, width, stage["reduction"], partial=self.partial_cells)
            for module in self.get_submodule(str(stage["module"])).modules():
                if isinstance(module, Coupling) and module.of_places:
                    module.senders = module.receivers = grid

    def resize_tensors(self, tensors: dict[str, Tensor], img_size: tuple[int, int]) -> dict[str, Tensor]:
        """Weights of such a network for another image size, resized to this network's: tables of positions.

        Args:
            tensors: of a network that was made for `img_size`.
        """
        return tensors

    # --- timm's protocol --------------------------------------------------------------------------------------------

    def _maps(self, images: Tensor, wanted: Collection[int]) -> dict[int, Tensor]:
        """Outputs of the stages in `wanted`, by number; stages after the last of them do not run."""
        self.check_images(images)
        if self.channels_last and images.stride(1) != 1 and not torch.compiler.is_compiling() and not transformed():
            # A copy, because grey images count as contiguous in both layouts, and convolutions pick the other one.
            images = images.clone(memory_format=torch.channels_last)
        kept, current = {}, images
        run: Callable[[int, Tensor], Tensor] = self.stage
        if self.grad_checkpointing and self.training and torch.is_grad_enabled():
            run = checkpointed(self, self.stage)
        for index in range(max(wanted) + 1):
            current = run(index, current)
            if index in wanted:
                kept[index] = current
        return kept

    def _neck_inputs(self) -> tuple[int, ...]:
        if not self.feature_info:
            raise UsageError(f"{type(self).__name__} has no stages; its class must define forward_features.")
        return self.neck_inputs or (len(self.feature_info) - 1,)

    def forward_features(self, images: Tensor) -> Any:
        """The input of the head for images (batch, channels, height, width): a tensor, or a tuple of tensors."""
        inputs = self._neck_inputs()
        maps = self._maps(images, inputs)
        return self.neck([maps[index] for index in inputs])

    def forward_head(self, features: Any, pre_logits: bool = False) -> Tensor:
        """Scores (batch, classes) from the output of `forward_features`, or pooled features (batch, num_features)."""
        return self.pool(features) if pre_logits or self.headless else self.classify(features)

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """The maps of some stages, and the features.

        Args:
            indices: numbers of the stages, negative ones from the end; a number n means the last n, None all.
            norm: apply the network's last norm to the maps, if it has one.
            stop_early: run no stage after the last one wanted; only with `intermediates_only`.
            output_fmt: "NCHW" or "NLC".
            intermediates_only: return only the maps, not (features, maps).

        Shapes: images (batch, channels, height, width) -> maps (batch, channels, rows, columns), or
            (batch, rows * columns, channels) as "NLC".
        """
        check_choice("output_fmt", output_fmt, ("NCHW", "NLC"))
        wanted = self.stage_numbers(indices)
        inputs = self._neck_inputs()
        everything = not (stop_early and intermediates_only)
        maps = self._maps(images, {*wanted, *inputs} if everything else set(wanted))
        taken = [self.as_map(maps[index], norm) for index in wanted]
        if output_fmt == "NLC":
            taken = [x.flatten(2).transpose(1, 2) for x in taken]
        return taken if intermediates_only else (self.neck([maps[index] for index in inputs]), taken)

    def stage_numbers(self, indices: int | Sequence[int] | None = None) -> list[int]:
        """Stages from 0, as `forward_intermediates` and `out_indices` name them; UsageError if one does not exist."""
        count = len(self.feature_info)
        if count == 0:
            raise UsageError(f"{type(self).__name__} has no stages, so it has no intermediate maps.")
        if indices is None or isinstance(indices, int):
            last = count if indices is None else indices
            if not 1 <= last <= count:
                raise UsageError(f"indices is {indices}; this network has {count} stages, so give 1 to {count}.")
            return list(range(count - last, count))
        if not indices or not all(-count <= index < count for index in indices):
            raise UsageError(f"indices is {indices}; this network has {count} stages: give 0 to {count - 1}.")
        return [index % count for index in indices]

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head by a new one for another number of classes; 0 removes it.

        `global_pool` is part of timm's call. No network here has more than one way to pool: only None and "" are
        accepted.
        """
        if self.outputs_argument is None:
            raise UsageError(f"num_classes is {num_classes}, and the output of {type(self).__name__} has no classes.")
        if num_classes < 0:
            raise UsageError(f"num_classes is {num_classes}; it must be at least 0.")
        if global_pool:
            raise UsageError(f"global_pool is {global_pool!r}; this network has one way to pool. Leave it out.")
        self.num_classes, self.class_names = num_classes, ()
        like = next(self.parameters(), None)
        self._renew_classifier()
        for name in self.classifier_parts:
            if (module := attrgetter(name)(self)) is not None:
                module.train(self.training)
                if like is not None:
                    module.to(like.device, like.dtype)
        # What is saved with the weights must still describe the model.
        if hasattr(self, "config"):
            self.config = {**self.config, "args": {**self.config["args"], "num_classes": num_classes}}
            self.pretrained_cfg = {**self.pretrained_cfg, "num_classes": num_classes}

    def _renew_classifier(self) -> None:
        """Make the modules of `classifier_parts` for `num_classes`."""
        self.head = nn.Identity() if self.num_classes == 0 else self.make_classifier()

    def get_classifier(self) -> nn.Module:
        """The module that makes the scores."""
        return self.head

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trade time for memory in training: keep only the maps between stages and recompute the rest."""
        if enable and not self.feature_info:
            raise UsageError(f"{type(self).__name__} has no stages to compute again.")
        self.grad_checkpointing = enable

    def layer_depths(self) -> dict[str, int]:
        """The layer of each parameter by name: a layer a stage, one for the neck, and the classifier last."""
        stages = [str(info["module"]) for info in self.feature_info]
        return layer_depths([name for name, _ in self.named_parameters()], stages, self.classifier_parts)

    def check_images(self, images: Tensor) -> None:
        """UsageError unless images are (batch, channels, height, width) as the model was made for."""
        if not isinstance(images, Tensor):
            raise UsageError(
                f"images is {type_of(images)}; a network takes a tensor (batch, channels, height, width). For"
                " files, PIL images and arrays there is mereo.predict(model, images)."
            )
        channels, height, width = self.image_shape
        shape = (channels, height, width) if self.fixed_input_size else (channels, *images.shape[2:])
        if images.dim() != 4 or tuple(images.shape[1:]) != shape:
            sides = f"{height}, {width}" if self.fixed_input_size else "height, width"
            raise UsageError(
                f"images are {tuple(images.shape)}; this model takes (batch, {channels}, {sides}). "
                "Resize them, or create the model with other in_chans and img_size."
            )
        if not self.fixed_input_size:
            check_sides(f"images are {tuple(images.shape)}", (images.shape[2], images.shape[3]), self.size_step)
        if not images.is_floating_point():
            raise UsageError(f"images are {images.dtype}; this model takes floats, such as images.float() / 255.")
        if torch.compiler.is_compiling():
            return
        if (size := (images.shape[2], images.shape[3])) != self._placed:
            self._placed = size
            self.place_couplings(*size)
        if images.layout != torch.strided:
            raise UsageError(f"images are {images.layout}; this model takes dense tensors: images.to_dense().")
        weights = next(self.parameters(), images)
        if images.device != weights.device:
            raise UsageError(f"images are on {images.device} and the weights on {weights.device}; move one of them.")
        if images.dtype != weights.dtype and not torch.is_autocast_enabled(images.device.type):
            raise UsageError(
                f"images are {images.dtype} and the weights {weights.dtype}; convert one with .to(dtype), or run the"
                " model under torch.autocast."
            )
