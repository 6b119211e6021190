import torch
from mereo.tasks.coverage import CoverageMetrics, shares

from mereo.data import Batch


def test_pixels_without_a_class_are_in_no_share() -> None:
    batch = Batch(masks=torch.tensor([[[0, 1], [1, -1]]]))
    torch.testing.assert_close(shares(batch, 3), torch.tensor([[1 / 3, 2 / 3, 0]]))


def test_the_error_is_a_mean_over_images() -> None:
    metrics = CoverageMetrics(2)
    for share in (0.5, 0.9):
        logits = torch.tensor([[share, 1 - share]]).log()
        metrics.update(logits, Batch(masks=torch.zeros(1, 2, 2, dtype=torch.int64)))
    assert abs(metrics.compute()["largest_error"] - 0.3) < 1e-6
