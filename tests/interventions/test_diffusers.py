"""The interventions on a tiny network of diffusers with random weights; skipped where the library is missing."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.interventions import attencraft, isolate_and_reposition

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def network() -> Any:
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    return diffusers.UNet2DConditionModel(
        sample_size=8, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4, cross_attention_dim=12,
        attention_head_dim=4, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).eval()  # fmt: skip


def run(network: Any, noisy: Tensor, text: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = network(noisy, 5, encoder_hidden_states=text).sample
    return out


def masks() -> tuple[Tensor, Tensor]:
    target, reference = torch.zeros(2, 2, 8, 8, dtype=torch.bool)
    target[0, :4, :4] = target[1, 4:, 4:] = reference[0, 2:5, 2:6] = reference[1, 1:7, :3] = True
    return target, reference


def test_subjects_of_a_unet(network: Any) -> None:
    noisy, text = torch.randn(6, 4, 8, 8), torch.randn(6, 7, 12)
    plain = run(network, noisy, text)
    target, reference = (torch.stack((each, each.flip(-1))) for each in masks())
    with isolate_and_reposition(network, target, reference, mutual_text=0.9):
        changed = run(network, noisy, text)
    references = [0, 1, 3, 4]
    torch.testing.assert_close(changed[references], plain[references])
    assert (changed - plain)[[2, 5]].abs().amax((1, 2, 3)).min() > 1e-3
    for number in range(2):
        part = slice(3 * number, 3 * number + 3)
        with isolate_and_reposition(network, target[number], reference[number], mutual_text=0.9):
            torch.testing.assert_close(run(network, noisy[part], text[part]), changed[part], rtol=1e-4, atol=1e-5)
    assert torch.equal(run(network, noisy, text), plain)
    with pytest.raises(UsageError, match="layer in layers"), isolate_and_reposition(network, target, layers=["attn"]):
        pass


def test_concepts_of_a_unet(network: Any) -> None:
    noisy, text = torch.randn(2, 4, 8, 8), torch.randn(2, 7, 12)
    plain = run(network, noisy, text)
    with attencraft(network, [1, [2, 3]]) as maps:
        torch.testing.assert_close(run(network, noisy, text), plain)
    assert maps.self_attention(64).shape == (2, 64, 64) and maps.cross_attention().shape == (2, 64, 7)
    torch.testing.assert_close(maps.self_attention(16).sum(-1), torch.ones(2, 16))
    assert maps.loss(torch.rand(3, 8, 8)) > 0
