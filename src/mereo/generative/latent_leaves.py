"""A pose tree whose children are not observed: leaves with a belief about their poses and presences.

Source: Smith, Schut, Gal, van der Wilk 2020, arXiv:2004.03553; the factors of the belief are ours.
Cost: as for a bound of `PoseTree`.
"""

import math

import torch
from torch import Tensor, nn

from mereo.generative.pose_tree import LARGEST, POSE, PoseBelief, PoseTree


def _densities(tree: PoseTree, leaves: PoseBelief, parents: PoseBelief) -> Tensor:
    """E log N(A_i; A_j M_ij, 1 / lambda_ij) over both poses, none first: (batch, parents + 1, leaves)."""
    mean = leaves.mean.clamp(-LARGEST, LARGEST)
    return tree.log_densities(mean, parents.mean, parents.std.square(), leaves.std.square())


def any_parent(tree: PoseTree, parents: PoseBelief) -> Tensor:
    """The probability that some parent is present, without which there is no leaf: (batch,)."""
    return 1 - tree.log_sets(parents)[:, 0].exp()


def leaf_bound(tree: PoseTree, leaves: PoseBelief, parents: PoseBelief) -> Tensor:
    """The evidence lower bound without its term of the image: (batch,).

    A leaf is present, u_i = 1, iff it has a parent: s_i != 0. q(u_i = 1 | t) = pi_i if some parent is present, else
    0; an absent leaf has the pose of its prior, which costs nothing. With the best q(s | u = 1, t),

    E_q(t) [t != 0] sum_i { pi_i (log sum_j P(s_i = j | t) exp E log N_ij + H(q(A_i)))
        + (1 - pi_i) log P(s_i = 0 | t) + H(pi_i) } - KL(q(A)) - KL(q(t))
    """
    densities, logsigmoid = _densities(tree, leaves, parents), nn.functional.logsigmoid
    least = torch.finfo(densities.dtype).min / 4
    nothing = torch.full_like(densities, least)
    with_parent = torch.cat((nothing[:, :1], densities[:, 1:]), 1)
    without = torch.cat((torch.zeros_like(densities[:, :1]), nothing[:, 1:]), 1)
    log_t = torch.where(tree.sets, 0.0, -math.inf).to(densities.dtype).unsqueeze(1)
    entropy = leaves.std.log().sum(-1) + POSE / 2 * (1 + math.log(2 * math.pi))
    odds, share = leaves.logits, leaves.presence
    there = tree.log_likelihoods(with_parent, log_t) + entropy - logsigmoid(odds)  # (sets, batch, leaves)
    away = tree.log_likelihoods(without, log_t) - logsigmoid(-odds)
    by_set = (share * there + (-odds).sigmoid() * away).sum(-1)
    by_set = torch.where(tree.sets.any(1, keepdim=True), by_set, 0.0)
    return (tree.log_sets(parents).exp() * by_set.T).sum(1) - tree.divergence(parents)


def leaf_routing(tree: PoseTree, leaves: PoseBelief, parents: PoseBelief) -> Tensor:
    """Parent probabilities of each leaf, none first, which is its absence: (batch, leaves, parents + 1).

    r_ij = pi_i sum_t q(t) softmax_j(log P(s_i = j | t) + E log N_ij)
    """
    scores = _densities(tree, leaves, parents) + tree.log_choice
    open_ = nn.functional.pad(tree.sets, (1, 0)).unsqueeze(-1)  # never none
    chosen = leaves.presence.unsqueeze(-1) * tree.choose(parents, scores, open_)[..., 1:]
    return torch.cat((1 - chosen.sum(-1, keepdim=True), chosen), -1)
