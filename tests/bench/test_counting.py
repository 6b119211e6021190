"""Operations and bytes against numbers computed by hand."""

import pytest
import torch
from torch import nn

from mereo.bench.counting import (
    Rates,
    attention_work,
    bound,
    network_work,
    routing_work,
    stored_votes_bytes,
    stored_votes_work,
)
from mereo.bench.suite import Setting, Work
from mereo.mechanisms.routing import DynamicRouting
from papers.kiefer_generative_capsules.inversion_suite import (
    inversion_work,
    stored_predictions_bytes,
    stored_predictions_work,
)

CAPSNET = Setting({"batch": 128, "children": 1152, "parents": 10, "child_dim": 8, "parent_dim": 16, "steps": 3})


def test_votes_of_capsnet_take_94_megabytes():
    assert stored_votes_bytes(CAPSNET) == 23_592_960 * 4


def test_operations_of_capsnet_routing():
    # 23 592 960 vote numbers, each 8 multiply-adds to make and one in each of 3 sums and 2 agreements.
    forward = routing_work(CAPSNET, "forward").flops
    assert forward == 2 * 23_592_960 * (8 + 5) == 613_416_960
    assert routing_work(CAPSNET, "training").flops == 3 * forward


def test_bytes_of_capsnet_routing():
    children, weights, parents = 128 * 1152 * 8, 1152 * 10 * 8 * 16, 128 * 10 * 16
    assert routing_work(CAPSNET, "forward").bytes == 4 * (children + weights + parents) == 10_698_752
    assert routing_work(CAPSNET, "training").bytes == 4 * (3 * (children + weights) + 2 * parents)


def test_stored_votes_are_moved_six_times_forward_and_seventeen_back():
    votes = stored_votes_bytes(CAPSNET)
    assert stored_votes_work(CAPSNET, "forward").bytes == 6 * votes
    assert stored_votes_work(CAPSNET, "training").bytes == (6 + 17) * votes


def test_a_sweep_of_the_inversion():
    sizes = {"batch": 2, "children": 7, "parents": 3, "dim": 4}
    sphere, free = (Setting(sizes | {"task": task}) for task in ("sphere", "free"))
    pairs, poses, weights, beliefs = 2 * 7 * 3, 2 * 7 * 4, 7 * 3 * 4 * 4, 2 * 3 * 4
    # <V, T m> and sum r T^T V: a multiply-add for each number of T, twice.
    assert inversion_work(sphere) == Work(2 * 2 * pairs * 16, 4 * (poses + weights + pairs + 2 * beliefs))
    # The ten numbers of a symmetric T^T T twice more; a precision factored and inverted, and solved with.
    flops = 2 * 2 * pairs * 16 + 2 * 2 * pairs * 10 + 2 * 3 * (64 + 2 * 16)
    covariances = 2 * 3 * 16
    grams = 7 * 3 * 10
    assert inversion_work(free) == Work(flops, 4 * (poses + weights + grams + pairs + 2 * beliefs + 2 * covariances))
    assert stored_predictions_bytes(free) == 4 * pairs * 4
    assert stored_predictions_work(free) == Work(flops, 5 * 4 * pairs * 4)
    assert stored_predictions_work(sphere).bytes == 4 * 4 * pairs * 4


def test_attention():
    setting = Setting({"batch": 2, "heads": 3, "tokens": 5, "dim": 7})
    tensor = 2 * 3 * 5 * 7
    assert attention_work(setting, "forward") == Work(2 * 2 * tensor * 5, 4 * 4 * tensor)
    assert attention_work(setting, "training") == Work(6 * 2 * tensor * 5, 4 * 11 * tensor)


def test_a_network_is_counted_at_the_batch_asked_for():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5, bias=False))
    images = torch.rand(2, 3, 2, 2)
    assert network_work(model, images, 10, "forward") == Work(2 * 10 * 12 * 5, 4 * (60 + 10 * 12))
    # Backward: only the gradient of the weights, because the images need none.
    assert network_work(model, images, 10, "training") == Work(4 * 10 * 12 * 5, 4 * (600 + 2 * 10 * 12))


def test_routing_inside_a_network_is_counted_whatever_runs_it():
    layer = DynamicRouting(6, 3, 4, 5)
    setting = Setting({"batch": 2, "children": 6, "parents": 3, "child_dim": 4, "parent_dim": 5, "steps": 3})
    counted = network_work(layer, torch.rand(2, 6, 4), 2, "forward").flops
    assert counted == routing_work(setting, "forward").flops


@pytest.mark.parametrize(
    ("work", "expected"), [(Work(200, 10), (2.0, "arithmetic")), (Work(100, 90), (3.0, "traffic"))]
)
def test_the_bound_is_the_slower_of_arithmetic_and_traffic(work, expected):
    found = bound(work, Rates(matmul=100, copy=30))
    assert (found.seconds, found.by) == expected
