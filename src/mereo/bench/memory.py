"""Peak memory of one contender, measured in a separate process.

Resident memory is the system's high-water mark above what was resident when inputs and contender were made and the
contender had been run at small sizes, so that what libraries load on first use is not counted; see
`mereo.runtime.memory.resident_peak`.
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass

from mereo.bench.case import Case, Mode
from mereo.bench.plan import Request
from mereo.runtime.memory import status

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
    """Let allocations fail beyond `extra` bytes above what is allocated now, where the system can."""
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
            [sys.executable, "-P", "-m", "mereo.bench.child", json.dumps(order)],
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
