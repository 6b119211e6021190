"""Primary capsules of several maps: their order, the squash, refusals."""

import pytest
import torch
import torch.nn.functional as F

from mereo.core import squash
from mereo.errors import UsageError
from mereo.layers.capsules import MultiScalePrimaryCapsules


@torch.no_grad()
@pytest.mark.parametrize("squashed", [True, False])
def test_capsules_are_ordered_by_map_type_row_and_column(squashed: bool) -> None:
    primary = MultiScalePrimaryCapsules((3, 2), (2, 3), 4, squashed=squashed).double()
    maps = [torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(2, 2, 2, 3, dtype=torch.float64)]
    expected = []
    for convolve, each, types in zip(primary.convs, maps, (2, 3), strict=True):
        made = F.conv2d(each, convolve.weight, convolve.bias, padding=1)
        for kind in range(types):
            for row in range(each.shape[2]):
                expected += [made[:, 4 * kind : 4 * kind + 4, row, column] for column in range(each.shape[3])]
    capsules = torch.stack(expected, 1)
    assert capsules.shape == (2, 2 * 20 + 3 * 6, 4)
    torch.testing.assert_close(primary(maps), squash(capsules) if squashed else capsules)


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="one of each"):
        MultiScalePrimaryCapsules((3, 2), (2,), 4)
    with pytest.raises(UsageError, match="types is 0"):
        MultiScalePrimaryCapsules((3,), (0,), 4)
