"""Ensem-NN: the joints of a body over time, read by four one-dimensional networks whose classes are fused.

Source: Xu, Wang 2018, arXiv:1801.02475; what the paper leaves open follows Qingyang-Xu/Ensem-NN.
Cost: 0.2 G multiply-adds for each network at 300 frames of 150 coordinates; linear in the frames.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mereo.core import AddedLoss, Coupling
from mereo.data.skeletons import COORDINATES, parts_of
from mereo.errors import UsageError, check_choice, check_count, check_finite, check_not_negative, check_probability
from mereo.layers.residual_1d import BLOCK_ATTENTION, Residual1d, SameConv1d
from mereo.models.layers import layer_depths
from mereo.models.network import Network
from mereo.models.registry import register_model

SUBNETS = ("two_stream", "parts", "attention", "difference")
"""The four members of the ensemble."""
DROPS = {"base": 0.0, "spatial": 0.0, "two_stream": 0.0, "parts": 0.1, "attention": 0.1, "difference": 0.3}
"""Every kind of subnet, with the probability of its dropout."""
FUSIONS = ("product", "mean")
ENSEMBLE = "ensemble"


def fuse(log_shares: Tensor, fusion: str = "product") -> Tensor:
    """Log probabilities of several members as one: a normalised product, or the mean.

    product: log p = sum_m log p_m - logsumexp(sum_m log p_m);   mean: log p = logsumexp_m(log p_m) - log M

    Shapes: (batch, members, classes) -> (batch, classes).
    """
    check_choice("fusion", fusion, FUSIONS)
    if fusion == "mean":
        return log_shares.logsumexp(1) - math.log(log_shares.shape[1])
    return log_shares.sum(1).log_softmax(-1)


def valid_lengths(frames: Tensor) -> Tensor:
    """The number of frames before those at the end that hold nothing but zeros: (batch, frames, n) -> (batch,)."""
    counts = torch.arange(1, frames.shape[1] + 1, device=frames.device)
    return ((frames != 0).any(-1) * counts).amax(-1)


def frame_differences(frames: Tensor, valid: Tensor | None) -> Tensor:
    """d_t = x_t - x_(t-1), d_0 = 0, and zero for padding; without `valid` there is a spike behind the last frame.

    Shapes: frames (batch, frames, n), valid bool (batch, frames, 1) -> (batch, frames, n).
    """
    differences = nn.functional.pad(frames[:, 1:] - frames[:, :-1], (0, 0, 1, 0))
    return differences if valid is None else differences * valid


class InputAttention(nn.Module):
    """x_t <- x_t * softmax_channels(W' tanh(W x_t + b) + b')

    The weights of a frame sum to one, so that inputs become smaller by about their number.

    Shapes: (batch, frames, channels) -> the same.

    Reads as: couplings[b, 0, t, c] is the share of channel c in frame t.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.hidden, self.score = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels)
        self.coupling = Coupling("senders")

    def forward(self, frames: Tensor) -> Tensor:
        scores: Tensor = self.score(self.hidden(frames).tanh())
        shares: Tensor = self.coupling(scores.unsqueeze(1))
        return frames * shares.squeeze(1)


class MemberHead(nn.Module):
    """A linear layer of its own for each member: (batch, members, width) -> (batch, members, classes)."""

    def __init__(self, members: int, width: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, classes, width))
        self.bias = nn.Parameter(torch.zeros(members, classes))
        nn.init.normal_(self.weight, std=(2 / width) ** 0.5)

    def forward(self, features: Tensor) -> Tensor:
        return torch.einsum("bmw,mkw->bmk", features, self.weight) + self.bias


