"""Where the class token should join the patches: in the first layer, in the last two, or there by class attention.

Three networks with the same number of layers and parameters are trained with the same images in the same order.
"""

from functools import partial
from typing import Any

from papers.common.comparison import compare
from papers.common.deep_networks import LATE, TOKENS, DeepTransformer
from papers.common.deep_training import small_images
from papers.common.settings import Settings

DEPTH = 12
TITLES = {
    "first": "class token from the first layer",
    "late": f"class token in the last {LATE} layers",
    "class attention": f"class attention in the last {LATE} layers",
}


def run(settings: Settings) -> dict[str, Any]:
    """A table of losses, accuracies and times, and the curves."""
    networks = {TITLES[token]: partial(DeepTransformer, depth=DEPTH, token=token) for token in TOKENS}
    return compare(
        settings, *small_images(settings), networks, differ="class token", depth=DEPTH, picture="class_attention.png",
        notes=("Class attention changes the class token only, so the last layers cost less than the others.",),
    )  # fmt: skip
