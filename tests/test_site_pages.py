"""How docstrings and tutorials become pages."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from mkdocs.exceptions import PluginError

import mereo
import site_hook
from site_pages import claims, tutorials
from site_pages.commands import options_of
from site_pages.docstrings import markdown, prose
from site_pages.repository import ROOT
from site_pages.tables import arguments

DOCSTRING = """Route <children> to parents.

c = softmax_r(b)
v_r = squash(sum_s c_rs W_rs^T u_s)

Args:
    senders, receivers: how many children
        and parents.

    steps: at least 1, see `steps_*`.

Shapes: children (batch, senders) -> (batch, receivers).

Two sentences. They end as sentences do.

Source: arXiv:1710.09829.
Cost at 28x28: little.
"""

PAGE = """Route &lt;children> to parents.

```text
c = softmax_r(b)
v_r = squash(sum_s c_rs W_rs^T u_s)
```

**Args**

- `senders`, `receivers`: how many children and parents.
- `steps`: at least 1, see `steps_*`.

**Shapes:** children (batch, senders) -> (batch, receivers).

Two sentences. They end as sentences do.

**Source:** [arXiv:1710.09829](https://arxiv.org/abs/1710.09829).

**Cost at 28x28:** little.
"""

SCRIPT = """# %% [markdown]
# # A title
#
# Text.

# %%
print(1)

# %%
print(2)
"""

HELP = """usage: mereo x [-h] [OPTIONS]

What it does.

╭─ positional arguments ───────────╮
│ [{None}|PATH]  A file. (default: None) │
╰──────────────────────────────────╯
╭─ options ────────────────────────╮
│ -h, --help     show this help message and exit │
│ --top INT      Classes (of all). (default: 3) │
│ --scales {None}|{[INT [INT ...]]} │
│                Of maps. (default: None) │
│ --name STR     A name. (required) │
╰──────────────────────────────────╯
"""


def test_a_docstring_as_markdown():
    assert markdown(DOCSTRING) == PAGE
    assert "Args" not in markdown(DOCSTRING, lambda section: section != "Args")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("See arXiv:1710.09829.", "See [arXiv:1710.09829](https://arxiv.org/abs/1710.09829)."),
        ("See doi:10.1109/5.771073, p. 1.", "See [doi:10.1109/5.771073](https://doi.org/10.1109/5.771073), p. 1."),
        ("a_b (https://x.org/f?id=A_b).", "a\\_b ([x.org](https://x.org/f?id=A_b))."),
        ("`https://x.org` stays", "`https://x.org` stays"),
    ],
)
def test_sources_in_prose_are_links(text, shown):
    assert prose(text) == shown


def test_an_entry_without_a_name_is_kept():
    shown = markdown("Summary.\n\nAttributes:\n    mean (batch, pose).\n    sigma: its\n        spread.\n")
    assert shown.endswith("- mean (batch, pose).\n- `sigma`: its spread.\n")


@pytest.mark.long
def test_no_word_of_any_docstring_is_lost():
    for path in Path(mereo.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                shown = markdown(text).replace("\\", "")
                assert set(re.findall(r"\w+", text)) <= set(re.findall(r"\w+", shown)), (path, node)


def test_arguments_with_their_defaults():
    def example(first, second, third=0.5):
        """Do.

        Args:
            first, second: numbers.
            third: a share.
        """

    rows = arguments(example).splitlines()[2:]
    assert rows == [
        "| `first` | required | numbers. |", "| `second` | required | numbers. |", "| `third` | `0.5` | a share. |"
    ]  # fmt: skip


def test_options_of_a_help_text():
    assert options_of(HELP) == [
        ("[{None}|PATH]", "None", "A file."),
        ("--top INT", "3", "Classes (of all)."),
        ("--scales {None}|{[INT [INT ...]]}", "None", "Of maps."),
        ("--name STR", "required", "A name."),
    ]


def test_the_cells_of_a_tutorial():
    listed = tutorials.cells(SCRIPT)
    assert [(cell.number, cell.content, cell.line) for cell in listed] == [
        (0, "# A title\n\nText.", 2), (1, "print(1)", 7), (2, "print(2)", 10),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="starts with"):
        tutorials.cells("import mereo\n" + SCRIPT)


def test_the_page_of_a_tutorial_shows_what_it_gave(tmp_path, monkeypatch):
    monkeypatch.setattr(tutorials, "OUTPUT", tmp_path / "output")
    script = tmp_path / "short.py"
    script.write_text(SCRIPT)
    with pytest.raises(ValueError, match="make tutorials"):
        tutorials.page(script)
    kept = tmp_path / "output" / "short"
    kept.mkdir(parents=True)
    (kept / "01.txt").write_text("1\n")
    (kept / "02-a_picture.png").touch()
    (kept / tutorials.DIGEST).write_text(tutorials.digest(SCRIPT))
    shown = tutorials.page(script)
    assert "print(1)\n```\n\n```console\n1\n```" in shown
    assert "print(2)\n```\n\n[![a picture](output/short/02-a_picture.png)](output/short/02-a_picture.png)" in shown
    script.write_text(SCRIPT.replace("Text.", "Other text."))
    assert "Other text." in tutorials.page(script)
    script.write_text(SCRIPT.replace("print(2)", "print(3)"))
    with pytest.raises(ValueError, match="make tutorials"):
        tutorials.page(script)


def test_links_of_the_readme_lead_to_the_pages(built):
    text = site_hook.on_page_markdown((ROOT / "README.md").read_text(), files=None, **built)
    assert "](images/photographs.png)" in text and "](claims.md)" in text and "](contributing.md)" in text
    assert "](photos.md#boxes)" in text and "](claims.md#defaults)" in text and "](docs/" not in text


def test_links_to_the_page_of_a_paper_lead_to_its_heading(built):
    shown = site_hook.on_page_markdown("[a](../papers/defaults/claims.md), [b](photos.md#c)", files=None, **built)
    assert shown == "[a](claims.md#defaults), [b](photos.md#c)"
    page = claims.pages()["claims.md"]
    assert re.search(r"^## .*\{#defaults\}$", page, re.MULTILINE) and "](#defaults)\n" in page


@pytest.fixture
def built():
    """Stands for a page and its place, and for the configuration."""
    return {"page": SimpleNamespace(file=SimpleNamespace(src_uri="some/page.md")), "config": None}


@pytest.mark.parametrize(
    "loaded",
    [
        '<script src="https://cdn.example/x.js">', "<script async src=//cdn.example/x.js>",
        '<link rel="stylesheet" href="https://fonts.example/css">', '<img alt="a" src="http://example.org/a.png">',
    ],
)  # fmt: skip
def test_a_page_that_loads_from_elsewhere_is_refused(built, loaded):
    with pytest.raises(PluginError, match="loads something from another place"):
        site_hook.on_post_page(f"<p>{loaded}</p>", **built)


def test_a_page_that_links_elsewhere_is_not(built):
    output = '<a href="https://arxiv.org/abs/1710.09829">paper</a><img src="images/demo.png"><script src="a.js">'
    assert site_hook.on_post_page(output, **built) == output


def test_formulas_are_set(built):
    shown = site_hook.on_page_content('<p><span class="arithmatex">\\(a &lt; b_i\\)</span></p>', files=None, **built)
    assert shown.startswith("<p><math ") and "<msub><mi>b</mi><mi>i</mi></msub>" in shown and "arithmatex" not in shown
