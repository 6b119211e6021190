"""Weights on the command line: given in the place of images, and unlike the images."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from mereo.api.networks import READY, is_weights
from mereo.errors import UsageError
from mereo.inference.out_of_distribution import describe_out_of_distribution, out_of_distribution, sampled
from mereo.models import VisionModel
from mereo.runtime.printing import say


def split_weights(images: Sequence[str], weights: Path | None, command: str) -> tuple[tuple[str, ...], Path | None]:
    """The images and the weights of `mereo predict IMAGES --weights RUN`, also written `mereo predict RUN IMAGES`.

    Args:
        images: what is given without a name.
        weights: the option.
        command: for messages.
    """
    found = [word for word in images if is_weights(word)]
    if not found:
        return tuple(images), weights
    rest = tuple(word for word in images if word not in found)
    if weights is None and found == [images[0]] and rest:
        return rest, Path(found[0])
    right = shlex.join(["mereo", command, *(rest or ["IMAGES"]), "--weights", str(weights or found[0])])
    raise UsageError(f"images has {found[0]}, which holds trained weights; write `{right}`.")


def warn_if_out_of_distribution(model: VisionModel, source: Path, paths: Sequence[Path], *, chosen: bool) -> None:
    """Warn of images that are unlike the training images of a network.

    Args:
        model: the network.
        source: of its weights.
        paths: of the images.
        chosen: whether the newest run was used because no weights were given. It is refused if every image differs from
            its data in two ways; bundled weights are not.
    """
    line = describe_out_of_distribution(model, paths)
    if line is None:
        return
    others = [path for path, reasons in out_of_distribution(model, paths).items() if len(reasons) > 1]
    if chosen and str(source) != READY and len(others) == len(sampled(paths)):
        raise UsageError(
            f"weights is not given, and with the newest run, {source}, {line}; to use it give --weights {source}."
        )
    say(f"mereo: warning: with {source}, {line}", file=sys.stderr)
