"""Where a published network is from: an arXiv id, a DOI or a URL, as a link and as a citation."""

import re
from typing import NamedTuple

from mereo.errors import UsageError

_KINDS = {
    "arXiv": re.compile(r"arXiv:(\d{4}\.\d{4,5}|[a-z-]+(?:\.[A-Z]{2})?/\d{7})"),
    "doi": re.compile(r"doi:(10\.\d{4,9}/\S+)"),
    "url": re.compile(r"(https?://\S+\.\S+)"),
}


class Source(NamedTuple):
    """A source, taken apart.

    Attributes:
        kind: "arXiv", "doi" or "url".
        number: the id, the DOI or the URL itself.
    """

    kind: str
    number: str

    @property
    def link(self) -> str:
        """Its web page."""
        return {"arXiv": "https://arxiv.org/abs/", "doi": "https://doi.org/", "url": ""}[self.kind] + self.number

    @property
    def bibtex(self) -> str:
        """An entry of a bibliography; of a page that is neither on arXiv nor has a DOI the link is all there is."""
        key = re.sub(r"\W+", "_", re.sub(r"https?://(www\.)?", "", self.number)).strip("_")
        fields = {"arXiv": {"eprint": self.number, "archivePrefix": "arXiv"}, "doi": {"doi": self.number}}
        lines = {**fields.get(self.kind, {}), "url": self.link}
        listed = ",\n".join(f"  {name} = {{{value}}}" for name, value in lines.items())
        return f"@misc{{{self.kind.lower()}_{key},\n{listed}\n}}"


def parse_source(text: str) -> Source:
    """The parts of a source; UsageError if it is neither "arXiv:1710.09829", "doi:10.1000/182" nor a URL."""
    for kind, pattern in _KINDS.items():
        if match := pattern.fullmatch(text):
            return Source(kind, match[1])
    raise UsageError(f"source is {text!r}; give an arXiv id (arXiv:1710.09829), a DOI (doi:10.1000/182) or a URL.")
