"""The files of the repository's root that are pages too, with their links led to where things lie on the site."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINKS = {**PAGES, "papers/README.md": "claims.md"}
FILES = ("CITATION.cff", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "papers").glob("*/*.png"))))
"""What the pages link to and the site carries as it is."""
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]+)?\)")
_PAPER = re.compile(r"(?:\.\./)?papers/(\w+)/claims\.md")


def led(text: str) -> str:
    """Markdown whose links to files of the repository lead to their pages on the site."""

    def one(link: re.Match[str]) -> str:
        target, anchor = link[1], link[2] or ""
        if paper := _PAPER.fullmatch(target):
            return f"](claims.md{anchor or '#' + paper[1]})"
        return f"]({LINKS.get(target, target.removeprefix('docs/'))}{anchor})"

    return _LINK.sub(one, text)


def pages() -> dict[str, str]:
    """Those files, by their place in the site; the hook of the site leads their links."""
    return {uri: (ROOT / name).read_text() for name, uri in PAGES.items()}
