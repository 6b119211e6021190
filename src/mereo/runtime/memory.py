"""Total, free and used memory. psutil reports the machine; the limit of a container is read here, as psutil ignores it.

The peak of this process is the system's high-water mark of its resident memory, which is set back through
/proc/self/clear_refs. Where that is not permitted, the largest size so far (ru_maxrss) takes its place, and work that
stays below an earlier peak shows as less.
"""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CONTROL_GROUP = Path("/sys/fs/cgroup")


def total_memory() -> int:
    """Bytes of memory of the machine."""
    import psutil

    return int(psutil.virtual_memory().total)


def available_memory() -> int:
    """Bytes of memory available to this process: of the machine, or of its control group if that is less."""
    import psutil

    available = int(psutil.virtual_memory().available)
    try:
        limit, used = (int((CONTROL_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # no such group, or the limit is the word "max"
        return available
    return max(min(available, limit - used), 0)


def free_memory(device: "torch.device | str") -> int:
    """Bytes of free memory of a device: of the GPU for a CUDA device, otherwise of the machine."""
    import torch

    device = torch.device(device)
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


def status(field: str) -> int | None:
    """Bytes of a line of /proc/self/status."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def largest_so_far() -> int | None:
    """Bytes of resident memory of this process at its largest, or since the mark was set back."""
    mark = status("VmHWM")
    return _ever_largest() if mark is None else mark


def _ever_largest() -> int | None:
    try:
        import resource
    except ImportError:  # not a Unix
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset_mark() -> bool:
    """Set the high-water mark of resident memory back to what is resident now; False if that is not permitted."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def give_back() -> None:
    """Return freed memory that the C library still holds to the system, if it can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_peak(work: Callable[[], object]) -> tuple[int | None, str]:
    """The rise of resident memory while `work` runs, and the way it was measured."""
    gc.collect()
    give_back()
    before = status("VmRSS")
    if before is not None and reset_mark():
        work()
        after = status("VmHWM")
        return (None if after is None else max(after - before, 0)), "VmHWM"
    before = _ever_largest()
    work()
    after = _ever_largest()
    return (None, "") if before is None or after is None else (after - before, "ru_maxrss")
