"""Checks of labelled images by cleanlab and imagehash (extra `clean`): likely wrong labels, and the same picture twice.

Source: Northcutt, Jiang, Chuang 2021, arXiv:1911.00068.
"""

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from mereo.runtime.libraries import is_installed

Array = np.ndarray[Any, Any]
SIDE, NEAR = 16, 24
"""Rows and columns of a perceptual hash, and how many of its bits may differ between copies of one picture."""
LEAST_CONTRAST = 0.05
"""Standard deviation of an image below which it is too uniform for a hash."""
MOST = 50_000
"""Images that are compared in pairs; of more, only those with equal hashes are grouped."""


class LabelIssues(NamedTuple):
    """Labels that a network contradicts confidently.

    Attributes:
        places: of the images, the most certain first.
        expected_errors: how many answers of this confidence the network itself gets wrong, by its own probabilities.
            Where there are not clearly more places, most of them are errors of the network.
    """

    places: list[int]
    expected_errors: float


def is_available() -> bool:
    """Whether the extra is installed."""
    return is_installed("cleanlab") and is_installed("imagehash")


def label_issues(probabilities: Tensor, labels: Tensor) -> LabelIssues:
    """Labels that are likely wrong, by confident learning; none for labels of fewer than two classes.

    Args:
        probabilities: calibrated. A network that was trained with these labels contradicts fewer of them.
        labels: of the images.

    Shapes: probabilities (n, classes), labels int64 (n,).

    Reference: arXiv:1911.00068, section 3.1, eqs. 1 and 2: the off-diagonal entries of the confident joint.
    """
    if len(labels.unique()) < 2:
        return LabelIssues([], 0.0)
    from cleanlab.count import get_confident_thresholds
    from cleanlab.filter import find_label_issues

    shares, given = probabilities.double().numpy(), labels.numpy()
    best = shares.argmax(1)
    confident = shares.max(1) >= get_confident_thresholds(given, shares)[best]
    found = find_label_issues(
        given, shares, filter_by="confident_learning", return_indices_ranked_by="normalized_margin", n_jobs=1
    )
    # A class that the network finds less probable than another is no suggestion of the network.
    places = [int(place) for place in found if confident[place]]
    return LabelIssues(places, float((1 - shares.max(1))[confident].sum()))


def picture_hashes(images: Tensor) -> Array:
    """A perceptual hash of each image, bits as 0 and 1; NaN for an image that is too uniform.

    Shapes: (n, channels, height, width) in [0, 1] -> float64 (n, 256).
    """
    import imagehash
    from torchvision.transforms.functional import to_pil_image

    hashes = np.full((len(images), SIDE * SIDE), np.nan)
    for place, image in enumerate(images.float().cpu()):
        if float(image.std()) >= LEAST_CONTRAST:
            hashes[place] = imagehash.phash(to_pil_image(image), hash_size=SIDE).hash.ravel()
    return hashes


def same_pictures(hashes: Array) -> list[list[int]]:
    """Groups of images that show the same, at any size or quality, the larger groups first.

    Shapes: hashes as for `picture_hashes`.
    """
    from scipy.sparse.csgraph import connected_components
    from sklearn.neighbors import NearestNeighbors

    rich = np.flatnonzero(~np.isnan(hashes[:, 0]))
    if len(rich) < 2:
        return []
    if len(rich) <= MOST:
        near = NearestNeighbors(radius=NEAR**0.5, algorithm="brute").fit(hashes[rich]).radius_neighbors_graph()
        _, numbers = connected_components(near, directed=False)
    else:
        _, numbers = np.unique(hashes[rich], axis=0, return_inverse=True)
    groups: dict[int, list[int]] = {}
    for place, number in zip(rich.tolist(), numbers.tolist(), strict=True):
        groups.setdefault(number, []).append(place)
    return sorted((group for group in groups.values() if len(group) > 1), key=lambda group: (-len(group), group))
