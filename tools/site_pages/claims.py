"""The page of claims, put together from the papers' pages."""

import re

from mereo.runtime.clone import find_papers
from site_pages.repository import ROOT


def _page(name: str) -> str:
    """The claims of one paper, its headings one level lower and its figures where the site has them."""
    text = (ROOT / "papers" / name / "claims.md").read_text(encoding="utf-8")
    return re.sub(r"^#", "##", re.sub(r"\]\(([\w-]+\.png)\)", rf"](papers/{name}/\1)", text), flags=re.MULTILINE)


def pages() -> dict[str, str]:
    """The page."""
    texts = [(ROOT / "papers" / "README.md").read_text(encoding="utf-8"), *map(_page, find_papers().NAMES)]
    return {"claims.md": "\n".join(texts)}
