"""Batch statistics shared among processes: the function, its gradient, the modules, and a training in two processes."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mereo.models.weights import load_tensors
from mereo.training.batch_norm import (
    NormaliseShared,
    SharedBatchNorm,
    restore_batch_norms,
    share_batch_statistics,
    shared_statistics,
    statistics_note,
)
from mereo.training.config import TrainConfig
from mereo.training.trainer import train

SHAPES = [(6, 3), (6, 3, 5), (4, 3, 2, 5), (4, 2, 2, 2, 2)]


def alone(tensor):
    """What one process sums."""


class Processes:
    """One thread for each share; every thread sums over all shares."""

    def __init__(self, count):
        self.barrier, self.tensors = Barrier(count), [torch.zeros(0)] * count

    def reduce(self, rank):
        def total(tensor):
            self.tensors[rank] = tensor.clone()
            self.barrier.wait(20)
            tensor.copy_(torch.stack(self.tensors).sum(0))
            self.barrier.wait(20)

        return total

    def run(self, function):
        count = len(self.tensors)
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(function, range(count), [self.reduce(rank) for rank in range(count)]))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_the_gradient_is_exact(shape, affine):
    channels = shape[1]
    inputs = (2 + 3 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
    own = [torch.randn(channels, dtype=torch.float64, requires_grad=True) for _ in range(2)] if affine else [None] * 2

    def normalise(inputs, weight, bias):
        mean, variance, count = shared_statistics(inputs, alone)
        return NormaliseShared.apply(inputs, weight, bias, mean, variance, 1e-5, count, alone)

    assert torch.autograd.gradcheck(normalise, (inputs, *own))
    torch.testing.assert_close(normalise(inputs, *own), F.batch_norm(inputs, None, None, *own, True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("shares", [(2, 2), (1, 3), (1, 1, 2)], ids=str)
def test_shares_compute_what_the_whole_computes(shape, shares):
    inputs = 2 + 3 * torch.randn(sum(shares), *shape[1:], dtype=torch.float64)
    weight, bias = (torch.randn(shape[1], dtype=torch.float64) for _ in range(2))
    towards = torch.randn_like(inputs)

    def share(rank, reduce):
        own = inputs.split(shares)[rank].clone().requires_grad_()
        parameters = [tensor.clone().requires_grad_() for tensor in (weight, bias)]
        statistics = shared_statistics(own, reduce)
        mean, variance, count = statistics
        outputs = NormaliseShared.apply(own, *parameters, mean, variance, 1e-5, count, reduce)
        outputs.backward(towards.split(shares)[rank])
        return outputs.detach(), own.grad, *(p.grad for p in parameters), mean, variance

    found = Processes(len(shares)).run(share)
    whole = [tensor.clone().requires_grad_() for tensor in (inputs, weight, bias)]
    outputs = F.batch_norm(whole[0], None, None, whole[1], whole[2], True)
    outputs.backward(towards)
    outputs_found, inputs_found, weight_found, bias_found, means, variances = zip(*found, strict=True)
    torch.testing.assert_close(torch.cat(outputs_found), outputs.detach())
    torch.testing.assert_close(torch.cat(inputs_found), whole[0].grad)
    torch.testing.assert_close(sum(weight_found), whole[1].grad)
    torch.testing.assert_close(sum(bias_found), whole[2].grad)
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    for mean, variance in zip(means, variances, strict=True):
        torch.testing.assert_close(mean, inputs.mean(axes))
        torch.testing.assert_close(variance, inputs.var(axes, correction=0))


def test_a_large_mean_costs_no_digits():
    inputs = 1e4 + torch.randn(64, 3, 8, 8)
    _, variance, _ = shared_statistics(inputs, alone)
    torch.testing.assert_close(variance, inputs.double().var([0, 2, 3], correction=0).float(), rtol=1e-5, atol=0)


def test_half_precision_has_wide_statistics():
    inputs = (300 * torch.randn(8, 3, 4, 4)).to(torch.bfloat16).requires_grad_()
    mean, variance, count = shared_statistics(inputs, alone)
    assert mean.dtype == variance.dtype == torch.float32
    outputs = NormaliseShared.apply(inputs, torch.ones(3), torch.zeros(3), mean, variance, 1e-5, count, alone)
    outputs.sum().backward()
    assert outputs.dtype == inputs.grad.dtype == torch.bfloat16 and outputs.isfinite().all()


class Activated(nn.BatchNorm2d):
    """A batch norm with a forward pass of its own, as some libraries have."""

    def forward(self, inputs):
        return super().forward(inputs).relu()


def make():
    twice = nn.BatchNorm1d(4, momentum=None)
    return nn.Sequential(
        nn.BatchNorm2d(3, eps=1e-3, affine=False), nn.ModuleDict({"inner": twice, "again": twice}),
        nn.BatchNorm3d(2, momentum=0.3, track_running_stats=False), Activated(3), nn.InstanceNorm2d(3),
    ).eval()  # fmt: skip


@pytest.mark.parametrize(("device", "kind"), [("cpu", SharedBatchNorm), ("cuda", nn.SyncBatchNorm)])
def test_modules_are_replaced_and_restored_with_all_they_hold(device, kind):
    model = make()
    seen = []
    model[1]["inner"].register_forward_hook(lambda *_: seen.append(1))
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    parameters, text = list(model.parameters()), repr(model)
    share_batch_statistics(model, torch.device(device))
    assert [type(m) for m in (model[0], model[1]["inner"], model[2])] == [kind] * 3
    assert model[1]["inner"] is model[1]["again"] and type(model[3]) is Activated
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == before
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True)) and not model[0].training
    torch.testing.assert_close(model[1]["inner"](torch.ones(2, 4)), torch.full((2, 4), (1 + 1e-5) ** -0.5))
    assert seen == [1]
    restore_batch_norms(model)
    assert repr(model) == text and {n: t.data_ptr() for n, t in model.state_dict().items()} == before
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))


def test_alone_it_is_the_plain_batch_norm():
    plain, shared = nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm2d(3))
    share_batch_statistics(shared, torch.device("cpu"))
    inputs = torch.randn(4, 3, 5, 5)
    assert torch.equal(plain(inputs), shared(inputs))
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), shared.buffers(), strict=True))


def test_the_note_says_whose_statistics_they_are():
    sizes = {"processes": 1, "parts": 1, "batch_size": 64}
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.BatchNorm2d(2))
    assert statistics_note(model, **sizes) is None
    assert "part of 16 images" in statistics_note(model, **{**sizes, "parts": 4})
    assert "1 and 1 more use the statistics of the 32 images" in statistics_note(model, **{**sizes, "processes": 2})
    share_batch_statistics(model, torch.device("cpu"))
    assert statistics_note(model, **{**sizes, "processes": 2}) is None
    assert "part of 16 images" in statistics_note(model, **{**sizes, "processes": 2, "parts": 4})
    assert (
        statistics_note(nn.Sequential(nn.Linear(2, 2), Activated(3)), **{**sizes, "processes": 4}).count("1 use") == 1
    )
    assert statistics_note(nn.Linear(2, 2), processes=3, parts=2, batch_size=64) is None


def runs(output: str) -> dict[str, TrainConfig]:
    """Trainings of eight steps, by name. Not of Adam, which divides rounding errors by gradients near zero."""
    base = TrainConfig().replace(
        model="mspcaps_tiny", data="digits", limit=64, batch_size=16, epochs=2, output=output, tensorboard=False,
        device="cpu", optimizer="sgd", lr=0.02,
        model_args={"channels": [4, 8, 8], "img_size": 16, "patch_size": 2, "coupling_drop": 0.0},
    )  # fmt: skip
    return {
        "shared": base.replace(name="shared"),
        "parts": base.replace(name="parts", accumulate=2),
        "apart": base.replace(name="apart", sync_batchnorm=False),
    }


@pytest.mark.long
def test_two_processes_follow_one(tmp_path, capsys):
    """Weights and running statistics after eight steps; without sharing they are far apart."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(Path(__file__)), str(tmp_path / "two")], env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("part of 8 images") == 1 and done.stdout.count("images of one process") == 1
    differences = {}
    for name, config in runs(str(tmp_path / "one")).items():
        train(config)
        one, two = (
            load_tensors(tmp_path / which / name / "weights" / "last.safetensors")[0] for which in ("one", "two")
        )
        assert one.keys() == two.keys()
        differences[name] = max(float(((one[key] - two[key]).abs() / one[key].abs().clamp(min=1)).max()) for key in one)
    assert capsys.readouterr().out.count("part of 8 images") == 1
    assert differences["shared"] < 1e-6 and differences["parts"] < 1e-6, differences
    assert differences["apart"] > 1e-3, "nothing was to be shared"


if __name__ == "__main__":
    for settings in runs(sys.argv[1]).values():
        result = train(settings)
        assert not any(isinstance(module, SharedBatchNorm) for module in result.model.modules())
    torch.distributed.destroy_process_group()
    os._exit(0)
