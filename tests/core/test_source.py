"""Sources: what identifies a publication, its link and its citation."""

import pytest

from mereo.core.source import Source
from mereo.errors import UsageError

SOURCES = [
    ("arXiv:1710.09829", "arXiv", "https://arxiv.org/abs/1710.09829", "arXiv:1710.09829"),
    ("arXiv:1710.09829v2", "arXiv", "https://arxiv.org/abs/1710.09829v2", "arXiv:1710.09829v2"),
    ("arXiv:cs/0112017", "arXiv", "https://arxiv.org/abs/cs/0112017", "arXiv:cs/0112017"),
    ("doi:10.1109/5.771073", "DOI", "https://doi.org/10.1109/5.771073", "doi:10.1109/5.771073"),
    ("https://doi.org/10.1109/5.771073", "DOI", "https://doi.org/10.1109/5.771073", "doi:10.1109/5.771073"),
    ("https://openreview.net/forum?id=HJWLfGWRb", "URL", "https://openreview.net/forum?id=HJWLfGWRb", "openreview.net"),
]


@pytest.mark.parametrize(("text", "kind", "link", "label"), SOURCES)
def test_kind_link_and_label(text: str, kind: str, link: str, label: str) -> None:
    source = Source(text)
    assert (source.kind, source.link, source.label) == (kind, link, label)
    assert source.markdown == f"[{label}]({link})" and str(source) == text


@pytest.mark.parametrize(("text", "kind", "link", "label"), SOURCES)
def test_a_citation_has_an_eprint_only_for_arxiv(text: str, kind: str, link: str, label: str) -> None:
    citation = Source(text).citation
    assert f"url = {{{link}}}" in citation
    assert ("eprint" in citation) == (kind == "arXiv") and ("doi = {10." in citation) == (kind == "DOI")
    key = citation.partition("{")[2].partition(",")[0]
    assert key and key.replace("_", "").isalnum()
    assert citation.count("{") == citation.count("}")


@pytest.mark.parametrize(
    "text", ["", "1710.09829", "arXiv:17.1", "doi:11.1/x", "ftp://host/x", "https://", "https://a b", "https://a/{b}"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="source is"):
        Source(text)
