"""`mereo mechanisms`: grouped by family, with sources and promises."""

import json

from mereo.catalogue import FAMILIES, get_mechanism
from mereo.cli.main import main


def test_mechanisms_are_grouped_by_family_with_their_sources(capsys):
    assert main(["mechanisms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    families = [row["family"] for row in rows]
    assert families == sorted(families, key=list(FAMILIES).index)
    for row in rows:
        entry = get_mechanism(row["name"])
        assert row["source"] == str(entry.source) and set(row["promises"].split(", ")) == entry.promises


def test_one_mechanism_is_shown_with_its_promises_and_link(capsys):
    assert main(["mechanisms", "multi_head"]) == 0
    out = capsys.readouterr().out
    entry = get_mechanism("multi_head")
    assert entry.source.link in out and "key.bias" in out and entry.target.__name__ in out
    assert all(promise in out for promise in entry.promises)
