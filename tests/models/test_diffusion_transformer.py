"""DiT and MoH-DiT: published numbers of parameters, a slow reference, what it starts as, bad input."""

import math

import pytest
import torch

import mereo
from mereo.core import added_losses
from mereo.errors import UsageError
from mereo.mechanisms.attention.sparse.head_schedules import HeadSchedule
from mereo.models.diffusion_transformer import DiffusionTransformer, diffusion_transformer

MIXED = HeadSchedule((1, 1), (16, 16), (4, 4), (1, 4), (2, 0))


def small(**changes: object) -> DiffusionTransformer:
    torch.manual_seed(0)
    given = {"num_classes": 5, "in_chans": 2, "img_size": 6, "dim": 16, "depth": 2, "num_heads": 4, **changes}
    model = DiffusionTransformer(**given).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def example(batch: int = 2) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 2, 6, 6).double(), torch.tensor([3.0, 700])[:batch], torch.tensor([0, 4])[:batch]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("dit_s", 32_963_360), ("dit_b", 130_512_416), ("dit_s_90", 32_997_152), ("dit_b_90", 130_638_368),
    ],
)  # fmt: skip
def test_published_numbers_of_parameters(name: str, parameters: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in diffusion_transformer(name).parameters()) == parameters


def test_heads_of_the_larger_networks() -> None:
    with torch.device("meta"):
        for name, size, layers in (("dit_l_75", 64, (8, 16, 24)), ("dit_xl_90", 72, (9, 19, 28))):
            model = diffusion_transformer(name, img_size=4)
            for first, last, heads in zip((0, *layers), layers, (8, 16, 24), strict=False):
                for block in model.blocks[first:last]:
                    assert block.attention.num_heads == heads
                    assert block.attention.qkv.out_features == 3 * heads * size
            assert len(model.blocks) == layers[-1]


def test_it_equals_its_equations() -> None:
    model, (images, time, labels) = small(), example()
    silu, norm = torch.nn.functional.silu, torch.nn.LayerNorm(16, eps=1e-6, elementwise_affine=False)
    out = model(images, time, labels)
    for b in range(2):
        angles = [time[b].item() * 10_000 ** (-i / 128) for i in range(128)]
        waves = torch.tensor([*map(math.cos, angles), *map(math.sin, angles)])
        c = silu(model.time(waves.double()) + model.classes.weight[labels[b]])
        x = []
        for row in range(3):
            for column in range(3):
                patch = images[b, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
                places = [
                    f(at / 10_000 ** (i / 4)) for at in (column, row) for f in (math.sin, math.cos) for i in range(4)
                ]
                x.append((model.patches.weight * patch).sum((1, 2, 3)) + model.patches.bias + torch.tensor(places))
        x = torch.stack(x)
        for block in model.blocks:
            parts = block.modulation(c).chunk(6)
            q, k, v = block.attention.qkv(norm(x) * (1 + parts[1]) + parts[0]).view(9, 3, 4, 4).permute(1, 2, 0, 3)
            heads = (q @ k.mT / 2).softmax(-1) @ v
            x = x + parts[2] * block.attention.proj(heads.transpose(0, 1).reshape(9, 16))
            feed = block.feed_forward
            hidden = torch.nn.functional.gelu(feed.first(norm(x) * (1 + parts[4]) + parts[3]), approximate="tanh")
            x = x + parts[5] * feed.second(hidden)
        shift, scale = model.modulation(c).chunk(2)
        cells = model.head(norm(x) * (1 + scale) + shift)
        for row in range(6):
            for column in range(6):
                values = cells[row // 2 * 3 + column // 2].view(2, 2, 4)[row % 2, column % 2]
                torch.testing.assert_close(out[b, :, row, column], values, rtol=1e-5, atol=1e-6)


def test_routers_of_zeros_are_plain_attention() -> None:
    plain, mixed = small(), small(schedule=HeadSchedule((2,), (16,), (4,), (1,), (3,)))
    missing, unexpected = mixed.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected and all(".router." in name for name in missing)
    for block in mixed.blocks:
        for parameter in block.attention.router.parameters():
            torch.nn.init.zeros_(parameter)
    given = example()
    torch.testing.assert_close(mixed(*given), plain(*given))


def test_it_starts_at_zero_and_learns() -> None:
    model = DiffusionTransformer(5, 2, 6, schedule=MIXED)
    images, time, labels = example()
    out = model(images.float(), time, labels)
    assert out.shape == (2, 4, 6, 6) and (out == 0).all()
    noise = torch.randn(2, 2, 6, 6)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 3e-3)
    losses = []
    for _ in range(30):
        loss = (model(images.float(), time, labels)[:, :2] - noise).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        (loss + added_losses(model)["balance"]).backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]


def test_gates_are_recorded() -> None:
    model = small(schedule=MIXED)
    with mereo.record(model) as trace:
        model(*example())
    gates = trace["blocks.0.attention.router.gates"]
    assert gates.shape == (2, 9, 4) and ((gates != 0).sum(-1) == 3).all()


def test_bad_input() -> None:
    for arguments, message in (
        ({"dim": 18, "num_heads": 2}, "multiple of 4"), ({"img_size": 7}, "one of patch_size"),
        ({"num_heads": 3}, "multiple"), ({"schedule": "dit_q"}, "unknown schedule"),
        ({"schedule": "vit_s_75"}, "one size"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            small(**arguments)
    images, time, labels = example()
    for given, message in (((images[0], time, labels), "images are"), ((images, time[:1], labels), "time is")):
        with pytest.raises(UsageError, match=message):
            small()(*given)
    with pytest.raises(UsageError, match="unknown diffusion transformer"):
        diffusion_transformer("dit_huge")
