"""The experiment on token mixers: its tables agree with the taxonomy, and its pictures are drawn."""

import pytest

from papers.common.settings import Settings
from papers.listing import EXPERIMENTS


@pytest.mark.long
def test_tables_and_pictures(tmp_path) -> None:
    results = EXPERIMENTS["token_mixers"].run(Settings(tmp_path))
    template, ours = results["tables"].values()
    assert all(float(row["error of the fast product"]) < 1e-12 for row in template)
    fixed = {row["mixer"] for row in template if row["depends on tokens"] == "no"}
    assert fixed == {"learned", "fourier", "convolution", "global filter", "state space", "pooling", "identity"}
    causal = {row["mechanism"] for row in ours if row["causal"] == "yes"}
    assert causal == {"multi_head, causal", "lightning"}
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in results["pictures"])
