"""A step of a network with an insertion and an added loss, in one process and in several."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import mereo
from mereo.data import Batch
from mereo.tasks.classification import ClassificationObjective


def _network() -> nn.Module:
    torch.manual_seed(0)
    model = mereo.create_model("vit_tiny", img_size=16, patch_size=4, embed_dim=12, depth=1, num_heads=6, num_classes=3)
    mixed = mereo.moh(model, 0.5, routing="tokens")
    mereo.insert(mixed, "squeeze_excite", "blocks", start=0.5)
    return mixed.double()


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def largest_difference() -> list[float]:
    """Between the gradients of this process and the mean over the shares of all, each computed by itself."""
    size, rank = dist.get_world_size(), dist.get_rank()
    images = torch.randn(2 * size, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    shares = [Batch(part, torch.tensor([0, 2])) for part in images.split(2)]
    objective = ClassificationObjective(_network(), "cross_entropy")
    for share in shares:
        (objective(share)[0] / size).backward()
    expected = _gradients(objective)
    distributed = DistributedDataParallel(ClassificationObjective(_network(), "cross_entropy"))
    distributed(shares[rank])[0].backward()
    found = _gradients(distributed.module)
    assert found.keys() == expected.keys() and any("inserted" in name for name in found)
    assert all(bool(found[name].any()) for name in found if "router.routed_heads" in name or "inserted" in name)
    return [(found[name] - expected[name]).abs().max().item() for name in expected]
