"""The checkpoint of a run in one safetensors file: weights, averages, optimiser and progress.

Optimiser state is flattened to named tensors and one JSON document, so nothing is ever unpickled. The file is replaced
atomically, so weights and optimiser are always of the same step. It is built on PyTorch's distributed state dicts, so
plain, DDP and fully sharded modules are saved and restored alike.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from mereo.errors import UsageError
from mereo.models.weights import check_finite, load_tensors, not_finite, save_tensors
from mereo.training.averaging import WeightAverage
from mereo.training.report import COLUMNS
from mereo.training.schedule import CLOCK

_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
_SOME = replace(_FULL, strict=False)
"""For an optimiser that has no state of some parameters."""


def full_tensor(tensor: Tensor) -> Tensor:
    """The complete tensor of one that may be sharded; a collective call if it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def model_state(objective: nn.Module) -> dict[str, Tensor]:
    """The unsharded weights of the model inside an objective, on the CPU, under the model's own names.

    A collective call; only the first process receives them.
    """
    state: dict[str, Any] = get_model_state_dict(objective, options=_FULL)
    return {name.removeprefix("model."): tensor for name, tensor in state.items()}


def restore_model(objective: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Restore the weights that `model_state` returned."""
    named: dict[str, Any] = {f"model.{name}": tensor for name, tensor in state.items()}
    set_model_state_dict(objective, named, options=_FULL)


def flatten_optimizer(
    objective: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State of the optimiser as named tensors and plain values; both are empty in all processes but the first."""
    state: dict[str, Any] = get_optimizer_state_dict(objective, optimizer, options=_FULL)
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {"groups": state.get("param_groups", []), "values": {}}
    for parameter, entries in state.get("state", {}).items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{parameter}/{key}"] = value
            elif value is not None:
                plain["values"][f"{parameter}/{key}"] = value
    # Parameters that got no gradient so far, such as those of parts that are not used, have none.
    named = [name for group in plain["groups"] for name in group["params"]]
    plain["stateless"] = [name for name in named if name not in state.get("state", {})]
    return tensors, plain


def restore_optimizer(
    objective: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], plain: dict[str, Any]
) -> None:
    """Restore the state that `flatten_optimizer` returned; ValueError if that of a parameter is missing."""
    state: dict[str, dict[str, Any]] = {}
    for name, value in {**tensors, **plain["values"]}.items():
        parameter, _, key = name.rpartition("/")
        state.setdefault(parameter, {})[key] = value
    groups = [{k: tuple(v) if k == "betas" else v for k, v in group.items()} for group in plain["groups"]]
    known = {*state, *plain.get("stateless", ())}
    if missing := [name for group in groups for name in group["params"] if name not in known]:
        raise ValueError(f"the state of the optimiser for {missing[0]} is missing")
    whole: dict[str, Any] = {"state": state, "param_groups": groups}
    set_optimizer_state_dict(objective, optimizer, whole, options=_SOME)


def save_state(
    path: Path,
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
    progress: dict[str, Any],
    *,
    write: bool = True,
) -> None:
    """Write the checkpoint atomically: a collective call, in which the process with `write` writes."""
    optimizer_tensors, plain = flatten_optimizer(objective, optimizer)
    tensors = {f"model/{name}": tensor for name, tensor in model_state(objective).items()}
    if average is not None:
        tensors |= {f"average/{name}": full_tensor(tensor) for name, tensor in average.average.items()}
    check_finite(tensors, path)
    tensors |= {f"optimizer/{name}": tensor for name, tensor in optimizer_tensors.items()}
    if write:
        save_tensors(path, tensors, {"progress": progress, "optimizer": plain})


def load_state(
    path: Path, objective: nn.Module, optimizer: torch.optim.Optimizer, average: WeightAverage | None
) -> dict[str, Any]:
    """Restore a checkpoint and return its progress; UsageError for a file that is not a checkpoint."""
    tensors, metadata = load_tensors(path)
    progress, plain = metadata.get("progress"), metadata.get("optimizer")
    if not (isinstance(plain, dict) and plain.get("groups") and isinstance(progress, dict)):
        raise UsageError(f"{path} is not the checkpoint of a run.")

    def part(prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

    model, moments = part("model/"), part("optimizer/")
    with fitting(path):
        for name in not_finite({n: t for n, t in tensors.items() if not n.startswith("optimizer/")}):
            raise ValueError(f"{name} has values that are not finite")
        restore_model(objective, model)
        for name, tensor in moments.items():
            # The optimiser would accept any shape and fail at its first step.
            owner = name.rpartition("/")[0].removeprefix("model.")
            if tensor.dim() and tensor.shape != model[owner].shape:
                raise ValueError(f"{name} is {tuple(tensor.shape)}, not {tuple(model[owner].shape)}")
        restore_optimizer(objective, optimizer, moments, plain)
        if average is not None:
            average.load_average(part("average/"))
    return dict(progress)


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Turn any error of restoring tensors into a UsageError that names the file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise UsageError(f"{path} does not fit this run ({reason}); remove it to start from the beginning.") from error


def check_progress(path: Path, progress: Mapping[str, Any], columns: Sequence[str] = COLUMNS) -> None:
    """UsageError unless progress is valid: epoch and step, one row per finished epoch, and the best epoch."""
    kinds = {"epoch": int, "step": int, "partial": list, "history": list, "seconds": int | float, "best": dict | None}
    if not all(isinstance(progress.get(name), kind) for name, kind in kinds.items()):
        raise UsageError(f"{path} has no valid progress; remove it to start from the beginning.")
    history, best = progress["history"], progress["best"] or {}
    rows = [row for row in [*history, best] if isinstance(row, dict)]
    clock = progress.get("clock", dict.fromkeys(CLOCK, 0.0))
    numbers = [*progress["partial"], *(number for row in rows for number in row.values())]
    fits = (
        isinstance(clock, dict)
        and {*clock} == {*CLOCK}
        and all(isinstance(number, int | float) and 0 <= number < math.inf for number in clock.values())
        and len(history) == progress["epoch"]
        and all(isinstance(row, dict) and {*columns, "loading_share"} <= row.keys() for row in history)
        and progress["step"] >= 0
        and len(progress["partial"]) >= 1
        and all(number is None or (isinstance(number, int | float) and abs(number) < math.inf) for number in numbers)
    )
    if not fits:
        raise UsageError(f"{path} has inconsistent progress; remove it to start from the beginning.")
