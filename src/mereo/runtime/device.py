"""The choice of the device, and copies to it."""

import torch
from torch import Tensor

from mereo.errors import UsageError


def choose_device(name: str) -> torch.device:
    """The device with this name, or the best available one for "auto"; UsageError if the machine does not have it."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if accelerator is None else accelerator
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device is {name!r}; it must be auto, cpu, cuda, cuda:N or mps.") from None
    available = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    count = available.get(device.type, 0)
    if count == 0 or (device.index or 0) >= count:
        listed = ", ".join(f"{kind} ({n})" for kind, n in available.items() if n)
        raise UsageError(f"device is {name!r}, which this machine does not have; available: {listed}.")
    return device


def copied_to(tensor: Tensor, device: torch.device | str | None) -> Tensor:
    """The tensor on that device, or where it is for None.

    A copy to an accelerator does not wait for what is queued there. One to the CPU waits: it would be read before it is
    filled.
    """
    return tensor if device is None else tensor.to(device, non_blocking=torch.device(device).type != "cpu")
