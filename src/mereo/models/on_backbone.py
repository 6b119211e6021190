"""A network that reads the maps of another one: a backbone of mereo's or of timm's with layers on top."""

from collections.abc import Collection, Mapping
from typing import Any, Self, cast

from torch import Tensor

from mereo.core.shapes import image_size
from mereo.errors import UsageError
from mereo.models.base import VisionModel
from mereo.models.conversion import convert, from_timm_checkpoint
from mereo.models.entry import per_channel
from mereo.models.feature_maps import FeatureMaps
from mereo.models.layers import layer_depths
from mereo.models.pretrained import check_same_surgery, fill
from mereo.models.registry import build, get_model_entry
from mereo.models.timm_backbone import PREFIX, TimmBackbone, preprocessing
from mereo.models.weights import is_described, load, weights_file

FOLLOWED = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
"""Fields of the preprocessing that follow from the backbone."""


class OnBackbone(VisionModel):
    """A network whose stages are a backbone's.

    A subclass takes the arguments of `_build_backbone` and calls it first in its constructor.

    Attributes:
        backbone: gives the maps of some stages, (batch, channels, rows, columns) each.
        frozen: whether the backbone keeps its weights and the statistics of its batch norms in training.
    """

    first_conv = "backbone"
    part_with_weights = "backbone"

    backbone: FeatureMaps | TimmBackbone
    frozen: bool

    def _build_backbone(
        self,
        name: str,
        out_indices: tuple[int, ...],
        arguments: Mapping[str, Any],
        in_chans: int,
        img_size: int | tuple[int, int],
        frozen: bool,
    ) -> None:
        """Make the backbone and record what its maps are.

        Args:
            name: one of `list_models()`, or "timm:" and a name of timm's.
            out_indices: the stages whose maps are used, negative numbers from the end, in ascending order.
            arguments: of a backbone of mereo's, beyond channels and size of the images.
            in_chans, img_size: of the images.
            frozen: see the class.
        """
        size = image_size(img_size)
        self.image_shape, self.frozen = (in_chans, *size), frozen
        if name.startswith(PREFIX):
            if arguments:
                raise UsageError(f"backbone_args is {dict(arguments)!r}; backbones of timm take none. Leave it out.")
            self.backbone = TimmBackbone(name.removeprefix(PREFIX), out_indices, in_chans, size)
        else:
            self.backbone = _own(name, out_indices, arguments, in_chans, size)
        self._backbone_name = name
        info = self.backbone.feature_info
        self.feature_info = [
            {**stage, "module": f"backbone.{stage['module']}".rstrip(".")}
            if isinstance(self.backbone, TimmBackbone)
            else {**stage, "module": f"backbone.model.{stage['module']}"}
            for stage in info.get_dicts()
        ]
        self.neck_inputs = tuple(range(len(self.feature_info)))
        if isinstance(self.backbone, FeatureMaps):
            self.first_conv = f"backbone.model.{self.backbone.model.first_conv}"
            _freeze_unused(self.backbone)
        else:
            name_of = {id(module): each for each, module in self.named_modules()}
            first = next((m for m in self.backbone.modules() if hasattr(m, "kernel_size")), self.backbone)
            self.first_conv = name_of[id(first)]
        if frozen:
            self.backbone.requires_grad_(False)

    @classmethod
    def preprocessing_for(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        name, channels = str(arguments["backbone"]), arguments["in_chans"]
        if name.startswith(PREFIX):
            followed = preprocessing(name.removeprefix(PREFIX))
        else:
            entry = get_model_entry(name)
            followed = entry.pretrained_cfg({**entry.defaults, "in_chans": channels})
        kept = {key: followed[key] for key in FOLLOWED if followed.get(key) is not None}
        return kept | {key: per_channel(tuple(kept[key]), channels) for key in ("mean", "std") if key in kept}

    def load_part(self, weights: str) -> None:
        """Give the backbone trained weights; the layers on top keep their own.

        Args:
            weights: "timm" or "timm.TAG" for timm's published ones; or weights that `mereo.load` takes, of the
                same backbone as a classifier, or of another network on it.
        """
        name, size = self._backbone_name, self.image_shape[1:]
        library, _, tag = weights.partition(".")
        if isinstance(self.backbone, TimmBackbone) and library == "timm":
            tagged = f"{name.removeprefix(PREFIX)}{'.' * bool(tag)}{tag}"
            indices = self.backbone.model.feature_info.out_indices
            trained = TimmBackbone(tagged, indices, self.image_shape[0], size, pretrained=True)
            self.backbone.load_state_dict(trained.state_dict())
            return
        source: VisionModel
        if library == "timm":
            source = from_timm_checkpoint(name, {"in_chans": self.image_shape[0], "img_size": size}, tag or None)
        elif isinstance(self.backbone, FeatureMaps) and not is_described(path := weights_file(weights)):
            # A file of another library, recognised by the names of its tensors.
            source = cast(VisionModel, convert(path, model=name, img_size=size))
        else:
            source = load(weights)
        if isinstance(source, OnBackbone) and source._backbone_name == name:
            check_same_surgery(self, source.config, weights)
            self.backbone.load_state_dict(source.backbone.state_dict())
            return
        if not isinstance(self.backbone, FeatureMaps) or type(source) is not type(self.backbone.model):
            raise UsageError(f"weights is {weights!r}, which belongs to {source.config['model']}, not to {name!r}.")
        # Without classes, the backbone's classifier counts as one for other classes, and is not filled.
        fill(self.backbone.model, source.state_dict(), source.config, weights)

    def _maps(self, images: Tensor, wanted: Collection[int]) -> dict[int, Tensor]:
        self.check_images(images)
        maps = self.backbone(images)
        return {index: maps[index] for index in wanted}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.backbone.set_grad_checkpointing(enable)
        self.grad_checkpointing = enable

    def layer_depths(self) -> dict[str, int]:
        """The layers of a backbone of mereo's, then one for the layers that read its maps, and the classifier last."""
        if not isinstance(self.backbone, FeatureMaps):
            return super().layer_depths()
        depths = {f"backbone.model.{name}": depth for name, depth in self.backbone.model.layer_depths().items()}
        last = max(depths.values())
        heads = tuple(f"{part}." for part in self.classifier_parts)
        rest = [name for name, _ in self.named_parameters() if name not in depths]
        between = any(not name.startswith(heads) for name in rest)
        return depths | {name: last + 1 + (between and name.startswith(heads)) for name in rest}

    def no_weight_decay(self) -> set[str]:
        own = super().no_weight_decay()
        if not isinstance(self.backbone, FeatureMaps):
            return own
        return own | {f"backbone.model.{name}" for name in self.backbone.model.no_weight_decay()}

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self


def _own(
    name: str, out_indices: tuple[int, ...], arguments: Mapping[str, Any], in_chans: int, size: tuple[int, int]
) -> FeatureMaps:
    """A backbone of mereo's."""
    entry = get_model_entry(name)
    if issubclass(entry.module, OnBackbone):
        raise UsageError(f"backbone is {name!r}, which stands on a backbone itself; give that one.")
    for argument in ("num_classes", "in_chans", "img_size"):
        if argument in arguments:
            raise UsageError(f"backbone_args has {argument}, which follows from the network; leave it out.")
    if "surgery" in arguments:
        raise UsageError("backbone_args has surgery; do it to the whole network, whose files state it.")
    model = build(name, **{**arguments, "in_chans": in_chans, "img_size": size})
    if (numbers := model.stage_numbers(out_indices)) != sorted(set(numbers)):
        raise UsageError(f"out_indices is {out_indices}; name each stage once, in ascending order.")
    return FeatureMaps(model, out_indices)


def _freeze_unused(backbone: FeatureMaps) -> None:
    """Freeze the layers after the last stage used, which get no gradient; distributed training requires this."""
    model = backbone.model
    last = str(backbone.feature_info.module_name()[-1])
    depths = layer_depths([name for name, _ in model.named_parameters()], [last], ())
    used = max((depth for name, depth in depths.items() if name.startswith(f"{last}.")), default=max(depths.values()))
    for name, parameter in model.named_parameters():
        if depths[name] > used:
            parameter.requires_grad_(False)