class SequenceClassifier(Network):
    """What networks of sequences of joints share: sequences (batch, frames, features) to log probabilities."""

    output_kind: ClassVar[str] = "scores"
    input_kind: ClassVar[str] = "sequences"
    score_kind: ClassVar[str] = "logits"
    registered_with_timm = False

    head: nn.Module
    members: Any
    chosen: Tensor

    def __init__(self, num_classes: int, frames: int, joints: int, bodies: int) -> None:
        super().__init__()
        check_count(num_classes=num_classes)
        check_count(1, frames=frames, joints=joints, bodies=bodies)
        self.num_classes, self.joints, self.bodies = num_classes, joints, bodies
        self._shape = (frames, bodies * joints * COORDINATES)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self._shape

    def _check(self, frames: Tensor, lengths: Tensor | None) -> None:
        count, features = self._shape
        if frames.dim() != 3 or frames.shape[1:] != self._shape or not frames.is_floating_point():
            raise UsageError(
                f"sequences are {frames.dtype} of shape {tuple(frames.shape)}; they must be floating point (batch,"
                f" {count}, {features}): {features} coordinates of {self.bodies} x {self.joints} joints a frame, or"
                " make the network with other frames, joints or bodies."
            )
        if lengths is None or torch.compiler.is_compiling():
            return
        if lengths.shape != frames.shape[:1]:
            raise UsageError(f"lengths are {tuple(lengths.shape)}; they must be ({len(frames)},), one a sequence.")
        if len(lengths) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= count:
            wrong = int(lengths.min()) if int(lengths.min()) < 1 else int(lengths.max())
            raise UsageError(f"lengths hold {wrong}; a sequence has from 1 to {count} frames.")

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.forward_head(self.forward_features(inputs, lengths))

    @abstractmethod
    def forward_features(self, inputs: Tensor, lengths: Tensor | None = None) -> Any:
        """What the head reads, from sequences and their numbers of frames."""

    def trained_scores(self, features: Any) -> Tensor:
        """Log probabilities whose cross-entropies are added up in a training: (batch, losses, classes)."""
        return self.forward_head(features).unsqueeze(1)


