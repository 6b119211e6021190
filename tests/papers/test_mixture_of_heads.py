"""The experiment on mixtures of heads: its table, after a few steps on a few images."""

import pytest

from papers.common.settings import Settings
from papers.listing import EXPERIMENTS


@pytest.mark.long
def test_table(tmp_path) -> None:
    settings = Settings(tmp_path, data="digits", limit=128, epochs=1, device="cpu", say=lambda line: None)
    (rows,) = EXPERIMENTS["mixture_of_heads"].run(settings)["tables"].values()
    assert len(rows) == 8
    by_name = {row["network"]: row for row in rows}
    assert by_name["all heads"]["least used routed head, tokens %"] == 100
    half = by_name["50% of heads, from the start"]
    assert 0 <= half["least used routed head, tokens %"] <= 34 <= half["most used, tokens %"] <= 100
