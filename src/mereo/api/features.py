"""`mereo.embed` and `mereo.search`: features of images, and the images that are most similar to others."""

import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mereo.api.images import as_files
from mereo.api.networks import trained_network
from mereo.errors import UsageError, check_positive
from mereo.files import check_outputs, reading, starts_with, write_atomically
from mereo.inference.features import embed_files, nearest
from mereo.inference.predict import read_good
from mereo.runtime.progress import Reporter
from mereo.tasks.base import csv_bytes
from mereo.tasks.pictures import draw_images
from mereo.training.arguments import typed

TABLE, PICTURE = "nearest.csv", "nearest.png"
_DRAWN = 12
"""Queries of the picture."""


class Embedded(NamedTuple):
    """Features of images.

    Attributes:
        images: the files, or the names of images in memory.
        vectors: float32 (images, features).
        written: the files that were written.
    """

    images: list[Path]
    vectors: "np.ndarray[Any, np.dtype[np.float32]]"
    written: list[Path]


class Found(NamedTuple):
    """The images of a gallery that are most similar to a query, the most similar first."""

    query: Path
    images: tuple[Path, ...]
    similarities: tuple[float, ...]


class Search(NamedTuple):
    """What was found for each query, and the files that were written."""

    found: list[Found]
    written: list[Path]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Columns and rows: a query, and for each rank an image and its similarity."""
        count = max((len(each.images) for each in self.found), default=0)
        columns = [cell for rank in range(1, count + 1) for cell in (f"nearest {rank}", f"similarity {rank}")]
        return ["query", *columns], [
            [str(each.query)]
            + [cell for i, s in zip(each.images, each.similarities, strict=True) for cell in (str(i), f"{s:.4f}")]
            for each in self.found
        ]


def names_file(out: Path) -> Path:
    """The file of the images' names beside an array of their features."""
    return out.with_suffix(".images.txt")


