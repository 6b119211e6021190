"""Spaces of attributes in a small form: each knows its own attribute, unlike one space for all."""

import pytest
import torch

import mereo
from mereo.data import load_splits
from mereo.tasks import AttributeEmbedding
from papers.conditional_cross_attention import attribute_spaces


@pytest.mark.long
def test_each_space_knows_its_own_attribute_and_little_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's check without shapes, which take longer to learn."""
    monkeypatch.setattr(attribute_spaces, "STEPS", 60)
    splits = load_splits("sprites", img_size=32)
    task = AttributeEmbedding(splits.class_names)
    torch.manual_seed(0)
    model = mereo.create_model("cca_tiny", patch_size=8, depth=3)
    attribute_spaces.train(model, task, splits.train, 32, 0)
    test, metrics = splits.test.batch(torch.arange(200)), task.metrics()
    metrics.update(attribute_spaces.embed(model, test.images), test)
    found = metrics.compute()
    for own, other in (("colour", "size"), ("size", "colour")):
        assert found[f"triplet_accuracy {own} under {own}"] > 0.85
        assert found[f"triplet_accuracy {other} under {own}"] < 0.65
