"""Fusion of probabilities, and the ensemble of subnets that are trained by themselves."""

from typing import Any

import pytest
import torch

import mereo
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.models.sequence.skeleton_ensemble import SUBNETS, SkeletonEnsemble, SkeletonNetwork, fuse
from mereo.tasks.sequence import SequenceObjective

SMALL: dict[str, Any] = {
    "num_classes": 3, "frames": 8, "joints": 5, "bodies": 1, "widths": (2, 3), "kernel": 3,
}  # fmt: skip


def test_worked_fusions() -> None:
    shares = torch.tensor([[[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]]], dtype=torch.float64)
    for rule, expected in (("product", [0.4, 0.5, 0.1]), ("mean", [0.4, 0.4, 0.2])):
        torch.testing.assert_close(fuse(shares.log(), rule).exp()[0], torch.tensor(expected, dtype=torch.float64))
    more = torch.cat((shares, torch.full((1, 1, 3), 1 / 3, dtype=torch.float64)), 1)
    torch.testing.assert_close(fuse(more.log()), fuse(shares.log()))
    # Probabilities whose product is below the smallest number.
    tiny = torch.tensor([[[-800.0, -801.0]] * 2], dtype=torch.float64)
    torch.testing.assert_close(fuse(tiny).exp()[0], torch.tensor([2.0, 0.0], dtype=torch.float64).softmax(0))
    with pytest.raises(UsageError) as error:
        fuse(shares.log(), "max")
    assert "fusion is 'max'" in str(error.value)


def test_the_product_is_the_softmax_of_the_sum_of_scores() -> None:
    scores = torch.randn(4, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(fuse(scores.log_softmax(-1)), scores.sum(1).log_softmax(-1))
    model = SkeletonNetwork(**SMALL, kind="two_stream").double().eval()
    features = model.forward_features(torch.randn(2, 8, 15, dtype=torch.float64))
    torch.testing.assert_close(model.forward_head(features), model.head(features).sum(1).log_softmax(-1))


def test_every_subnet_has_the_gradient_of_its_own_loss() -> None:
    torch.manual_seed(0)
    ensemble = SkeletonEnsemble(**SMALL).double().eval()
    inputs, labels = torch.randn(4, 8, 15, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    lengths = torch.full((4,), 8)
    objective = SequenceObjective(ensemble)
    loss, scores = objective(Batch(sequences=inputs, lengths=lengths, labels=labels))
    loss.backward()
    together = [member(inputs, lengths) for member in ensemble.members]
    torch.testing.assert_close(scores, torch.stack(together).double().sum(0).log_softmax(-1).float())
    for member, own in zip(ensemble.members, together, strict=True):
        alone = -own.float().gather(1, labels[:, None]).mean()
        trained = [parameter for parameter in member.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(alone, trained, retain_graph=True)
        for gradient, parameter in zip(gradients, trained, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


def test_the_ensemble_is_a_kind_of_network() -> None:
    model = mereo.create_model("skeleton_base", **{**SMALL, "kind": "ensemble", "fusion": "mean"})
    assert isinstance(model, SkeletonEnsemble) and [each.kind for each in model.members] == list(SUBNETS)
    assert (model.fusion, model.members[0].fusion, model.config["args"]["kind"]) == ("mean", "product", "ensemble")
    with pytest.raises(UsageError) as error:
        mereo.create_model("skeleton_base", kind="all")
    assert "kind is 'all'" in str(error.value)
