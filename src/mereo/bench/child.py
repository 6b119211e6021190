"""`python -m mereo.bench.child ORDER`: the peak memory of one contender, printed as one line of JSON."""

import json
import sys
from dataclasses import asdict
from typing import Any

from mereo.bench.case import Mode, Setting, Suite, UnavailableError
from mereo.bench.check import Step
from mereo.bench.memory import WARM, Peak, is_out_of_memory, limit_memory
from mereo.bench.plan import Request, contenders_of
from mereo.runtime.memory import largest_so_far, resident_peak
from mereo.runtime.printing import say
from mereo.runtime.text import gibibytes


def use_libraries(device: str) -> None:
    """Make all libraries load what they keep in memory: kernels, thread pools, the autograd engine."""
    import torch
    import torch.nn.functional as F

    x = torch.rand(4, 8, 24, 24, device=device, requires_grad=True)
    w = torch.rand(8, 8, 3, 3, device=device, requires_grad=True)
    y = F.conv2d(x, w).relu().flatten(2).transpose(1, 2)
    y = torch.einsum("bnc,bmc->bnm", y, y).softmax(-1) @ y
    big = torch.rand(300, 300, device=device, requires_grad=True)
    (y.sum() + (big @ big).exp().mean()).backward()


def smaller(suite: Suite, setting: Setting) -> Setting:
    """The sizes of `--quick` where they are below those asked for."""
    small = {**suite.quick, **{axis: values[0] for axis, values in suite.quick_sweeps.items()}}
    sizes = dict(setting.sizes)
    for name, value in small.items():
        own = sizes.get(name)
        if isinstance(value, int) and isinstance(own, int):
            sizes[name] = min(value, own)
    return Setting(sizes, setting.device)


def make_step(suite: Suite, setting: Setting, request: Request, name: str, mode: Mode) -> Step:
    """One contender and its inputs, ready to run."""
    import torch

    contender = next(c for c in contenders_of(suite, setting, request) if c.name == name)
    torch.manual_seed(0)
    return Step(contender.build(mode), suite.inputs(setting, mode), mode)


def measure(order: dict[str, Any]) -> Peak:
    """The peak of the contender that an order describes."""
    import torch

    from mereo.bench.suites import get_suite

    request = Request(**{**order["request"], "sizes": (), "outside": tuple(order["request"]["outside"])})
    setting, mode, name = Setting(order["sizes"], request.device), order["mode"], order["contender"]
    torch.set_num_threads(order["threads"])
    suite = get_suite(request.suite)
    use_libraries(setting.device)
    # Memory of libraries loaded on first use is not the contender's; its own memory grows with the sizes.
    if not name.endswith(WARM):
        make_step(suite, smaller(suite, setting), request, name, mode)()
    step = make_step(suite, setting, request, name, mode)
    if name.endswith(WARM):
        step()
    on_cuda = setting.device.startswith("cuda")
    base = 0
    if on_cuda:
        torch.cuda.synchronize()
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()

    def work() -> None:
        # The state of an optimiser exists from the second step on.
        for _ in range(1 if step.workload.finish is None else 2):
            step()
        if on_cuda:
            torch.cuda.synchronize()

    if order["limit"]:
        limit_memory(order["limit"], setting.device)
    resident, by = resident_peak(work)
    allocator = torch.cuda.max_memory_allocated() - base if on_cuda else None
    return Peak(resident, allocator, largest_so_far(), by)


def main(order: str) -> None:
    """Measure and print."""
    asked = json.loads(order)
    try:
        peak = measure(asked)
    except UnavailableError as error:
        peak = Peak(failure=str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        within = f" {gibibytes(asked['limit'])}" if asked["limit"] else ""
        peak = Peak(failure=f"does not fit{within}")
    say(json.dumps(asdict(peak)))


if __name__ == "__main__":
    main(sys.argv[1])
