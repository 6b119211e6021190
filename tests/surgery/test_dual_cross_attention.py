"""Dual cross-attention: loops over its equations, counts, the loss, partners, saved files, bad input."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.core.operations import forward_operations
from mereo.core.triplets import hard_triplet_loss
from mereo.errors import UsageError
from mereo.mechanisms.attention.hosted import split_heads
from mereo.surgery import dual_cross_attention, dual_embedding, dual_loss
from mereo.surgery.dual_cross_attention import PairAttention, _Pass

SMALL: dict[str, Any] = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "num_heads": 3, "depth": 2, "num_classes": 5}


def transformer(library: str = "mereo", **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    make = mereo.create_model if library == "mereo" else timm.create_model
    model = make("vit_tiny_patch16_224", **{**SMALL, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def images(count: int = 4, seed: int = 1) -> Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def embedded(model: Any, pictures: Tensor) -> Tensor:
    return model.embed(pictures) if hasattr(model, "embed") else model._pos_embed(model.patch_embed(pictures))


def attended(block: Any, x: Tensor, other: Tensor | None) -> tuple[Tensor, Tensor]:
    """One image (tokens, dim) through the attention of a block, head by head, with the keys of another one beside."""
    q, k, v = (each[0] for each in split_heads(block.attn, block.norm1(x[None])))
    if other is not None:
        _, k2, v2 = (each[0] for each in split_heads(block.attn, block.norm1(other[None])))
        k, v = torch.cat((k, k2), 1), torch.cat((v, v2), 1)
    heads, maps = [], []
    for head in range(len(q)):
        shares = (q[head] @ k[head].T / math.sqrt(q.shape[-1])).softmax(1)
        heads.append(shares @ v[head])
        maps.append(shares)
    return block.attn.proj(torch.cat(heads, 1)), torch.stack(maps).mean(0)


def after(block: Any, x: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
    update, shares = attended(block, x, other)
    x = x + update
    return x + block.mlp(block.norm2(x)), shares


def by_hand(
    model: Any, dual: Any, pictures: Tensor, partners: list[int], share: float, own_stream: bool
) -> list[Tensor]:
    """The scores of all three answers, image by image, from the plain network and the new block."""
    plain = list(embedded(model, pictures))
    paired, maps = list(plain), []
    for block in model.blocks:
        others = paired if own_stream else plain
        both = [after(block, x) for x in plain]
        paired = [after(block, x, others[partner])[0] for x, partner in zip(paired, partners, strict=True)]
        plain = [x for x, _ in both]
        maps.append([shares for _, shares in both])
    first, second, third = [], [], []
    for image, x in enumerate(plain):
        whole = torch.eye(len(x), dtype=x.dtype)
        for layer in maps:
            whole = (layer[image] + torch.eye(len(x), dtype=x.dtype)) / 2 @ whole
        kept = whole[0, 1:].argsort(descending=True)[: int(share * (len(x) - 1))]
        # Only the row of the class token is read, to which other queries do not matter.
        assert len(kept) == dual.block(x[None], kept[None]).shape[1] - 1
        read = copy.deepcopy(model.blocks[-1])
        read.load_state_dict(dual.block.state_dict())
        second.append(dual.classifier(dual.norm(after(read, x)[0][:1]))[0])
        first.append(model.head(model.norm(x[:1]))[0])
        third.append(model.head(model.norm(paired[image][:1]))[0])
    return [torch.stack(each) for each in (first, second, third)]


@pytest.mark.parametrize("library", ["mereo", "timm"])
@pytest.mark.parametrize("partner", ["plain", "pair"])
def test_all_answers_are_those_of_loops(library: str, partner: str) -> None:
    model, pictures = transformer(library).double(), images().double()
    changed: Any = dual_cross_attention(model, 0.3, partner=partner)
    with torch.no_grad():
        for parameter in changed.dual.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        changed.dual.pairs = torch.tensor([2, 0, 3, 3])
        first, second, third = by_hand(model, changed.dual, pictures, [2, 0, 3, 3], 0.3, partner == "pair")
        torch.testing.assert_close(changed(pictures).exp(), (first.softmax(1) + second.softmax(1)) / 2)
        torch.testing.assert_close(changed.train()(pictures), first)
        for ours, theirs in zip(changed.dual.loss.recorded, (first, second, third), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_losses_by_hand() -> None:
    losses = [torch.tensor(float(value)) for value in (2, 3, 4)]
    assert dual_loss(losses, torch.zeros(3)).item() == 4.5
    best = torch.tensor([2.0, 3.0, 4.0]).log().requires_grad_()
    least = dual_loss(losses, best)
    least.backward()
    assert least.item() == pytest.approx(3.0890, abs=1e-4) and best.grad is not None and best.grad.abs().max() < 1e-6


def test_the_task_s_loss_and_the_added_one_are_the_loss_of_the_paper() -> None:
    network: Any = dual_cross_attention(transformer(), 0.3).train()
    nn.init.normal_(network.dual.loss.weights)
    labels, soft = torch.tensor([0, 4, 2, 2]), torch.rand(4, 5).softmax(1)
    for given in (labels, soft):
        loss = F.cross_entropy(network(images()), given)
        losses = [F.cross_entropy(scores, given) for scores in network.dual.loss.recorded]
        (added,) = mereo.added_losses(network, given).values()
        torch.testing.assert_close(loss + added, dual_loss(losses, network.dual.loss.weights))
    (loss + added).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    network(images())
    assert not mereo.added_losses(network, labels[:, None]), "several classes an image"


def test_re_identification_adds_the_hardest_triplets_of_each_class_token() -> None:
    network: Any = dual_cross_attention(transformer(), 0.3, triplet=0.3).train()
    nn.init.normal_(network.dual.loss.weights)
    labels = torch.tensor([0, 4, 0, 4])
    loss, losses = F.cross_entropy(network(images()), labels), []
    for scores, features in network.dual.loss.recorded:
        distances = torch.cdist(features, features)
        hardest = [
            max(distances[a, p] for p in range(4) if p != a and labels[p] == labels[a])
            - min(distances[a, n] for n in range(4) if labels[n] != labels[a])
            for a in range(4)
        ]
        triplets = (0.3 + torch.stack(hardest)).clamp(min=0).mean()
        torch.testing.assert_close(hard_triplet_loss(features, labels), triplets, rtol=1e-4, atol=1e-5)
        losses.append(F.cross_entropy(scores, labels) + triplets)
    (added,) = mereo.added_losses(network, labels).values()
    torch.testing.assert_close(loss + added, dual_loss(losses, network.dual.loss.weights), rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="labels are soft"):
        network(images())
        mereo.added_losses(network, torch.rand(4, 5).softmax(1))


def test_images_are_compared_by_the_class_tokens_of_both_answers() -> None:
    network: Any = dual_cross_attention(transformer(), 0.3)
    vectors, features = dual_embedding(network, images()), network.forward_features(images())[:, 0]
    assert torch.equal(vectors[:, : features.shape[1]], features) and vectors.shape[1] == 2 * features.shape[1]
    scores = [network.head(features), network.dual.classifier(vectors[:, features.shape[1] :])]
    torch.testing.assert_close(network(images()).exp(), sum(each.softmax(1) for each in scores) / 2)
    torch.testing.assert_close(dual_embedding(dual_cross_attention(transformer(), None), images()), features)
    for wrong in (network.train(), transformer()):
        with pytest.raises(UsageError, match="network is"):
            dual_embedding(wrong, images())


def test_a_partner_that_is_the_image_itself_or_that_nothing_looks_at_changes_nothing() -> None:
    network: Any = dual_cross_attention(transformer().double(), None).train()
    network.dual.pairs = torch.arange(4)
    network(images().double())
    plain, paired = network.dual.loss.recorded
    torch.testing.assert_close(plain, paired)
    network.dual.pairs = torch.tensor([1, 0, 3, 2])
    network(images().double())
    assert (network.dual.loss.recorded[0] - network.dual.loss.recorded[1]).abs().max() > 1e-3
    state = _Pass(pairs=torch.tensor([0]))
    layer = PairAttention(transformer().double().blocks[0].attn, state, 0, True, "plain")
    q, k, v = torch.rand(3, 2, 3, 7, 4, dtype=torch.float64)
    q[1], k[1], v[1] = q[0] + 0.1, -1e4, 0.0
    # The second image is the one with partners: its partner's keys score far below its own.
    k[[0, 1]], v[[0, 1]] = k[[1, 0]], v[[1, 0]]
    out = layer.exchange(q, k, v)
    alone = (q[1] @ k[1].mT / 2).softmax(-1) @ v[1]
    torch.testing.assert_close(out[1], alone.transpose(0, 1).flatten(1))


def test_evaluation_has_no_pairs_and_no_other_images() -> None:
    network: Any = dual_cross_attention(transformer(), 0.3)
    expected, once = network(images()), forward_operations(network, images())
    network.dual.pairs = torch.tensor([1, 0, 3, 2])
    assert torch.equal(network(images()), expected) and forward_operations(network, images()) == once
    torch.testing.assert_close(network(images()[:1]), expected[:1])
    assert forward_operations(dual_cross_attention(transformer(), None), images()) == forward_operations(
        transformer(), images()
    )
    torch.testing.assert_close(dual_cross_attention(transformer(), None)(images()), transformer()(images()))


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "size", "classes", "share", "parameters", "extra", "more"),
    [
        ("deit_tiny_patch16_224", 448, 200, 0.1, 5_675_912, 483_848, 1.6),
        ("vit_base_patch16_224", 256, 200, 0.3, None, 7_243_208, 3.4),
    ],
)
def test_counts(
    name: str, size: int, classes: int, share: float, parameters: int | None, extra: int, more: float
) -> None:
    with torch.device("meta"):
        model: Any = timm.create_model(name, img_size=size, num_classes=classes)
        network: Any = dual_cross_attention(model, share)
    before = count(model)
    assert parameters is None or before == parameters
    assert count(network) - count(network.dual.loss) - before == extra
    assert 100 * extra / before == pytest.approx(8.5, abs=0.15)
    pictures = torch.empty(1, 3, size, size, device="meta")
    plain = forward_operations(model, pictures)
    # The rollout, without a matrix product, reads each map once; the published figure has no rollout.
    rollout = 2 * (len(model.blocks) - 1) * (1 + (size // 16) ** 2) ** 2
    added = forward_operations(network, pictures) - plain - rollout
    assert round(100 * added / plain, 1) == more


def test_a_copy_has_its_own_state_and_the_weights_keep_their_names(tmp_path: Path) -> None:
    model = transformer()
    network: Any = dual_cross_attention(model, 0.3)
    assert {name for name in network.state_dict() if not name.startswith("dual.")} == set(model.state_dict())
    other: Any = copy.deepcopy(network).train()
    nn.init.zeros_(other.dual.classifier.weight), nn.init.zeros_(other.dual.classifier.bias)
    other(images())
    assert (other.dual.loss.recorded[1] == 0).all() and network.dual.loss.recorded is None
    mereo.save_weights(tmp_path / "a.safetensors", network)
    assert torch.equal(mereo.load(tmp_path / "a.safetensors")(images()), network(images()))


@pytest.mark.long
def test_it_compiles_exports_and_recomputes() -> None:
    network: Any = dual_cross_attention(transformer(), 0.3)
    expected = network(images())
    program = torch.export.export(network, (images(),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.testing.assert_close(program.module()(images(3)), expected[:3])
    labels = torch.tensor([0, 4, 2, 2])
    network.train().dual.pairs = torch.tensor([2, 0, 3, 3])

    class Step(nn.Module):
        """The network inside another one, as in a training."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, pictures: Tensor) -> Tensor:
            loss = F.cross_entropy(self.network(pictures), labels)
            return loss + sum(mereo.added_losses(self.network, labels).values())

    def step(call: Any) -> list[Tensor]:
        network.zero_grad()
        loss = call(images())
        loss.backward()
        return [loss.detach(), *(parameter.grad.clone() for parameter in network.parameters())]

    plain = step(Step())
    torch.compiler.reset()
    for gradient, theirs in zip(plain, step(torch.compile(Step(), backend="aot_eager", fullgraph=True)), strict=True):
        torch.testing.assert_close(gradient, theirs, rtol=1e-4, atol=1e-5)
    network.set_grad_checkpointing(True)
    for gradient, theirs in zip(plain, step(Step()), strict=True):
        torch.testing.assert_close(gradient, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_black_images_in_half_precision(dtype: torch.dtype) -> None:
    network: Any = dual_cross_attention(transformer().to(dtype), 0.3)
    assert network(torch.zeros(1, 3, 16, 16, dtype=dtype)).isfinite().all()
    loss = F.cross_entropy(network.train()(torch.zeros(1, 3, 16, 16, dtype=dtype)), torch.tensor([1]))
    assert (loss + sum(mereo.added_losses(network, torch.tensor([1])).values())).isfinite()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="class token"):
        dual_cross_attention(mereo.create_model("resnet20"))
    with pytest.raises(UsageError, match="linear layer `head`"):
        dual_cross_attention(transformer("timm", global_pool="avg"))
    with pytest.raises(UsageError, match="linear layer `head`"):
        dual_cross_attention(transformer(num_classes=0))
    with pytest.raises(UsageError, match="pairwise is False"):
        dual_cross_attention(transformer(), None, pairwise=False)
    with pytest.raises(UsageError, match="share"):
        dual_cross_attention(transformer(), 1.5)
    with pytest.raises(UsageError, match="partner"):
        dual_cross_attention(transformer(), partner="both")
    network: Any = dual_cross_attention(transformer(), 0.3)
    with pytest.raises(UsageError, match="already"):
        dual_cross_attention(network)
    with pytest.raises(UsageError, match="blocks were changed"):
        mereo.evit(network, 0.5)(images())
    network.dual.pairs = torch.arange(3)
    with pytest.raises(UsageError, match="pairs"):
        network.train()(images())
    network.eval().reset_classifier(7)
    with pytest.raises(UsageError, match="reset_classifier"):
        network(images())
