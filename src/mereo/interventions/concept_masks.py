"""Masks of several concepts from attention, the loss that aligns attention with them, and which concepts are drawn.

Source: arXiv:2405.17965 (AttenCraft), and the authors' public code.
Cost: four products of the averaged self-attention with a vector for each concept, in place of a power of the matrix.
"""

from collections.abc import Sequence
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError, check_choice, check_count, check_positive
from mereo.interventions.subject_masks import min_max, spread_along, square, token_columns

WINDOW = 7


def concept_maps(
    self_attn: Tensor,
    cross_attn: Tensor,
    concept_tokens: Sequence[int | Sequence[int]],
    background_token: int = 0,
    power: int = 4,
) -> Tensor:
    """Cross-attention of each concept, and last of the background, spread along self-attention.

    F_t = mm(S^power mm(A_t^2)),   mm = min-max

    The min-max of S and of its power, which the public code also takes, vanish in the outer one: rows of S sum to one,
    so that a shift of S adds the same to all pixels of a map.

    Args:
        self_attn, cross_attn: averaged over heads and layers.
        concept_tokens: the number of each concept's word, or the numbers of its words, of which the largest counts.
        background_token: the start of the text.

    Shapes: (N_s, N_s), (N_c, words) -> (concepts + 1, H, W), H W = N_s.
    """
    concepts = token_columns(cross_attn, concept_tokens, "concept_tokens")
    columns = square(torch.cat((concepts, token_columns(cross_attn, [background_token], "background_token")), -2))
    sharp = min_max(columns**2)
    side = int(len(self_attn) ** 0.5 + 0.5)
    if sharp.shape[-1] != side:
        sharp = F.interpolate(sharp[None], size=(side, side), mode="bicubic", align_corners=False)[0]
    return min_max(square(spread_along(self_attn, sharp.flatten(-2), power)))


def label_maps(maps: Tensor, threshold: float = 0.1) -> Tensor:
    """The map that exceeds all others by more than the threshold: (M + 1, H, W) -> int64 (H, W), M + 1 for none."""
    best = maps.topk(2, 0)
    return best.indices[0].where(best.values[0] - best.values[1] > threshold, len(maps))


def concept_masks(
    self_attn: Tensor,
    cross_attn: Tensor,
    concept_tokens: Sequence[int | Sequence[int]],
    background_token: int = 0,
    power: int = 4,
    threshold: float = 0.1,
) -> tuple[Tensor, tuple[int, ...]]:
    """Where each concept stands, and the concept to which each mask belongs.

    Args:
        threshold: by which the map of a class must exceed all others; a cell without such a class stays unassigned.

    Shapes: as `concept_maps` -> labels int64 (H, W): 0 .. M - 1 concepts, M background, M + 1 unassigned; the
        assignment has M + 1 numbers.

    Raises:
        UsageError: if two masks belong to the same concept, or a mask is empty; for no concept or an empty one.

    Reference: arXiv:2405.17965; the argument `concept_tokens` is explained at `concept_maps`.
    """
    maps = concept_maps(self_attn, cross_attn, concept_tokens, background_token, power)
    labels = label_maps(maps, threshold)
    masks = torch.stack([labels == number for number in range(len(maps))])
    sums = (maps[:, None] * masks).sum((-2, -1))  # (maps, masks)
    assignment = tuple(sums.argmax(0).tolist())
    if len({*assignment}) < len(maps) or not bool(masks.flatten(1).any(1).all()):
        raise UsageError(
            f"threshold is {threshold}, with which the masks belong to {assignment} and hold"
            f" {masks.flatten(1).sum(1).tolist()} cells; they must be of different concepts: give another noise or"
            " threshold."
        )
    return labels, assignment


