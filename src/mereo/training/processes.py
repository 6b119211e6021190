"""Texts that the processes of one launch share before training starts."""

import os

import torch


def share_text(text: str, device: torch.device) -> str:
    """The text of the first process, in every process; each must call this. A single process keeps its own.

    Args:
        text: used of the first process; ignored of the others.
        device: the kind of device that the run trains on, which decides the communication backend.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return text
    from accelerate import PartialState

    state = PartialState(cpu=device.type == "cpu")
    content = torch.tensor(list(text.encode()), dtype=torch.uint8, device=state.device)
    size = torch.tensor([len(content)], device=state.device)
    torch.distributed.broadcast(size, 0)
    if state.process_index != 0:
        content = torch.empty(int(size), dtype=torch.uint8, device=state.device)
    torch.distributed.broadcast(content, 0)
    return bytes(content.tolist()).decode()
