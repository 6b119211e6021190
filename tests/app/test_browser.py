"""The page in a browser, by clicking through it."""

import json

import pytest
import torch

from browser import browser_page, find_browser
from mereo.app.serving import serving
from mereo.app.session import Session
from mereo.models import load
from uploads import picture

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed"),
]
STATUS = "document.getElementById('status').textContent"


@pytest.fixture(scope="module")
def page(run, other):
    session = Session([run, other], [load(source, torch.device("cpu")) for source in (run, other)])
    with serving(session) as url, browser_page() as tab:
        tab.resize(1300, 1000)
        tab.open(url)
        tab.wait(f"{STATUS}.startsWith('Ready')")
        yield tab, url


def updated(tab, act):
    """Act, and wait until the page shows the new prediction."""
    tab.run("document.getElementById('status').textContent = ''")
    act()
    tab.wait(f"{STATUS}.includes('predicted') && !busy")


def first_scores(tab):
    script = "[...document.querySelector('.card').querySelectorAll('tbody tr')].map(r => r.children[1].textContent)"
    return tab.run(script)


def unchanged_scores(tab):
    script = "[...document.querySelector('.card').querySelectorAll('tbody tr')].map(r => r.children[2].textContent)"
    return tab.run(script)


def test_every_control_changes_the_prediction(page, tmp_path):
    tab, url = page
    assert tab.run("document.querySelectorAll('#tests button').length") == 24
    updated(tab, lambda: tab.click("#tests button:nth-child(5)"))
    assert tab.run("document.querySelectorAll('.card').length") == 2
    text = tab.run("document.querySelector('.predicted').textContent")
    assert "correct" in text or "the true class is" in text
    assert tab.run("document.querySelectorAll('.card')[1].querySelector('.words').textContent").endswith("parse tree.")
    assert tab.run("document.querySelectorAll('[role=treeitem]').length") > 3
    assert first_scores(tab) == unchanged_scores(tab)

    # Each change shows at once, next to the unchanged scores, and can be undone.
    own = first_scores(tab)
    changes = [
        lambda: tab.set_value("#rotate", 45),
        lambda: tab.set_value("#noise", 0.2),
        lambda: tab.set_value("#attack", 0.1),
        lambda: tab.click("[name=couplings][value=uniform]"),
        lambda: tab.click("[name=couplings][value=shuffled]"),
        lambda: tab.click(".view", 0.5, 0.4),
    ]
    for change in changes:
        updated(tab, change)
        assert first_scores(tab) != own
        updated(tab, lambda: tab.click("#reset"))
        assert first_scores(tab) == own

    # By keyboard: the arrow keys move, Enter silences and restores.
    tab.run("document.querySelector('.view').focus()")
    tab.key("ArrowLeft")
    updated(tab, lambda: tab.key("Enter"))
    assert "1 place." in tab.run("document.getElementById('silenced').textContent")
    assert tab.run("document.activeElement.className") == "view"
    assert unchanged_scores(tab) != first_scores(tab)
    updated(tab, lambda: tab.key("Enter"))
    assert first_scores(tab) == own

    # Another class is explained; maps can be chosen.
    updated(tab, lambda: tab.click(".card tbody tr:nth-child(3) button"))
    assert tab.run("document.querySelector('.card tr.explained td').textContent") == tab.run(
        "document.querySelector('.card tbody tr:nth-child(3) td').textContent"
    )
    names = tab.run("[...document.querySelector('.map').options].map(o => o.textContent)")
    assert names[0] == "none" and any("couplings" in name for name in names) and "votes for and against" in names
    tab.set_value(".map", "")
    assert tab.run("document.querySelector('.heat').hidden")
    tab.set_value(".map", "hide")
    tab.wait(f"{STATUS}.startsWith('Red')")
    assert tab.run("document.querySelector('.heat').hidden") is False
    tab.set_value(".map", "")  # otherwise every prediction of the other tests starts an occlusion
    tab.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    assert tab.problems == []
    assert {request.split("/api")[0] for request in tab.requests if "/api" in request} == {url.rstrip("/")}
    assert [request for request in tab.requests if not request.startswith((url, "data:", "blob:"))] == []


