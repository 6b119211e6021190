"""Parse trees: every number on them is what loops over senders give, and every part stands where it looks."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.core import Grid, lengths, squash, squash_exponential
from mereo.errors import MereoError, UsageError
from mereo.explain import Observation, ParseTree, observe, parse_trees
from mereo.explain.places import box_of
from mereo.explain.trees.layout import CLASS, arrange
from mereo.explain.trees.words import caption, carried, describe
from mereo.mechanisms.routing import CrossAgreementRouting, SelfAttentionRouting
from mereo.models import CapsuleClassifier
from routed_children import children_and_transforms

Make = Callable[..., CapsuleClassifier]
MakeImages = Callable[..., Tensor]
IMAGE = 1


def votes_by_loops(observation: Observation, name: str, receiver: int) -> list[float]:
    """What each sender of a routing adds to the length of a receiver, in float64."""
    exchange = observation.exchanges[name]
    routing = exchange.module
    senders = exchange.inputs[1 if isinstance(routing, CrossAgreementRouting) else 0]
    v = exchange.output[IMAGE, receiver].double()
    found = []
    for s, (sender, weight) in enumerate(children_and_transforms(routing, senders, IMAGE, receiver)):
        coupling = observation.trace[name][IMAGE, 0, receiver, s].double()
        if isinstance(routing, SelfAttentionRouting):
            coupling = coupling + routing.log_prior[receiver, s].detach().double()
        found.append(float(coupling * ((weight.double().T @ sender.double()) @ v) / v.norm()))
    return found


def test_fewer_votes_are_those_of_a_smaller_tree(model: CapsuleClassifier, some_images: MakeImages) -> None:
    observation = observe(model, some_images(model))
    large, small = (parse_trees(observation, keep=keep)[IMAGE] for keep in (5, 2))
    found = large.with_votes(2)
    assert found.edges == small.edges and found.keep == 2
    for node, expected in zip(found.nodes, small.nodes, strict=True):
        assert node.carried == pytest.approx(expected.carried, abs=1e-5)
        assert replace(node, carried=1.0) == replace(expected, carried=1.0)
    assert large.with_votes(5) == large


def by_place(values: list[float], grid: Grid | None) -> list[float]:
    """The sums over the types of senders that sit at one place."""
    if grid is None:
        return values
    places = grid.rows * grid.columns
    return [sum(values[t * places + p] for t in range(grid.types)) for p in range(places)]


def check_votes(tree: ParseTree, node: int, observation: Observation, name: str, receiver: int) -> None:
    expected = by_place(votes_by_loops(observation, name, receiver), observation.grids.get(name))
    strongest = sorted(range(len(expected)), key=lambda s: -abs(expected[s]))[: tree.keep]
    found = tree.below(node)
    assert [tree.nodes[edge.child].number for edge in found] == strongest
    for edge in found:
        assert edge.kind == "vote"
        assert edge.strength == pytest.approx(expected[tree.nodes[edge.child].number], abs=1e-5)
    assert tree.nodes[node].senders == len(expected)
    share = sum(abs(expected[s]) for s in strongest) / sum(map(abs, expected))
    assert tree.nodes[node].carried == pytest.approx(share, abs=1e-4)


def test_the_strongest_votes_for_a_class_are_those_of_loops(model: CapsuleClassifier, some_images: MakeImages) -> None:
    observation = observe(model, some_images(model))
    trees = parse_trees(observation, keep=3)
    assert len(trees) == 2
    for root in trees[IMAGE].roots:
        check_votes(trees[IMAGE], root, observation, "head.coupling", trees[IMAGE].nodes[root].number)


@pytest.mark.parametrize("kind", ["three scales", "unshared, over senders", "dynamic", "capsnet, middle"])
def test_capsules_in_between_are_followed_down(kind: str, make: Make, some_images: MakeImages) -> None:
    model = make(kind)
    observation = observe(model, some_images(model))
    tree = parse_trees(observation, keep=5)[IMAGE]
    middle = [n for n, node in enumerate(tree.nodes) if node.kind == "capsule"]
    assert len(middle) >= 4
    for n in middle:
        name, receiver = "middle.coupling", tree.nodes[n].number
        if kind == "dynamic":
            feeds = {f"scale_routings.{i}.coupling": first for i, first in enumerate((0, 4, 20))}
            name = max((c for c in feeds if feeds[c] <= receiver), key=lambda c: feeds[c])
            receiver -= feeds[name]
        check_votes(tree, n, observation, name, receiver)
        assert tree.nodes[n].length == pytest.approx(float(observation.exchanges[name].output[IMAGE, receiver].norm()))


def test_all_votes_sum_to_the_length(model: CapsuleClassifier, some_images: MakeImages) -> None:
    if getattr(model.head, "bias", None) is not None:
        pytest.skip("a bias is no sender's")
    tree = parse_trees(observe(model, some_images(model)), keep=10_000)[IMAGE]
    squashed = squash_exponential if isinstance(model.head, SelfAttentionRouting) else squash
    for root in tree.roots:
        assert tree.nodes[root].carried == pytest.approx(1)
        total = torch.tensor([sum(edge.strength for edge in tree.below(root))])
        assert float(lengths(squashed(total))) == pytest.approx(tree.nodes[root].length, abs=2e-4)


def test_witnesses_set_the_couplings(make: Make, some_images: MakeImages) -> None:
    model = make("three scales")
    observation = observe(model, some_images(model))
    tree = parse_trees(observation, keep=16, rivals=0)[IMAGE]
    seen = 0
    for n in (0, *(n for n, node in enumerate(tree.nodes) if node.kind == "capsule")):
        votes = tree.below(n)
        (agreements,) = zip(*(tree.below(vote.child) for vote in votes), strict=True)
        scores = torch.tensor([edge.strength for edge in agreements])
        assert all(edge.kind == "agreement" for edge in agreements)
        couplings = torch.tensor([vote.coupling for vote in votes])
        torch.testing.assert_close(scores.softmax(0), couplings, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(couplings, torch.tensor([edge.coupling for edge in agreements]))
        seen += 1
    assert seen == 5


@pytest.mark.parametrize("kind", ["three scales", "two scales"])
def test_a_witness_lies_under_the_patch_it_vouches_for(kind: str, make: Make, some_images: MakeImages) -> None:
    model = make(kind)
    tree = parse_trees(observe(model, some_images(model)))[IMAGE]
    pairs = [
        (tree.nodes[edge.child].box, tree.nodes[edge.parent].box)
        for edge in tree.edges
        if edge.kind == "agreement" and tree.nodes[edge.child].kind == "patch"
    ]
    assert pairs
    for small, large in pairs:
        assert large.left <= small.left < small.right <= large.right
        assert large.top <= small.top < small.bottom <= large.bottom


def test_a_single_scale_does_not_vouch_for_itself(make: Make, some_images: MakeImages) -> None:
    model = make("one scale")
    tree = parse_trees(observe(model, some_images(model)))[IMAGE]
    assert {edge.kind for edge in tree.edges} == {"vote"}


def test_boxes() -> None:
    assert box_of(5, Grid(4, 4, 1, 4, 8), 32, 32) == (8, 8, 16, 16)
    # CapsNet's first primary capsule looks at pixels 0 to 16, the next begin two pixels further.
    assert box_of(0, Grid(6, 6, 32, 8.5, 2), 28, 28) == (0, 0, 17, 17)
    assert box_of(35, Grid(6, 6, 32, 8.5, 2), 28, 28) == (10, 10, 27, 27)
    assert box_of(1, Grid(1, 2, 1, 4, 8), 6, 14) == (8, 0, 14, 6)


def test_which_classes(make: Make, some_images: MakeImages) -> None:
    model = make("three scales")
    model.class_names = tuple("abcdefghij")
    observation = observe(model, some_images(model))
    order = observation.capsules.activation[IMAGE].argsort(descending=True).tolist()
    tree = parse_trees(observation, rivals=2)[IMAGE]
    assert [tree.nodes[root].number for root in tree.roots] == order[:3]
    assert tree.nodes[0].name == "abcdefghij"[order[0]]
    assert tree.nodes[0].length == pytest.approx(float(observation.capsules.activation[IMAGE, order[0]]))
    asked = parse_trees(observation, torch.tensor([order[1], order[1]]), rivals=1)[IMAGE]
    assert [asked.nodes[root].number for root in asked.roots] == [order[1], order[0]]
    assert len(parse_trees(observation, rivals=99)[IMAGE].roots) == 10


def test_the_tree_is_a_tree(model: CapsuleClassifier, some_images: MakeImages) -> None:
    for tree in parse_trees(observe(model, some_images(model))):
        assert sorted(edge.child for edge in tree.edges) == [n for n, _ in enumerate(tree.nodes) if n not in tree.roots]
        assert all(edge.parent < edge.child for edge in tree.edges)
        assert all(tree.nodes[edge.child].level == tree.nodes[edge.parent].level + 1 for edge in tree.edges)
        assert all(len(tree.below(n)) <= 4 for n in range(len(tree.nodes)))


def test_who_is_not_heard_is_not_in_the_tree(make: Make, some_images: MakeImages) -> None:
    model = make("three scales")
    with mereo.intervene(model, {"head.coupling": lambda c: c * torch.tensor([0.0, 1, 1, 1])}):
        tree = parse_trees(observe(model, some_images(model)))[IMAGE]
    assert sorted(tree.nodes[edge.child].number for edge in tree.below(0)) == [1, 2, 3]
    assert tree.nodes[0].carried == pytest.approx(1)


def test_nobody_votes_for_dead_capsules(make: Make, some_images: MakeImages) -> None:
    model = make("capsnet", init="default")
    torch.nn.init.zeros_(model.primary.conv.weight)
    torch.nn.init.zeros_(model.primary.conv.bias)
    tree = parse_trees(observe(model, some_images(model)))[IMAGE]
    assert not tree.edges and tree.nodes[0].carried == 1


def test_a_routing_of_unknown_votes_shows_its_couplings(make: Make, some_images: MakeImages) -> None:
    model = make("efficient")
    observation = observe(model, some_images(model))
    exchange = observation.exchanges["head.coupling"]
    observation.exchanges["head.coupling"] = replace(exchange, module=nn.Identity())
    tree = parse_trees(observation)[IMAGE]
    row = observation.trace["head.coupling"][IMAGE, 0, tree.nodes[0].number]
    assert tree.edges and {edge.kind for edge in tree.edges} == {"coupling"}
    for edge in tree.below(0):
        assert edge.strength == edge.coupling == pytest.approx(float(row[tree.nodes[edge.child].number]))


def test_words(make: Make, some_images: MakeImages) -> None:
    model = make("three scales")
    model.class_names = ("zero", *"123456789")
    tree = parse_trees(observe(model, some_images(model)), torch.zeros(2, dtype=torch.int64), keep=2)[IMAGE]
    words = describe(tree, 0)
    assert f"class zero; length {tree.nodes[0].length:.2f}" in words
    assert "2 of its 4 votes" in words and f"{tree.nodes[0].carried:.0%}" in words
    vote = tree.below(0)[0]
    words = describe(tree, vote.child)
    assert words.startswith("patch at row") and "16 x 16 pixels" in words
    assert f"{abs(vote.strength):.3f}" in words and f"coupling {vote.coupling:.3f}" in words
    assert f"score {tree.below(vote.child)[0].strength:.3f}" in describe(tree, tree.below(vote.child)[0].child)


def test_refusals(make: Make, some_images: MakeImages) -> None:
    model = make("three scales")
    images = some_images(model)
    observation = observe(model, images)
    for wrong in ({"keep": 0}, {"keep": 2.5}, {"rivals": -1}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            parse_trees(observation, **wrong)
    with pytest.raises(UsageError, match="classes"):
        parse_trees(observation, torch.tensor([0, 10]))
    model.head = nn.Linear(2, 2)
    with pytest.raises(UsageError, match="MSPCaps has no routing"):
        parse_trees(observation)
    broken = make("three scales")
    nn.init.constant_(broken.head.weight, float("nan"))
    with pytest.raises(MereoError, match="not finite"):
        observe(broken, images)


def matrix_network() -> CapsuleClassifier:
    torch.manual_seed(0)
    return mereo.create_model("matrix_capsnet_310k", img_size=17, channels=4, types=(2, 2, 2), pose=2, padding=2).eval()


def test_a_score_that_is_no_length_is_not_called_one(some_images: MakeImages) -> None:
    model = matrix_network()
    tree = parse_trees(observe(model, some_images(model)))[IMAGE]
    assert tree.kind == model.score_kind == "activations"
    assert {edge.kind for edge in tree.edges} == {"vote"}
    assert f"activation {tree.nodes[0].length:.2f}" in describe(tree, 0)
    words = " ".join([describe(tree, 0), describe(tree, 1), *caption(tree)])
    assert "length" not in words and "pose" in words
    assert "length of the capsule above" in " ".join(caption(replace(tree, kind="lengths")))


def test_couplings_are_not_called_votes(some_images: MakeImages) -> None:
    torch.manual_seed(0)
    model = mereo.create_model("inverted_dot_product_capsnet_cifar10_simple", img_size=18, in_chans=1).eval()
    tree = parse_trees(observe(model, some_images(model)))[IMAGE]
    assert {edge.kind for edge in tree.edges} == {"coupling"}
    assert "couplings" in carried(tree, 0) and "votes" not in carried(tree, 0)
    assert not any("strongest votes" in line for line in caption(tree))


@pytest.mark.parametrize("keep", [1, 3])
def test_the_lines_next_to_classes_have_room(keep: int, some_images: MakeImages) -> None:
    model = matrix_network()
    tree = parse_trees(observe(model, some_images(model)), keep=keep, rivals=2)[IMAGE]
    layout = arrange(tree)
    middles = [layout.across[root] for root in tree.roots]
    assert len(middles) == 3 and middles[0] >= CLASS[0]
    if layout.rows[tree.roots[1]] == 0:
        assert all(b - a >= sum(CLASS) for a, b in itertools.pairwise(middles))
    assert layout.width >= max(middles) + CLASS[1]
    for edge in tree.edges:
        below = [layout.across[other.child] for other in tree.below(edge.parent)]
        assert min(below) <= layout.across[edge.parent] <= max(below)
