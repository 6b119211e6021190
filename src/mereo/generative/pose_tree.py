"""A tree of poses: parents with a presence and a pose, children that each choose one parent or none.

Source: Smith, Schut, Gal, van der Wilk 2020, arXiv:2004.03553. Enumeration of the presences is exact; sizes, the prior
and the encoder are ours.
Cost: of a bound, 2^parents * parents * children for each image.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import Coupling
from mereo.errors import UsageError, check_positive

POSE = 6
"""Free numbers of an affine pose, [[a, b, x], [c, d, y], [0, 0, 1]], row by row."""
LARGEST = 1e6
"""To which entries of poses are clamped, so that their squares stay finite."""
LOG_SCALES = (-8.0, 8.0)
"""Between which logs of standard deviations and precisions are clamped."""
MOST_PARENTS = 12


class PoseBelief(NamedTuple):
    """q(A) q(t) of some images: independent Gaussians and Bernoullis.

    Attributes:
        mean, log_std (batch, parents, 6): of the poses of the parents.
        logits (batch, parents): log odds that a parent is present.
    """

    mean: Tensor
    log_std: Tensor
    logits: Tensor

    @property
    def std(self) -> Tensor:
        """Standard deviations, (batch, parents, 6)."""
        return self.log_std.clamp(*LOG_SCALES).exp()

    @property
    def presence(self) -> Tensor:
        """Probability that a parent is present, (batch, parents)."""
        return self.logits.sigmoid()


class TreeSample(NamedTuple):
    """Images that were drawn from a `PoseTree`.

    Attributes:
        children (batch, children, 3, 3): poses.
        parents (batch, parents, 3, 3): poses, also of the absent ones.
        present (batch, parents): bool.
        chosen int64 (batch, children): the parent of each child, counted from 1; 0 is none.
    """

    children: Tensor
    parents: Tensor
    present: Tensor
    chosen: Tensor


def affine(numbers: Tensor) -> Tensor:
    """Six free numbers as a homogeneous matrix: (..., 6) -> (..., 3, 3), whose last row is 0, 0, 1."""
    last = numbers.new_tensor([0.0, 0.0, 1.0]).expand(*numbers.shape[:-1], 1, 3)
    return torch.cat((numbers.unflatten(-1, (2, 3)), last), -2)


def free_numbers(poses: Tensor) -> Tensor:
    """The first two rows of homogeneous matrices: (..., 3, 3) -> (..., 6)."""
    return poses[..., :2, :].flatten(-2)


class PoseTree(nn.Module):
    """Children with affine poses whose parents are hidden: a generative model with learned relations.

    t_j ~ Bernoulli(p_j);   A_j ~ N(I, prior_std^2);   P(s_i = j | t) = t_j rho_ij / (rho_i0 + sum_k t_k rho_ik)
    A_i | s_i = j ~ N(A_j M_ij, 1 / lambda_ij),   A_i | s_i = 0 ~ N(I, none_std^2),  on the six free numbers

    Given poses, the best q(s) is one step of routing: r_ij = P(s_i = j | t) N(A_i; A_j M_ij, 1 / lambda_ij), normalised
    over the parents and none. With s summed out, the evidence lower bound of q(A) q(t) is

    ELBO = E_q(A) q(t) sum_i log sum_j P(s_i = j | t) N(A_i; A_j M_ij, 1 / lambda_ij) - KL(q(A)) - KL(q(t))

    Args:
        children, parents: the number of each; every child has a type of its own, its place in the input.
        prior_std: of the entries of a parent's pose around the identity.
        none_std: of the entries of a pose of a child without a parent.

    Reads as: couplings[b, t, j, i] of `route` is the share of parent j (0: none) in child i, when the parents of the
        t-th set are present.

    Deviates: children without a parent are normal around the identity; the paper's own numbers could not be checked.

    Reference: arXiv:2004.03553. There is no public code; bound and gradients equal loops over all sets of parents.
    """

    def __init__(self, children: int, parents: int, *, prior_std: float = 1.0, none_std: float = 3.0) -> None:
        super().__init__()
        check_positive(children=children, parents=parents, prior_std=prior_std, none_std=none_std)
        if parents > MOST_PARENTS:
            raise UsageError(f"parents is {parents}; all sets of them are enumerated, so at most {MOST_PARENTS}.")
        self.num_children, self.num_parents = children, parents
        self.prior_std, self.none_std = prior_std, none_std
        identity = torch.eye(2, 3).flatten()
        self.register_buffer("identity", identity, persistent=False)
        self.relation = nn.Parameter(identity + 0.1 * torch.randn(parents, children, POSE))
        self.log_choice = nn.Parameter(torch.zeros(parents + 1, children))
        self.log_precision = nn.Parameter(torch.zeros(parents, children))
        self.presence_logits = nn.Parameter(torch.zeros(parents))
        # All sets of parents, none of them first: (sets, parents).
        sets = torch.arange(1 << parents).unsqueeze(1) >> torch.arange(parents) & 1
        self.register_buffer("sets", sets.bool(), persistent=False)
        self.coupling = Coupling("receivers")

    identity: Tensor
    sets: Tensor

    def check(self, poses: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The six numbers of each child, clamped, and which children there are; UsageError for other shapes."""
        wanted = (self.num_children, 3, 3)
        if poses.dim() != 4 or tuple(poses.shape[1:]) != wanted or not poses.is_floating_point():
            raise UsageError(
                f"children are {tuple(poses.shape)}, {poses.dtype}; they must be floats of (batch, {wanted[0]}, 3, 3)."
            )
        if mask is None:
            mask = torch.ones(poses.shape[:2], dtype=torch.bool, device=poses.device)
        if mask.shape != poses.shape[:2] or mask.dtype != torch.bool:
            raise UsageError(f"mask is {tuple(mask.shape)}, {mask.dtype}; it must be bool {tuple(poses.shape[:2])}.")
        return free_numbers(poses).clamp(-LARGEST, LARGEST), mask

    def predicted(self, parents: Tensor) -> Tensor:
        """A_j M_ij: six numbers (..., parents, 6) -> (..., parents, children, 6)."""
        rows = parents.unflatten(-1, (2, 3)).unsqueeze(-3)
        return (rows @ affine(self.relation)).flatten(-2)

    def log_densities(
        self, children: Tensor, mean: Tensor, variance: Tensor | None = None, child_variance: Tensor | None = None
    ) -> Tensor:
        """log N(A_i; A_j M_ij, 1 / lambda_ij) of every parent, none first; with variances its mean over q(A).

        E log N = log N(m_i; m_j M_ij, 1 / lambda_ij) - lambda_ij / 2 (tr(M_ij^T S_j M_ij) + tr(S_i))

        Shapes: children and their variance (batch, children, 6), mean and variance (..., batch, parents, 6)
            -> (..., batch, parents + 1, children).
        """
        log_precision = self.log_precision.clamp(*LOG_SCALES)
        errors = (children.unsqueeze(-3) - self.predicted(mean.clamp(-LARGEST, LARGEST))).square().sum(-1)
        if variance is not None:
            rows = variance.unflatten(-1, (2, 3)).unsqueeze(-3)
            errors = errors + (rows @ affine(self.relation).square()).sum((-1, -2))
        apart = (children - self.identity).square().sum(-1)
        if child_variance is not None:
            own = child_variance.sum(-1)
            errors, apart = errors + own.unsqueeze(-2), apart + own
        of_parents = POSE / 2 * (log_precision - math.log(2 * math.pi)) - log_precision.exp() / 2 * errors
        of_none = -POSE * (math.log(self.none_std) + math.log(2 * math.pi) / 2) - apart / (2 * self.none_std**2)
        of_none = of_none.expand(*of_parents.shape[:-2], -1).unsqueeze(-2)
        return torch.cat((of_none, of_parents), -2)

    @staticmethod
    def _open(present: Tensor) -> Tensor:
        """Which choices a child has: (..., parents) bool -> (..., parents + 1, 1)."""
        return torch.cat((torch.ones_like(present[..., :1]), present), -1).unsqueeze(-1)

    def log_likelihoods(self, log_densities: Tensor, log_presence: Tensor) -> Tensor:
        """log sum_j P(s_i = j | t) N_ij of every child, for given presences, or relaxed ones between 0 and 1.

        Shapes: log_densities (..., parents + 1, children), log_presence log t_j (..., parents), -inf where absent ->
            (..., children).
        """
        open_ = self._open(log_presence > -math.inf)
        least = torch.finfo(log_densities.dtype).min / 4
        none = torch.zeros_like(log_presence[..., :1])
        weights = torch.cat((none, log_presence.clamp(min=least)), -1).unsqueeze(-1) + self.log_choice
        weights = weights.masked_fill(~open_, least)
        joint = (weights + log_densities).masked_fill(~open_, least)
        return joint.logsumexp(-2) - weights.logsumexp(-2)

    def log_sets(self, belief: PoseBelief) -> Tensor:
        """log q(t) of every set of parents: (batch, sets)."""
        present, absent = nn.functional.logsigmoid(belief.logits), nn.functional.logsigmoid(-belief.logits)
        return torch.where(self.sets, present.unsqueeze(1), absent.unsqueeze(1)).sum(-1)

    def divergence(self, belief: PoseBelief) -> Tensor:
        """KL(q(A) || p(A)) + KL(q(t) || p(t)): (batch,)."""
        std, mean = belief.std / self.prior_std, belief.mean.clamp(-LARGEST, LARGEST)
        poses = (std.square() + ((mean - self.identity) / self.prior_std).square() - 1) / 2 - std.log()
        logsigmoid = nn.functional.logsigmoid
        odds, prior = belief.logits, self.presence_logits
        there = odds.sigmoid() * (logsigmoid(odds) - logsigmoid(prior))
        away = (-odds).sigmoid() * (logsigmoid(-odds) - logsigmoid(-prior))
        return poses.sum((1, 2)) + (there + away).sum(1)

    def elbo(
        self,
        children: Tensor,
        belief: PoseBelief,
        mask: Tensor | None = None,
        *,
        samples: int = 0,
        temperature: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The evidence lower bound of beliefs about the parents, without a normalising constant missing.

        Args:
            mask: the children that there are; None: all.
            samples: of poses, by reparameterisation, with s summed out exactly. 0 takes the mean of the log densities
                over q(A) in closed form instead, with the best q(s | t): a little lower and without noise.
            temperature: of relaxed presences, one for each sample, in place of the sum over all sets of parents.
            generator: of the samples.

        Shapes: children (batch, children, 3, 3), mask (batch, children) -> (batch,).
        """
        numbers, there = self.check(children, mask)
        if temperature is not None:
            check_positive(temperature=temperature, samples=samples)
        if samples:
            noise = self.noise((samples, *belief.mean.shape), belief.mean, generator)
            densities = self.log_densities(numbers, belief.mean + belief.std * noise)
        else:
            densities = self.log_densities(numbers, belief.mean, belief.std.square()).unsqueeze(0)
        if temperature is None:
            log_t = torch.where(self.sets, 0.0, -math.inf).to(numbers.dtype).unsqueeze(1)
            log_p = self.log_likelihoods(densities.unsqueeze(1), log_t)  # (samples, sets, batch, children)
            by_set = (log_p * there).sum(-1).mean(0)
            expected = (self.log_sets(belief).exp() * by_set.T).sum(1)
        else:
            uniform = self.noise((samples, *belief.logits.shape), belief.logits, generator, uniform=True)
            relaxed = nn.functional.logsigmoid((belief.logits + torch.logit(uniform, eps=1e-6)) / temperature)
            expected = (self.log_likelihoods(densities, relaxed) * there).sum(-1).mean(0)
        return expected - self.divergence(belief)

    @staticmethod
    def noise(
        size: tuple[int, ...], like: Tensor, generator: torch.Generator | None, *, uniform: bool = False
    ) -> Tensor:
        """Normal or uniform numbers with the type and device of `like`, whatever device the generator is on."""
        device = like.device if generator is None else generator.device
        numbers = torch.empty(size, dtype=like.dtype, device=device)
        numbers = numbers.uniform_(generator=generator) if uniform else numbers.normal_(generator=generator)
        return numbers.to(like.device)

    def route(self, children: Tensor, belief: PoseBelief, mask: Tensor | None = None) -> Tensor:
        """Parent probabilities of each child, given beliefs about parents: the mean over all sets of present parents.

        r_ij = sum_t q(t) softmax_j(log P(s_i = j | t) + E_q(A) log N(A_i; A_j M_ij, 1 / lambda_ij))

        Shapes: children (batch, children, 3, 3) -> (batch, children, parents + 1), none first; rows of absent children
            are 0.
        """
        numbers, there = self.check(children, mask)
        scores = self.log_densities(numbers, belief.mean, belief.std.square()) + self.log_choice
        return self.choose(belief, scores, self._open(self.sets) & there[:, None, None])

    def choose(self, belief: PoseBelief, scores: Tensor, open_: Tensor) -> Tensor:
        """Softmax over the parents and none that are open in a set of parents, and its mean over the sets.

        Shapes: scores (batch, parents + 1, children), open_ bool, as (batch, sets, parents + 1, children) ->
            (batch, children, parents + 1).
        """
        scores = scores.unsqueeze(1).expand(-1, len(self.sets), -1, -1)
        couplings = self.coupling(scores, open_.expand_as(scores))
        return torch.einsum("bt,btji->bij", self.log_sets(belief).exp(), couplings)

    @torch.no_grad()
    def sample(self, images: int, generator: torch.Generator) -> TreeSample:
        """Draw images; children that choose no parent are somewhere else."""
        check_positive(images=images)
        like = self.relation

        def normal(*size: int) -> Tensor:
            return self.noise(size, like, generator)

        present = self.noise((images, self.num_parents), like, generator, uniform=True) < self.presence_logits.sigmoid()
        parents = self.identity + self.prior_std * normal(images, self.num_parents, POSE)
        weights = self.log_choice.exp() * self._open(present)
        shares = weights.transpose(1, 2).flatten(0, 1)
        chosen = torch.multinomial(shares.to(generator.device), 1, generator=generator)
        chosen = chosen.to(like.device).view(images, self.num_children)
        std = torch.exp(-self.log_precision / 2).unsqueeze(-1)
        made = self.predicted(parents) + std * normal(images, self.num_parents, self.num_children, POSE)
        apart = self.identity + self.none_std * normal(images, 1, self.num_children, POSE)
        options = torch.cat((apart, made), 1)
        numbers = options.gather(1, chosen[:, None, :, None].expand(-1, 1, -1, POSE)).squeeze(1)
        return TreeSample(affine(numbers), affine(parents), present, chosen)
