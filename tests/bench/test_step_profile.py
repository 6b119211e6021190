"""Where the time of a step goes."""

from mereo.bench.suite import Setting
from mereo.bench.suites.networks import OPERATORS, step_shares


def test_operators_of_a_training_step():
    (table,) = step_shares(Setting({"batch": 2, "model": "mspcaps_tiny"}), quick=True)
    shares = {row[0]: float(row[2].removesuffix(" %")) for row in table.rows}
    assert {"aten::mkldnn_convolution", "aten::convolution_backward"} <= set(shares) and len(shares) == OPERATORS
    assert list(shares.values()) == sorted(shares.values(), reverse=True) and 50 < sum(shares.values()) <= 100
