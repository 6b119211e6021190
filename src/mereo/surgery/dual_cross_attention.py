"""Dual cross-attention learning for a vision transformer: a second answer from the patches that matter most, and in
training a third one in which each image also attends to another image.

Source: Zhu, Ke, Li, Liu, Tian, Shan 2022, arXiv:2205.02151.
Cost: for DeiT-T at 448 x 448 8.5 % more parameters and 1.6 % more multiply-adds. Every layer makes its map of
couplings, of which the mean over the heads is kept. A training step runs the network on twice as many images, half of
them with twice as many keys.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import AddedLoss, Coupling
from mereo.core.kernels.attention import attend
from mereo.core.squash import accumulation_type
from mereo.core.surgery import surgery
from mereo.core.triplets import hard_triplet_loss
from mereo.core.votes import SameVotes
from mereo.errors import UsageError, check_choice, check_fraction, check_not_negative
from mereo.mechanisms.attention.hosted import HostedAttention, attention_drop, replace_attention
from mereo.mechanisms.select.global_local import GlobalLocalBlock, most_important, rollout_row
from mereo.surgery.evit import blocks_of, check_block, prefix_of

PARTNERS = ("plain", "pair")
"""The stream of the partner's keys and values: the one of ordinary self-attention, or the one of pairs."""
HELD_AS = "dual"
"""The name of what is added to the network."""


def dual_loss(losses: Sequence[Tensor], weights: Tensor) -> Tensor:
    """The loss of several answers with learned weights: sum of exp(-w_a) L_a + w_a, halved.

    Its least value over w is reached at w_a = ln L_a. It may be negative.

    Shapes: losses () each, weights (answers,) -> ().

    Reference: arXiv:2205.02151, eq. 8.
    """
    return (torch.exp(-weights) * torch.stack(list(losses)) + weights).sum() / 2


class DualLoss(AddedLoss):
    """What is added to the cross-entropy of the first answer, so that the sum is `dual_loss` of all answers.

    The loss of an answer is its cross-entropy and, with a margin, `hard_triplet_loss` of its features.

    Args:
        answers: how many there are.
        margin: of the triplets; None for no triplets, which need labels that are not soft.

    Shapes: recorded, scores (batch, classes) of each answer, and its features (batch, dim) with a margin; labels int64
        (batch,) or soft (batch, classes).
    """

    def __init__(self, answers: int, margin: float | None = None) -> None:
        super().__init__(HELD_AS)
        self.weights, self.margin = nn.Parameter(torch.zeros(answers)), margin

    def term(self, recorded: Any, labels: Tensor | None) -> Tensor | None:
        if labels is None or (labels.dim() != 1 and not labels.is_floating_point()):
            return None
        scores = [each if self.margin is None else each[0] for each in recorded]
        losses = [F.cross_entropy(each.to(accumulation_type(each)), labels) for each in scores]
        first = losses[0]
        if self.margin is not None:
            if labels.is_floating_point():
                raise UsageError(f"triplet is {self.margin}, and labels are soft; leave out mixup and cutmix.")
            triplets = [hard_triplet_loss(each.float(), labels, self.margin) for _, each in recorded]
            losses = [one + other for one, other in zip(losses, triplets, strict=True)]
        return dual_loss(losses, self.weights) - first


@dataclass
class _Pass:
    """What one pass through the network collects.

    Attributes:
        pairs: the partner of each image in the second half of the doubled batch, int64 (batch,); None if not doubled.
        maps: couplings of each layer, the mean over its heads, by its number.
        tokens, paired: after the last block, of both halves, (batch, tokens, dim).
    """

    pairs: Tensor | None = None
    maps: dict[int, Tensor] = field(default_factory=dict)
    tokens: Tensor | None = None
    paired: Tensor | None = None


