"""TinyDiff: its sampler and its convolutions against slow ones, positions, guidance, prompts and refusals."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mereo
from mereo.data.glyph_scenes.prompts import START, encode
from mereo.errors import UsageError
from mereo.models.sequence.tinydiff import GridAttention, TinyDiff, UpBlock, axial_rotary

SMALL: dict[str, Any] = {"dim": 16, "depth": 2, "text_depth": 1, "num_heads": 2, "canvas": 16, "steps": 3}
PROMPTS = ["a red square left of a blue star", "a ring"]


def made(**changes: Any) -> TinyDiff:
    torch.manual_seed(0)
    model: Any = mereo.create_model("tinydiff", **{**SMALL, **changes}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def test_sampling_is_ddim_with_guidance() -> None:
    model, noise = made(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    seen: list[int] = []
    drawn = model.draw(PROMPTS, noise=noise, guidance=1.7, progress=seen.append)
    assert seen == [1, 2, 3] and drawn.min() >= 0 and drawn.max() <= 1
    for number, prompt in enumerate(PROMPTS):
        x, empty = noise[number : number + 1], encode([""])
        assert empty[0, 0] == START and not empty[0, 1:].any()
        for step in range(3):
            t, then = 1 - step / 3, 1 - (step + 1) / 3
            a, s, b, r = (f(math.pi * y / 2) for y in (t, then) for f in (math.cos, math.sin))
            plain, prompted = (model(tokens, x, torch.tensor([t])) for tokens in (empty, encode([prompt])))
            velocity = plain + 1.7 * (prompted - plain)
            clean = (a * x - s * velocity).clamp(-1, 1)
            x = b * clean + r * (x - a * clean) / s
        torch.testing.assert_close(drawn[number : number + 1], (x + 1) / 2, rtol=0, atol=1e-6)


def test_scores_depend_on_differences_of_positions_only() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)

    def score(first: tuple[int, int], second: tuple[int, int]) -> float:
        return (axial_rotary(q, torch.tensor([first])) * axial_rotary(k, torch.tensor([second]))).sum().item()

    assert score((1, 2), (3, 5)) == pytest.approx(score((4, 0), (6, 3)), rel=1e-6)
    assert abs(score((1, 2), (3, 5)) - score((1, 2), (3, 4))) > 1e-3
    layer, x = GridAttention(8, 1, 3).double(), torch.randn(2, 1, 4, 8, dtype=torch.float64)
    cells = torch.tensor([[0, 4, 8, 2], [1, 1, 5, 7]])
    for number in range(2):
        torch.testing.assert_close(layer.turned(x, cells)[number], layer.turned(x, cells[number])[number])


def test_a_coarse_map_is_joined_with_the_finer_one() -> None:
    block = UpBlock(6, 4, 5).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn_like(parameter))
    x, skip, time = (torch.randn(*shape, dtype=torch.float64) for shape in ((6, 2, 3), (4, 4, 6), (5,)))
    twice = torch.zeros(4, 4, 6, dtype=torch.float64)
    for c in range(4):
        for i in range(4):
            for j in range(6):
                row = 4 * c + 2 * (i % 2) + j % 2  # of the four pixels of a coarse one
                weight, bias = block.expand.weight[row, :, 0, 0], block.expand.bias
                assert bias is not None
                twice[c, i, j] = weight @ x[:, i // 2, j // 2] + bias[row]
    joined = F.conv2d(torch.cat((twice, skip))[None], block.conv.weight, block.conv.bias, padding=1)[0]
    mean, variance = (f(joined.flatten(1), 1) for f in (torch.mean, lambda y, d: y.var(d, unbiased=False)))
    normal = (joined - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
    normal = normal * block.norm.weight[:, None, None] + block.norm.bias[:, None, None]
    shift, scale = (block.modulation.weight @ time + block.modulation.bias)[:, None, None].chunk(2)
    expected = F.silu(normal * (1 + scale) + shift)
    torch.testing.assert_close(block(x[None], skip[None], time[None])[0], expected)


def test_a_cell_knows_its_place() -> None:
    model = made()
    words, mask = model.forward_features(encode(PROMPTS[:1]))
    flat = torch.zeros(1, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        for convolution in model.stem:
            convolution.weight.zero_()  # type: ignore[union-attr, operator]
        cells = model.cells(flat, torch.zeros(1), words, mask)[0]
    assert torch.cdist(cells, cells).fill_diagonal_(1).min() > 1e-3


def test_padding_and_other_prompts_do_not_matter() -> None:
    model = made()
    words, mask = model.forward_features(encode(PROMPTS))
    alone, _ = model.forward_features(encode(PROMPTS[1:]))
    torch.testing.assert_close(words[1:, :2], alone[:, :2])
    noise, time = torch.randn(2, 3, 16, 16, dtype=torch.float64), torch.rand(2)
    expected = model.velocity(noise, time, words, mask)
    torch.testing.assert_close(model.velocity(noise, time, words.where(mask.unsqueeze(-1), 9.0), mask), expected)
    assert not torch.equal(model.draw(PROMPTS[:1], seed=0), model.draw(PROMPTS[:1], seed=1))


def test_further_words_start_as_known_ones_and_are_saved(tmp_path: Path) -> None:
    model = made().float()
    more = model.with_concepts({"new1": "square"})
    torch.testing.assert_close(more.draw(["a red new1"]), model.draw(["a red square"]))
    mereo.save_weights(tmp_path / "more.safetensors", more)  # type: ignore[arg-type]
    again: Any = mereo.load(tmp_path / "more.safetensors")
    assert torch.equal(again.draw(["a new1"]), more.draw(["a new1"]))
    for words in ({"star": "square"}, {"new1": "sqare"}):
        with pytest.raises(UsageError, match="words has"):
            model.with_concepts(words)


def test_wrong_arguments_are_named() -> None:
    model = made()
    for prompt, word in (("a red sqare", "sqare"), ("new1", "new1"), ("a red square " * 9, "prompt is")):
        with pytest.raises(UsageError, match=word):
            model.draw([prompt])
    for changes in ({"steps": 0}, {"guidance": -1.0}, {"noise": torch.zeros(1, 3, 4, 4)}):
        with pytest.raises(UsageError, match=next(iter(changes))):
            model.draw(PROMPTS, **changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"torch\.float32 of shape \(1, 4\)"):
        model(torch.zeros(1, 4))
    with pytest.raises(UsageError, match=r"noisy is \(1, 3, 8, 8\)"):
        model(encode(PROMPTS[:1]), torch.zeros(1, 3, 8, 8), torch.zeros(1))
    for changes in ({"dim": 18}, {"patch_size": 5}):
        with pytest.raises(UsageError, match="patch_size"):
            made(**changes)
