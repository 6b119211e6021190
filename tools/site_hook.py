"""The hook of MkDocs: it adds the pages made from the code, sets formulas, and lets no page load from elsewhere."""

import html
import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from site_pages.repository import FILES, ROOT, led
from site_pages.whole import navigation, pages

_ELSEWHERE = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
made: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    made.clear()
    try:
        made.update(pages())
    except ValueError as error:
        raise PluginError(str(error)) from error
    config.nav = navigation(config.nav or [], made)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    for name in FILES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return led(markdown)


def on_page_content(html_of_page: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    def set_formula(formula: re.Match[str]) -> str:
        return convert(html.unescape(formula[2]), display="inline" if formula[1] == "span" else "block")

    return _FORMULA.sub(set_formula, html_of_page)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    loaded = _ELSEWHERE.search(output)
    if loaded is not None:
        raise PluginError(f"{page.file.src_uri} loads something from another place: {loaded[0]}")
    return output
