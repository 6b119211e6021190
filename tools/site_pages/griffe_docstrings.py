"""Gives mkdocstrings the docstrings of this project as Markdown."""

import griffe

from site_pages.docstrings import markdown


class HouseDocstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
