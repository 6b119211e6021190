"""Total and free memory. psutil reports the machine; the limit of a container is read here, as psutil ignores it."""

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
    """Bytes of memory that are free on a device; those of the machine unless it is a CUDA device."""
    import torch

    device = torch.device(device)
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
