"""The machine: its properties, and how fast it multiplies and copies."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from mereo.bench.cases import all_threads
from mereo.bench.counting import Rates
from mereo.bench.timing import Clock, quiet, threads
from mereo.runtime.memory import total_memory

IDENTITY = ("processor", "cores", "device")
"""Facts without which two measurements are not of the same machine."""
VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY",
    "OMP_WAIT_POLICY", "LD_PRELOAD", "MALLOC_CONF", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


def processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def device_name(device: str) -> str:
    """The name of an accelerator, "cpu" for none."""
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def git_commit(folder: Path) -> str | None:
    """The commit that a folder is checked out from, "+" after it if tracked files differ; None if there is none."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def machine_facts(device: str = "cpu") -> dict[str, Any]:
    """The facts that a measurement depends on."""
    import torch

    import mereo

    return {
        "processor": processor(),
        "cores": all_threads(),
        "device": device_name(device),
        "memory": total_memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mereo": mereo.__version__,
        "commit": git_commit(Path(__file__).parent),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkl": torch.backends.mkl.is_available(),
        "onednn": torch.backends.mkldnn.is_available(),
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def clock_of(device: str) -> Clock:
    """A clock that waits for the device."""
    import torch

    return Clock(settle=lambda: torch.cuda.synchronize(device)) if device.startswith("cuda") else Clock()


def probe(count: int, device: str = "cpu", *, seconds: float, side: int) -> Rates:
    """Best rates of a float32 matrix product and of a copy (read and write), on the given number of threads."""
    import torch

    side *= 8 if device.startswith("cuda") else 1
    one, two = torch.rand(side, side, device=device), torch.rand(side, side, device=device)
    product = torch.empty_like(one)
    source = torch.ones(2**24, device=device)
    target = torch.empty_like(source)
    clock = clock_of(device)

    def best(work: Any) -> float:
        clock.time(work)
        began = clock.wall()
        times: list[float] = []
        while len(times) < 3 or clock.wall() - began < seconds:
            times.append(clock.time(work)[0])
        return min(times)

    with threads(count), quiet():
        matmul = 2 * side**3 / best(lambda: torch.mm(one, two, out=product))
        return Rates(matmul, 2 * source.nbytes / best(lambda: target.copy_(source)))
