"""Codes of positions by their distance."""

import pytest

from mereo.errors import UsageError
from mereo.layers.positions import distance_table


def test_a_table_by_distance_has_gaussian_cosines_and_equal_norms() -> None:
    table = distance_table(11, 86, 5.895).double()
    norms = table.norm(dim=1)
    assert (norms - 5.895).abs().max() < 1e-5
    cosines = table @ table.T / (norms.unsqueeze(1) * norms)
    for away, expected in enumerate((1, 0.882497, 0.606531, 0.324652)):
        assert (cosines.diagonal(away) - expected).abs().max() < 1e-6
    with pytest.raises(UsageError) as error:
        distance_table(5, 4, 1.0)
    assert "count is 5" in str(error.value) and "columns 4" in str(error.value)
