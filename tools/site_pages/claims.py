"""The page of claims, put together from the papers' pages."""

import re

from mereo.runtime.clone import find_papers
from site_pages.repository import ROOT


def _page(name: str) -> str:
    """The claims of one paper: its name as an anchor, headings a level lower, figures where the site has them."""
    text = (ROOT / "papers" / name / "claims.md").read_text(encoding="utf-8")
    text = re.sub(r"^(# .*)", rf"\1 {{#{name}}}", text, count=1)
    return re.sub(r"^#", "##", re.sub(r"\]\(([\w-]+\.png)\)", rf"](papers/{name}/\1)", text), flags=re.MULTILINE)


def pages() -> dict[str, str]:
    """The page, which begins with a list of all papers."""
    papers = find_papers().PAPERS
    listed = "\n".join(f"- [{paper.title}](#{name})" for name, paper in papers.items())
    texts = [(ROOT / "papers" / "README.md").read_text(encoding="utf-8"), listed + "\n", *map(_page, papers)]
    return {"claims.md": "\n".join(texts)}
