"""The files of the repository's root that are pages too, with their links led to where things lie on the site."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINKS = {**PAGES, "papers/README.md": "claims.md"}
FILES = ("CITATION.cff", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "papers").glob("*/*.png"))))
"""What the pages link to and the site carries as it is."""


def page(name: str) -> str:
    """One file as a page."""

    def led(link: re.Match[str]) -> str:
        target = link[1]
        return f"]({LINKS.get(target, target.removeprefix('docs/'))})"

    return re.sub(r"\]\(([^)#\s]+)\)", led, (ROOT / name).read_text())


def pages() -> dict[str, str]:
    """All of them."""
    return {uri: page(name) for name, uri in PAGES.items()}
