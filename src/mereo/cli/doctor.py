"""`mereo doctor`."""

import importlib.util
import json
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mereo.cli.options import DoctorOptions
from mereo.cli.parse import parse
from mereo.runtime.printing import say

PACKAGES = ("torch", "torchvision", "numpy", "accelerate", "safetensors", "timm", "triton", "scipy")
EXTRAS = {
    "tensorboard": ("tensorboard",),
    "timm": ("timm",),
    "app": ("gradio",),
    "clean": ("cleanlab", "imagehash"),
    "export": ("onnx", "onnxruntime", "onnxscript"),
}
"""Extra of the package -> what it installs."""

Section = dict[str, Any]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions() -> Section:
    """Versions of Python, mereo and the libraries it depends on."""
    import mereo

    return {"python": platform.python_version(), "mereo": mereo.__version__, **{p: _version(p) for p in PACKAGES}}


def devices() -> Section:
    """Processors and accelerators."""
    import torch

    from mereo.bench.machine import processor

    section: Section = {"cpu": processor()}
    for i in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(i)
        section[f"cuda:{i}"] = f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB"
    if not torch.cuda.is_available():
        section["cuda"] = (
            f"none (torch is built {'for CUDA ' + torch.version.cuda if torch.version.cuda else 'without'})"
        )
    section["mps"] = "available" if torch.backends.mps.is_available() else "none"
    return section


def compute() -> Section:
    """Threads, memory, libraries and what torch.compile needs."""
    import torch

    from mereo.bench.machine import VARIABLES, machine_facts
    from mereo.runtime.memory import available_memory, total_memory

    facts, total = machine_facts(), total_memory()
    compiler = next((c for c in ("g++", "clang++", "c++", "cl") if shutil.which(c)), None)
    return {
        "threads": f"{torch.get_num_threads()} in use, {facts['cores']} cores for this process",
        "memory free": f"{available_memory() / 2**30:.1f} GiB of {total / 2**30:.1f} GiB",
        "CPU capability": facts["cpu_capability"],
        "MKL": "yes" if facts["mkl"] else "no",
        "oneDNN": "yes" if facts["onednn"] else "no",
        "OpenMP": "yes" if torch.backends.openmp.is_available() else "no",
        "C++ compiler": compiler or "none: torch.compile cannot be used on a CPU",
        "variables": ", ".join(f"{k}={v}" for k, v in facts["variables"].items())
        or f"none of {', '.join(VARIABLES[:3])} ... is set",
    }


def kernels() -> Section:
    """Whether each implementation of routing is available, or what it lacks, and which other kernels are compiled."""
    from mereo.core.kernels import backends
    from mereo.core.kernels.library import missing

    compiled = "compiled" if missing is None else f"PyTorch: {missing}"
    ways = {f"routing, {name}": reason for name, reason in backends().items()}
    return {**ways, "agree and combine": compiled}


def data(root: str | None) -> Section:
    """Which data sets are available."""
    from mereo.data import DATASETS
    from mereo.data.sources import data_root

    folder = data_root(root)
    section: Section = {"root": f"{folder}" if folder.is_dir() else f"{folder} (no such folder)"}
    for name, info in DATASETS.items():
        there = sorted(path for pattern in info.files for path in folder.glob(pattern))
        section[name] = str(there[0]) if there else "not found" if info.files else "part of the package"
    return section


def extras() -> Section:
    """Which optional parts are installed."""
    section: Section = {}
    for extra, packages in EXTRAS.items():
        missing = [p for p in packages if importlib.util.find_spec(p) is None]
        lacking = f"lacks {', '.join(missing)}: pip install 'mereo[{extra}]'"
        section[extra] = lacking if missing else ", ".join(f"{p} {_version(p)}" for p in packages)
    return section


def examine(root: str | None = None) -> dict[str, Section]:
    """All facts by section."""
    return {
        "versions": versions(),
        "devices": devices(),
        "compute": compute(),
        "kernels": kernels(),
        "data": data(root),
        "extras": extras(),
    }


def run(words: list[str], command: str) -> None:
    """Print what is installed and what is missing."""
    options = parse(DoctorOptions, words, command)
    report = examine(options.data_root and str(Path(options.data_root)))
    if options.json:
        say(json.dumps(report, indent=2))
        return
    for number, (section, facts) in enumerate(report.items()):
        say(("\n" if number else "") + section)
        width = max(map(len, facts))
        for name, fact in facts.items():
            say(f"  {name.ljust(width)}  {'not installed' if fact is None else fact}")