class PairAttention(HostedAttention):
    """The attention of another layer; in the second half of a doubled batch an image also attends to its partner.

    out_i = softmax(q_i [k_i; k_j]^T / sqrt(d)) [v_i; v_j],   j the partner of i, one softmax over both

    Args:
        host: its layer.
        state: of the pass through the network; it gets the couplings of the first half, the mean over the heads.
        number: of the layer.
        keep_maps: whether it does.
        partner: of `PARTNERS`.

    Shapes: (batch, tokens, dim) -> the same.

    Reference: arXiv:2205.02151, eq. 6.
    """

    def __init__(self, host: nn.Module, state: _Pass, number: int, keep_maps: bool, partner: str) -> None:
        super().__init__(host)
        own = getattr(host, "coupling", None)
        self.coupling = own if isinstance(own, Coupling) else Coupling("senders", dropout=attention_drop(host))
        self.pair_coupling = Coupling("senders", dropout=attention_drop(host))
        self.state, self.number, self.keep_maps, self.partner = state, number, keep_maps, partner

    def exchange(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pairs = self.state.pairs
        if pairs is None:
            return self._alone(q, k, v).transpose(1, 2).flatten(2)
        size = pairs.shape[0]
        out = self._alone(q[:size], k[:size], v[:size])
        start = 0 if self.partner == "plain" else size
        keys, values = (torch.cat((x[size:], x[start : start + size][pairs]), 2) for x in (k, v))
        paired = attend(q[size:], keys, values, self.pair_coupling)
        return torch.cat((out, paired)).transpose(1, 2).flatten(2)

    def _alone(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.keep_maps:
            return attend(q, k, v, self.coupling)
        couplings = self.coupling(SameVotes(k).agree(q * q.shape[-1] ** -0.5))
        self.state.maps[self.number] = couplings.detach().mean(1)
        return SameVotes(v).combine(couplings)


class DualBranches(nn.Module):
    """What a network gets: the block for the patches that matter most, with a norm and a classifier, and the loss.

    Attributes:
        layers: of the network.
        pairs: the partner of each image of the next batches, int64 (batch,); None draws a permutation each time.
        share: of the patches that are queries of the block; None without one.
        pairwise: whether images attend to a partner in training.
    """

    block: GlobalLocalBlock | None
    norm: nn.Module | None
    classifier: nn.Module | None

    def __init__(
        self, model: Any, prefix: int, share: float | None, pairwise: bool, triplet: float | None, state: _Pass
    ) -> None:
        super().__init__()
        blocks = blocks_of(model)
        self.layers = len(blocks)
        self.pairs: Tensor | None = None
        self.share, self.pairwise, self.prefix, self.state = share, pairwise, prefix, state
        self.block = self.norm = self.classifier = None
        if share is not None:
            self.block = GlobalLocalBlock(blocks[-1], prefix)
            self.norm, self.classifier = deepcopy(model.norm), deepcopy(model.head)
        self.loss = DualLoss(1 + (share is not None) + pairwise, triplet)
        self.train(model.training)

    def draw(self, like: Tensor) -> Tensor:
        """The partner of each image of a batch."""
        if self.pairs is None:
            return torch.randperm(like.shape[0], device=like.device)
        if self.pairs.shape != like.shape[:1]:
            raise UsageError(f"pairs is {tuple(self.pairs.shape)} for {len(like)} images; give a number for each.")
        return self.pairs.to(like.device)

    def forward(self) -> Tensor:
        """The class token of the second answer, (batch, dim)."""
        assert self.block is not None and self.norm is not None and self.share is not None
        state = self.state
        maps, tokens = [state.maps[number] for number in sorted(state.maps)], state.tokens
        if tokens is None or [each.shape[1] for each in maps] != self.layers * [tokens.shape[1]]:
            raise UsageError(
                "blocks were changed after dual_cross_attention, which reads their attention; do that before."
            )
        rows = self.block(tokens, most_important(rollout_row(maps), self.prefix, self.share))
        features: Tensor = self.norm(rows)[:, 0]
        return features


class _Double:
    """Before the first block: in training the tokens of all images twice, if images have partners."""

    def __init__(self, branches: DualBranches, state: _Pass) -> None:
        self.branches, self.state = branches, state

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        doubled = self.branches.training and self.branches.pairwise
        self.state.pairs = self.branches.draw(inputs[0]) if doubled else None
        return (torch.cat((inputs[0], inputs[0])), *inputs[1:]) if doubled else None


class _Keep:
    """After the last block: keep the tokens of both halves, and let the first one go on."""

    def __init__(self, state: _Pass) -> None:
        self.state = state

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        state = self.state
        size = output.shape[0] if state.pairs is None else state.pairs.shape[0]
        state.tokens, state.paired = output[:size], output[size:]
        return state.tokens


class _Answer:
    """After the network: all answers into the loss in training, and both together in evaluation."""

    def __init__(self, branches: DualBranches) -> None:
        self.branches = branches

    def __call__(self, module: Any, inputs: Any, scores: Tensor) -> Tensor:
        branches, answers = self.branches, [scores]
        features: list[Tensor] = []
        state, triplets = branches.state, branches.training and branches.loss.margin is not None
        if triplets:
            features.append(module.norm(state.tokens)[:, 0])
        if branches.classifier is not None:
            features.append(branches())
            answers.append(branches.classifier(features[-1]))
            if answers[1].shape != scores.shape:
                raise UsageError(
                    f"the network gives {scores.shape[1]} scores and its second classifier {answers[1].shape[1]}; call"
                    " dual_cross_attention after reset_classifier."
                )
        if state.pairs is not None and state.paired is not None:
            features.append(module.norm(state.paired)[:, 0])
            answers.append(module.head(features[-1]))
        state.tokens, state.paired, state.maps = None, None, {}
        if branches.training:
            branches.loss([*zip(answers, features, strict=True)] if triplets else answers)
        if branches.training or len(answers) == 1:
            return scores
        shares = [each.to(accumulation_type(each)).log_softmax(1) for each in answers]
        return (torch.logaddexp(*shares) - math.log(2)).to(scores.dtype)


@surgery
def dual_cross_attention(
    model: nn.Module,
    share: float | None = 0.1,
    *,
    pairwise: bool = True,
    partner: str = "plain",
    triplet: float | None = None,
) -> nn.Module:
    """A copy of a vision transformer with a second answer, by global-local cross-attention, and pairs in training.

    r = rollout of the class token;   z = block([class, the floor(share N) patches with the largest r], all tokens)

    scores = log((softmax(head(x_class)) + softmax(head'(z_class))) / 2);   in training head(x_class)

    In training each image also runs through the same blocks with the keys and values of another image of the batch
    beside its own, and its class is predicted from that too: three answers, whose cross-entropies the added loss "dual"
    weighs by learned numbers, see `dual_loss`. `mereo train` sums it; in a loop of your own:

    loss = F.cross_entropy(network(images), labels) + sum(mereo.added_losses(network, labels).values())

    Args:
        model: of mereo or timm, with a class token, trained or not. It is not changed; the copy has the same weights
            under the same names, and new ones under `dual`.
        share: of the patches that attend to all tokens once more, R; the paper has 0.1 for classes and 0.3 for
            re-identification. None leaves this answer out.
        pairwise: whether images have partners in training. `network.dual.pairs` sets them; they are random by default.
        partner: the stream of the partner's keys and values: "plain", of its own answer, or "pair".
        triplet: for re-identification, the margin of `mereo.core.triplets.hard_triplet_loss` of the class token, which
            each answer's loss then has as well; give several images of each identity in a batch, and compare images by
            `dual_embedding`. The margin of the paper is not stated.

    Shapes: as for `model`. Recorded: couplings of each layer, and `dual.block.kept`, int64 (batch, count), the numbers
        of the chosen patches.

    Raises:
        UsageError: for a model without a class token or a classifier, and blocks that compute something else.

    Deviates: the paper does not state where the new block, its norm and its classifier start; here they are copies of
        the last block, norm and classifier. The pairs share the classifier of the first answer. Random partners may be
        the image itself.

    Reference: arXiv:2205.02151, section 3; rollout: arXiv:2005.00928.
    """
    check_choice("partner", partner, PARTNERS)
    if triplet is not None:
        check_not_negative(triplet=triplet)
    if share is not None:
        check_fraction(share=share)
    prefix = prefix_of(model)
    if hasattr(model, HELD_AS):
        raise UsageError(f"model is a {type(model).__name__} that has {HELD_AS!r} already; give one without it.")
    if share is None and not pairwise:
        raise UsageError("share is None and pairwise is False, which changes nothing; give one of them.")
    if getattr(model, "global_pool", "token") != "token" or not isinstance(getattr(model, "head", None), nn.Linear):
        raise UsageError(
            f"model is a {type(model).__name__} that does not classify by the class token with a linear layer `head`;"
            " give one that does."
        )
    for number, block in enumerate(blocks_of(model)):
        check_block(block, prefix, number)
    state, numbers = _Pass(), count()
    branches = DualBranches(model, prefix, share, pairwise, triplet, state)
    copy = replace_attention(model, lambda host: PairAttention(host, state, next(numbers), share is not None, partner))
    copy.add_module(HELD_AS, branches)
    if share is not None and hasattr(copy, "classifier_parts"):
        # Weights for other classes leave out both classifiers.
        copy.classifier_parts = (*copy.classifier_parts, f"{HELD_AS}.classifier")  # type: ignore[assignment,misc]
    layers = blocks_of(copy)
    layers[0].register_forward_pre_hook(_Double(branches, state))
    layers[-1].register_forward_hook(_Keep(state))
    copy.register_forward_hook(_Answer(branches))
    return copy


def dual_embedding(network: Any, images: Tensor) -> Tensor:
    """The vectors by which images are compared in re-identification: the class tokens of both answers, side by side.

    Args:
        network: what `dual_cross_attention` returned, in evaluation. Without a second answer there is one class token.

    Shapes: images (batch, channels, height, width) -> (batch, 2 dim), or (batch, dim).

    Reference: arXiv:2205.02151, section 4.1.
    """
    branches = getattr(network, HELD_AS, None)
    if not isinstance(branches, DualBranches) or network.training:
        way = "in training" if isinstance(branches, DualBranches) else "without dual cross-attention"
        raise UsageError(
            f"network is a {type(network).__name__} {way}; give one after dual_cross_attention and eval()."
        )
    features = [network.forward_features(images)[:, 0]]
    if branches.block is not None:
        features.append(branches())
    state = branches.state
    state.tokens, state.paired, state.maps = None, None, {}
    return torch.cat(features, 1)
