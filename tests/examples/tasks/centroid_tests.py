"""The centroid of images with one bright pixel is that pixel."""

import torch
from mereo.tasks.centroid import CentroidMetrics, centroids

from mereo.data import Batch


def test_the_centroid_of_a_bright_pixel_is_its_centre() -> None:
    images = torch.zeros(2, 3, 4, 10)
    images[0, :, 1, 2], images[1, :, 3, 9] = 1, 1
    torch.testing.assert_close(
        centroids(Batch(images)), torch.tensor([[1.5 / 4, 2.5 / 10], [3.5 / 4, 9.5 / 10]]), atol=1e-4, rtol=0
    )


def test_the_distance_is_a_mean_over_images() -> None:
    metrics, blank = CentroidMetrics(2), torch.zeros(1, 1, 2, 2)
    for distance in (0.1, 0.3):
        metrics.update(torch.tensor([[0.5 + distance, 0.5]]), Batch(targets=blank))
    assert abs(metrics.compute()["distance"] - 0.2) < 1e-6