def test_a_drawing_a_file_and_a_broken_file(page, tmp_path):
    tab, _ = page
    tab.problems.clear()
    updated(tab, lambda: tab.draw("#pad", [(0.3, 0.2), (0.7, 0.2), (0.5, 0.8)]))
    drawn = first_scores(tab)
    (tmp_path / "photo.png").write_bytes(picture((90, 70)))
    updated(tab, lambda: tab.choose_file("#file", tmp_path / "photo.png"))
    assert first_scores(tab) != drawn
    assert tab.run(STATUS).startswith("photo.png")
    (tmp_path / "broken.png").write_bytes(picture()[:70])
    tab.choose_file("#file", tmp_path / "broken.png")
    tab.wait("document.getElementById('status').classList.contains('wrong')")
    assert "broken.png" in tab.run(STATUS)


def test_the_run_and_the_choice_of_networks(page):
    tab, _ = page
    tab.click("#show-curves")
    tab.wait("document.querySelectorAll('.chart').length === 2")
    tab.click("#show-errors")
    tab.wait("document.querySelectorAll('.confusion td').length > 100")
    assert tab.run("document.querySelectorAll('.errors button').length") > 0
    updated(tab, lambda: tab.click(".errors button"))
    assert "the true class is" in tab.run("document.querySelector('.predicted').textContent")
    updated(tab, lambda: tab.set_value("#second", ""))
    assert tab.run("document.querySelectorAll('.card').length") == 1
    updated(tab, lambda: tab.set_value("#first", "1"))
    assert tab.run("document.querySelector('.card h3').textContent") == "plain"
    # A class name with markup is text.
    assert tab.run("[...document.querySelectorAll('.classes button')].some(b => b.textContent === '<b>')")
    tab.wait("document.getElementById('tests-reason').textContent.includes('--data')")


def test_the_prediction_stays_beside_the_controls_and_the_tree_in_its_card(page):
    tab, _ = page
    tab.set_value("#first", "0")
    tab.wait("document.querySelectorAll('#tests button').length === 24 && !busy")
    updated(tab, lambda: tab.click("#tests button:nth-child(2)"))
    tab.wait("document.querySelector('.tree')")
    for width in (1300, 800):
        tab.resize(width, 900)
        controls, shown = tab.place(".controls"), tab.place(".shown")
        assert shown[0] >= controls[0] + controls[2] and controls[3] <= 900
        assert shown[0] + shown[2] <= width
        tree = tab.place(".tree")
        natural = tab.run("Number(document.querySelector('.tree').getAttribute('width'))")
        card = tab.place(".scroll")
        assert tree[2] == pytest.approx(min(max(card[2], 0.75 * natural), natural), abs=2)
    tab.resize(500, 900)
    assert tab.place(".shown")[2] > 400, "below the controls on a narrow page"
    tab.resize(1300, 1000)


def test_everything_has_a_name_and_text_has_contrast(page):
    tab, _ = page
    nameless = tab.run(
        "[...document.querySelectorAll('button, input, select, canvas#pad, [tabindex]')]"
        ".filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length))"
        ".map(e => e.outerHTML)"
    )
    assert nameless == []
    faint = tab.run(
        "(() => { const light = (c) => { const [r, g, b] = c.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)"
        ".map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);"
        " return 0.2126 * r + 0.7152 * g + 0.0722 * b; };"
        " return [...document.querySelectorAll('p, h1, h2, h3, th, td, label, summary, span, button:not(:disabled)')]"
        ".filter(e => e.textContent.trim() && 1.05 / (light(getComputedStyle(e).color) + 0.05) < 4.5)"
        ".map(e => e.outerHTML.slice(0, 80)); })()"
    )
    assert faint == []
    assert json.loads(tab.run("JSON.stringify(document.documentElement.lang)")) == "en"
