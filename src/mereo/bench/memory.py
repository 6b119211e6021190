"""Peak memory of one contender, measured in a separate process.

Resident memory is the system's high-water mark above what was resident when inputs and contender were made and the
contender had been run at small sizes, so that what libraries load on first use is not counted; see
`mereo.runtime.memory.resident_peak`.
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from mereo.bench.cases import Request, contenders_of
from mereo.bench.correctness import Step
from mereo.bench.suite import Case, Mode, Setting, Suite, UnavailableError
from mereo.runtime.memory import largest_so_far, resident_peak, status
from mereo.runtime.printing import say
from mereo.runtime.text import gibibytes

TIMEOUT = 900.0
WARM = " compiled"
"""End of the names of contenders that are run at full size before the mark is set, for they compile there."""


@dataclass(frozen=True)
class Peak:
    """Bytes.

    Attributes:
        resident: of the process, above what was in use before; None if unknown.
        allocator: of PyTorch on an accelerator, above what was in use before; None on a CPU.
        process: resident memory of the process at its largest: libraries, weights and inputs included.
        by: how the resident peak was measured.
        failure: why there is none.
    """

    resident: int | None = None
    allocator: int | None = None
    process: int | None = None
    by: str = ""
    failure: str = ""


def limit_memory(extra: int, device: str) -> None:
    """Let allocations fail beyond `extra` bytes above the present allocation, if the system supports it."""
    if device.startswith("cuda"):
        import torch

        total = torch.cuda.get_device_properties(device).total_memory
        share = (torch.cuda.memory_reserved(device) + extra) / total
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0), device)
        return
    now = status("VmData")
    if now is not None:
        import resource

        # Of the limits, this one counts only private writable memory, not the libraries that are mapped.
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = now + extra
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed."""
    text = str(error).lower()
    signs = ("not enough memory", "out of memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(sign in text for sign in signs)


def measure_peak(case: Case, contender: str, mode: Mode, request: Request, limit: int | None) -> Peak:
    """Run one contender in a separate process."""
    order = {
        "sizes": dict(case.setting.sizes), "threads": case.threads, "contender": contender, "mode": mode,
        "limit": limit, "request": {**asdict(request), "sizes": []},
    }  # fmt: skip
    try:
        done = subprocess.run(
            # -P: modules in the working folder must not replace Python's own.
            [sys.executable, "-P", "-c", "from mereo.bench.memory import main; main()", json.dumps(order)],
            capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Peak(failure=f"took more than {TIMEOUT:.0f} s")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if lines:
        return Peak(**json.loads(lines[-1]))
    if done.returncode == -9:
        return Peak(failure="does not fit: the system ended the process")
    message = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    return Peak(failure=f"the process ended with {done.returncode}: {message}")


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
    """The sizes of `--quick` if they are below those asked for."""
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


def main() -> None:
    """Measure what the order in the arguments describes, and print the peak as one line of JSON."""
    order = json.loads(sys.argv[1])
    try:
        peak = measure(order)
    except UnavailableError as error:
        peak = Peak(failure=str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        within = f" {gibibytes(order['limit'])}" if order["limit"] else ""
        peak = Peak(failure=f"does not fit{within}")
    say(json.dumps(asdict(peak)))