def _is_earlier(path: Path) -> bool:
    """Whether `embed` or `search` wrote a file: a table by its header, an array by the list of images beside it."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".csv":
        return any(starts_with(path, header) for header in ("image,0", "query,nearest 1,similarity 1"))
    if path.suffix.lower() == ".npy" and names_file(path).is_file():
        with suppress(ValueError, OSError, EOFError):
            held = np.load(path, mmap_mode="r", allow_pickle=False)
            return held.ndim == 2 and len(names_file(path).read_bytes().splitlines()) == len(held)
    return False


def _check_outputs(written: Sequence[Path], inputs: Sequence[Path]) -> None:
    """UsageError for a file that must not be replaced; a list of images goes with its array."""
    earlier = {path for path in written if _is_earlier(path)}
    earlier |= {names_file(path) for path in earlier}
    check_outputs("out", [path for path in written if path not in earlier], inputs)


def check_vectors_file(out: Path) -> None:
    """UsageError for a file that is neither an array nor a table."""
    if out.suffix.lower() not in (".npy", ".csv"):
        raise UsageError(f"out is {str(out)!r}; it must end in .npy (an array, with a list of the images) or .csv.")


@typed(weights="it is the first argument, model")
def embed(
    model: Any,
    images: Any,
    *,
    out: str | Path | None = None,
    batch_size: int = 64,
    device: str = "auto",
    strict: bool = False,
    quiet: bool = True,
) -> Embedded:
    """The features that the last layer of a network reads, as `mereo embed` does; of an embedding, its outputs.

    Args:
        model: as for `mereo.predict`, or a network of timm with its published weights, such as "timm:resnet18".
        images: as for `mereo.predict`.
        out: NAME.npy, with the names of the images in NAME.images.txt, or NAME.csv; nothing is written if None.
        batch_size: images per forward pass.
        device: to run on; with "auto" a network in memory stays where it is.
        strict: whether an unreadable file is an error.
        quiet: print no progress.

    vectors = mereo.embed("timm:resnet18", "photos/").vectors
    sklearn.cluster.KMeans(8).fit(vectors)
    """
    check_positive(batch_size=batch_size)
    target = None if out is None else Path(out)
    if target is not None:
        check_vectors_file(target)
    network, source = trained_network(model, device, images=images)
    with as_files(images) as files, reading(*files.paths, source):
        written = [] if target is None else [target, *([names_file(target)] if target.suffix.lower() == ".npy" else [])]
        _check_outputs(written, [*files.paths, source])
        with Reporter(silent=quiet).stage("embedded", len(files.paths)) as done:
            read, vectors = embed_files(network, files.paths, batch_size=batch_size, strict=strict, progress=done)
        names = [files.names.get(path, path) for path in read]
    if target is not None and len(written) > 1:
        content = io.BytesIO()
        np.save(content, vectors.numpy())
        write_atomically(target, content.getvalue())
        write_atomically(names_file(target), "".join(f"{name}\n" for name in names).encode(errors="backslashreplace"))
    elif target is not None:
        rows = [[str(n), *(f"{v:.7g}" for v in row)] for n, row in zip(names, vectors.tolist(), strict=True)]
        write_atomically(target, csv_bytes([["image", *map(str, range(vectors.shape[1]))], *rows]))
    return Embedded(names, vectors.numpy(), written)


@typed(weights="it is the first argument, model")
def search(
    model: Any,
    gallery: Any,
    queries: Any,
    *,
    top: int = 5,
    out: str | Path | None = None,
    batch_size: int = 64,
    device: str = "auto",
    strict: bool = False,
    quiet: bool = True,
) -> Search:
    """The images of a gallery that are most similar to each query, by the cosine of their features.

    A query that is a file of the gallery is not found itself.

    Args:
        model: as for `embed`.
        gallery, queries: images, as for `mereo.predict`.
        top: images of each query.
        out: folder for nearest.csv and, of the first queries, nearest.png; nothing is written if None.
        batch_size, device, strict, quiet: as for `embed`.

    mereo.search("timm:resnet18", "photos/", "cat.jpg").found[0].images
    """
    check_positive(top=top, batch_size=batch_size)
    folder = None if out is None else Path(out)
    if folder is not None and folder.is_file():
        raise UsageError(f"out is {str(folder)!r}, which is a file; give a folder.")
    trained = trained_network(model, device, images=gallery)
    with as_files(gallery) as held, as_files(queries) as asked, reading(*held.paths, *asked.paths, trained.source):
        written = [] if folder is None else [folder / TABLE, folder / PICTURE]
        _check_outputs(written, [*held.paths, *asked.paths, trained.source])
        every = list(dict.fromkeys([*held.paths, *asked.paths]))  # a file that is in both is read once
        with Reporter(silent=quiet).stage("embedded", len(every)) as done:
            read, vectors = embed_files(trained.model, every, batch_size=batch_size, strict=strict, progress=done)
        rows = {path: row for row, path in enumerate(read)}
        inside = [path for path in held.paths if path in rows]
        wanted = [path for path in asked.paths if path in rows]
        for name, paths in (("gallery", inside), ("queries", wanted)):
            if not paths:
                raise UsageError(f"{name} has no image that can be read; give others.")
        places = {path.resolve(): place for place, path in enumerate(inside)}
        same = torch.tensor([places.get(path.resolve(), -1) for path in wanted])
        count = min(top, len(inside) - int(bool((same >= 0).any())))
        if count < 1:
            raise UsageError("gallery has one image, which is the query; give more images.")
        of = [torch.tensor([rows[path] for path in paths]) for paths in (inside, wanted)]
        near, similar = nearest(vectors[of[0]], vectors[of[1]], count, same)
        names = {**held.names, **asked.names}
        chosen = [[inside[place] for place in row] for row in near.tolist()]
        found = [
            Found(names.get(query, query), tuple(names.get(i, i) for i in images), tuple(values))
            for query, images, values in zip(wanted, chosen, similar.tolist(), strict=True)
        ]
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            columns, table = Search(found, []).table()
            write_atomically(folder / TABLE, csv_bytes([columns, *table]))
            shown = [path for query, images in zip(wanted, chosen, strict=True) for path in (query, *images)]
            shown = shown[: _DRAWN * (count + 1)]
            pixels, _, _ = read_good(shown, trained.model)
            titles = [t for each in found[:_DRAWN] for t in ("query", *(f"{s:.2f}" for s in each.similarities))]
            draw_images(pixels, titles, folder / PICTURE, columns=count + 1)
    return Search(found, written)
