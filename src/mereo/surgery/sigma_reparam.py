"""Sigma-reparametrisation: every linear layer and convolution has a learned spectral norm, so that attention keeps its
entropy.

Source: arXiv:2303.06296.
Cost: two products of a weight with a vector for each layer and step; none after `fold`.
"""

from collections import Counter
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mereo.core import mechanism
from mereo.core.squash import accumulation_type
from mereo.core.surgery import state_surgery, stated_surgery, surgery
from mereo.errors import UsageError, check_choice, check_count, check_network, check_positive

GAMMAS = ("sigma", "one")
NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)
DEVIATION = 0.02
OF_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
"""Weights of `torch.nn.MultiheadAttention` besides its last layer."""


def _matrices(weight: Tensor, parts: int) -> Tensor:
    """(out, ...) -> (parts, out / parts, the rest), in float32 or wider."""
    return weight.flatten(1).unflatten(0, (parts, -1)).to(accumulation_type(weight))


class SpectralScale(nn.Module):
    """A weight whose spectral norm is a learned number.

    W' = gamma / sigma W,   v = |W u|,   u = |W^T v|,   sigma = v^T W u        (|x|: x divided by its length)

    Gradients treat u and v as constants. A step in training stores the new u; a step in evaluation does not.

    Args:
        weight: the weight; all axes but the first are one.
        gamma: "sigma", so that W' = W at first, or "one".
        parts: of the outputs, which have a norm each.

    Shapes: (out, ...) -> the same; gamma and sigma (parts,), u (parts, in).

    Reference: arXiv:2303.06296, section 3.1; u starts as the singular vector of the largest singular value.
    """

    u: Tensor

    def __init__(self, weight: Tensor, gamma: str = "sigma", parts: int = 1) -> None:
        super().__init__()
        self.parts = parts
        matrices = _matrices(weight.detach(), parts)
        if matrices.is_meta or not bool(matrices.isfinite().all()):
            u, sigma = torch.ones_like(matrices[:, 0]), torch.ones_like(matrices[:, 0, 0])
        else:
            _, values, right = torch.linalg.svd(matrices, full_matrices=False)
            u, sigma = right[:, 0].contiguous(), values[:, 0]
        self.register_buffer("u", u)
        self.gamma = nn.Parameter((sigma if gamma == "sigma" else torch.ones_like(sigma)).clone())

    def step(self, matrices: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the power iteration: v (parts, out / parts) and the new u."""
        v = F.normalize((matrices @ self.u.to(matrices.dtype).unsqueeze(-1)).squeeze(-1), dim=-1)
        return v, F.normalize((v.unsqueeze(1) @ matrices).squeeze(1), dim=-1)

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):
            matrices = _matrices(weight, self.parts)
            with torch.no_grad():
                v, u = self.step(matrices)
                if self.training:
                    self.u.copy_(u)
            sigma = (v.unsqueeze(1) @ matrices @ u.unsqueeze(-1)).flatten()
            factor = self.gamma.to(matrices.dtype) / torch.where(sigma == 0, 1, sigma)
            return (matrices * factor[:, None, None]).view(weight.shape).to(weight.dtype)


def _is_transposed(module: nn.Module) -> bool:
    """Whether a module is the linear layer of transformers' GPT-2, whose weight is (in, out)."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


def _weights(model: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """The weights that may be changed: (name of the layer, layer, name of the weight)."""
    there = (weight for module in model.modules() for weight in module._parameters.values())
    owners = Counter(id(weight) for weight in there if weight is not None)
    found = list[tuple[str, nn.Module, str]]()
    for name, module in model.named_modules():
        if own := [each for each in OF_ATTENTION if module._parameters.get(each) is not None]:
            weights = own
        elif isinstance(module, nn.Linear) or _is_transposed(module):
            weights = ["weight"]
        else:
            weights = ["weight"] if isinstance(module, nn.Conv2d) and module.groups == 1 else []
        weights = [each for each in weights if not parametrize.is_parametrized(module, each)]
        found += [(name, module, each) for each in weights if owners[id(module._parameters.get(each))] == 1]
    return found


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), (torch.randn(2, 6),)


@mechanism(
    "sigma_reparam",
    family="technique",
    source="arXiv:2303.06296",
    records="nothing",
    example=_example,
)
@surgery
def sigma_reparam(
    model: nn.Module,
    *,
    keep_weights: bool = True,
    gamma: str = "sigma",
    linear_gain: float = 1.0,
    conv_gain: float = 1.0,
    split_qkv: bool = False,
    norms: bool = True,
) -> nn.Module:
    """A copy of a network whose linear layers and convolutions have the spectral norm gamma, a learned number each.

    W' = gamma / sigma(W) W

    By default the copy computes the same as the model; `mereo.fold` makes a plain network of it again. Grouped
    convolutions, embeddings and norms stay as they are, and so do weights that several layers share, such as a read-out
    tied to an embedding. The projections inside `torch.nn.MultiheadAttention` and the
    `Conv1D` of transformers are linear layers.

    Args:
        model: of mereo, timm, torchvision, transformers or your own. It is not changed.
        keep_weights: False starts anew: weights normal of 0.02 times the gain, cut off at two deviations.
        gamma: at the start, "sigma" for the spectral norm of the weight, or "one", as the paper trains from scratch.
        linear_gain, conv_gain: of the weights of linear layers and of convolutions that start anew.
        split_qkv: give queries, keys and values that one layer named "qkv" or one weight of
            `torch.nn.MultiheadAttention` makes a norm each, in place of one for all.
        norms: False also takes away all layer, group and batch norms, see `remove_norms`.

    Shapes: as for `model`.

    Deviates: a weight of zeros stays zero, where the formula divides by zero.

    Reference: arXiv:2303.06296, section 3.1. The released code starts anew with gamma "sigma".
    """
    check_choice("gamma", gamma, GAMMAS)
    check_positive(linear_gain=linear_gain, conv_gain=conv_gain)
    copy = deepcopy(model)
    weights = _weights(copy)
    if not weights:
        raise UsageError(f"{type(model).__name__} has no linear layer or convolution that could be changed.")
    for name, layer, of_layer in weights:
        weight = getattr(layer, of_layer)
        if not keep_weights:
            deviation = DEVIATION * (conv_gain if isinstance(layer, nn.Conv2d) else linear_gain)
            nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        parts = 3 if split_qkv and (name.rpartition(".")[2] == "qkv" or of_layer == "in_proj_weight") else 1
        scale = SpectralScale(weight, gamma, parts)
        parametrize.register_parametrization(layer, of_layer, scale.to(weight.device), unsafe=True)
    if not norms:
        _without_norms(copy)
    return copy


def _without_norms(model: nn.Module) -> None:
    for name, module in list(model.named_modules()):
        if name and isinstance(module, NORMS):
            model.set_submodule(name, nn.Identity())


@surgery
def remove_norms(model: nn.Module) -> nn.Module:
    """A copy of a network with the identity in place of every layer, group, instance and batch norm of PyTorch.

    Args:
        model: it is not changed.

    Reference: arXiv:2303.06296, section 4.
    """
    copy = deepcopy(model)
    _without_norms(copy)
    return copy


def _scaled(layer: nn.Module) -> list[str]:
    """The weights of a layer that `sigma_reparam` changed; none if anything else is reparametrised as well."""
    weights: Any = layer.parametrizations if parametrize.is_parametrized(layer) else {}
    ours = all([type(each) for each in steps] == [SpectralScale] for steps in weights.values())
    return list(weights) if ours else []


def _make_plain(layer: nn.Module, steps: int) -> None:
    """Give a layer back its class and weights of its own.

    PyTorch's remove_parametrizations changes the class, which a network shares with its copies.
    """
    plain = {}
    for name, weights in layer.parametrizations.items():  # type: ignore[operator, union-attr]
        scale = weights[0].eval()
        for _ in range(steps):
            scale.u.copy_(scale.step(_matrices(weights.original, scale.parts))[1])
        plain[name] = nn.Parameter(scale(weights.original).detach(), weights.original.requires_grad)
    layer.__class__ = type(layer).__bases__[0]
    del layer.parametrizations
    layer._parameters = {**plain, **layer._parameters}


@torch.no_grad()
def fold(model: nn.Module, steps: int = 20) -> nn.Module:
    """The inverse of `sigma_reparam`: a copy with plain layers, whose weights are gamma / sigma W.

    Args:
        model: it is not changed.
        steps: of the power iteration that come before, because sigma is one step old after a training; 0 keeps what
            the network computes in evaluation.

    Raises:
        UsageError: for a network without such layers.
    """
    check_network(model)
    check_count(steps=steps)
    copy = deepcopy(model)
    layers = [module for module in copy.modules() if _scaled(module)]
    if not layers:
        raise UsageError(f"{type(model).__name__} has no layer of sigma_reparam; there is nothing to fold.")
    for layer in layers:
        _make_plain(layer, steps)
    if stated := stated_surgery(copy):
        left = []
        for each in stated:
            if each["name"] != "sigma_reparam":
                left.append(each)
            elif not each["args"]["norms"]:  # they stay away
                left.append({"name": "remove_norms", "args": {}})
        state_surgery(copy, left)
    return copy
