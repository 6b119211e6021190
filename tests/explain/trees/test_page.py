"""The page of parse trees: whole in itself, every reference has a target, and no name becomes markup."""

import base64
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from torch import Tensor

from mereo.errors import MereoError, UsageError
from mereo.explain import draw_parse_tree, observe, parse_trees, write_page
from mereo.explain.trees.page import explanation_page
from mereo.explain.trees.words import describe
from mereo.models import CapsuleClassifier
from mereo.pictures import with_palette

Make = Callable[..., CapsuleClassifier]
MakeImages = Callable[..., Tensor]
HOSTILE = "</script><script>alert(1)</script> \" onmouseover='alert(2)' <img src=//evil.example/x>.png"
OPEN = {"meta", "img"}
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


@pytest.mark.long
def test_the_page_needs_no_other_file(drawn_model: CapsuleClassifier, tmp_path: Path, some_images: MakeImages) -> None:
    page = write(drawn_model, some_images(drawn_model), tmp_path / "new" / "t.html", ["one", "two"])
    tags = {tag for tag, _ in page.elements}
    assert not {"link", "iframe", "object", "embed", "base", "form", "script", "svg"} & tags
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") or name == "href" for name in attributes), tag
    assert all(a["src"].startswith("data:image/png;base64,") for a in page.all("img"))
    assert "default-src 'none'" in page.having(**{"http-equiv": "Content-Security-Policy"})[0]["content"]
    assert not list((tmp_path / "new").glob(".*"))


@pytest.mark.long
def test_names_are_not_markup(make: Make, tmp_path: Path, some_images: MakeImages) -> None:
    model = make("three scales")
    model.class_names = tuple(f"{HOSTILE}{c}" for c in range(10))
    page = write(model, some_images(model), tmp_path / "t.html", [HOSTILE, "no text: \udcff"])
    assert len(page.all("img")) == 2 and not page.all("script")
    assert not any("onmouseover" in attributes for _, attributes in page.elements)
    assert "".join(page.text("h2")) == f"{HOSTILE}no text: ?"
    assert any(HOSTILE in words for words in page.text("li"))


@pytest.mark.long
def test_every_number_is_there_and_the_tree_as_its_picture(
    drawn_model: CapsuleClassifier, tmp_path: Path, some_images: MakeImages
) -> None:
    images = some_images(drawn_model)
    page = write(drawn_model, images, tmp_path / "t.html", ["one", "two"])
    trees = parse_trees(observe(drawn_model, images), images=images)
    wanted = [describe(tree, n) for tree in trees for n in range(len(tree.nodes))]
    assert [text for text in page.text("li") if text.strip()] == wanted
    for attributes, tree, image, name in zip(page.all("img"), trees, images, ("one", "two"), strict=True):
        content = base64.b64decode(attributes["src"].partition(",")[2])
        drawn = draw_parse_tree(tree, image, tmp_path / "t.png", title=name).read_bytes()
        assert content == with_palette(drawn) and attributes["alt"].startswith(describe(tree, 0))


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
