"""Drawing: figures of true scenes and wrong ones, the loss, and what a prediction shows."""

from typing import Any

import pytest
import torch

import mereo
from mereo.cli.main import main
from mereo.data import Batch
from mereo.data.glyph_scenes.prompts import KINDS
from mereo.data.glyph_scenes.scenes import make_scenes
from mereo.errors import UsageError
from mereo.tasks import Drawing
from mereo.tasks.drawing import DrawingMetrics, Drawn

SCENES = make_scenes(torch.arange(40))
BATCH = Batch(images=SCENES.images, labels=SCENES.kinds, prompts=SCENES.tokens)


def scores(kinds: torch.Tensor) -> torch.Tensor:
    return 20 * torch.nn.functional.one_hot(kinds.where(kinds >= 0, KINDS), KINDS + 1).float()


def test_true_scenes_are_right_and_mirrored_kinds_mostly_wrong() -> None:
    true, turned = DrawingMetrics(), DrawingMetrics()
    true.update(Drawn(BATCH.images, scores(SCENES.kinds)), BATCH)
    found = true.compute()
    assert found["accuracy"] == found["glyphs"] == 1 and 0.9 < found["accuracy_low"] < found["accuracy_high"] == 1
    turned.update(Drawn(BATCH.images, scores(SCENES.kinds.flip(1))), BATCH)
    assert turned.compute()["glyphs"] == 1 and turned.compute()["accuracy"] < 0.8
    unclear = Drawn(BATCH.images, torch.zeros(40, 4, KINDS + 1))
    assert (unclear.kinds == -1).all() and Drawing().predict(unclear)[0] == {}


def test_the_judge_learns_from_true_scenes_and_drawing_from_all() -> None:
    model: Any = mereo.create_model("tinydiff", dim=16, depth=1, text_depth=1, num_heads=2)
    loss, drawn = Drawing().objective(model, _settings())(BATCH)
    loss.backward()
    assert torch.equal(drawn.images, BATCH.images) and loss.item() == pytest.approx(1, abs=0.8)
    assert model.judge.score.weight.grad.any() and model.head.weight.grad.any()
    with pytest.raises(UsageError, match="mixup"):
        Drawing().objective(model, _settings(mixup=0.5))


def _settings(**changes: Any) -> Any:
    from mereo.training.config import TrainConfig

    return TrainConfig(task="drawing", **changes)


def test_a_prompt_is_drawn_from_the_command_line(tmp_path: Any, capsys: Any) -> None:
    model: Any = mereo.create_model("tinydiff", dim=16, depth=1, text_depth=1, num_heads=2, steps=2)
    mereo.save_weights(tmp_path / "model.safetensors", model)
    words = ["predict", "--weights", str(tmp_path / "model.safetensors"), "--out", str(tmp_path / "out")]
    main([*words, "--prompt", "a red square left of a blue star"])
    assert "as asked" in capsys.readouterr().out and (tmp_path / "out" / "prompt.png").stat().st_size
    (tmp_path / "two.txt").write_text("a ring\n\na black cross top\n")
    main([*words, str(tmp_path / "two.txt"), "--json"])
    assert capsys.readouterr().out.count('"glyphs"') == 2
    assert main([*words, "--prompt", "a red sqare"]) == 2 and "'sqare'" in capsys.readouterr().err
