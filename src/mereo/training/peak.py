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
from mereo.training.config import TrainConfig
from mereo.training.plan import Plan, make_plan
from mereo.training.step import descend
from mereo.training.trial_step import TrialStep

TIMEOUT = 900.0
STEPS = 2
"""The state of an optimiser exists from the second step on."""
FEW = 2
"""Images of the batch on which libraries load."""


def peak_memory(plan: Plan) -> int | None:
    """Bytes of memory that a training step takes at its peak, measured in a separate process; None if that fails.

    Args:
        plan: of the training.
    """
    order = json.dumps(plan.config.to_dict())
    try:
        done = subprocess.run(
            # -P: modules of the working folder must not replace Python's own.
            [sys.executable, "-P", "-m", "mereo.training.peak", order],
            capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])["peak"] if done.returncode == 0 and lines else None


def _train(plan: Plan, batch: Batch) -> None:
    """Some steps of a new network on a batch of random images."""
    trial = TrialStep(plan)
    optimizer = trial.make_optimizer()
    for _ in range(STEPS):
        descend(optimizer, plan.config.lr, trial.loss(batch))
    trial.synchronise()


def measure(plan: Plan) -> int | None:
    """The peak in this process."""
    device, trial = plan.device, TrialStep(plan)
    few, batch = trial.example(FEW), trial.example(trial.part_size)
    # The network of the measurement is made within it.
    del trial
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
