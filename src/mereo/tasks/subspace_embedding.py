"""Subspace embedding: learners of an embedding, each trained on its own images; the last may be split.

Source: Adiga, Dolz, Lombaert 2022, arXiv:2206.09068.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch, Images
from mereo.errors import UsageError, check_count, check_positive, check_probability
from mereo.runtime.libraries import require
from mereo.tasks.base import Epoch, Objective, Settings, register_task
from mereo.tasks.embedding import Embedding, EmbeddingMetrics
from mereo.tasks.learners import batches, group, kept_outputs
from mereo.tasks.pair_margin import pair_margin_loss


@dataclass(frozen=True)
class SubspaceOptions:
    """How an embedding of several learners is trained.

    Args:
        dim: size of an embedding.
        beta: distance between images of a class and others, in the space of a learner.
        alpha: margin on each side of it.
        each: images of a class in a step.
        patience: epochs without a better nmi after which the last learner is split; 0 for never.
        least_outputs: a learner with this number of outputs or fewer is not split.
        least_kept: nor one that would keep fewer.
        threshold: importance from 0 to 1 above which an output is kept.
        regroup: epochs between two groupings of the images.
        fine_tune: share of the epochs, the last ones, that train the whole vector on all images.
    """

    dim: int = 128
    beta: float = 1.2
    alpha: float = 0.2
    each: int = 8
    patience: int = 10
    least_outputs: int = 10
    least_kept: int = 5
    threshold: float = 0.5
    regroup: int = 2
    fine_tune: float = 1 / 6

    def __post_init__(self) -> None:
        check_positive(dim=self.dim, beta=self.beta, alpha=self.alpha)
        check_count(1, each=self.each, least_outputs=self.least_outputs, least_kept=self.least_kept)
        check_count(1, regroup=self.regroup)
        check_count(0, patience=self.patience)
        check_probability(threshold=self.threshold, fine_tune=self.fine_tune)


class SubspaceObjective(Objective):
    """A network with a `SubspaceHead`, and the margin loss of one learner in each step.

    Attributes:
        groups: the learner of each training image, -1 for none; None before the first grouping.
        sums: of output times gradient over the epoch, (dim,).
        best: the best nmi and its epoch, counted from 0.
        may_split: whether the nmi has improved since the last split.
        splits: of the training so far: epoch from 1, outputs kept and given to the new learner.
    """

    def __init__(self, model: nn.Module, options: SubspaceOptions) -> None:
        super().__init__(model)
        self.options, self.number = options, 0
        self.sums = torch.zeros(options.dim)
        self.groups: Tensor | None = None
        self.trained: list[int] = []
        self.best: tuple[float, int] | None = None
        self.may_split = self.was_split = False
        self.splits: list[dict[str, int]] = []
        self.figures = {"learners": 1.0}

    # --- a step -----------------------------------------------------------------------------------------------------

    def at_step(self, step: int, steps: int) -> None:
        self.number = step

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs = self.model(batch.images).float()
        if outputs.requires_grad:
            values = outputs.detach()
            outputs.register_hook(lambda gradient: self._count(values * gradient))
        if not self.trained:
            return self.loss(outputs, batch), outputs
        learner = self.trained[self.number % len(self.trained)]
        return self._margin_loss(outputs[:, self.model.head.learners[learner]], batch), outputs

    def _count(self, products: Tensor) -> None:
        self.sums = self.sums.to(products.device) + products.sum(0)

    def _margin_loss(self, vectors: Tensor, batch: Batch) -> Tensor:
        return pair_margin_loss(vectors, batch.labels, beta=self.options.beta, alpha=self.options.alpha)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Of the whole vector, as in fine-tuning."""
        return self._margin_loss(F.normalize(outputs, dim=1), batch)

    # --- between epochs ---------------------------------------------------------------------------------------------

    def _fine_tunes(self, epoch: Epoch, number: int) -> bool:
        """Whether learners are no longer trained apart in an epoch of that number."""
        return number >= epoch.epochs * (1 - self.options.fine_tune)

    def begin_epoch(self, epoch: Epoch) -> None:
        count = len(self.model.head.learners)
        due = self.groups is None or self.was_split or epoch.number % self.options.regroup == 0
        self.was_split = False
        self.figures = {"learners": float(count)}
        if count == 1 or self._fine_tunes(epoch, epoch.number):
            self.groups = None
        elif due:
            seed = int(epoch.generator("groups").initial_seed() % 2**32)
            groups = group(self._features(epoch), count, epoch.images.strata, self.groups, seed)
            self.groups = groups if bool((groups >= 0).any()) else None

    @torch.inference_mode()
    def _features(self, epoch: Epoch) -> Tensor:
        """The pooled features of all training images, of length one."""
        self.model.eval()
        found = [
            self.model.forward_head(self.model.forward_features(batch.images), pre_logits=True).float().cpu()
            for batch in epoch.batches()
        ]
        return F.normalize(torch.cat(found), dim=1)

    def order(self, epoch: Epoch) -> Tensor:
        labels = epoch.images.strata
        groups = torch.zeros_like(labels) if self.groups is None else self.groups
        self.trained = [] if self.groups is None else [name for name in groups.unique().tolist() if name >= 0]
        return batches(
            groups, labels, first=epoch.number * epoch.steps, steps=epoch.steps, batch_size=epoch.batch_size,
            each=self.options.each, generator=epoch.generator("order"),
        )  # fmt: skip

    def end_epoch(self, epoch: Epoch, figures: Mapping[str, float], optimizer: torch.optim.Optimizer) -> list[str]:
        sums, options = self.sums.cpu(), self.options
        self.sums = torch.zeros(options.dim)
        nmi = figures.get("nmi")
        if nmi is None or not options.patience:
            return []
        if self.best is None or nmi > self.best[0]:
            self.best, self.may_split = (nmi, epoch.number), True
        last = self.model.head.learners[-1].cpu()
        stalls = self.may_split and epoch.number - self.best[1] >= options.patience
        if not stalls or len(last) <= options.least_outputs or self._fine_tunes(epoch, epoch.number + 1):
            return []
        kept = kept_outputs(sums[last], options.threshold)
        count = int(kept.sum())
        if not options.least_kept <= count < len(last):
            return []
        new = self.model.head.split(kept, epoch.generator("split"))
        _forget(optimizer, self.model.head.parameters(), new)
        self.may_split, self.was_split = False, True
        self.splits.append({"epoch": epoch.number + 1, "kept": count, "new": len(new)})
        total = len(self.model.head.learners)
        return [f"split: learner {total - 1} keeps {count} outputs, learner {total} starts with {len(new)}"]

    # --- saved with the run -----------------------------------------------------------------------------------------

    def memory(self) -> dict[str, Any]:
        return {
            "groups": None if self.groups is None else self.groups.tolist(), "sums": self.sums.tolist(),
            "best": self.best, "may_split": self.may_split, "was_split": self.was_split, "splits": self.splits,
        }  # fmt: skip

    def restore(self, memory: Mapping[str, Any]) -> None:
        self.groups = None if memory["groups"] is None else torch.tensor(memory["groups"])
        self.sums, best = torch.tensor(memory["sums"]), memory["best"]
        self.best = None if best is None else (best[0], best[1])
        self.may_split, self.was_split, self.splits = memory["may_split"], memory["was_split"], memory["splits"]
        self.figures = {"learners": float(len(self.model.head.learners))}


