"""The decoder of tensor attention: its equations, its embedding, its longest sequence, and a training on Match3."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import mereo
from mereo.cli.main import main
from mereo.data.match3 import make_triples
from mereo.errors import UsageError
from mereo.inference.predict import task_of


def test_it_equals_its_equations() -> None:
    model = mereo.create_model("tensor_attention_tiny", depth=2).double().eval()
    tokens = torch.randint(13, (2, 7))
    x = model.embedding.weight[tokens] + model.positions[:7]
    for block in model.blocks:
        x = x + block.mixer(block.norm1(x))
        x = x + block.channels.second(F.gelu(block.channels.first(block.norm2(x))))
    torch.testing.assert_close(model(tokens), F.linear(model.norm(x), model.head.weight))


def test_scores_see_sums_of_three_numbers_at_the_start() -> None:
    weight = mereo.create_model("tensor_attention_tiny").embedding.weight
    cos, sin = weight.unflatten(1, (2, 16)).unbind(1)
    a, b, c = 3, 7, 11
    expected = torch.cos(2 * math.pi * torch.arange(1, 17) * (a + b + c) / 13)
    found = cos[a] * (cos[b] * cos[c] - sin[b] * sin[c]) - sin[a] * (sin[b] * cos[c] + cos[b] * sin[c])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_sizes_that_it_does_not_take() -> None:
    model = mereo.create_model("tensor_attention_tiny")
    with pytest.raises(UsageError, match="reads at most 9"):
        model(torch.zeros(1, 10, dtype=torch.int64))
    with pytest.raises(UsageError, match="dim is 9"):
        mereo.create_model("tensor_attention_tiny", dim=9, num_heads=3)


def test_it_learns_the_answers_of_few_sequences() -> None:
    """A few steps on few sequences, which it learns by heart."""
    torch.manual_seed(0)
    model, made = mereo.create_model("tensor_attention_tiny"), make_triples(32, 13, 3, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = F.cross_entropy(model(made.tokens).flatten(0, 1), made.labels.flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3


def test_the_commands_train_evaluate_and_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The task follows from the labels of the data, and the longest sequence from its options."""
    data = "match3:group=2,modulus=7,train=64"
    words = ["train", "--model", "tensor_attention_tiny", "--data", data, "--epochs", "1", "--test-limit", "32"]
    assert main([*words, "--output", str(tmp_path), "--no-tensorboard", "--device", "cpu"]) == 0
    (run,) = tmp_path.iterdir()
    model = mereo.load(run)
    assert (task_of(model).name, model.vocab_size, model.longest) == ("recall", 7, 6)
    capsys.readouterr()
    assert main(["predict", "--weights", str(run), "--prompt", "1 2 3 4 5 6", "--out", str(tmp_path / "drawn")]) == 0
    assert "prompt: 6 ->" in capsys.readouterr().out
    assert main(["predict", "--weights", str(run), "--prompt", "1 2 3 4 5 6 1 2 3"]) == 2
    assert "reads at most 6" in capsys.readouterr().err