class SkeletonNetwork(SequenceClassifier):
    """One subnet: residual networks over time, each with a head, whose probabilities are multiplied.

    log p(x) = log_softmax(sum_m log_softmax(W_m mean_t f_m(g_m(x))_t + b_m))

    Args:
        num_classes: of the scores; 0 gives features.
        frames: of a sequence, padded with zeros at its end.
        joints, bodies: of a frame, whose coordinates are ordered by body, joint and x, y, z.
        kind: "base", coordinates are channels over time; "spatial", frames are channels over the coordinates;
            "two_stream", both; "parts", five networks for arms, legs and torso; "attention", weights for the channels
            of each frame, and units that normalise first; "difference", of successive frames; "ensemble", a
            `SkeletonEnsemble` of the four subnets.
        widths, kernel: of the residual networks.
        drop: probability of dropout; None takes that of the kind.
        fusion: "product" or "mean" of the probabilities of streams and parts, or of the subnets of an ensemble.
        block_attention: of "attention": "time", a softmax over time after each group; "legacy", always 1, as released;
            or "none".
        centre: subtracted from all coordinates of frames that are no padding; not for parts and differences.
        end_spike: keep the difference of the padding to the last frame, as released.
        parts: the joints of each part from 0; () takes those of 25 or 15 joints, else five runs of joints.
        l1: weight of the sum of the magnitudes of all filters in the loss of a training.
        momentum: share of a batch in the running statistics of batch normalisation.

    Shapes: sequences (batch, frames, bodies * joints * 3), lengths int64 (batch,) or None -> (batch, classes). Without
        lengths, frames of zeros at the end are padding.

    Reads as: of "attention", `attend.coupling` has the share of each channel in a frame.

    Deviates: the release finds padding by sums of coordinates that are not positive, and multiplies probabilities
        where this adds their logarithms. The five parts are one grouped convolution.

    Reference: arXiv:1801.02475.
    """

    @classmethod
    def class_for(cls, arguments: Mapping[str, Any]) -> type[Network]:
        check_choice("kind", arguments["kind"], (*DROPS, ENSEMBLE))
        return SkeletonEnsemble if arguments["kind"] == ENSEMBLE else cls

    def __init__(
        self,
        num_classes: int = 60,
        *,
        frames: int = 300,
        joints: int = 25,
        bodies: int = 2,
        kind: str = "base",
        widths: tuple[int, ...] = (64, 128, 256),
        kernel: int = 8,
        drop: float | None = None,
        fusion: str = "product",
        block_attention: str = "time",
        centre: float = 0.0,
        end_spike: bool = False,
        parts: tuple[tuple[int, ...], ...] = (),
        l1: float = 0.0,
        momentum: float = 0.01,
    ) -> None:
        super().__init__(num_classes, frames, joints, bodies)
        check_choice("kind", kind, DROPS)
        check_choice("fusion", fusion, FUSIONS)
        check_choice("block_attention", block_attention, BLOCK_ATTENTION)
        check_finite(centre=centre)
        check_not_negative(l1=l1)
        check_count(1, kernel=kernel, **{f"widths[{n}]": width for n, width in enumerate(widths)})
        drop = DROPS[kind] if drop is None else drop
        check_probability(drop=drop)
        self.kind, self.fusion, self.centre, self.end_spike, self.num_features = kind, fusion, centre, end_spike, 0
        channels = self._shape[1]
        make = partial(Residual1d, widths=widths, kernel=kernel, drop=drop, momentum=momentum)
        members = 1
        self.attend = InputAttention(channels) if kind == "attention" else None
        if kind == "attention":
            streams = [make(channels, pre_activation=True, final_norm=False, block_attention=block_attention)]
        elif kind == "parts":
            chosen = torch.tensor(parts_of(joints, bodies, parts))
            members = len(chosen)
            streams = [make(chosen.shape[1], groups=members)]
            # The column behind the coordinates is zero.
            self.register_buffer("chosen", chosen, persistent=False)
        elif kind == "difference":
            streams = [make(channels, final_norm=False)]
        else:
            streams = [make(channels)] if kind != "spatial" else []
            streams += [make(frames)] if kind in ("spatial", "two_stream") else []
            members = len(streams)
        self.streams = nn.ModuleList(streams)
        self.num_features = members * widths[-1]
        self.head = MemberHead(members, widths[-1], num_classes) if num_classes else nn.Identity()
        self.magnitude = AddedLoss("l1", l1) if l1 else None

    def _inputs(self, frames: Tensor, lengths: Tensor) -> list[Tensor]:
        """What each stream reads: (batch, channels, steps)."""
        valid = (torch.arange(frames.shape[1], device=frames.device) < lengths.unsqueeze(1)).unsqueeze(-1)
        if self.kind == "difference":
            return [frame_differences(frames, None if self.end_spike else valid).mT]
        if self.kind == "parts":
            padded = nn.functional.pad(frames, (0, 1))
            return [padded[..., self.chosen.flatten()].mT]
        if self.centre:
            frames = frames - self.centre * valid.to(frames.dtype)
        if self.attend is not None:
            frames = self.attend(frames)
        both = {"spatial": [frames], "two_stream": [frames.mT, frames]}
        return both.get(self.kind, [frames.mT])

    def forward_features(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The features of each stream or part: (batch, members, widths[-1])."""
        self._check(inputs, lengths)
        lengths = valid_lengths(inputs) if lengths is None else lengths
        read = zip(self.streams, self._inputs(inputs, lengths), strict=True)
        features = torch.cat([stream(steps) for stream, steps in read], 1)
        if self.magnitude is not None and self.training:
            self.magnitude(torch.stack([m.weight.abs().sum() for m in self.filters()]).sum())
        return features

    def filters(self) -> list[SameConv1d]:
        """The convolutions over time."""
        return [module for module in self.modules() if isinstance(module, SameConv1d)]

    def member_scores(self, features: Tensor) -> Tensor:
        """Log probabilities of each stream or part: (batch, members, classes)."""
        scores: Tensor = self.head(features).log_softmax(-1)
        return scores

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        if pre_logits or self.headless:
            return features.flatten(1)
        return fuse(self.member_scores(features), self.fusion)

    def layer_depths(self) -> dict[str, int]:
        """The layer of each parameter by name: the networks over time, then the heads."""
        return layer_depths([name for name, _ in self.named_parameters()], ["streams"], self.classifier_parts)


class SkeletonEnsemble(SequenceClassifier):
    """Four subnets, each trained by its own loss, whose probabilities are fused.

    p(x) = product_k p_k(x) / sum_classes product_k p_k(x),   or the mean of the p_k(x)

    Args:
        num_classes: of the scores; 0 gives features.
        fusion: of the subnets: "product" or "mean"; their streams and parts are multiplied.
        frames, joints, bodies: of every subnet.
        kind: not used: the kinds of the subnets are `SUBNETS`.
        given: other arguments of `SkeletonNetwork`, for every subnet.

    Shapes: as of `SkeletonNetwork`.

    Deviates: the paper only says that fusion is late; the product is the rule inside of its subnets.

    Reference: arXiv:1801.02475.
    """

    classifier: ClassVar[str] = "members"

    def __init__(
        self,
        num_classes: int = 60,
        *,
        fusion: str = "product",
        frames: int = 300,
        joints: int = 25,
        bodies: int = 2,
        kind: str = ENSEMBLE,
        **given: Any,
    ) -> None:
        super().__init__(num_classes, frames, joints, bodies)
        check_choice("fusion", fusion, FUSIONS)
        self.fusion = fusion
        self.members = nn.ModuleList(
            SkeletonNetwork(num_classes, frames=frames, joints=joints, bodies=bodies, kind=each, **given)
            for each in SUBNETS
        )
        self.num_features = sum(member.num_features for member in self.members)

    def forward_features(self, inputs: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, ...]:
        """The features of every subnet."""
        self._check(inputs, lengths)
        return tuple(member.forward_features(inputs, lengths) for member in self.members)

    def member_scores(self, features: tuple[Tensor, ...]) -> Tensor:
        """Log probabilities of each subnet: (batch, subnets, classes)."""
        rows = zip(self.members, features, strict=True)
        return torch.stack([member.forward_head(each) for member, each in rows], 1)

    def trained_scores(self, features: tuple[Tensor, ...]) -> Tensor:
        """Each subnet is trained by itself; the fusion is not."""
        return self.member_scores(features)

    def forward_head(self, features: tuple[Tensor, ...], pre_logits: bool = False) -> Tensor:
        if pre_logits or self.headless:
            return torch.cat([each.flatten(1) for each in features], 1)
        return fuse(self.member_scores(features), self.fusion)

    def layer_depths(self) -> dict[str, int]:
        """The layer of each parameter by name, the same for all subnets."""
        return {
            f"members.{number}.{name}": depth
            for number, member in enumerate(self.members)
            for name, depth in member.layer_depths().items()
        }


_register = partial(register_model, source="arXiv:1801.02475", module=SkeletonNetwork)
_SMALL: dict[str, Any] = {
    "num_classes": 5,
    "frames": 60,
    "joints": 15,
    "bodies": 1,
    "widths": (16, 32, 64),
    "momentum": 0.1,
}
_TINY: dict[str, Any] = {"frames": 9, "joints": 5, "bodies": 1, "widths": (4, 5), "kernel": 3, "num_classes": 3}

_register(
    "skeleton_base",
    summary="Residual network over 300 frames of two bodies of 25 joints.",
    parameters=1_874_876,
    centre=0.5909,
    l1=1e-4,
    tiny=_TINY,
    variants={
        "two streams": {"kind": "two_stream"},
        "parts": {"kind": "parts", "fusion": "mean"},
        "attention": {"kind": "attention"},
        "difference": {"kind": "difference", "end_spike": True},
        "ensemble": {"kind": ENSEMBLE},
    },
)
for _name, _words, _parameters in (
    ("two_stream", "Two residual networks, over the frames and over the coordinates of a body", 3_826_552),
    ("parts", "Five residual networks for arms, legs and torso", 9_082_540),
    ("attention", "Residual network with weights for coordinates and for frames", 2_138_257),
    ("difference", "Residual network over the differences of successive frames", 1_874_364),
):
    _register(
        f"skeleton_{_name}",
        summary=f"{_words}; 300 frames of two bodies of 25 joints.",
        parameters=_parameters,
        kind=_name,
        centre=0.5909,
        l1=1e-4,
    )
_register(
    "skeleton_small",
    summary="Residual network over 60 frames of a body of 15 joints; `kind` makes the other subnets.",
    parameters=118_437,
    **_SMALL,
)
_register(
    "skeleton_ensemble",
    summary="Four subnets fused by the product of their probabilities; 300 frames of two bodies of 25 joints.",
    parameters=16_921_713,
    kind=ENSEMBLE,
    centre=0.5909,
    l1=1e-4,
)
_register(
    "skeleton_ensemble_small",
    summary="Four subnets fused, for 60 frames of a body of 15 joints.",
    parameters=1_063_899,
    kind=ENSEMBLE,
    **_SMALL,
)
