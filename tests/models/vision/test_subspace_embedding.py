"""Subspace embeddings: parts of length one, learners that cover the vector, and splits of the last one."""

import pytest
import torch

import mereo
from mereo.errors import UsageError
from mereo.models.registry import outline
from mereo.models.vision.subspace_embedding import SubspaceHead

SMALL = {"backbone_args": {"widths": (4, 6, 8), "blocks": 1}, "img_size": 16, "hidden": (5, 3), "num_classes": 12}


def cover(head: SubspaceHead) -> bool:
    return torch.cat(head.learners).sort().values.tolist() == list(range(len(head.bias)))


def test_the_published_sizes() -> None:
    network = outline("subspace_resnet50")
    parts = [sum(p.numel() for p in part.parameters()) for part in (network.backbone, network.gate, network.head)]
    assert parts == [8_543_296, 1_216_961, 131_200]
    assert not any(m.training for m in network.train().backbone.modules() if isinstance(m, torch.nn.BatchNorm2d))


def test_parts_have_length_one_and_the_whole_the_root_of_their_number() -> None:
    images = torch.rand(3, 3, 16, 16)
    for learners in (1, 2, 4):
        model = mereo.create_model("subspace_resnet8", learners=learners, **SMALL).eval()
        vectors = model(images)
        torch.testing.assert_close(vectors.norm(dim=1), torch.full((3,), learners**0.5))
        for places in model.head.learners:
            torch.testing.assert_close(vectors[:, places].norm(dim=1), torch.ones(3))
        assert cover(model.head) and len(model.head.learners[0]) == -(-12 // learners)
        raw = (
            model.forward_head(model.forward_features(images), pre_logits=True) @ model.head.weight.T + model.head.bias
        )
        for places in model.head.learners:
            torch.testing.assert_close(vectors[:, places], raw[:, places] / raw[:, places].norm(dim=1, keepdim=True))
    with pytest.raises(UsageError, match="learners is 13"):
        mereo.create_model("subspace_resnet8", learners=13, **SMALL)


def test_a_gate_of_ones_is_the_model_without_one() -> None:
    model, images = mereo.create_model("subspace_resnet8", **SMALL).eval(), torch.rand(2, 3, 16, 16)
    with mereo.intervene(model, {"gate.gates": torch.ones_like}):
        opened = model(images)
    plain = model.head(model.backbone(images)[-1].mean((2, 3)))
    torch.testing.assert_close(opened, plain)
    with mereo.record(model) as trace:
        assert not torch.allclose(model(images), plain)
    assert trace["gate.gates"].min() > 0 and trace["gate.gates"].max() < 1


def test_a_split_leaves_the_kept_outputs_as_they_are() -> None:
    model, images = mereo.create_model("subspace_resnet8", learners=2, **SMALL).eval(), torch.rand(2, 3, 16, 16)
    head, features = model.head, model.forward_head(model.forward_features(images), pre_logits=True)
    before, first = head.weight.clone(), model(images)[:, :6]
    new = head.split(torch.tensor([True, False, True, True, False, False]))
    assert [places.tolist() for places in head.learners] == [[0, 1, 2, 3, 4, 5], [6, 8, 9], [7, 10, 11]] and cover(head)
    assert new.tolist() == [7, 10, 11] and not (head.weight[new] == before[new]).any()
    after = model(images)
    torch.testing.assert_close(after[:, :6], first)
    kept = features @ before[[6, 8, 9]].T + head.bias[[6, 8, 9]]
    torch.testing.assert_close(after[:, [6, 8, 9]], kept / kept.norm(dim=1, keepdim=True))
    for none in (torch.ones(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool), torch.ones(2, dtype=torch.bool)):
        with pytest.raises(UsageError, match="kept"):
            head.split(none)
