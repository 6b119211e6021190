"""The CUDA kernels against the streamed passes: on a GPU where there is one, else interpreted on the CPU."""

import os
import subprocess
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from mereo.core.kernels import backends
from mereo.core.kernels.streamed import StreamedPasses
from mereo.core.kernels.triton_passes import TritonPasses, too_large
from mereo.mechanisms.routing import dynamic_routing

SIZES = [(3, 7, 3, 4, 5), (1, 1, 1, 1, 1), (18, 20, 10, 8, 16), (40, 3, 2, 5, 3)]
on_gpu = pytest.mark.skipif(backends()["triton"] != "available", reason=backends()["triton"])


def check(sizes: tuple[int, ...], leaky: bool, device: str) -> None:
    """One pass with agreement and one without, forward and backward."""
    B, S, R, D, E = sizes
    torch.manual_seed(0)
    shapes = ((B, S, D), (R, S, D, E), (B, R, E), (B, R, E))
    children, weight, agreed, grad = (torch.randn(shape, device=device) for shape in shapes)
    children[0, 0, 0] = 1e20
    weight[:, 0] *= 1e-16
    fast = TritonPasses(children, weight, leaky, 0.25)
    exact = StreamedPasses(children, weight, None, leaky, 0.25, None)
    fast.start_backward()
    exact.start_backward()
    for given in (agreed, None):
        close(fast.forward(given), exact.forward(given))
        got, expected = fast.backward(given, grad), exact.backward(given, grad)
        if given is not None:
            assert got is not None and expected is not None
            close(got, expected)
    for x, y in zip(fast.gradients()[:2], exact.gradients()[:2], strict=True):
        close(x, y)
    assert fast.gradients()[0][0, 0, 0] == 0


def close(x: Tensor, y: Tensor) -> None:
    assert (x - y).abs().max() <= 1e-5 * y.abs().max()


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.long
def test_interpreted_on_the_cpu(python: str) -> None:
    code = f"""import importlib.util, sys
spec = importlib.util.spec_from_file_location("this_test", {__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
for sizes in module.SIZES:
    module.check(sizes, leaky=sizes[0] != 3, device="cpu")"""
    # The interpreter is chosen where the kernels are defined, so they are defined in a process of their own.
    subprocess.run([python, "-c", code], check=True, env=os.environ | {"TRITON_INTERPRET": "1"})


@on_gpu
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_on_a_gpu(sizes: tuple[int, ...], leaky: bool) -> None:
    check(sizes, leaky, "cuda")


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_routing_on_a_gpu_equals_plain(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = [torch.randn(s, device="cuda") * 0.3 for s in ((33, 40, 8), (10, 40, 8, 16))]
    results = []
    for method, type_ in (("triton", dtype), ("plain", torch.float32)):
        x, W = (x.to(dtype).to(type_).requires_grad_() for x in given)
        out = dynamic_routing(x, W, method=method)
        results.append([y.float() for y in (out, *torch.autograd.grad(out.float().square().sum(), (x, W)))])
    for x, y in zip(*results, strict=True):
        assert (x - y).abs().max() <= (1e-4 if dtype == torch.float32 else 0.02) * y.abs().max()


def test_sizes_that_do_not_fit_on_chip_are_refused() -> None:
    assert too_large(torch.empty(196, 2, 8, 16)) is None
    assert "1000 parents of 16" in str(too_large(torch.empty(1000, 2, 8, 16)))
