"""Where the senders and receivers of backbones are on the image: the cells of the maps that the stages return."""

import pytest
import torch

import mereo
from mereo.core import Coupling, Grid
from mereo.models import get_model_entry
from mereo.models.base import grid_of_cells
from mereo.models.registry import families

BACKBONES = {name: entry for name, entry in families().items() if ".models.vision." in entry.module.__module__}


@pytest.mark.parametrize("family", sorted(BACKBONES))
def test_all_couplings_between_cells_have_positions(family: str) -> None:
    torch.manual_seed(0)
    entry = BACKBONES[family]
    model = mereo.create_model(entry.name, **(entry.tiny or {})).eval()
    couplings = {n: m for n, m in model.named_modules() if isinstance(m, Coupling) and m.of_places}
    if not couplings or not model.feature_info:
        return
    sides = model.image_shape[1:]
    sizes = [sides]
    if not model.fixed_input_size and model.size_step == (1, 1):
        sizes.append((sides[0] + 21, sides[1] + 6))
    for height, width in sizes:
        images = torch.rand(2, model.image_shape[0], height, width)
        with torch.no_grad(), mereo.record(model) as trace:
            maps = model.forward_intermediates(images, intermediates_only=True)
            model(images)
        sizes_of_maps = [tuple(x.shape[2:]) for x in maps]
        assert couplings.keys() & trace.keys()
        for coupling in couplings.keys() & trace.keys():
            call = trace.calls(coupling)[-1]
            grid = call.senders
            assert grid is not None, coupling
            receivers, senders = trace[coupling].shape[-2:]
            assert grid.size == senders
            assert (grid.rows, grid.columns) in sizes_of_maps
            assert abs(height / grid.step - grid.rows) < 1
            conditions = model.num_classes if model.output_kind == "embeddings" else 1
            assert call.receivers is not None or receivers == conditions


def test_a_stride_inside_attention_separates_senders_and_receivers() -> None:
    model = mereo.create_model(
        "halonet_h0", img_size=64, widths=(8, 8, 8, 8), layers=("h", "h", "h", "h"), heads=(2,) * 4, block=2, halo=1
    ).eval()
    with torch.no_grad(), mereo.record(model) as trace:
        model(torch.rand(1, 3, 64, 32))
    first, second = (trace.calls(f"stages.{i}.0.mix.0.coupling")[0] for i in (0, 1))
    assert first.senders == first.receivers == second.senders == Grid(16, 8, 1, 2.0, 4)
    assert second.receivers == Grid(8, 4, 1, 4.0, 8)


def test_channels_have_no_positions_and_those_of_another_size_are_left_out() -> None:
    entry = get_model_entry("davit_tiny")
    model = mereo.create_model(entry.name, **(entry.tiny or {})).eval()
    with torch.no_grad(), mereo.record(model) as trace:
        model(torch.rand(1, 3, 30, 30))
    channels = [n for n, m in model.named_modules() if isinstance(m, Coupling) and not m.of_places]
    assert channels and all(trace.calls(n)[0].senders is None for n in channels)
    coupling = Coupling("senders")
    coupling.senders = grid_of_cells(8, 8, 4)
    with mereo.record(coupling) as trace:
        coupling(torch.zeros(1, 1, 4, 4))
        coupling(torch.zeros(1, 1, 9, 9))
    assert [call.senders for call in trace.calls("")] == [Grid(2, 2, 1, 2.0, 4), None]
