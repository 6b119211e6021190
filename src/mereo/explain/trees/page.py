"""Explanations of many images as one HTML page that needs no other file: a picture each, and all its numbers in words.

It is written image by image, so that memory does not grow. Names of files and classes are not trusted and always
escaped.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path

from mereo.files import writing

AddSection = Callable[[str, bytes, str, Sequence[str]], None]
"""(title of an image, its picture as PNG, a sentence, all numbers in sentences) -> None."""
STYLE = "body{font:16px/1.4 system-ui,sans-serif;margin:2em;color:#24292f}img{max-width:100%}summary{cursor:pointer}"


@contextmanager
def explanation_page(path: str | Path, title: str) -> Iterator[AddSection]:
    """A page that is written as images are added; the file appears at its path when it is complete.

    Args:
        path: of the file.
        title: of the page.
    """
    with writing(Path(path)) as write_bytes:

        def write(text: str) -> None:
            # Names of files may hold bytes that are not text.
            write_bytes(text.encode(errors="replace"))

        def add(name: str, picture: bytes, words: str, numbers: Sequence[str]) -> None:
            items = "".join(f"<li>{escape(line)}</li>\n" for line in numbers)
            details = f"<details><summary>All numbers in words</summary>\n<ul>\n{items}</ul></details>\n"
            write(
                f'<section class="case">\n<h2>{escape(name)}</h2>\n'
                f'<img alt="{escape(words)}" src="data:image/png;base64,{base64.b64encode(picture).decode()}">\n'
                f"<p>{escape(words)}</p>\n{details if numbers else ''}</section>\n"
            )

        write(
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="generator" content="mereo">\n'
            # If a name ever got past the escaping, the browser would still run, load and send nothing.
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:;'
            " style-src 'unsafe-inline'\">\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        )
        yield add
        write("</body>\n</html>\n")
