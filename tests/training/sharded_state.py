"""Run by test_processes in two processes: a fully sharded training is saved, restored and goes on the same."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from mereo.data import Batch
from mereo.models import create_model
from mereo.models.weights import load_tensors
from mereo.tasks.classification import ClassificationObjective as Objective
from mereo.training.averaging import WeightAverage
from mereo.training.checkpoint import load_state, model_state, save_state


def build(mesh):
    torch.manual_seed(0)
    model = create_model("capsnet", img_size=20, conv_channels=8, primary_types=2)
    objective = Objective(model)
    fully_shard(objective, mesh=mesh)
    optimizer = torch.optim.AdamW(objective.parameters(), lr=1e-3)
    return objective, optimizer, WeightAverage(model, 0.9)


def step(objective, optimizer, average, number):
    generator = torch.Generator().manual_seed(number)
    images = torch.rand(4, 1, 20, 20, generator=generator)
    loss, _ = objective(Batch(images, torch.arange(4), images))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    average.update(number)


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    main_process = dist.get_rank() == 0
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    first = build(mesh)
    assert any(type(p).__name__ == "DTensor" for p in first[0].parameters()), "nothing was sharded"
    for number in range(2):
        step(*first, number)
    save_state(folder / "state.safetensors", *first, {"step": 2}, write=main_process)
    dist.barrier()
    second = build(mesh)
    assert load_state(folder / "state.safetensors", *second) == {"step": 2}
    for number in range(2, 4):
        step(*first, number)
        step(*second, number)
    a, b = model_state(first[0]), model_state(second[0])
    if main_process:
        assert a and all(torch.equal(a[name], b[name]) for name in a)
        saved, _ = load_tensors(folder / "state.safetensors")
        assert saved["model/head.weight"].shape == (10, 8, 8, 16), "the state is not whole"
    for x, y in zip(first[2].average.values(), second[2].average.values(), strict=True):
        assert torch.equal(x.full_tensor(), y.full_tensor())
    dist.barrier()
    dist.destroy_process_group()
    # Threads of the transport may outlive the group; an interpreter that is taken down beside them can abort.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