def _forget(optimizer: torch.optim.Optimizer, parameters: Any, rows: Tensor) -> None:
    """Set what an optimiser remembers of some rows to zero."""
    for parameter in parameters:
        for value in optimizer.state.get(parameter, {}).values():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                value[rows] = 0


@register_task
class SubspaceEmbedding(Embedding):
    """An embedding of several learners, each trained on its own group of images."""

    name = "subspace_embedding"
    chooses = ("nmi", "max")
    Options: ClassVar[type[Any]] = SubspaceOptions
    example_model = "subspace_resnet8"
    large_model = None
    example_data = "coloured_shapes"
    settings: ClassVar[Mapping[str, Any]] = {"batch_size": 32}
    example_settings: ClassVar[Mapping[str, Any]] = {"epochs": 20}

    def objective(self, model: nn.Module, settings: Settings) -> SubspaceObjective:
        self.check_settings(settings)
        require(f"task {self.name}", ("sklearn", "scipy"), "papers")
        if not hasattr(getattr(model, "head", None), "learners"):
            raise UsageError(
                f"model is {type(model).__name__}, without learners; give --model {self.example_model} or"
                " subspace_resnet50, or --task embedding."
            )
        if getattr(settings, "compile", False) or int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageError(
                f"task is {self.name}, which watches the gradients of a step; train in one process without compile."
            )
        return SubspaceObjective(model, self.options)

    def metrics(self) -> EmbeddingMetrics:
        return EmbeddingMetrics(clusters=True)

    def describe_data(self, train: Images, validation: Images | None, test: Images) -> list[str]:
        """As of any embedding, and whether learners can be split."""
        lines = super().describe_data(train, validation, test)
        if validation is None and self.options.patience:
            lines.append(
                "no images are held out to measure the nmi on, so no learner is split unless test images serve"
            )
        return lines
