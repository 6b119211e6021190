"""Names of classes, files, licences and commands hold any characters: shown as they stand, obeyed by nothing."""

import contextlib
import io
import warnings
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

import mereo
from mereo.escape import cut, fenced, for_markdown, for_terminal
from mereo.export.card import model_card
from mereo.export.comparison_pictures import draw_comparison
from mereo.export.rows import Row
from mereo.measure.classification_pictures import draw_confusion
from mereo.pictures import new_figure, save_figure
from mereo.tasks.pictures import draw_images

HOSTILE = [
    "$x^{$", "$$", "$\\frac{$", "\\", "\udcff\udcfe", "\x1b[2J\x1b]0;owned\x07", "a\nb\r\tc", "\u202egnp.exe",
    "\u0000", "",
    "# title", "| cell |", "<script>alert(1)</script>", "![x](http://a.b/c.png)", "```\ncode", "漢字", "_x", "%s{}",
    "x" * 5000, "www.a.b", "http://a.b", "*b* _i_ `c`", "\ue000", "&amp;", "{{7*7}}",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_terminal_obeys_no_name(name):
    shown = for_terminal(name)
    assert shown.isprintable()
    assert "\n" not in shown and ("\n" in for_terminal(name, lines=True)) == ("\n" in name)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_markdown_shows_a_name_as_it_stands(name):
    markdown = pytest.importorskip("markdown")
    page = markdown.markdown(
        f"begin {for_markdown(name)} end\n\n{fenced(name)}\n", extensions=["tables", "fenced_code"]
    )
    for tag in ("<script", "<img", "<a ", "<h1", "<table", "<em", "<strong"):
        assert tag not in page
    assert page.count("<code>") == 1 and page.count("<p>") == 1


def pictures(names: list[str], folder: Path) -> None:
    """Every kind of picture in which names stand: titles, ticks, legends, labels."""
    images = torch.rand(len(names), 1, 8, 8)
    draw_images(images, names, folder / "images.png")
    counts = torch.ones(len(names), len(names), dtype=torch.int64)
    draw_confusion(counts, tuple(names), names[0], folder / "confusion.png")
    rows = [Row(name, 10, 10, 10, (0.5,), "validation", 10, 1.0, 1.0, 1.0) for name in names]
    draw_comparison(rows, folder / "comparison.png", names[0])
    figure = new_figure(4, 3)
    axes = figure.subplots()
    for name in names:
        axes.plot([1, 2], label=name)
    axes.legend()
    axes.set_xlabel(names[0])
    axes.set_yscale("log")
    save_figure(figure, folder / "legend.png")


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, len(HOSTILE), 8))
def test_no_name_breaks_a_picture(first, tmp_path):
    pictures(HOSTILE[first : first + 8], tmp_path)
    assert len(list(tmp_path.glob("*.png"))) == 4


def test_a_formula_is_drawn_as_text(tmp_path):
    def drawn(title: str) -> bytes:
        figure = new_figure(3, 1)
        figure.text(0.1, 0.5, title)
        save_figure(figure, tmp_path / "picture.png")
        return (tmp_path / "picture.png").read_bytes()

    assert drawn("$x^2$") != drawn("$x^3$") and len({drawn("$x$"), drawn("x")}) == 2


@pytest.fixture
def hostile_weights(network):
    mereo.save_weights(
        "hostile.safetensors", network, class_names=tuple(HOSTILE[:10]), data="\x1b[2J/etc\n# title", seed=3,
        command="mereo train\n```\n# owned\n<script>",
    )  # fmt: skip
    return Path("hostile.safetensors")


@pytest.mark.long
def test_commands_show_hostile_names(call, hostile_weights):
    Image.new("L", (20, 20), 90).save("photo.png")
    for words in (
        ["predict", "photo.png", "--top", "10", "--weights"],
        ["predict", "photo.png", "--top", "10", "--json", "--weights"],
        ["explain", "photo.png", "--out", "explained", "--weights"],
        ["evaluate"],
        ["export", "--out", "exported", "--license", "\x1b[2J\n# title"],
    ):
        screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        with contextlib.redirect_stdout(screen):
            done = call(*words, hostile_weights).check(words)
        assert done.code == (2 if words == ["evaluate"] else 0), done.err
        assert not set("\x1b\x07\u202e\x00") & set(done.out + done.err)
    card = Path("exported/README.md").read_text()
    assert not set("\x1b\x07\u202e\x00") & set(card)
    assert "\n# title" not in card and "\n# owned" in card.partition("````sh\n")[2].partition("````\n")[0]
    assert yaml.safe_load(card.split("---")[1])["license"] == "\\x1b[2J\\n# title"
    page = Path("explained/trees.html").read_text()
    assert "<script>alert" not in page


def test_folder_names_of_any_bytes_train_to_the_end(call, train_words):
    for split in ("train", "val"):
        for number, name in enumerate(HOSTILE[:5]):
            if "\n" not in name:
                folder = Path("data", split, name)
                folder.mkdir(parents=True)
                for n in range(4):
                    Image.new("L", (20, 20), 40 * number + n).save(folder / f"{n}.png")
    words = [*train_words, "--data", "data", "--epochs", "1", "--no-tensorboard"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = call(*words).check(words)
    assert done.code == 0, done.err
    assert Path("runs/mspcaps_tiny-data/samples_test.png").is_file()


def test_a_run_folder_of_any_name_is_shown_without_its_control_characters(call, train_words):
    folder = "\u202e\x1b[31mruns"
    done = call(*train_words, "--epochs", "1", "--output", folder)
    assert done.code == 0 and "\\u202e" in done.out
    assert not {"\u202e", "\x1b"} & {*done.out, *done.err}


def test_a_model_card_is_made_of_any_record(network):
    network.class_names = tuple(HOSTILE[10:20])
    network.pretrained_cfg["license"] = HOSTILE[12]
    card = model_card(network, {"data": HOSTILE[13], "command": HOSTILE[14], "seed": 1}, HOSTILE[10])
    _, front, page = card.split("---\n", 2)
    assert yaml.safe_load(front)["license"] == HOSTILE[12]
    assert "<script>" not in page and "![x](" not in page


def test_long_text_loses_its_middle():
    assert cut("a" * 10, 10) == "a" * 10
    assert len(cut("b" * 10**6, 101)) <= 101
