"""`python -m mereo.training.peak CONFIG`: the peak memory of a training step, printed as one line of JSON.

It is measured in a process of its own, from before the network exists: weights, gradients, state of the optimiser and
what the forward pass stores. What libraries load on first use is not counted.
"""

import json
import subprocess
import sys

import torch

from mereo.data import Batch
from mereo.runtime.memory import resident_peak
from mereo.runtime.printing import say
from mereo.training.backend import make_optimizer
from mereo.training.config import TrainConfig
from mereo.training.estimate import training_images
from mereo.training.groups import parameter_groups
from mereo.training.plan import Plan, make_plan
from mereo.training.step import descend

TIMEOUT = 900.0
STEPS = 2
"""The state of an optimiser exists from the second step on."""
FEW = 2
"""Images of the batch on which libraries load."""


def peak_memory(plan: Plan) -> int | None:
    """Bytes of memory that a training step takes at its peak, measured in a separate process; None where it cannot be.

    Args:
        plan: of the training.
    """
    order = json.dumps(plan.config.to_dict())
    try:
        done = subprocess.run(
            # -P: modules of the working folder must not replace those of Python.
            [sys.executable, "-P", "-m", "mereo.training.peak", order],
            capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])["peak"] if done.returncode == 0 and lines else None


def _train(plan: Plan, batch: Batch) -> None:
    """Some steps on a batch of random images."""
    config, device = plan.config, plan.device
    objective = plan.task().objective(plan.build_model().to(device), config).train()
    optimizer = make_optimizer(config, parameter_groups(config, objective, objective.model))
    for _ in range(STEPS):
        descend(optimizer, config.lr, [objective(batch)[0]])
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(plan: Plan) -> int | None:
    """The peak in this process."""
    device, labels = plan.device, plan.info.labels_per_image
    size = min(plan.config.batch_size, max(training_images(plan.config, plan.info), 1)) // plan.config.accumulate
    model = plan.build_model().to(device)
    few, batch = (plan.task().example(model, max(count, 1), labels) for count in (FEW, size))
    del model
    _train(plan, few)
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        _train(plan, batch)
        return torch.cuda.max_memory_allocated(device) - before
    return resident_peak(lambda: _train(plan, batch))[0]


def main(order: str) -> None:
    """Measure and print."""
    say(json.dumps({"peak": measure(make_plan(TrainConfig().replace(**json.loads(order))))}))


if __name__ == "__main__":
    main(sys.argv[1])
