"""Where the time of a step goes."""

import pytest

from mereo.bench.suite import Setting
from mereo.bench.suites.networks import step_shares


def test_shares_of_a_training_step():
    (table,) = step_shares(Setting({"batch": 2, "model": "mspcaps_tiny"}), quick=True)
    shares = {row[0]: float(row[2].removesuffix(" %")) for row in table.rows}
    assert {"convolution", "batch norm", "routing", "patchify", "augmentation", "optimiser"} <= set(shares)
    assert "Python and dispatch" in shares
    assert sum(shares.values()) == pytest.approx(100, abs=0.5)
    core = shares["convolution"] + shares["batch norm"]
    assert float(table.notes[0].split(": ")[1].split(" %")[0]) == pytest.approx(core, abs=0.2)
