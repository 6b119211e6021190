"""Batch statistics shared among the processes of a training, on CPUs as on CUDA devices.

PyTorch's `SyncBatchNorm` needs an accelerator, so `SharedBatchNorm` replaces it on a CPU.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Reduce = Callable[[Tensor], None]
"""Sums a tensor over the processes, in place."""


def sum_over_processes(tensor: Tensor) -> None:
    """Sum a tensor over all processes, in place."""
    torch.distributed.all_reduce(tensor)


class NormaliseShared(torch.autograd.Function):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias over the images of all processes.

    Args:
        inputs: (batch, channels, ...) of this process.
        weight, bias: (channels,) or None.
        mean, variance: (channels,), of all processes, the variance biased.
        count: numbers of a channel in all processes together.
        reduce: sums over the processes, for the backward pass.

    The gradient is exact and includes the path through the statistics. Gradients of weight and bias cover this process
    only, as for any parameter before gradients are averaged.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor,
        eps: float, count: float, reduce: Reduce,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(inputs, weight, mean, variance)
        ctx.eps, ctx.count, ctx.reduce = eps, count, reduce
        return F.batch_norm(inputs, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        inputs, weight, mean, variance = ctx.saved_tensors
        axes, shape = _axes(inputs), _shape(inputs)
        scale = (variance + ctx.eps).rsqrt()
        wide = gradient.to(mean.dtype)
        normalised = (inputs - mean.view(shape)) * scale.view(shape)
        own = torch.stack((wide.sum(axes), (wide * normalised).sum(axes)))
        total = own.clone()
        ctx.reduce(total)
        first, second = (total / ctx.count).unbind()
        factor = scale if weight is None else scale * weight
        inner = wide - first.view(shape) - normalised * second.view(shape)
        for_inputs = (factor.view(shape) * inner).to(inputs.dtype) if ctx.needs_input_grad[0] else None
        for_weight = own[1].to(weight.dtype) if ctx.needs_input_grad[1] else None
        for_bias = own[0].to(gradient.dtype if weight is None else weight.dtype) if ctx.needs_input_grad[2] else None
        return for_inputs, for_weight, for_bias, None, None, None, None, None


def _axes(inputs: Tensor) -> list[int]:
    """All axes except the channels."""
    return [axis for axis in range(inputs.dim()) if axis != 1]


def _shape(inputs: Tensor) -> list[int]:
    """The shape in which one value per channel broadcasts over the inputs."""
    return [1, -1] + [1] * (inputs.dim() - 2)


@torch.no_grad()
def shared_statistics(inputs: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor, float]:
    """Mean and biased variance of each channel over the images of all processes, and how many numbers each has.

    Sums of mean and variance are taken in float64 where the device has it, after each process has subtracted its own
    mean, so that large means lose no precision.
    """
    axes = _axes(inputs)
    wide = inputs.float() if inputs.dtype in (torch.float16, torch.bfloat16) else inputs
    variance, mean = torch.var_mean(wide, axes, correction=0)
    count = inputs.numel() // inputs.shape[1]
    precise = torch.float32 if inputs.device.type == "mps" else torch.float64
    m, v = mean.to(precise), variance.to(precise)
    sums = torch.cat((count * m, count * (v + m.square()), m.new_full((1,), count)))
    reduce(sums)
    total = sums[-1]
    first, second = (sums[:-1] / total).chunk(2)
    return first.to(mean.dtype), (second - first.square()).clamp(min=0).to(mean.dtype), float(total)


class SharedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """A batch norm with statistics over all processes in training; in evaluation an ordinary batch norm.

    Its state has the names and values of the batch norm that it replaces.
    """

    def _check_input_dim(self, inputs: Tensor) -> None:
        if inputs.dim() < 2:
            raise ValueError(f"inputs have {inputs.dim()} axes; a batch norm needs at least 2.")

    def forward(self, inputs: Tensor) -> Tensor:
        if not (self.training and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1):
            return super().forward(inputs)
        return self._forward_shared(inputs)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _forward_shared(self, inputs: Tensor) -> Tensor:
        self._check_input_dim(inputs)
        mean, variance, count = shared_statistics(inputs, sum_over_processes)
        if count < 2:
            raise ValueError("a batch norm in training needs more than one value for each channel.")
        if self.track_running_stats:
            self._update(mean, variance * (count / (count - 1)))
        return NormaliseShared.apply(
            inputs, self.weight, self.bias, mean, variance, self.eps, count, sum_over_processes
        )

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


_PLAIN: tuple[type, ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_SHARED: tuple[type, ...] = (SharedBatchNorm, nn.SyncBatchNorm)


def _replace(model: nn.Module, kinds: tuple[type, ...], make: Callable[[Any], nn.Module]) -> None:
    """Replace every module of exactly these types in `model`."""
    made: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and type(child) in kinds:
                made[child] = made.get(child) or make(child)
                parent._modules[name] = made[child]


def _twin(norm: Any, kind: type) -> Any:
    """A batch norm of another kind with the same parameters, statistics, hooks and mode."""
    twin = kind(norm.num_features, norm.eps, norm.momentum, False, norm.track_running_stats)
    twin.affine, twin.training = norm.affine, norm.training
    for held in ("_parameters", "_buffers", "_forward_hooks", "_forward_pre_hooks"):
        setattr(twin, held, getattr(norm, held))
    return twin


def share_batch_statistics(model: nn.Module, device: torch.device) -> None:
    """Let every batch norm inside `model` share its statistics with the other processes, until they are restored.

    A subclass of PyTorch's batch norms is not replaced, because it has its own forward pass; `statistics_note` names
    it.
    """
    kind: type = SharedBatchNorm if device.type == "cpu" else nn.SyncBatchNorm

    def make(norm: Any) -> nn.Module:
        twin = _twin(norm, kind)
        twin.plain = type(norm)
        return twin

    _replace(model, _PLAIN, make)


def restore_batch_norms(model: nn.Module) -> None:
    """Put plain batch norms back where `share_batch_statistics` put shared ones."""
    _replace(model, _SHARED, lambda norm: _twin(norm, norm.plain) if hasattr(norm, "plain") else norm)


def statistics_note(model: nn.Module, *, processes: int, parts: int, batch_size: int) -> str | None:
    """A note on the images that batch statistics are computed over, if that is not the whole batch; otherwise None.

    Args:
        processes, parts: numbers of processes and of accumulated parts that divide each batch.
        batch_size: images of an optimiser step.
    """
    norms = {name: m for name, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
    own = [name for name, norm in norms.items() if type(norm) not in _SHARED] if processes > 1 else []
    if own:
        more = f" and {len(own) - 1} more" if len(own) > 1 else ""
        return (
            f"batch norm: {own[0]}{more} use the statistics of the {batch_size // (processes * parts)} images of one"
            " process, so the result depends on the number of processes"
        )
    if norms and parts > 1:
        return (
            f"batch norm: statistics are over a part of {batch_size // parts} images, not over the batch of"
            f" {batch_size}, so the result depends on accumulate, {parts}"
        )
    return None
