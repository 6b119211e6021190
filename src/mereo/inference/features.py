"""Features of image files: what the last layer of a network reads, and the nearest of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.data import Batch
from mereo.errors import MereoError
from mereo.inference.evaluate import prepare_batch
from mereo.inference.mode import evaluating
from mereo.inference.predict import Aside, read_good, report_unreadable, task_of
from mereo.models import VisionModel

_CHUNK = 1024
"""Queries that are compared with all images at once."""


def features_of(model: VisionModel, batch: Batch) -> Tensor:
    """The features of a prepared batch: embeddings, several side by side; of other networks what the last layer reads.

    Shapes: -> float32 (batch, features); maps and tokens are averaged over their places.
    """
    if model.output_kind in ("embedding", "embeddings"):
        features = task_of(model).apply(model, batch).flatten(1)
    else:
        features = model.forward_head(model.forward_features(batch.images), pre_logits=True)
    features = features.float()
    if features.dim() == 4:
        return features.mean((2, 3))
    return features.mean(1) if features.dim() == 3 else features


@torch.inference_mode()
def embed_files(
    model: VisionModel,
    paths: Sequence[Path],
    *,
    batch_size: int = 64,
    strict: bool = False,
    progress: Callable[[int], None] = lambda count: None,
) -> tuple[list[Path], Tensor]:
    """The files that could be read, and their features, float32 (files, features) on the CPU.

    Args:
        model: any network that reads images.
        paths: of the files.
        batch_size: files read at a time.
        strict: whether an unreadable file is an error; else it is named in a warning and skipped.
        progress: called with the number of files done since the last call.

    Raises:
        MereoError: if no file can be read, or features are not finite.
    """
    device, read, parts, aside = next(model.parameters()).device, list[Path](), list[Tensor](), list[Aside]()
    with evaluating(model):
        for start in range(0, len(paths), batch_size):
            part = paths[start : start + batch_size]
            images, good, unread = read_good(part, model, strict=strict)
            aside += unread
            if good:
                parts.append(features_of(model, prepare_batch(Batch(images.to(device)), model.pretrained_cfg)).cpu())
                read += [part[place] for place in good]
            progress(len(part))
    report_unreadable(aside, bool(read))
    vectors = torch.cat(parts)
    if not bool(vectors.isfinite().all()):
        raise MereoError("the features of the network are not finite; its weights are damaged.")
    return read, vectors


def nearest(gallery: Tensor, queries: Tensor, count: int, same: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The images of a gallery that are most similar to each query, by the cosine of their features.

    s_qg = q . g / (|q| |g|),   0 where one of them is 0

    Args:
        gallery, queries: features.
        count: images of each query.
        same: the place of each query in the gallery, which is left out; -1 for none.

    Shapes: gallery (n, features), queries (q, features), same int64 (q,) -> int64 (q, count), similarities (q, count),
    the most similar first; of equal ones, the first of the gallery.
    """
    unit = F.normalize(gallery.double(), dim=1)
    places, values = [], []
    for chosen in torch.arange(len(queries)).split(_CHUNK):
        similar = F.normalize(queries[chosen].double(), dim=1) @ unit.T
        if same is not None:
            own = same[chosen]
            rows = (own >= 0).nonzero().flatten()
            similar[rows, own[rows]] = -torch.inf
        ranked = similar.sort(dim=1, descending=True, stable=True)
        places.append(ranked.indices[:, :count])
        values.append(ranked.values[:, :count])
    return torch.cat(places), torch.cat(values)
