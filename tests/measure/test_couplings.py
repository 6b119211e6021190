"""Replaced couplings: what they are for every kind of coupling, and what an evaluation reports of them."""

import pytest
import torch
from torch import nn

import mereo
from mereo.core import Coupling, intervene, record
from mereo.core.topology import Causal, Tiles
from mereo.errors import UsageError
from mereo.inference.answers import collect_answers
from mereo.measure.couplings import (
    BATCH,
    WAYS,
    coupling_effect,
    coupling_effect_of_task,
    has_couplings,
    replace_couplings,
)
from mereo.models.registry import families
from mereo.tasks import Classification

EVERY = sorted(families("images"))


class Mixing(nn.Module):
    """Scores -> couplings, whose product with the senders' numbers is returned."""

    def __init__(self, coupling, **given):
        super().__init__()
        self.coupling, self.given = coupling, given

    def forward(self, scores):
        return self.coupling(scores, **self.given)


def acted(model, scores, by, **options):
    with replace_couplings(model, by, **options), record(model) as trace:
        model(scores)
    return trace["coupling"]


@pytest.mark.parametrize("over", ["senders", "receivers", "both"])
def test_uniform_is_the_equal_share_of_a_softmax(over):
    made = acted(Mixing(Coupling(over)), torch.randn(2, 3, 4, 5), "uniform")
    share = {"senders": 1 / 5, "receivers": 1 / 4, "both": 1 / 20}[over]
    torch.testing.assert_close(made, torch.full((2, 3, 4, 5), share))


def test_without_an_axis_a_receiver_keeps_its_sum():
    scores = torch.randn(1, 1, 2, 3)
    made = acted(Mixing(Coupling("none", "none")), scores, "uniform")
    torch.testing.assert_close(made, scores.mean(-1, keepdim=True).expand_as(scores))


def test_a_mask_keeps_its_zeros():
    mask = torch.tensor([[True, True, False, True], [False, True, True, False]])
    model, scores = Mixing(Coupling("senders"), mask=mask), torch.randn(3, 2, 2, 4)
    expected = torch.tensor([[1 / 3, 1 / 3, 0, 1 / 3], [0, 1 / 2, 1 / 2, 0]])
    torch.testing.assert_close(acted(model, scores, "uniform"), expected.expand(3, 2, 2, 4))
    made, own = acted(model, scores, "shuffled"), model(scores)
    assert not made.masked_select(~mask).any()
    torch.testing.assert_close(made.sort(-1).values, own.sort(-1).values)
    assert not torch.equal(made, own)


def test_a_topology_keeps_its_zeros():
    model, scores = Mixing(Coupling("senders", topology=Causal())), torch.randn(1, 1, 4, 4)
    rows = [[1 / n if s < n else 0.0 for s in range(4)] for n in range(1, 5)]
    torch.testing.assert_close(acted(model, scores, "uniform")[0, 0], torch.tensor(rows))
    made = acted(model, scores, "shuffled")
    assert torch.equal(made.triu(1), torch.zeros_like(made)) and made[0, 0, 0, 0] == 1


def test_shuffled_senders_are_the_same_for_every_receiver_and_other_ones_for_every_image():
    model, scores = Mixing(Coupling("receivers")), torch.randn(6, 2, 3, 50)
    made, own = acted(model, scores, "shuffled"), model(scores)
    orders = []
    for image in range(6):
        places = [int((own[image, 0] == made[image, 0, :, s, None]).all(0).nonzero()) for s in range(50)]
        assert sorted(places) == list(range(50))
        torch.testing.assert_close(made[image], own[image][..., places])
        orders.append(tuple(places))
    assert len(set(orders)) == 6
    torch.testing.assert_close(made.sum(-2), torch.ones(6, 2, 50))
    assert torch.equal(made, acted(model, scores, "shuffled"))
    assert not torch.equal(made, acted(model, scores, "shuffled", seed=1))


TILES = {
    "exclusive": Tiles(torch.tensor([[0, 1], [2, 3], [4, -1]]), torch.tensor([[0, 1, 2], [2, 3, 4], [4, 0, -1]]), 5, 5),
    "overlapping": Tiles(
        torch.tensor([[0, 1], [1, 2], [2, 3]]), torch.tensor([[0, 1, 2], [1, 2, 3], [2, 3, -1]]), 4, 4
    ),
}


