"""A training step on random images, to measure memory and time before a training starts."""

import statistics
import time
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from mereo.data import Batch
from mereo.models.registry import lay_out
from mereo.training.adversarial import adversarial_training
from mereo.training.backend import arithmetic, make_optimizer, memory_format
from mereo.training.freezing import freeze_as_configured, start_training
from mereo.training.groups import parameter_groups
from mereo.training.plan import Plan, training_images
from mereo.training.regularisers import regularise

MOST_BATCHES = 5
"""Batches of one size that are timed."""
LARGER_IF = 5
"""Batches are doubled while there is time for this many as they are; the first of a size takes longer."""


class TrialStep:
    """The network of a plan and its loss, as the training uses them, with random images in place of the data.

    Attributes:
        plan: of the training.
        model: the network, on the device of the plan.
        objective: the network with its loss, in training mode except for frozen modules.
        images: training images per epoch.
        batch_size: images of an optimiser step.
        part_size: images of one of the parts into which `accumulate` splits a step.
    """

    def __init__(self, plan: Plan) -> None:
        config = plan.config
        self.plan, self.task, self.device = plan, plan.make_task(), plan.device
        self.model = plan.build_model().to(self.device)
        self.memory_format = memory_format(config, self.model)
        lay_out(self.model, self.memory_format)
        frozen = freeze_as_configured(self.model, config)
        self.objective = regularise(self.task.objective(self.model, config), config)
        start_training(self.objective, frozen)
        # Random images are as good as normalised.
        self.adversary = adversarial_training(config, lambda images: images, self._arithmetic)
        self.images = training_images(config, plan.info)
        self.batch_size = min(config.batch_size, max(self.images, 1))
        self.part_size = max(self.batch_size // config.accumulate, 1)

    def example(self, count: int) -> Batch:
        """A batch of random images on the device."""
        batch = self.task.example(self.model, count, self.plan.info.labels_per_image)
        if batch.images is None:
            return batch
        return batch._replace(images=batch.images.contiguous(memory_format=self.memory_format))

    def loss(self, batch: Batch) -> Tensor:
        """The training loss of a batch, part of it replaced by adversarial images if the plan asks for that: ()."""
        if self.adversary is not None:
            batch = self.adversary(self.model, batch, 0, 0)
        with self._arithmetic():
            return self.objective(batch)[0]

    def _arithmetic(self) -> AbstractContextManager[Any]:
        return arithmetic(self.plan.config.precision, self.device)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of the training, of the parameters that are not frozen."""
        config = self.plan.config
        return make_optimizer(config, parameter_groups(config, self.objective, self.model))

    def synchronise(self) -> None:
        """Wait until the device has computed everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def image_seconds(self, limit: float) -> float:
        """Measured seconds of the forward and backward pass of one image.

        The timed batches double, up to a part of a step, while there is time.

        Args:
            limit: approximate seconds that are measured, which limit the size of the timed batches.
        """
        end = time.perf_counter() + limit
        count = min(2, self.part_size)
        times = [self._seconds(count)]
        # The first batch of a size takes longer, so it is not the only one unless it is longer than the limit itself.
        while len(times) < MOST_BATCHES and (
            (left := end - time.perf_counter()) > min(times) or (len(times) == 1 and times[0] < limit)
        ):
            if count < self.part_size and left > LARGER_IF * min(times):
                count, times = min(2 * count, self.part_size), []
            times.append(self._seconds(count))
        return statistics.median_low(times) / count

    def _seconds(self, count: int) -> float:
        batch = self.example(count)
        began = time.perf_counter()
        self.loss(batch).backward()
        self.objective.zero_grad(set_to_none=True)
        self.synchronise()
        return time.perf_counter() - began
