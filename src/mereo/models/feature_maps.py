"""A network as a backbone: images in, the maps of some of its stages out."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mereo.errors import UsageError, type_of
from mereo.models.base import VisionModel


class FeatureInfo:
    """Facts about the maps of a backbone, under timm's names.

    Args:
        stages: `feature_info` of the network.
        out_indices: the stages whose maps are returned.
    """

    def __init__(self, stages: Sequence[Mapping[str, Any]], out_indices: Sequence[int]) -> None:
        self.info = [dict(stage) for stage in stages]
        self.out_indices = tuple(out_indices)

    def get(self, key: str) -> list[Any]:
        """One field of every output map."""
        return [self.info[index][key] for index in self.out_indices]

    def channels(self) -> list[int]:
        """Channels of the maps."""
        return self.get("num_chs")

    def reduction(self) -> list[int]:
        """Pixels of the image per cell of the maps."""
        return self.get("reduction")

    def module_name(self) -> list[str]:
        """The modules that make the maps."""
        return self.get("module")

    def get_dicts(self) -> list[dict[str, Any]]:
        """All fields of every output map."""
        return [self.info[index] for index in self.out_indices]


class FeatureMaps(nn.Module):
    """The maps of some stages of a network, without its classifier; stages after the last of them do not run.

    Args:
        model: a network of stages; its classifier is removed.
        out_indices: numbers of the stages, negative ones from the end; a number n means the last n, None all.
        norm, output_fmt: as in `VisionModel.forward_intermediates`.

    Shapes: images (batch, channels, height, width) -> a map (batch, channels, rows, columns) for each stage.
    """

    def __init__(
        self,
        model: VisionModel,
        out_indices: int | Sequence[int] | None = None,
        *,
        norm: bool = False,
        output_fmt: str = "NCHW",
    ) -> None:
        super().__init__()
        if not isinstance(model, VisionModel):
            raise UsageError(f"model is {type_of(model)}; it must be a VisionModel.")
        self.feature_info = FeatureInfo(model.feature_info, model.stage_numbers(out_indices))
        if model.outputs_argument is None:
            for part in model.classifier_parts:
                setattr(model, part, nn.Identity())
        else:
            model.reset_classifier(0)
        self.model, self.norm, self.output_fmt = model, norm, output_fmt

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """As of the network."""
        self.model.set_grad_checkpointing(enable)

    def forward(self, images: Tensor) -> list[Tensor]:
        return self.model.forward_intermediates(
            images,
            self.feature_info.out_indices,
            norm=self.norm,
            stop_early=True,
            output_fmt=self.output_fmt,
            intermediates_only=True,
        )
