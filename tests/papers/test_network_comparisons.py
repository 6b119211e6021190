"""The experiments on spectral blocks and on gating by a product: sizes that agree, what differs, and both as run."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from mereo.cli.main import main
from mereo.mechanisms.gate import MixerGate
from mereo.mechanisms.mixer import SpectralGating
from mereo.models.vision.ninformer import NiNBlock
from papers.listing import EXPERIMENTS
from papers.ninformer import mixer_gating
from papers.ninformer.mixer_gating import MixerBlock, SumGate
from papers.spectformer import spectral_layers


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_spectral_networks_have_one_size_and_the_blocks_of_their_names() -> None:
    assert spectral_layers.hidden_size(2, 8) == 512
    counts = set()
    for spectral, first in spectral_layers.NETWORKS.values():
        with torch.device("meta"):
            model = spectral_layers.make((3, 32, 32), 10, spectral=spectral, first=first)
        counts.add(count(model))
        gated = [any(isinstance(m, SpectralGating) for m in block.modules()) for block in model.stages]
        assert gated == sorted(gated, reverse=first) and sum(gated) == spectral
    assert max(counts) < 1.001 * min(counts)


def test_gated_networks_have_one_size() -> None:
    counts = [count(mixer_gating.make((1, 28, 28), 10, network=name)) for name in mixer_gating.NETWORKS]
    assert counts[0] == counts[1] and abs(counts[2] / counts[0] - 1) < 0.001


def test_a_sum_replaces_the_product() -> None:
    gate, tokens = MixerGate(4, 3, 8), torch.randn(2, 3, 4)
    added = SumGate(4, 3, 8)
    added.load_state_dict(gate.state_dict())
    torch.testing.assert_close(gate(tokens), gate.proj(tokens) * gate.mix(tokens))
    torch.testing.assert_close(added(tokens), gate.proj(tokens) + gate.mix(tokens))
    for name, kind in (("product", MixerGate), ("sum", SumGate)):
        assert all(type(block.gate) is kind for block in mixer_gating.make((1, 8, 8), 3, network=name).stages)


def test_a_mixer_block_adds_three_updates() -> None:
    block, maps = MixerBlock(4, 6, 8), torch.randn(2, 4, 2, 3)
    for part in block.parts:
        nn.init.zeros_(part.second.weight)
        nn.init.zeros_(part.second.bias)
    assert torch.equal(block(maps), maps)
    nn.init.ones_(block.parts[2].second.bias)
    torch.testing.assert_close(block(maps), maps + 1)
    nn.init.ones_(block.parts[0].second.bias)
    torch.testing.assert_close(block(maps), maps + 2)
    assert count(NiNBlock(64, 49, 128)) - count(MixerBlock(64, 49, 128)) == 32


@pytest.mark.parametrize(("name", "rows"), [("spectral_layers", 4), ("mixer_gating", 3)])
def test_the_experiments_run(name: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(EXPERIMENTS[name].module)
    monkeypatch.setattr(module, "DIM", 8)
    monkeypatch.setattr(module, "HIDDEN", 16)
    few = ["--data", "digits", "--limit", "64", "--epochs", "1", "--batch-size", "16", "--images", "50"]
    assert main(["reproduce", name, *few, "--output", str(tmp_path)]) == 0
    results = json.loads((tmp_path / f"{name}-digits" / "results.json").read_text())
    ((title, table),) = results["tables"].items()
    assert title == "4 steps on 64 images of digits" and len(table) == rows
    assert all(0 < row["loss"] < 5 and 0 <= row["test %"] <= 100 and row["parameters"] > 0 for row in table)
    with Image.open(tmp_path / f"{name}-digits" / results["pictures"][0]) as image:
        assert min(image.size) > 200
