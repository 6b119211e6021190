"""The page of parse trees: whole in itself, every reference has a target, and no name becomes markup."""

import base64
import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mereo.errors import MereoError, UsageError
from mereo.explain import explanation_page, observe, parse_trees, write_page
from mereo.explain.trees.words import describe
from mereo.models import CapsuleClassifier

Make = Callable[..., CapsuleClassifier]
MakeImages = Callable[..., Tensor]
HOSTILE = "</script><script>alert(1)</script> \" onmouseover='alert(2)' <img src=//evil.example/x>.png"
REFERENCES = ("data-parent", "data-edge", "data-box", "aria-labelledby")
OPEN = {"meta"}
"""Elements without an end."""


class Page(HTMLParser):
    """Elements with their attributes, what stands inside each, and whether they close in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.stack: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self.stack

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in OPEN:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack:
            self.texts.append((self.stack[-1], data))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def having(self, **wanted: str) -> list[dict[str, str]]:
        return [a for _, a in self.elements if all(a.get(name) == value for name, value in wanted.items())]

    def text(self, tag: str) -> list[str]:
        return [data for name, data in self.texts if name == tag]


def write(model: CapsuleClassifier, images: Tensor, path: Path, names: list[str]) -> Page:
    return Page(write_page(model, [(names[:1], images[:1]), (names[1:], images[1:])], path))


def test_every_reference_leads_somewhere(model: CapsuleClassifier, tmp_path: Path, some_images: MakeImages) -> None:
    page = write(model, some_images(model), tmp_path / "new" / "t.html", ["one", "two"])
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    linked = [a[name] for _, a in page.elements for name in REFERENCES if name in a]
    linked += [a["href"].removeprefix("#") for a in page.all("use")]
    assert linked and set(linked) <= set(ids)
    assert not list((tmp_path / "new").glob(".*"))


def test_nothing_is_loaded_from_elsewhere(model: CapsuleClassifier, tmp_path: Path, some_images: MakeImages) -> None:
    page = write(model, some_images(model), tmp_path / "t.html", ["one", "two"])
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        assert "src" not in attributes and not any(name.startswith("on") for name in attributes)
        if "href" in attributes:
            assert attributes["href"].startswith("data:image/png;base64," if tag == "image" else "#")
    text = (tmp_path / "t.html").read_text()
    without_images = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", text)
    assert not re.search(r"https?:|url\(|@import|fetch\(|//\w", without_images)
    assert "default-src 'none'" in page.having(**{"http-equiv": "Content-Security-Policy"})[0]["content"]


def test_names_are_not_markup(make: Make, tmp_path: Path, some_images: MakeImages) -> None:
    model = make("three scales")
    model.class_names = tuple(f"{HOSTILE}{c}" for c in range(10))
    page = write(model, some_images(model), tmp_path / "t.html", [HOSTILE, "no text: \udcff"])
    assert len(page.all("script")) == 1 and not page.all("img")
    assert not any("onmouseover" in attributes for _, attributes in page.elements)
    assert "".join(page.text("h2")) == f"{HOSTILE}no text: ?"
    assert any(HOSTILE in name for name in page.text("span"))
    assert any(HOSTILE in a["aria-label"] for a in page.having(role="treeitem"))


def test_nodes_tell_their_numbers(model: CapsuleClassifier, tmp_path: Path, some_images: MakeImages) -> None:
    images = some_images(model)
    page = write(model, images, tmp_path / "t.html", ["one", "two"])
    for place, tree in enumerate(parse_trees(observe(model, images), images=images)):
        mine = [a for a in page.having(role="treeitem") if a["id"].startswith(f"i{place}-")]
        assert [a["aria-label"] for a in mine] == [describe(tree, n) for n in range(len(tree.nodes))]
        assert [int(a["aria-level"]) for a in mine] == [node.level + 1 for node in tree.nodes]
        # One way in with the Tab key, the arrow keys from there.
        assert [a["tabindex"] for a in mine] == ["0"] + ["-1"] * (len(mine) - 1)
        for edge in tree.edges:
            assert mine[edge.child]["data-parent"] == f"i{place}-n{edge.parent}"
        boxes = {n for n, node in enumerate(tree.nodes) if node.box is not None}
        assert {n for n, a in enumerate(mine) if "data-box" in a} == boxes
        for n in boxes:
            (box,) = page.having(id=f"i{place}-b{n}")
            left, top, right, bottom = tree.nodes[n].box
            found = [float(box[name]) for name in ("x", "y", "width", "height")]
            assert found == pytest.approx([left, top, right - left, bottom - top])


def test_images_are_the_images(make: Make, tmp_path: Path, some_images: MakeImages) -> None:
    model = make("two scales")
    images = some_images(model)
    page = write(model, images, tmp_path / "t.html", ["one", "two"])
    for attributes, image in zip(page.all("image"), images, strict=True):
        content = base64.b64decode(attributes["href"].partition(",")[2])
        with Image.open(io.BytesIO(content)) as read:
            pixels = torch.tensor(np.asarray(read), dtype=torch.float32) / 255
        torch.testing.assert_close(pixels.permute(2, 0, 1), image, atol=0.5 / 255 + 1e-6, rtol=0)


def test_the_predicted_class_is_marked(make: Make, tmp_path: Path, some_images: MakeImages) -> None:
    model = make("three scales")
    images = some_images(model)
    page = write(model, images, tmp_path / "t.html", ["one", "two"])
    bars = page.all("li")
    assert [n % 10 for n, bar in enumerate(bars) if bar.get("class") == "explained"] == (
        observe(model, images).capsules.activation.argmax(1).tolist()
    )


def test_a_page_that_fails_leaves_the_old_one(make: Make, tmp_path: Path, some_images: MakeImages) -> None:
    path, model = tmp_path / "t.html", make("one scale")
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), explanation_page(path, "new"):
        raise ZeroDivisionError
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(MereoError, match="cannot write"), explanation_page(path / "below" / "x.html", "new"):
        pass
    with pytest.raises(UsageError, match="not a file"):
        write_page(model, [(["a"], some_images(model, 1))], tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
