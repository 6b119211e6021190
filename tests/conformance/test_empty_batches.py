"""An empty batch goes through every mechanism and network: empty outputs, and gradients that are zero, not NaN."""

import inspect

import pytest
import torch

import mereo
from mereo.catalogue import MECHANISMS

NETWORKS = ["mspcaps_tiny", "capsnet", "efficient_capsnet"]


def check(module, inputs):
    inputs = tuple(x[:0].detach().requires_grad_(x.is_floating_point()) for x in inputs)
    output = module(*inputs)
    assert len(output) == 0
    (output.sum() + sum(x.sum() for x in inputs)).backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is None or not parameter.grad.any(), name


@pytest.mark.parametrize("name", sorted(n for n, entry in MECHANISMS.items() if inspect.isclass(entry.target)))
def test_a_mechanism(name):
    check(*MECHANISMS[name].example())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network(name):
    model = mereo.create_model(name).eval()
    check(model, (torch.zeros(1, *model.image_shape),))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # by PyTorch's own derivatives
@pytest.mark.parametrize("transform", [torch.func.jvp, "dual"])
@pytest.mark.parametrize("name", sorted(n for n, entry in MECHANISMS.items() if inspect.isclass(entry.target)))
def test_forward_mode_agrees_with_reverse_mode(name, transform):
    torch.manual_seed(0)
    module, inputs = MECHANISMS[name].example()
    # Numbers of tokens have no derivative.
    whole = tuple(x for x in inputs if not x.is_floating_point())
    inputs = tuple(x.double().requires_grad_() for x in inputs if x.is_floating_point())
    module = module.double().eval()

    def call(*given):
        return module(*given, *whole)

    tangents = tuple(torch.randn_like(x) for x in inputs)
    output = call(*inputs)
    weight = torch.randn_like(output)
    gradients = torch.autograd.grad((output * weight).sum(), inputs)
    if transform == "dual":
        from torch.autograd import forward_ad

        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(x.detach(), t) for x, t in zip(inputs, tangents, strict=True)]
            tangent = forward_ad.unpack_dual(call(*duals)).tangent
            along = (tangent * weight).sum()
    else:
        along = (transform(call, tuple(x.detach() for x in inputs), tangents)[1] * weight).sum()
    torch.testing.assert_close(along, sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True)))
