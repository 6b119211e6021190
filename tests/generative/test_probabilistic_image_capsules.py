"""The bound of leaves and pixels against loops and samples of the model, the encoder, learning, the toy images."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.generative import (
    ImageBelief,
    PoseBelief,
    ProbabilisticImageCapsules,
    make_glyphs,
    prob_image_capsules_toy,
)
from mereo.generative.glyphs import CENTRES, OWNER, STROKES, draw_strokes
from mereo.generative.latent_leaves import leaf_routing
from mereo.generative.pose_tree import affine, free_numbers

D = torch.float64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def capsules(leaves: int = 3, parents: int = 2, **options: Any) -> ProbabilisticImageCapsules:
    """A small network with all parameters of its tree away from their start."""
    torch.manual_seed(0)
    own = ProbabilisticImageCapsules(leaves, parents, img_size=4, template_size=3, hidden=8, **options).double()
    with torch.no_grad():
        for parameter in own.tree.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return own


def belief_of(batch: int, leaves: int, parents: int) -> ImageBelief:
    def part(count: int) -> PoseBelief:
        mean = torch.eye(2, 3, dtype=D).flatten() + 0.3 * torch.randn(batch, count, 6, dtype=D)
        log_std = -1 + 0.3 * torch.randn(batch, count, 6, dtype=D)
        return PoseBelief(mean, log_std, torch.randn(batch, count, dtype=D))

    return ImageBelief(part(leaves), part(parents))


def expected_density(own: ProbabilisticImageCapsules, belief: ImageBelief, i: int, j: int) -> Tensor:
    """E log N(A_i; A_j M_ij, 1 / lambda_ij) for one image."""
    tree, matrix = own.tree, affine(own.tree.relation[j, i])
    precision = tree.log_precision[j, i].exp()
    error = belief.leaves.mean[i] - free_numbers(affine(belief.parents.mean[j]) @ matrix)
    rows = belief.parents.std[j].view(2, 3).square()
    trace = sum((matrix.T @ row.diag() @ matrix).trace() for row in rows) + belief.leaves.std[i].square().sum()
    return 3 * (precision / (2 * math.pi)).log() - precision / 2 * (error.square().sum() + trace)


def bound_by_loops(own: ProbabilisticImageCapsules, image: Tensor, belief: ImageBelief, noise: Tensor) -> Tensor:
    """Of one image: every set of parents, every set of leaves, every parent of a leaf; noise (samples, leaves, 6)."""
    (leaves, parents), tree, total = belief, own.tree, image.new_zeros(())
    pixels = torch.distributions.Normal
    for t in itertools.product((0, 1), repeat=tree.num_parents):
        on = torch.tensor(t, dtype=D)
        weight = (on * parents.presence + (1 - on) * (1 - parents.presence)).prod()
        for u in itertools.product((0, 1), repeat=tree.num_children):
            there = torch.tensor(u, dtype=D)
            share = (there * leaves.presence + (1 - there) * (1 - leaves.presence)).prod()
            if not any(t):  # no parents, no leaves
                share = share * 0 if any(u) else torch.ones_like(share)
            if share == 0:
                continue
            terms = -share.log()
            for i in range(tree.num_children):
                rho = [tree.log_choice[0, i].exp()] + [on[j] * tree.log_choice[j + 1, i].exp() for j in range(len(t))]
                if not u[i]:
                    terms = terms + (rho[0] / sum(rho)).log()
                    continue
                scores = [
                    (rho[j + 1] / sum(rho)).log() + expected_density(own, belief, i, j) for j in range(len(t)) if t[j]
                ]
                terms = terms + torch.stack(scores).logsumexp(0)
                terms = terms + torch.distributions.Normal(leaves.mean[i], leaves.std[i]).entropy().sum()
            drawn = own.renderer(leaves.mean + leaves.std * noise)
            made = torch.einsum("i,sichw->schw", there, drawn)
            seen = pixels(made, own.renderer.image_std).log_prob(image).sum((1, 2, 3)).mean()
            total = total + weight * share * (terms + seen)
    q, p = pixels(parents.mean, parents.std), pixels(tree.identity, tree.prior_std)
    total = total - torch.distributions.kl_divergence(q, p).sum()
    b, c = (torch.distributions.Bernoulli(logits=x) for x in (parents.logits, tree.presence_logits))
    return total - torch.distributions.kl_divergence(b, c).sum()


def test_bound_and_gradients_are_those_of_loops() -> None:
    own, images = capsules(image_std=0.5), torch.rand(2, 1, 4, 4, dtype=D)
    belief = belief_of(2, 3, 2)
    inputs = [part.requires_grad_() for side in belief for part in side]
    ours = own.elbo(images, belief, samples=2, generator=seeded())
    noise = torch.randn(2, 2, 3, 6, generator=seeded(), dtype=D)
    theirs = torch.stack([
        bound_by_loops(
            own, images[b], ImageBelief(*(PoseBelief(*(part[b] for part in side)) for side in belief)), noise[:, b]
        )
        for b in range(2)
    ])  # fmt: skip
    torch.testing.assert_close(ours, theirs)
    inputs += [*own.tree.parameters(), *own.renderer.parameters()]
    for a, b in zip(torch.autograd.grad(ours.sum(), inputs), torch.autograd.grad(theirs.sum(), inputs), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.long
def test_the_bound_is_below_the_evidence_and_near_it() -> None:
    own = capsules(2, 1, image_std=0.5, prior_std=0.2)
    with torch.no_grad():
        own.tree.log_precision.fill_(4.0)
    drawn = own.tree.sample(300_000, seeded())
    parts, there = own.renderer(free_numbers(drawn.children)), (drawn.chosen > 0).double()
    made = torch.einsum("bi,bichw->bchw", there, parts)
    images = (made[:3] + 0.5 * torch.randn(3, 1, 4, 4, dtype=D)).detach()
    densities = torch.distributions.Normal(made.detach(), 0.5)
    log_p = [densities.log_prob(image).sum((1, 2, 3)).logsumexp(0) - math.log(len(made)) for image in images]
    best = own.optimise(images, steps=200, lr=0.05, samples=30, generator=seeded())
    bound = own.elbo(images, best.belief, samples=2000, generator=seeded(1))
    gap = torch.stack(log_p) - bound
    assert (gap > -0.02).all() and (gap < 1.5).all(), gap


def test_routing_is_presence_times_a_softmax_over_parents() -> None:
    own, belief = capsules(), belief_of(1, 3, 2)
    one = ImageBelief(*(PoseBelief(*(part[0] for part in side)) for side in belief))
    routing = leaf_routing(own.tree, *belief)[0]
    for i in range(3):
        expected = torch.zeros(3, dtype=D)
        for t in itertools.product((0, 1), repeat=2):
            on = torch.tensor(t, dtype=D)
            weight = (on * one.parents.presence + (1 - on) * (1 - one.parents.presence)).prod()
            if any(t):
                scores = torch.stack([own.tree.log_choice[j + 1, i] + expected_density(own, one, i, j) for j in (0, 1)])
                shares = scores.masked_fill(on == 0, -math.inf).softmax(0)
                expected[1:] += weight * one.leaves.presence[i] * shares
        expected[0] = 1 - expected.sum()
        torch.testing.assert_close(routing[i], expected)


def test_what_the_encoder_and_the_explanation_hold() -> None:
    own = ProbabilisticImageCapsules(5, 3, 2, (9, 6), template_size=4, hidden=8)
    images = torch.rand(2, 2, 9, 6)
    leaves, parents = own.encode(images)
    assert leaves.mean.shape == leaves.std.shape == (2, 5, 6) and leaves.presence.shape == (2, 5)
    assert parents.mean.shape == parents.std.shape == (2, 3, 6) and parents.presence.shape == (2, 3)
    explained = own(images)
    assert explained.parts.shape == (2, 5, 2, 9, 6) and explained.elbo.shape == (2,) and explained.trace.shape == (2, 0)
    assert explained.routing.shape == (2, 5, 4) and (explained.routing >= 0).all()
    torch.testing.assert_close(explained.routing.sum(-1), torch.ones(2, 5))
    shown = own.renderer(leaves.mean) * (1 - explained.routing[..., 0])[..., None, None, None]
    torch.testing.assert_close(explained.parts, shown)


@pytest.mark.parametrize("value", [0.0, 1e30])
@pytest.mark.parametrize(("leaves", "parents", "side"), [(3, 2, 8), (1, 1, 1)])
def test_blank_and_huge_images_and_single_capsules(value: float, leaves: int, parents: int, side: int) -> None:
    own = ProbabilisticImageCapsules(leaves, parents, img_size=side, template_size=3, hidden=4)
    images = torch.full((1, 1, side, side), value)
    own.loss(images).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in own.parameters())
    explained = own.optimise(images, steps=3)
    assert explained.elbo.isfinite().all() and explained.parts.isfinite().all() and explained.routing.isfinite().all()
    assert own(images[:0]).parts.shape == (0, leaves, 1, side, side)


def test_learning_raises_the_bound_and_optimisation_raises_it_further() -> None:
    torch.manual_seed(0)
    own, generator = prob_image_capsules_toy(), seeded()
    images = make_glyphs(32, generator).images
    optimiser = torch.optim.Adam(own.parameters(), lr=3e-3)
    first = own.loss(images, samples=4, generator=seeded()).item()
    for _ in range(60):
        optimiser.zero_grad()
        own.loss(images, generator=generator).backward()
        optimiser.step()
    assert own.loss(images, samples=4, generator=seeded()).item() < first - 100
    before = {name: p.clone() for name, p in own.named_parameters()}
    start = own(images, generator=seeded())
    better = own.optimise(images, steps=20, generator=seeded())
    torch.testing.assert_close(better.trace[:, 0], start.elbo, rtol=1e-4, atol=1e-2)
    assert better.trace.shape == (32, 21) and (better.elbo >= better.trace[:, 0]).all()
    assert (better.elbo - start.elbo).mean() > 1
    assert all(torch.equal(before[name], p) for name, p in own.named_parameters())


def test_the_preset() -> None:
    own = prob_image_capsules_toy()
    assert sum(p.numel() for p in own.parameters()) == 52_684
    assert own.renderer.templates.shape == (4, 1, 8, 8) and own.tree.relation.shape == (2, 4, 6)


def test_glyphs_are_strokes_under_their_poses() -> None:
    drawn = make_glyphs(200, seeded())
    assert drawn.images.shape == (200, 1, 16, 16) and drawn.images.min() >= 0 and drawn.images.max() <= 1
    assert torch.equal(drawn.images, make_glyphs(200, seeded()).images), "deterministic, given a generator"
    assert drawn.present.any(1).all() and not (drawn.strokes & ~drawn.present[:, OWNER]).any()
    ends = torch.cat((STROKES, torch.ones(4, 2, 1)), -1)
    moved = (affine(drawn.poses)[:, OWNER].unsqueeze(2) @ ends.unsqueeze(-1)).squeeze(-1)[..., :2]
    torch.testing.assert_close(draw_strokes(moved, drawn.strokes, 16), drawn.images, rtol=0, atol=1e-5)
    whole = make_glyphs(20, seeded(), missing=0.0)
    assert torch.equal(whole.strokes, whole.present[:, OWNER])
    offset = (affine(drawn.poses)[..., :2, :2] @ CENTRES.unsqueeze(-1)).squeeze(-1) + drawn.poses[..., 2::3] - CENTRES
    assert 0.08 < offset.std() < 0.12


def test_a_stroke_is_bright_within_its_width() -> None:
    ends = torch.tensor([[[[-0.5, 0.0], [0.5, 0.0]]]])
    image = draw_strokes(ends, torch.ones(1, 1, dtype=torch.bool), (9, 9))[0, 0]
    assert image[4, 3:6].tolist() == [1, 1, 1] and image[4, 0] == 0 and (image[:2] == 0).all()
    assert not draw_strokes(ends, torch.zeros(1, 1, dtype=torch.bool), 9).any()


@pytest.mark.long
def test_compiles_and_exports() -> None:
    own = ProbabilisticImageCapsules(3, 2, img_size=8, template_size=4, hidden=8).eval()

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.capsules = own

        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            explained = self.capsules(images)
            return explained.routing, explained.parts

    images = torch.rand(3, 1, 8, 8)
    module, expected = Both(), Both()(images)
    torch.compiler.reset()
    for a, b in zip(torch.compile(module, fullgraph=True, backend="aot_eager")(images), expected, strict=True):
        torch.testing.assert_close(a, b)
    program = torch.export.export(module, (images,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()
    twice = torch.cat((images, images))
    for a, b in zip(program(twice), module(twice), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c(torch.zeros(2, 1, 5, 4)), "images are"),
        (lambda c: c.optimise(torch.zeros(2, 1, 4, 4), steps=0), "steps is 0"),
        (lambda c: c.loss(torch.zeros(2, 1, 4, 4), samples=0), "samples is 0"),
        (lambda c: ProbabilisticImageCapsules(hidden=3), "hidden is 3"),
        (lambda c: ProbabilisticImageCapsules(parents=40), "parents is 40"),
        (lambda c: make_glyphs(0, seeded()), "images is 0"),
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(capsules().float())
