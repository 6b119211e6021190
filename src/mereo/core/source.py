"""The source of a mechanism or network: an arXiv id, a DOI or a URL, with its link and citation."""

import re
from dataclasses import dataclass
from functools import cached_property

from mereo.errors import UsageError

_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5}|[a-z-]+(?:\.[A-Z]{2})?/\d{7})(?:v\d+)?")
_DOI = re.compile(r"(?:doi:|https?://(?:dx\.)?doi\.org/)(10\.\d{4,9}/[^\s{}\\]+)", re.IGNORECASE)
_URL = re.compile(r"https?://[\w.-]+(?::\d+)?(?:/[^\s{}\\]*)?")


@dataclass(frozen=True)
class Source:
    """A publication by its identifier.

    Args:
        text: "arXiv:1710.09829", "doi:10.1109/5.771073" (or its https://doi.org/ form), or an http(s) URL.
    """

    text: str

    def __post_init__(self) -> None:
        if not any(pattern.fullmatch(self.text) for pattern in (_ARXIV, _DOI, _URL)):
            raise UsageError(
                f"source is {self.text!r}; it must be an arXiv id ('arXiv:1710.09829'), a DOI ('doi:10.1109/5.771073')"
                " or an http(s) URL, such as the address of your own code."
            )

    @cached_property
    def kind(self) -> str:
        """ "arXiv", "DOI" or "URL"."""
        if _ARXIV.fullmatch(self.text):
            return "arXiv"
        return "DOI" if _DOI.fullmatch(self.text) else "URL"

    @cached_property
    def identifier(self) -> str:
        """Only the number: 1710.09829, 10.1109/5.771073; a URL is its own identifier."""
        if self.kind == "arXiv":
            return self.text.removeprefix("arXiv:")
        doi = _DOI.fullmatch(self.text)
        return doi[1] if doi else self.text

    @property
    def link(self) -> str:
        """The URL of the publication."""
        prefix = {"arXiv": "https://arxiv.org/abs/", "DOI": "https://doi.org/", "URL": ""}
        return prefix[self.kind] + self.identifier

    @property
    def label(self) -> str:
        """A short text for the link: arXiv:1710.09829, doi:10.1109/5.771073, or the host of a URL."""
        if self.kind == "URL":
            return self.text.partition("//")[2].partition("/")[0].removeprefix("www.")
        return f"{'arXiv' if self.kind == 'arXiv' else 'doi'}:{self.identifier}"

    @property
    def markdown(self) -> str:
        """The label as a Markdown link."""
        return f"[{self.label}]({self.link})"

    @property
    def citation(self) -> str:
        """A BibTeX entry that states only the identifier: `eprint` for arXiv, `doi` for a DOI, otherwise the URL."""
        key = re.sub(r"\W+", "_", self.text.partition("//")[2] if self.kind == "URL" else self.label).strip("_").lower()
        fields = {
            "arXiv": {"eprint": self.identifier, "archivePrefix": "arXiv"},
            "DOI": {"doi": self.identifier},
            "URL": {},
        }[self.kind] | {"url": self.link}
        lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
        return f"@misc{{{key},\n{lines}\n}}"

    def __str__(self) -> str:
        return self.text
