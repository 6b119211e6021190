"""A network of timm as a backbone: the maps of some of its stages. timm is imported when one is made."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from mereo.errors import UsageError, first_line, unknown
from mereo.escape import cut
from mereo.models.feature_maps import FeatureInfo
from mereo.models.timm_access import import_timm, own_networks
from mereo.models.timm_cache import without_network

PREFIX = "timm:"
"""Begins the name of a backbone of timm's: "timm:resnet18"."""


def _check_name(name: str) -> None:
    """UsageError unless the name is one of timm's own networks."""
    if name.partition(".")[0] not in own_networks():
        raise unknown("backbone of timm", name, own_networks())


def preprocessing(name: str) -> dict[str, Any]:
    """timm's configuration of a network."""
    timm = import_timm()
    _check_name(name)
    configuration = timm.get_pretrained_cfg(name)
    return {} if configuration is None else dict(configuration.to_dict())


class TimmBackbone(nn.Module):
    """The maps of some stages of a network of timm's.

    Args:
        name: in timm, without the prefix.
        out_indices: numbers of the stages, negative ones from the end.
        in_chans, img_size: of the images.
        pretrained: with timm's published weights; timm downloads what is not in its cache.

    Shapes: images (batch, channels, height, width) -> a map (batch, channels, rows, columns) for each stage.
    """

    def __init__(
        self, name: str, out_indices: Sequence[int], in_chans: int, img_size: tuple[int, int], pretrained: bool = False
    ) -> None:
        super().__init__()
        timm = import_timm()
        _check_name(name)
        given: dict[str, Any] = {
            "features_only": True, "out_indices": tuple(out_indices), "in_chans": in_chans, "pretrained": pretrained
        }  # fmt: skip
        if pretrained:
            try:
                given |= without_network(timm, name)
            except OSError as error:
                raise UsageError(
                    f"timm's weights of {name} could not be loaded ({error}); they are downloaded once."
                ) from error
        try:
            try:
                self.model = timm.create_model(name, img_size=img_size, **given)
            except TypeError:  # a network without a table of positions takes no size
                self.model = timm.create_model(name, **given)
        except (AssertionError, AttributeError, IndexError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise UsageError(
                f"timm's {name} gives no maps of stages {tuple(out_indices)} for images of {img_size[0]} x"
                f" {img_size[1]} ({type(error).__name__}: {cut(first_line(error), 200)})."
            ) from error
        theirs = self.model.feature_info
        self._last_axis = str(getattr(self.model, "output_fmt", "NCHW")).endswith("NHWC")
        modules = {each for each, _ in self.model.named_modules()}
        info = []
        for channels, reduction, module in zip(
            theirs.channels(), theirs.reduction(), theirs.module_name(), strict=True
        ):
            # timm flattens the names of modules at the top.
            flat = module.replace(".", "_")
            place = module if module in modules else flat if flat in modules else ""
            info.append({"num_chs": channels, "reduction": reduction, "module": f"model.{place}".rstrip(".")})
        self.feature_info = FeatureInfo(info, range(len(info)))

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """As of the network."""
        if not hasattr(self.model, "set_grad_checkpointing"):
            raise UsageError(f"{type(self.model).__name__} of timm has no gradient checkpointing.")
        self.model.set_grad_checkpointing(enable)

    def forward(self, images: Tensor) -> list[Tensor]:
        maps: list[Tensor] = self.model(images)
        return [x.permute(0, 3, 1, 2) for x in maps] if self._last_axis else maps
