"""The gate of capsules, against its equations."""

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.gate import CapsuleGate


def perturbed(dim: int = 3, hidden: int | None = None) -> CapsuleGate:
    """In float64, with no parameter at its start."""
    module = CapsuleGate(dim, hidden).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.rand_like(parameter))
    return module


def by_loops(module: CapsuleGate, capsules: Tensor) -> Tensor:
    w, v, images = module.first.weight, module.second.weight[0], []
    for image in capsules:
        grown = [torch.dot(v, (w @ u).tanh()).exp() for u in image]
        shares = [g / sum(grown) for g in grown]
        images.append(
            torch.stack([u * (1 + len(image) * a * module.gamma) for u, a in zip(image, shares, strict=True)])
        )
    return torch.stack(images)


@pytest.mark.parametrize("count", [1, 5])
def test_loops_give_the_same_output_and_gradients(count: int) -> None:
    module, capsules = perturbed(3, 4), torch.randn(2, count, 3, dtype=torch.float64, requires_grad=True)
    output, expected = module(capsules), by_loops(module, capsules)
    torch.testing.assert_close(output, expected)
    inputs, weights = [capsules, *module.parameters()], torch.randn_like(output)
    ours, theirs = (torch.autograd.grad((x * weights).sum(), inputs) for x in (output, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_two_capsules_by_hand() -> None:
    module = CapsuleGate(1)
    with torch.no_grad():
        module.first.weight.fill_(1)
        module.second.weight.fill_(2)
        module.gamma.fill_(0.5)
    # tanh(0) = 0 and tanh(1) = 0.761594; the shares are 0.178993 and 0.821007.
    capsules = torch.tensor([[[0.0], [1.0]]])
    with mereo.record(module) as trace:
        output = module(capsules)
    torch.testing.assert_close(trace["coupling"].flatten(), torch.tensor([0.178993, 0.821007]))
    torch.testing.assert_close(trace["gates"].flatten(), torch.tensor([1.178993, 1.821007]))
    torch.testing.assert_close(output.flatten(), torch.tensor([0.0, 1.821007]))


def test_it_starts_as_the_identity_and_scales_equal_capsules_alike() -> None:
    capsules = torch.randn(2, 6, 4)
    assert torch.equal(CapsuleGate(4)(capsules), capsules)
    module, same = perturbed(3), torch.randn(2, 1, 3, dtype=torch.float64).expand(-1, 6, -1)
    torch.testing.assert_close(module(same), same * (1 + module.gamma))


def test_count() -> None:
    assert sum(p.numel() for p in CapsuleGate(8).parameters()) == 8 * 8 + 8 + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [0.0, 1e4])
def test_blank_and_huge_capsules_are_finite(dtype: torch.dtype, size: float) -> None:
    module = perturbed(4).to(dtype)
    capsules = (size * torch.rand(2, 5, 4)).to(dtype).requires_grad_()
    output = module(capsules)
    output.sum().backward()
    assert output.isfinite().all() and capsules.grad is not None and capsules.grad.isfinite().all()


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="hidden is 0"):
        CapsuleGate(4, 0)
