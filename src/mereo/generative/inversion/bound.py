"""The bound as a function of the parameters, at beliefs that are held: what a generative model is trained by."""

import torch
from torch import Tensor

from mereo.generative.bessel import log_vmf_normaliser
from mereo.generative.inversion.free import FreeParents
from mereo.generative.inversion.problem import Children, Mixture


def bound(
    mixture: Mixture, children: Children, parents: FreeParents, responsibilities: Tensor, *, eps: float = 1e-30
) -> Tensor:
    """The ELBO at these responsibilities and beliefs, differentiable in the mixture, the prior and the children.

    At the best beliefs its gradient equals the gradient of the maximised bound; at any other beliefs the value is
    still a lower bound.

    Shapes: responsibilities (batch, components, children) -> (batch,).
    """
    statistics = parents.statistics(mixture, children)
    # The root has no derivative at 0, where the normaliser has none either.
    concentration = mixture.kappa * statistics.squares.clamp(min=eps).sqrt()
    evidence = mixture.evidence(children, statistics, log_vmf_normaliser(mixture.dimension, concentration))
    evidence = evidence.masked_fill(responsibilities == 0, 0)
    terms = responsibilities * evidence - torch.special.xlogy(responsibilities, responsibilities)
    return terms.sum((1, 2)) - parents.divergence()
