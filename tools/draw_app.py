"""Draw the page of `mereo app` for the documentation: python tools/draw_app.py PICTURE RUN.

It needs Chromium, and a run whose test images are there.
"""

import sys
from pathlib import Path

import torch

from mereo.app.serving import serving
from mereo.app.session import Session
from mereo.models import load

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from browser import browser_page


def draw(run: Path, path: Path) -> None:
    """The page with a test image, one place silenced."""
    status = "document.getElementById('status').textContent"
    with serving(Session([run], [load(run, torch.device("cpu"))])) as address, browser_page() as page:
        page.resize(1280, 1400)  # the controls are as high as the window at most
        page.open(address)
        page.wait(f"{status}.startsWith('Ready')")
        page.click("#tests button:nth-child(9)")
        page.wait(f"{status}.includes('predicted') && !busy")
        page.run("document.getElementById('status').textContent = ''")
        page.click(".view", 0.25, 0.25)
        page.wait(f"{status}.includes('predicted') && !busy")
        page.run("scrollTo(0, 0); document.getElementById('run').remove()")
        page.screenshot(path)


if __name__ == "__main__":
    draw(Path(sys.argv[2]), Path(sys.argv[1]))
