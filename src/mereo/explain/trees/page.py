"""Parse trees of many images as one HTML page that needs no network and no other file.

The file contains styles, script, and the images as data. It is written image by image, so that memory does not grow.
Names of files and classes are not trusted and always escaped.
"""

import base64
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.explain.panels import shown_classes
from mereo.explain.trees.svg import patch_boxes, tree_svg
from mereo.explain.trees.tree import ParseTree
from mereo.explain.trees.words import agreement, describe
from mereo.files import writing
from mereo.pictures import displayable

HELP = """\
<p>Point at a node, tap it, or reach it with Tab and the arrow keys: it highlights its path up to the class, the votes
for it, and the patches on the image. A click or Enter keeps the highlight, Escape clears it.</p>
<p>Red: the vote adds to the capsule above along its pose, before any squash; blue: it subtracts from it. Dashed: the
finer capsule that agreed best with that vote, and its score; only it sets the coupling of the vote. The strongest
votes for each capsule are drawn, with their share of all its votes next to it, in absolute value.</p>"""


class Hidden(NamedTuple):
    """The text of the page for a network without parse trees.

    Attributes:
        explained: the class.
        heat: drop in its score when a position is hidden, (height, width).
        reason: why there is no parse tree.
    """

    explained: int
    heat: Tensor
    reason: str


def image_data(image: Tensor) -> str:
    """An image (channels, height, width) in [0, 1] as a data URI of a PNG."""
    from PIL import Image

    pixels = (torch.as_tensor(displayable(image)) * 255).round().to(torch.uint8).numpy()
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def _part(name: str) -> str:
    return (files("mereo.explain.trees") / name).read_text(encoding="utf-8")


def _opening(title: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        # If a name ever got past the escaping, the browser would still load and send nothing.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:;'
        " style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
        '<meta name="generator" content="mereo">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_part('page.css')}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{escape(title)}</h1>\n{HELP}\n</header>\n<main>\n"
    )


def _closing() -> str:
    return f"</main>\n<script>\n{_part('page.js')}</script>\n</body>\n</html>\n"


def _brightness(heat: Tensor) -> Tensor:
    """Drops in a score (height, width) as a grey image (1, height, width): black where hiding does not lower it."""
    falls = heat.clamp(min=0)
    return (falls / falls.amax().clamp(min=1e-12)).unsqueeze(0)


class PageWriter:
    """Writes a page of parse trees, one image at a time.

    Args:
        write: writes text to the file.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._count = 0

    def __call__(
        self,
        title: str,
        image: Tensor,
        tree: ParseTree | Hidden,
        scores: Tensor,
        names: tuple[str, ...],
        true: int | None = None,
        shown: Tensor | None = None,
    ) -> None:
        """Add one image.

        Args:
            title: of the image.
            image: in [0, 1], not normalised.
            tree: its parse tree, or `Hidden` for a network without parse trees.
            scores: between 0 and 1.
            names: of the classes.
            true: the true class, if known.
            shown: the image at a multiple of its size, displayed in its place.

        Shapes: image (channels, height, width), scores (classes,).
        """
        prefix = f"i{self._count}"
        self._count += 1
        high, wide = image.shape[-2:]
        explained = tree.explained if isinstance(tree, Hidden) else tree.nodes[0].number
        kinds = {c: "explained" if c == explained else "true" for c in (true, explained) if c is not None}
        mark = {true: " (true class)"}
        bars = "".join(
            f"<li{f' class={kinds[c]}' if c in kinds else ''}>"
            f'<span class="name">{escape(names[c])}{mark.get(c, "")}</span>'
            f'<span class="bar" style="width:{100 * min(max(float(scores[c]), 0.0), 1.0):.1f}%"></span>'
            f"<span>{float(scores[c]):.2f}</span></li>"
            for c in shown_classes(scores, set(kinds))
        )
        if isinstance(tree, Hidden):
            words = f"{tree.reason}. The second picture is brighter where hiding a place lowers the score more"
            boxes = ""
            drawn = f'<img alt="occlusion" width="{8 * wide}" src="{image_data(_brightness(tree.heat))}">'
        else:
            words = " ".join(part for part in (describe(tree, 0), agreement(tree)) if part)
            boxes, drawn = patch_boxes(tree, prefix), tree_svg(tree, (high, wide), prefix)
        picture = image_data(image if shown is None else shown)
        self._write(
            f'<section class="case" aria-labelledby="{prefix}-title">\n<h2 id="{prefix}-title">{escape(title)}</h2>\n'
            f'<div class="seen">\n'
            f'<svg class="image" viewBox="0 0 {wide} {high}" role="img" aria-labelledby="{prefix}-title">'
            f'<image id="{prefix}-image" width="{wide}" height="{high}" href="{picture}"/>'
            f"{boxes}</svg>\n"
            f'<p class="words" id="{prefix}-words">{escape(words)}</p>\n'
            f'<ol class="lengths">{bars}</ol>\n</div>\n'
            f'<div class="scroll">{drawn}</div>\n</section>\n'
        )


@contextmanager
def explanation_page(path: str | Path, title: str) -> Iterator[PageWriter]:
    """A page of parse trees, written as images are added; the file appears at its path when it is complete.

    with explanation_page("trees.html", "My network") as add:
        for name, image, tree, lengths in explained:
            add(name, image, tree, lengths, class_names)

    Args:
        path: of the file.
        title: of the page.
    """
    with writing(Path(path)) as write_bytes:

        def write(text: str) -> None:
            # Names of files may hold bytes that are not text.
            write_bytes(text.encode(errors="replace"))

        write(_opening(title))
        yield PageWriter(write)
        write(_closing())
