"""The observed children, and the mixture that explains them; the layout is (batch, components, children)."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.core import transformed_votes
from mereo.generative.bessel import log_vmf_normaliser
from mereo.generative.capsule_mixture import unit


class Statistics(NamedTuple):
    """Statistics of every child under the beliefs about parents.

    Attributes:
        poses: E <V_i, U_ij>, (batch, components, children).
        directions: E <D_i, U_ij>, of the same shape.
        squares: E |U_ij|^2, broadcastable to that.
    """

    poses: Tensor
    directions: Tensor
    squares: Tensor


@dataclass(frozen=True)
class Children:
    """The observed capsules.

    Attributes:
        poses: V, (batch, children, d).
        directions: D if they were given apart from the poses, (batch, children, d); None for V / |V|.
        inverse_lengths: 1 / |V|, 0 where there is no direction, (batch, 1, children).
        squares: |V|^2, (batch, 1, children).
        directed: whether there is a direction, bool (batch, 1, children).
        some_undirected: whether one of them is False.
        mask: bool (batch, 1, children), True = takes part; None for all.
    """

    poses: Tensor
    directions: Tensor | None
    inverse_lengths: Tensor
    squares: Tensor
    directed: Tensor
    some_undirected: bool
    mask: Tensor | None

    @classmethod
    def observe(cls, poses: Tensor, directions: Tensor | None, mask: Tensor | None) -> "Children":
        """From poses (batch, children, d), directions of the same shape or None, mask (batch, children) or None."""
        own, directed = unit(poses)
        squares = poses.square().sum(-1)
        inverse = torch.where(directed, squares.clamp(min=1e-30).rsqrt(), torch.zeros_like(squares))
        if directions is not None:
            own, directed = unit(directions)
        return cls(
            poses,
            None if directions is None else own,
            inverse.unsqueeze(1),
            squares.unsqueeze(1),
            directed.unsqueeze(1),
            not bool(directed.all()),
            None if mask is None else mask.unsqueeze(1),
        )


@dataclass(frozen=True)
class Mixture:
    """Transforms and the parameters of the densities.

    Attributes:
        weight: T as (components, children, d, e), or (components, d, e) if all children share them.
        sigma, kappa, log_prior: broadcastable to (components, children).
        owner: the parent of each component, (components,); None if every component is a parent of its own.
        parents: the number of parents.
    """

    weight: Tensor
    sigma: Tensor
    kappa: Tensor
    log_prior: Tensor
    owner: Tensor | None
    parents: int

    @property
    def dimension(self) -> int:
        """The dimension of a child's pose, d."""
        return self.weight.shape[-2]

    def of_components(self, parents: Tensor) -> Tensor:
        """Values of the parents, by component: (batch, parents, ...) -> (batch, components, ...)."""
        return parents if self.owner is None else parents.index_select(1, self.owner)

    def of_parents(self, components: Tensor) -> Tensor:
        """Sum over the components of each parent: (batch, components, ...) -> (batch, parents, ...)."""
        if self.owner is None:
            return components
        total = components.new_zeros(components.shape[0], self.parents, *components.shape[2:])
        return total.index_add(1, self.owner, components)

    def agreements(self, children: Children, means: Tensor) -> tuple[Tensor, Tensor]:
        """<V_i, T_ij m_j> and <D_i, T_ij m_j>: (batch, components, children) each, for means (batch, parents, e)."""
        means = self.of_components(means).unsqueeze(1)
        poses = transformed_votes(children.poses, self.weight).agree(means).squeeze(1)
        if children.directions is None:
            return poses, poses * children.inverse_lengths
        return poses, transformed_votes(children.directions, self.weight).agree(means).squeeze(1)

    def pull(self, children: Children, responsibilities: Tensor) -> Tensor:
        """sum_i r_ij T_ij^T (V_i / sigma_ij^2 + kappa_ij D_i): (batch, parents, e)."""

        def pulled(shares: Tensor, poses: Tensor) -> Tensor:
            return transformed_votes(poses, self.weight).combine(shares.unsqueeze(1)).squeeze(1)

        by_pose, by_direction = responsibilities / self.sigma**2, responsibilities * self.kappa
        if children.directions is None:
            return self.of_parents(pulled(by_pose + by_direction * children.inverse_lengths, children.poses))
        return self.of_parents(pulled(by_pose, children.poses) + pulled(by_direction, children.directions))

    def evidence(self, children: Children, statistics: Statistics, log_normaliser: Tensor) -> Tensor:
        """log rho_ij + E log N_ij + E log vMF_ij, with the bound's log C: (batch, components, children)."""
        d, variance = self.dimension, self.sigma**2
        constant = self.log_prior - d / 2 * (2 * math.pi * variance).log()
        distance = children.squares - 2 * statistics.poses + statistics.squares
        direction = self.kappa * statistics.directions + log_normaliser
        if children.some_undirected:
            uniform = log_vmf_normaliser(d, torch.zeros((), dtype=direction.dtype, device=direction.device))
            direction = torch.where(children.directed, direction, uniform)
        return constant - distance / (2 * variance) + direction
