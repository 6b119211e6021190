"""A fit is the trainer's step in the trainer's order."""

import pytest
import torch

from mereo.data import ImageSet
from mereo.training.order import epoch_order
from papers.common.fitting import fit


def test_a_fit_is_adam_along_a_cosine_in_the_order_of_training():
    generator = torch.Generator().manual_seed(0)
    data = ImageSet(
        torch.randint(0, 256, (10, 1, 2, 2), dtype=torch.uint8, generator=generator), torch.arange(10) % 2, ("a", "b")
    )
    weight = torch.zeros(4, requires_grad=True)

    def loss(batch):
        return (batch.images.flatten(1) @ weight - batch.labels).square().mean()

    lines = []
    how = {"epochs": 2, "batch_size": 4, "lr": 0.1, "device": torch.device("cpu"), "title": "line"}
    history = fit(loss, [weight], data, say=lines.append, seed=3, **how)
    ours = weight.detach().clone()

    weight = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6, eta_min=0.01)
    expected = []
    for epoch in range(2):
        total = 0.0
        for indices in epoch_order(3, epoch, 10).split(4):
            value = loss(data.batch(indices))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
            total += value.item() * len(indices)
        expected.append(total / 10)
    torch.testing.assert_close(ours, weight.detach())
    assert history == pytest.approx(expected)
    assert len(lines) == 2