@pytest.mark.parametrize("over", ["senders", "receivers"])
@pytest.mark.parametrize("kind", TILES)
@pytest.mark.parametrize("sparse", [False, True])
def test_tiles_are_replaced_inside_themselves(over, kind, sparse, monkeypatch):
    """Against a loop over the pairs of every tile: dense and sparse maps, exclusive and overlapping tiles."""
    if sparse:
        monkeypatch.setattr("mereo.core.topology.base.LARGEST_DENSE", 1)
    tiles, batch = TILES[kind], 2
    real = (tiles.receivers >= 0).unsqueeze(-1) & (tiles.senders >= 0).unsqueeze(-2)
    mask = real.repeat(batch, 1, 1).unsqueeze(1)
    model = Mixing(Coupling(over), mask=mask, tiles=tiles)
    scores = torch.randn(batch * 3, 2, 2, 3)
    seen = []
    with (
        intervene(model, {"coupling": lambda c, call: seen.append(call.couplings) or c}),
        replace_couplings(model, "uniform"),
    ):
        made = model(scores)
    (own,) = seen
    expected = own.clone()
    for image in range(batch):
        for head in range(2):
            for t in range(3):
                for r in range(2):
                    for s in range(3):
                        if not real[t, r, s]:
                            continue
                        group = [
                            (u, i, j) for u in range(3) for i in range(2) for j in range(3)
                            if real[u, i, j] and (
                                (u, i) == (t, r) if over == "senders" else tiles.senders[u, j] == tiles.senders[t, s]
                            )
                        ]  # fmt: skip
                        values = [own[image * 3 + u, head, i, j] for u, i, j in group]
                        expected[image * 3 + t, head, r, s] = sum(values) / len(values)
    torch.testing.assert_close(made, expected)
    with replace_couplings(model, "shuffled"):
        made = model(scores)
    torch.testing.assert_close(made.masked_fill(~mask, -1).sort(-1).values, own.masked_fill(~mask, -1).sort(-1).values)
    assert not torch.equal(made, own)


def test_unknown_ways_are_refused():
    with pytest.raises(UsageError, match="by is 'random'"):
        replace_couplings(nn.Identity(), "random")


def tiny(family, **overrides):
    torch.manual_seed(0)
    entry = families()[family]
    model = mereo.create_model(entry.name, **{**entry.tiny, **overrides})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        model.train()(torch.rand(4, *model.image_shape))
    return model.eval()


@pytest.mark.parametrize("family", EVERY)
def test_every_family_of_the_catalogue(family):
    """Uniform couplings are equal and shuffled ones permuted, among pairs that take part, everywhere."""
    model = tiny(family)
    images = torch.rand(2, *model.image_shape)
    names = [name for name, module in model.named_modules() if isinstance(module, Coupling)]
    assert has_couplings(model) == bool(names)
    before = model(images)
    for way in WAYS:
        pairs = []

        def keep(couplings, call, pairs=pairs):
            pairs.append((couplings, call))
            return couplings

        after = []
        with (
            intervene(model, dict.fromkeys(names, keep)),
            replace_couplings(model, way),
            intervene(model, dict.fromkeys(names, lambda made, call, kept=after: kept.append(made) or made)),
        ):
            assert model(images).isfinite().all()
        assert len(pairs) == len(after)
        for (own, call), made in zip(pairs, after, strict=True):
            axes = {"receivers": (-2,), "both": (-2, -1)}.get(call.over, (-1,))
            if call.tiles is None:
                part = torch.ones_like(own, dtype=torch.bool) if call.mask is None else call.mask.expand_as(own)
            elif call.tiles.exclusive:
                ones = torch.ones_like(call.couplings)
                part = call.tiles.place(ones if call.mask is None else ones * call.mask) > 0
            else:
                continue  # shown above for every pair
            assert torch.equal(made[~part], own[~part])
            if way == "uniform":
                torch.testing.assert_close((made * part).sum(axes), (own * part).sum(axes), atol=1e-4, rtol=1e-4)
                highest, lowest = (made.masked_fill(~part, sign * torch.inf) for sign in (-1, 1))
                spread = highest.amax(axes) - lowest.amin(axes)
                assert spread.clamp(min=0).max() < 1e-5
            else:
                a, b = (x.masked_fill(~part, -9).sort(-1).values for x in (made, own))
                torch.testing.assert_close(a, b)
    assert torch.equal(model(images), before)


def test_the_effect_of_an_evaluation(digits_like):
    model = tiny("mspcaps", in_chans=1, num_classes=4)
    answers, done = collect_answers(model, digits_like), []
    effect = coupling_effect(model, digits_like, answers, progress=done.append)
    assert sum(done) == 2 * 40 and effect.own == answers.accuracy
    for way in WAYS:
        with replace_couplings(model, way):
            changed = collect_answers(model, digits_like, batch_size=BATCH)
        one = getattr(effect, way)
        assert one.value == changed.accuracy and one.low <= one.value <= one.high
        assert one.gained - one.lost == int(changed.correct.sum()) - int(answers.correct.sum())
    assert effect.to_dict().keys() == {"metric", "own", *WAYS}
    by_task = coupling_effect_of_task(model, digits_like, Classification(digits_like.class_names), answers.accuracy)
    assert by_task.metric == "accuracy" and by_task.uniform.value == pytest.approx(effect.uniform.value)


def test_a_network_without_couplings_has_no_effect(digits_like):
    model = mereo.create_model("resnet20", in_chans=1, num_classes=4, img_size=16)
    assert coupling_effect(model, digits_like, collect_answers(model, digits_like)) is None


def test_attention_of_other_libraries_is_replaced():
    layer, tokens = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.rand(2, 3, 8)
    model = nn.ModuleList([layer])
    assert has_couplings(model)
    with replace_couplings(model, "uniform"):
        out = layer(tokens, tokens, tokens)[0]
    torch.testing.assert_close(out, out[:, :1].expand_as(out))  # every receiver takes the same from all
    assert (layer(tokens, tokens, tokens)[0] - out).abs().max() > 1e-3