def attention_alignment_loss(
    cross_maps: Tensor, masks: Tensor, temperature: float = 1.0, weight: float = 1.0
) -> Tensor:
    """How far the cross-attention of each class is from its mask; gradients pass through the maps alone.

    weight mean_c JS(softmax(C_c / temperature), softmax(M_c / temperature)), natural logarithm, softmax over cells

    Shapes: (M + 1, H, W) in [0, 1] twice -> ().
    """
    check_positive(temperature=temperature)
    if cross_maps.shape != masks.shape or cross_maps.dim() != 3:
        raise UsageError(
            f"cross_maps are {tuple(cross_maps.shape)} and masks {tuple(masks.shape)}; both must be (classes, H, W)."
        )
    p = (cross_maps.float().flatten(1) / temperature).log_softmax(1)
    q = (masks.detach().float().flatten(1) / temperature).log_softmax(1)
    middle = torch.logaddexp(p, q) - torch.log(torch.tensor(2.0, device=p.device))
    divergence = 0.5 * ((p.exp() * (p - middle)).sum(1) + (q.exp() * (q - middle)).sum(1))
    return weight * divergence.mean()


class ConceptSampler:
    """Draws the concepts of a training step, so that none is learned much faster than the others.

    Args:
        concepts: M, their number.
        mode: "joint", all of them; "uniform", all subsets of one or two equally often; "reweighted", one concept c in
            2/3 of the steps, with a probability that grows as its attention falls, (1 / s_c) / sum (1 / s), and all of
            them in the others.
        scores: s of each concept, its mean attention inside its mask, for "reweighted".
        seed: of the draws.

    Deviates: the paper's "reweighted" is known from its abstract alone.
    """

    def __init__(
        self, concepts: int, mode: str = "uniform", scores: Sequence[float] | None = None, seed: int = 0
    ) -> None:
        check_count(1, concepts=concepts)
        check_choice("mode", mode, ("joint", "uniform", "reweighted"))
        everyone = tuple(range(concepts))
        self.subsets: list[tuple[int, ...]] = [everyone]
        shares = [1.0]
        if mode == "uniform":
            self.subsets = [each for size in (1, 2) for each in combinations(everyone, size)]
            shares = [1.0] * len(self.subsets)
        elif mode == "reweighted":
            if scores is None or len(scores) != concepts or min(scores) <= 0:
                raise UsageError(f"scores is {scores}; give a number above 0 for each of the {concepts} concepts.")
            inverse = [1 / score for score in scores]
            self.subsets = [*((concept,) for concept in everyone), everyone]
            shares = [*(2 * each / sum(inverse) for each in inverse), 1.0]
        self.probabilities = torch.tensor(shares) / sum(shares)
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self) -> tuple[int, ...]:
        return self.subsets[int(torch.multinomial(self.probabilities, 1, generator=self.generator))]


def structural_similarity(x: Tensor, y: Tensor) -> float:
    """Mean SSIM of two maps with values in [0, 1], in windows of 7 x 7: (H, W) twice.

    Reference: Wang et al. 2004, doi:10.1109/TIP.2003.819861, with sample covariances.
    """
    if x.shape != y.shape or x.dim() != 2 or min(x.shape) < WINDOW:
        raise UsageError(f"maps are {tuple(x.shape)} and {tuple(y.shape)}; both must be one size, at least 7 x 7.")
    x, y = x.double()[None, None], y.double()[None, None]

    def mean(z: Tensor) -> Tensor:
        return F.avg_pool2d(z, WINDOW, 1)

    more = WINDOW**2 / (WINDOW**2 - 1)
    mx, my = mean(x), mean(y)
    vx, vy, both = (more * (mean(a * b) - c) for a, b, c in ((x, x, mx * mx), (y, y, my * my), (x, y, mx * my)))
    c1, c2 = 0.01**2, 0.03**2
    similar = (2 * mx * my + c1) * (2 * both + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    return float(similar.mean())


def accepted(old: Tensor, new: Tensor, classes: int, least: float = 0.8) -> bool:
    """Whether new labels may replace old ones: SSIM of each class's mask of at least `least`. int64 (H, W) twice."""
    pairs = [((old == each).double(), (new == each).double()) for each in range(classes)]
    return all(structural_similarity(*pair) >= least for pair in pairs)
