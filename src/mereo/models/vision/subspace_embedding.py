"""Subspace embeddings: an embedding of several learners, each scaled to length one by itself, on a gated map.

Source: Adiga, Dolz, Lombaert 2022, arXiv:2206.09068; details from the authors' code,
github.com/adigasu/Dynamic_subspace_learners.
Cost: the backbone's, and the gate's.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mereo.errors import UsageError, check_positive
from mereo.mechanisms.gate import ConvolutionGate
from mereo.models.on_backbone import OnBackbone
from mereo.models.registry import register_model

DROP = 0.01
_LEAST = 1e-24
"""Least square of a length."""


class SubspaceHead(nn.Module):
    """A linear layer whose outputs belong to learners; the outputs of each learner are divided by their length.

    e = W dropout(p) + b,   e_j <- e_j / |e_S|  with S the learner of j

    The learners are one vector with the number of the learner of each output, so they are always disjoint and cover
    all outputs.

    Args:
        features: numbers of p.
        dim: outputs.
        learners: at the start, of equal size ceil(dim / learners); the last one takes what is left.

    Shapes: (batch, features) -> (batch, dim), of length sqrt(learners).
    """

    learner: Tensor

    def __init__(self, features: int, dim: int, learners: int = 1) -> None:
        super().__init__()
        check_positive(dim=dim, learners=learners)
        size = -(-dim // learners)
        if (learners - 1) * size >= dim:
            raise UsageError(f"learners is {learners}, and parts of {size} are too few for {dim} outputs; give fewer.")
        self.drop = nn.Dropout(DROP)
        self.weight, self.bias = nn.Parameter(torch.empty(dim, features)), nn.Parameter(torch.empty(dim))
        self.register_buffer("learner", torch.arange(dim) // size)
        for number in range(learners):
            self._start(torch.arange(dim)[number * size : (number + 1) * size])

    @torch.no_grad()
    def _start(self, places: Tensor, generator: torch.Generator | None = None) -> None:
        """Draw the rows of one learner: weights Xavier-normal, biases as in any linear layer."""
        features = self.weight.shape[1]
        weights = nn.init.xavier_normal_(torch.empty(len(places), features), generator=generator)
        biases = torch.empty(len(places)).uniform_(-(features**-0.5), features**-0.5, generator=generator)
        self.weight[places], self.bias[places] = weights.to(self.weight), biases.to(self.bias)

    @property
    def learners(self) -> list[Tensor]:
        """The outputs of each learner, int64 (outputs,)."""
        return [(self.learner == number).nonzero().flatten() for number in range(int(self.learner.max()) + 1)]

    def split(self, kept: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Let the last learner keep some outputs and give the others, drawn anew, to a new learner.

        Args:
            kept: bool (outputs of the last learner,), some and not all True.
            generator: draws the new rows, on the CPU.

        Returns:
            the outputs of the new learner, int64.
        """
        last = self.learners[-1]
        if kept.shape != last.shape or not 0 < int(kept.sum()) < len(last):
            raise UsageError(
                f"kept is {int(kept.sum())} of {len(kept)}, and the last learner has {len(last)} outputs; keep some."
            )
        given = last[~kept.to(last.device)]
        self.learner[given] += 1
        self._start(given, generator)
        return given

    def forward(self, features: Tensor) -> Tensor:
        outputs = nn.functional.linear(self.drop(features), self.weight, self.bias)
        together = (self.learner.unsqueeze(0) == self.learner.unsqueeze(1)).to(outputs)
        return outputs / (outputs.square() @ together).clamp(min=_LEAST).sqrt()

    def extra_repr(self) -> str:
        return f"features={self.weight.shape[1]}, dim={len(self.bias)}, learners={len(self.learners)}"


class SubspaceEmbedding(OnBackbone):
    """Give each image a vector that consists of the vectors of its learners, each of length one.

    p = mean over positions of gate(f) f,   output = W p + b, each learner's part divided by its length

    Args:
        num_classes: numbers of the vector.
        in_chans, img_size: as in timm.
        backbone: a network of the catalogue with maps of stages, or "timm:" and a name of timm's.
        backbone_args: its arguments, beyond channels and size of the images.
        stage: of the backbone whose map f is read.
        hidden: of the gate, see `ConvolutionGate`.
        learners: parts of equal size at the start. `mereo train --task subspace_embedding` may split them.
        fixed_norms: keep batch norms in evaluation mode in training too; for a backbone with trained weights.
        frozen: keep the weights of the backbone.

    Shapes: images (batch, in_chans, height, width) -> (batch, num_classes), of length sqrt(learners); pooled features
        p as `forward_head(..., pre_logits=True)`; the gates (batch, 1, rows, columns) by `mereo.record`.

    Deviates: a learner is a set of places in the vector, so a split moves no rows. The authors' code moves them one by
        one in place, and may overwrite a row before it is moved.

    Reference: arXiv:2206.09068, section III.
    """

    output_kind: ClassVar[str] = "embedding"

    def __init__(
        self,
        num_classes: int = 128,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        backbone: str = "timm:resnet50",
        backbone_args: Mapping[str, Any] = {},
        stage: int = 3,
        hidden: tuple[int, int] = (128, 32),
        learners: int = 1,
        fixed_norms: bool = True,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        self._build_backbone(backbone, (stage,), backbone_args, in_chans, img_size, frozen)
        self.num_features, self._learners, self.fixed_norms = (
            int(self.feature_info[-1]["num_chs"]),
            learners,
            fixed_norms,
        )
        self.gate = ConvolutionGate(self.num_features, (hidden[0], hidden[1]))
        self.reset_classifier(num_classes)

    def neck(self, maps: list[Tensor]) -> Tensor:
        return self.gate(maps[-1])

    def pool(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))

    def make_classifier(self) -> nn.Module:
        return SubspaceHead(self.num_features, self.num_classes, self._learners)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for module in self.backbone.modules() if self.fixed_norms else ():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


register_model(
    "subspace_resnet8",
    SubspaceEmbedding,
    "Embeddings of several learners on a residual network of 8 layers, for 32x32 images.",
    source="arXiv:2206.09068",
    parameters=103_809,
    img_size=32,
    backbone="resnet20",
    backbone_args={"blocks": 1},
    stage=2,
    hidden=(32, 8),
    fixed_norms=False,
    tiny={"backbone_args": {"widths": (4, 6, 8), "blocks": 1}, "img_size": 16, "hidden": (5, 3), "num_classes": 12},
)
register_model(
    "subspace_resnet50",
    SubspaceEmbedding,
    "Embeddings of several learners on the first three stages of timm's ResNet-50.",
    source="arXiv:2206.09068",
    parameters=9_891_457,
    rate=1e-5,
)
