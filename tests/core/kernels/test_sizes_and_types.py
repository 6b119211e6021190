"""Sizes of zero, integers, mixed types and memory that runs out, for every execution of votes and routing."""

import itertools
import subprocess
import sys

import pytest
import torch

from mereo.core import DenseVotes, SharedVotes
from mereo.core.kernels import backends
from mereo.errors import UsageError
from mereo.mechanisms.routing import CrossAgreementRouting, dynamic_routing

needs_library = pytest.mark.skipif(backends()["fused"] != "available", reason=backends()["fused"])
METHODS = ["auto", "plain", "streamed", pytest.param("fused", marks=needs_library)]
SIZES = [sizes for sizes in itertools.product((0, 2), repeat=5) if 0 in sizes]  # batch, senders, receivers, d_in, d_out


@pytest.fixture(autouse=True)
def poisoned():
    """Memory that nobody wrote is NaN: what is read before it is written shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [1, 3])
def test_routing_of_nothing_gives_zeros_with_zero_gradients(method: str, steps: int) -> None:
    for B, S, R, D, E in SIZES:
        children, weight = torch.randn(B, S, D, requires_grad=True), torch.randn(R, S, D, E, requires_grad=True)
        parents = dynamic_routing(children, weight, steps, method=method)
        assert parents.shape == (B, R, E) and (parents == 0).all(), (B, S, R, D, E)
        parents.sum().backward()
        for x in (children, weight):
            assert x.grad is not None and (x.grad == 0).all(), (B, S, R, D, E)


@pytest.mark.parametrize("method", ["auto", "stored", "streamed"])
@pytest.mark.parametrize("shared", [False, True])
def test_votes_of_nothing(method: str, shared: bool) -> None:
    for B, S, R, D, E in SIZES:
        senders = torch.randn(B, S, D, requires_grad=True)
        weight = torch.randn((R, D, E) if shared else (R, S, D, E), requires_grad=True)
        votes = (SharedVotes if shared else DenseVotes)(senders, weight, method=method)
        combined, agreed = votes.combine(torch.ones(B, 1, R, S)), votes.agree(torch.ones(B, 1, R, E))
        assert (combined == 0).all() if 0 in (B, S, D) else combined.isfinite().all()
        assert (agreed == 0).all() if 0 in (D, E) else agreed.isfinite().all()
        (combined.sum() + agreed.sum()).backward()
        assert senders.grad is not None and senders.grad.isfinite().all()
        assert weight.grad is not None and weight.grad.isfinite().all()
        if B == 0:
            assert (weight.grad == 0).all()


def test_an_empty_batch_gives_every_parameter_a_zero_gradient() -> None:
    routing = CrossAgreementRouting(4, 2, 3, 5, 5, 6)
    out = routing(torch.zeros(0, 4, 5), torch.zeros(0, 2, 5))
    out.sum().backward()
    assert out.shape == (0, 3, 6) and all((p.grad == 0).all() for p in routing.parameters() if p.grad is not None)


INTEGERS = [(torch.int64, torch.float32), (torch.float32, torch.int32), (torch.bool, torch.float32)]


@pytest.mark.parametrize("types", INTEGERS, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_integers_are_refused(method: str, types: tuple[torch.dtype, torch.dtype]) -> None:
    children, weight = torch.ones(2, 3, 4).to(types[0]), torch.ones(2, 3, 4, 5).to(types[1])
    with pytest.raises(UsageError, match="floating point"):
        dynamic_routing(children, weight, method=method)
    with pytest.raises(UsageError, match="floating point"):
        DenseVotes(children, weight)


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("types", [t for t in itertools.product(FLOATS, FLOATS) if t[0] != t[1]], ids=str)
def test_mixed_types_route_and_keep_the_childrens(types: tuple[torch.dtype, torch.dtype]) -> None:
    torch.manual_seed(0)
    children, weight = torch.randn(2, 3, 4, dtype=types[0]), torch.randn(2, 3, 4, 5, dtype=types[1])
    expected = dynamic_routing(children.double(), weight.double(), method="plain")
    for method in ("auto", "plain"):
        parents = dynamic_routing(children, weight, method=method)
        assert parents.dtype == types[0]
        torch.testing.assert_close(parents.double(), expected, rtol=0.03, atol=0.03)


@pytest.mark.parametrize(
    ("senders", "weight"),
    [((2, 3), (2, 3, 4, 5)), ((2, 3, 4), (3, 4)), ((2, 3, 4), (2, 4, 3, 5)), ((2, 3, 4), (2, 3, 4, 5, 6)), ((), ())],
    ids=str,
)
def test_shapes_that_do_not_fit_are_named(senders: tuple[int, ...], weight: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="must be"):
        DenseVotes(torch.zeros(senders), torch.zeros(weight))
    with pytest.raises(UsageError, match="must be"):
        dynamic_routing(torch.zeros(senders), torch.zeros(weight))


def test_couplings_and_receivers_that_do_not_fit_are_named() -> None:
    votes = DenseVotes(torch.zeros(2, 3, 4), torch.zeros(5, 3, 4, 6))
    with pytest.raises(UsageError, match="couplings"):
        votes.combine(torch.zeros(2, 1, 3, 5))
    with pytest.raises(UsageError, match="receivers"):
        votes.agree(torch.zeros(2, 5, 6))
    with pytest.raises(UsageError, match="tile is 0"):
        DenseVotes(torch.zeros(2, 3, 4), torch.zeros(5, 3, 4, 6), tile=0)
    with pytest.raises(UsageError, match="method is 'stream'"):
        DenseVotes(torch.zeros(2, 3, 4), torch.zeros(5, 3, 4, 6), method="stream")


def test_votes_made_without_gradients_are_made_again_where_one_is_asked_for() -> None:
    weight = torch.randn(2, 3, 4, 5, requires_grad=True)
    votes = DenseVotes(torch.randn(2, 3, 4), weight, method="stored")
    with torch.no_grad():
        votes.dense()
    assert votes.dense().requires_grad


OUT_OF_MEMORY = """
import resource, torch
from mereo.core import DenseVotes
from mereo.core.kernels.fused import FusedPasses

def make(B, S=64, R=64, D=8, E=64):
    u, W = torch.zeros(B, S, D), torch.zeros(R, S, D, E)
    votes, passes = DenseVotes(u, W, method="streamed"), FusedPasses(u, W, False, 1.0)
    V, C = torch.zeros(B, 1, R, E), torch.zeros(B, 1, R, S)
    return {"route": lambda: passes.forward(None), "combine": lambda: votes.combine(C), "agree": lambda: votes.agree(V)}

few, many = make(2), make(4096)
for threads in (1, 2):
    torch.set_num_threads(threads)
    for case in few:
        few[case]()  # loads what is loaded at first use
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        # The result has 64 MiB, and so has what the library needs to work in.
        resource.setrlimit(resource.RLIMIT_AS, (used + (112 << 20), -1))
        try:
            many[case]()
        except MemoryError as error:
            print(case, threads, "MemoryError", error)
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
"""


@pytest.mark.long
@needs_library
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is bounded by Linux's limits")
def test_memory_that_runs_out_is_an_error_and_no_abort() -> None:
    command = [sys.executable, "-c", OUT_OF_MEMORY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    for threads in (1, 2):
        for case in ("route", "combine", "agree"):
            line = next((line for line in done.stdout.splitlines() if line.startswith(f"{case} {threads} ")), "")
            assert "MemoryError" in line and "4096" in line, (case, threads, done.stdout)
