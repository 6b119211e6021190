"""RANSAC for constellations: poses proposed by pairs of points, and the cheapest objects that share no point.

Source: the comparison of Nazabal, Williams 2021, arXiv:2103.06676; the search for a cover is ours, exact.
Cost: slots^2 proposals a template; of the search, objects * proposals * 2^slots an image.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from papers.common.constellations import Templates, similarity_basis

TOLERANCES = (0.1, 1.0)
"""Squared distances within which a part accepts a point; the next is tried if no cover explains every point."""
AT_ONCE = 2**22
"""Numbers of a batch of searches."""


class RansacResult(NamedTuple):
    """The objects of some images.

    Attributes:
        labels (images, slots): the object of each point; one more than the last object if no object explains it.
        mean (images, objects, pose): the pose of each object, by least squares on its points; 0 where it is absent.
        present (images, objects): which objects there are.
        cost (images,): sum of the squared distances of the proposals that were chosen.
        covered (images,): whether every point is explained.
    """

    labels: Tensor
    mean: Tensor
    present: Tensor
    cost: Tensor
    covered: Tensor


class Proposals(NamedTuple):
    """Sets of points that one template fits, without repetition.

    Attributes:
        points (images, proposals, parts): the point of each part.
        cost (images, proposals): inf where a proposal does not fit or another takes the same points for less.
        sets (images, proposals): the points as bits.
    """

    points: Tensor
    cost: Tensor
    sets: Tensor


def propose(template: Tensor, points: Tensor, mask: Tensor, tolerance: float) -> Proposals:
    """Fit a template to every ordered pair of points by its first two parts; each other part takes the nearest free
    point.

    [F_1; F_2] y = [x_a; x_b],   a part n accepts x_m where |x_m - F_n y|^2 < tolerance

    Shapes: template (parts, 2), points (images, slots, 2), mask (images, slots).
    """
    images, slots = mask.shape
    first, second = torch.cartesian_prod(*[torch.arange(slots, device=points.device)] * 2).unbind(1)
    first, second = first[first != second], second[first != second]
    basis = similarity_basis(template.to(points))
    seen = torch.cat((points[:, first], points[:, second]), -1)
    poses = torch.linalg.solve(basis[:2].flatten(0, 1), seen.unsqueeze(-1)).squeeze(-1)
    free = mask.unsqueeze(1).repeat(1, len(first), 1)
    chosen = [first.expand(images, -1), second.expand(images, -1)]
    cost = points.new_zeros(images, len(first)).masked_fill(~(mask[:, first] & mask[:, second]), torch.inf)
    for n in range(len(template)):
        if n > 1:
            errors = (points.unsqueeze(1) - (poses @ basis[n].T).unsqueeze(2)).square().sum(-1)
            least, nearest = errors.masked_fill(~free, torch.inf).min(-1)
            chosen.append(nearest)
            cost = cost + least.masked_fill(~(least < tolerance), torch.inf)
        free = free.scatter(-1, chosen[n].unsqueeze(-1), False)
    taken = torch.stack(chosen, -1)
    return _distinct(Proposals(taken, cost, (1 << taken).sum(-1)))


def _distinct(proposals: Proposals) -> Proposals:
    """Of the proposals of one image that take the same points, only the cheapest stays finite; sorted by cost."""
    order = proposals.cost.argsort(dim=-1, stable=True)
    order = order.gather(1, proposals.sets.gather(1, order).argsort(dim=-1, stable=True))
    sets, cost = proposals.sets.gather(1, order), proposals.cost.gather(1, order)
    repeated = torch.zeros_like(sets, dtype=torch.bool)
    repeated[:, 1:] = sets[:, 1:] == sets[:, :-1]
    cost = cost.masked_fill(repeated, torch.inf)
    best = cost.argsort(dim=-1, stable=True)
    kept = max(1, int(cost.isfinite().sum(1).max())) if cost.numel() else 0
    best = best[:, :kept]
    places = order.gather(1, best)
    points = proposals.points.gather(1, places.unsqueeze(-1).expand(-1, -1, proposals.points.shape[-1]))
    return Proposals(points, cost.gather(1, best), sets.gather(1, best))


def best_cover(proposals: list[Proposals], mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Disjoint proposals, at most one an object, that explain the most points, and of those the cheapest.

    Shapes: mask (images, slots) -> chosen (images, objects), the number of a proposal or -1; cost (images,); whether
        every point is explained (images,).
    """
    images, slots = mask.shape
    device = mask.device
    every = torch.arange(1 << slots, device=device)
    best = torch.full((images, 1 << slots), torch.inf, dtype=proposals[0].cost.dtype, device=device)
    best[:, 0] = 0
    taken = []
    for own in proposals:
        after, number = best.clone(), torch.full_like(best, -1, dtype=torch.int64)
        for c in range(own.sets.shape[1]):
            chosen = own.sets[:, c : c + 1]
            # The set with these points is made from the set without them.
            before = best.gather(1, every & ~chosen) + own.cost[:, c : c + 1]
            better = ((every & chosen) == chosen) & (before < after)
            after, number = torch.where(better, before, after), torch.where(better, c, number)
        best = after
        taken.append(number)
    sizes = torch.stack([every >> bit & 1 for bit in range(slots)]).sum(0)
    most = torch.where(best.isfinite(), sizes, -1).amax(1, keepdim=True)
    cost, reached = best.masked_fill(sizes != most, torch.inf).min(1)
    numbers: list[Tensor] = []
    left = reached
    for own, number in zip(reversed(proposals), reversed(taken), strict=True):
        chosen = number.gather(1, left.unsqueeze(1)).squeeze(1)
        numbers.insert(0, chosen)
        used = own.sets.gather(1, chosen.clamp(min=0).unsqueeze(1)).squeeze(1)
        left = torch.where(chosen >= 0, left & ~used, left)
    return torch.stack(numbers, 1), cost, most.squeeze(1) == mask.sum(1)


