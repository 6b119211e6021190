"""Mechanisms put into the network of a training, its run folder, its saved weights and comparisons of mechanisms."""

from pathlib import Path

import pytest
import torch

import mereo
from mereo.errors import UsageError
from mereo.measure.conclusions import beside_first
from mereo.surgery.insert import describe_inserted
from mereo.surgery.inserted import Inserted
from mereo.training.compare import make_study
from mereo.training.config import TrainConfig
from mereo.training.option_values import parse_insertion
from mereo.training.plan import make_plan

SHORT = {"data": "digits", "epochs": 1, "limit": 64, "batch_size": 16, "lr": 1e-3, "augment": ("none",), "quiet": True}
BLOCKS = {"model": "resnet20", "model_args": {"widths": [4, 4, 8], "blocks": 1}}


def gates(model: torch.nn.Module) -> list[Inserted]:
    return [module for module in model.modules() if isinstance(module, Inserted)]


@pytest.mark.long
def test_a_run_keeps_what_was_inserted_and_starts_others(tmp_path: Path) -> None:
    place = {"output": str(tmp_path), "img_size": 16}
    plain = mereo.train(**SHORT, **BLOCKS, **place, name="plain")
    insert = ("ela:kernel=3,where=blocks", "se")
    run = mereo.train(**SHORT, **BLOCKS, **place, name="gated", insert=insert, weights=str(plain.folder.path))
    kept = TrainConfig.from_yaml(run.folder.config)
    assert kept.insert == insert and len(gates(run.model)) == 6
    own = sum(parameter.numel() for gate in gates(run.model) for parameter in gate.parameters())
    assert describe_inserted(run.model) == f"inserted: ELA, 3 times; SqueezeExcite, 3 times; {own:,} parameters"
    assert describe_inserted(plain.model) is None
    images = torch.rand(2, *run.model.image_shape)
    again = mereo.load(run.folder.path)
    assert [entry["name"] for entry in again.config["surgery"]] == ["insert", "insert"]
    assert torch.equal(again.eval()(images), mereo.load(run.folder.path).eval()(images)) and len(gates(again)) == 6
    # From weights that have the same insertions.
    third = mereo.train(**SHORT, **BLOCKS, **place, name="more", insert=kept.insert, weights=str(run.folder.path))
    assert len(gates(third.model)) == 6


def test_weights_without_a_gate_are_kept_to_the_bit_until_it_learns(tmp_path: Path) -> None:
    plain = mereo.create_model("resnet20", widths=(4, 4, 8), blocks=1, in_chans=1, img_size=16)
    mereo.save_weights(tmp_path / "plain.safetensors", plain)
    from mereo.training.start import start_from

    config = TrainConfig().replace(data="digits", insert=["ela"], img_size=16, **BLOCKS)
    model = make_plan(config).build_model()
    line = start_from(model, str(tmp_path / "plain.safetensors"))
    images = torch.rand(2, 1, 16, 16)
    assert len(gates(model)) == 3 and "ela" in line
    assert torch.equal(model.eval()(images), plain.eval()(images))


def test_words_are_mechanisms_with_arguments() -> None:
    assert parse_insertion("ela:preset=tiny,where=[a.0,b]") == {"name": "ela", "preset": "tiny", "where": ["a.0", "b"]}
    for text in ("ela:preset", ":where=blocks", "ela:name=se"):
        with pytest.raises(UsageError, match="insert is"):
            parse_insertion(text)
    config = TrainConfig().replace(data="digits", insert=["elaa"], **BLOCKS)
    with pytest.raises(UsageError, match="elaa"):
        make_plan(config).build_model()


def test_a_comparison_has_each_mechanism_in_each_network() -> None:
    study = make_study(["resnet20", "resnet32"], insert=["none", "se", "ela:preset=tiny"])
    assert list(study.variants) == [
        f"{network}{end}" for network in ("resnet20", "resnet32") for end in ("", "+se", "+ela:preset=tiny")
    ]
    assert study.variants["resnet20+se"].changes == {"model": "resnet20", "insert": ("se",)}
    assert "insert" not in study.variants["resnet20"].changes


@pytest.mark.long
def test_mechanisms_are_compared_over_seeds(tmp_path: Path) -> None:
    options = {"limit": 40, "batch_size": 16, "lr": 1e-3, "epochs": 1, "img_size": 16, "output": str(tmp_path)}
    alone, other = (f"resnet20:blocks=1,widths=[{widths}]" for widths in ("4,4,8", "4,4,4"))
    done = mereo.compare(alone, insert=["eca", "none"], data="digits", seeds=2, quiet=True, **options)
    base, gated = sorted(done.rows, key=lambda row: row.parameters)
    assert (base.model, gated.model) == (alone, f"{alone}+eca")
    assert gated.parameters > base.parameters and gated.macs > base.macs
    values = {row.model: [100 * value for value in row.values] for row in (base, gated)}
    # The network alone is what the others are compared with, wherever it was given.
    assert done.verdicts[:-1] == beside_first(values)
    assert done.verdicts[-1].startswith(f"Time of training beside {alone}:")
    both = mereo.compare([alone, other], insert=["eca", "none"], data="digits", seeds=2, quiet=True, **options)
    assert len(both.rows) == 4 and both.verdicts[: len(done.verdicts) - 1] == done.verdicts[:-1]
    assert both.verdicts[len(done.verdicts)].startswith(f"{other}: ")
    with pytest.raises(UsageError, match="family"):
        mereo.compare(insert=["se"], family="vision", data="digits")
