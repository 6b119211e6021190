"""Where the time of a step goes: kernels of convolution and batch norm, named parts of the network, Python."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

PREFIX = "part::"
KERNELS = {"conv": "convolution", "batch_norm": "batch norm", "native_batch_norm": "batch norm"}
"""Parts of the names of operators that are counted by themselves, wherever they are called."""
OPTIMISER, OTHER, PYTHON = "optimiser", "other kernels", "Python and dispatch"
BACKWARD = "autograd::engine::evaluate_function"


@contextmanager
def labelled(model: nn.Module, labels: Mapping[type[nn.Module], str]) -> Iterator[None]:
    """While it lasts, the forward pass of every module of these classes is recorded under its label."""
    running: list[Any] = []

    def enter(label: str, module: nn.Module, inputs: Any) -> None:
        running.append(record_function(PREFIX + label))
        running[-1].__enter__()

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        running.pop().__exit__(None, None, None)

    handles = []
    for module in model.modules():
        for kind, label in labels.items():
            if isinstance(module, kind):
                handles.append(module.register_forward_pre_hook(partial(enter, label)))
                handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _kernel(name: str) -> str | None:
    if not name.startswith(("aten::", "mkldnn", "cudnn")):
        return None
    return next((label for part, label in KERNELS.items() if part in name), None)


def _own_label(event: Any) -> str | None:
    """The label of an event itself."""
    name = event.name
    if name.startswith(PREFIX):
        return name.removeprefix(PREFIX)
    return OPTIMISER if name.startswith("Optimizer.") else _kernel(name)


def _label(event: Any, by_number: Mapping[int, str]) -> str:
    """The label of the nearest event around it that has one; a backward pass has the label of its forward operator."""
    while event is not None:
        own = _own_label(event)
        if own is not None:
            return own
        if event.name.startswith(BACKWARD) and event.sequence_nr in by_number:
            return by_number[event.sequence_nr]
        event = event.cpu_parent
    return OTHER


def _is_annotation(name: str) -> bool:
    return name.startswith((PREFIX, "Optimizer.", "ProfilerStep", "whole step"))


def shares(step: Callable[[], object], steps: int = 3, device: str = "cpu") -> tuple[dict[str, float], float]:
    """Seconds of one step by label, the largest first, and in all. Self times, while the profiler runs."""
    on_cuda = device.startswith("cuda")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    step()
    step()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]) as trace:
        for _ in range(steps):
            with record_function("whole step"):
                step()
                if on_cuda:
                    import torch

                    torch.cuda.synchronize(device)
    events: list[Any] = sorted(trace.events() or [], key=lambda e: e.time_range.start)
    by_number: dict[int, str] = {}
    for event in events:
        inside = event.cpu_parent
        while inside is not None and not inside.name.startswith(BACKWARD):
            inside = inside.cpu_parent
        # Operators that make no node show the number of the next one that does: the last to show it is that one.
        if event.sequence_nr >= 0 and inside is None and not event.name.startswith(BACKWARD):
            by_number[event.sequence_nr] = _label(event, {})
    seconds: dict[str, float] = defaultdict(float)
    whole = sum(e.time_range.elapsed_us() for e in events if e.name == "whole step" and e.cpu_parent is None) / 1e6
    for event in events:
        if _is_annotation(event.name) or event.name.startswith(BACKWARD):
            continue
        own = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        seconds[_label(event, by_number)] += own / 1e6
    seconds[PYTHON] = max(whole - sum(seconds.values()), 0.0)
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return {label: s / steps for label, s in ordered if s > 0}, whole / steps