def ransac(
    templates: Templates, points: Tensor, mask: Tensor, *, tolerances: tuple[float, ...] = TOLERANCES
) -> RansacResult:
    """Assign points to objects by trying every pair of points as the first two parts of every template.

    Images that a tolerance leaves points unexplained in are tried with the next; the last result that explains the most
    points stays.

    Args:
        templates: of the objects, at least two parts each, the first two apart from each other.
        points, mask: the points, and which slots have one.
        tolerances: squared distances, growing.

    Shapes: points (images, slots, 2), mask (images, slots); see `RansacResult`.

    Reference: arXiv:2103.06676.
    """
    points = points.double()
    portion = max(1, AT_ONCE >> mask.shape[1])
    parts = [
        _ransac(templates, p, m, tolerances) for p, m in zip(points.split(portion), mask.split(portion), strict=True)
    ]
    return RansacResult(*(torch.cat(field) for field in zip(*parts, strict=True)))


def _ransac(templates: Templates, points: Tensor, mask: Tensor, tolerances: tuple[float, ...]) -> RansacResult:
    best: RansacResult | None = None
    for tolerance in tolerances:
        result = _at(templates, points, mask, tolerance)
        if best is None:
            best = result
            continue
        objects = int(templates.owner.max()) + 1
        more = (result.labels != objects).sum(1) > (best.labels != objects).sum(1)
        better = more & ~best.covered
        pairs = zip(best, result, strict=True)
        best = RansacResult(*(torch.where(better.view(-1, *(1,) * (a.dim() - 1)), b, a) for a, b in pairs))
        if best.covered.all():
            break
    assert best is not None
    return best


def _at(templates: Templates, points: Tensor, mask: Tensor, tolerance: float) -> RansacResult:
    objects = int(templates.owner.max()) + 1
    own = [templates.points[templates.owner == k].to(points) for k in range(objects)]
    proposals = [propose(template, points, mask, tolerance) for template in own]
    chosen, cost, covered = best_cover(proposals, mask)
    labels = torch.full_like(mask, objects, dtype=torch.int64)
    means = points.new_zeros(len(points), objects, 4)
    for k, (template, proposal) in enumerate(zip(own, proposals, strict=True)):
        number = chosen[:, k].clamp(min=0).view(-1, 1, 1).expand(-1, 1, len(template))
        places, there = proposal.points.gather(1, number).squeeze(1), chosen[:, k] >= 0
        labels = torch.where(there.unsqueeze(1), labels.scatter(1, places, k), labels)
        seen = points.gather(1, places.unsqueeze(-1).expand(-1, -1, 2)).flatten(1)
        pose = seen @ torch.linalg.pinv(similarity_basis(template).flatten(0, 1)).T
        means[:, k] = pose * there.unsqueeze(1)
    return RansacResult(labels, means, chosen >= 0, cost, covered)
