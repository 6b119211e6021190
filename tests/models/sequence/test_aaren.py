import torch

import mereo
from mereo.mechanisms.scan import Aaren
from mereo.models import create_model


def test_its_blocks_hold_aaren_and_no_position_but_the_sines() -> None:
    model = create_model("aaren_tiny", context=8, depth=1)
    assert [type(block.mixer) for block in model.blocks] == [Aaren]
    tokens = torch.randint(256, (1, 6))
    swapped = tokens[:, [1, 0, 2, 3, 4, 5]]
    with torch.no_grad():
        apart = (model.eval()(tokens) - model(swapped)).abs().amax(2)[0]
        model.sines = False
        same = (model(tokens) - model(swapped)).abs().amax(2)[0]
    assert apart[5] > 1e-6 and same[2:].max() < 1e-6  # to one layer a prefix is a set but for its positions


def test_generating_equals_reading_everything_again_and_the_state_does_not_grow() -> None:
    model = create_model("aaren_tiny", dim=12, depth=2, num_heads=3, hidden_dim=20).eval()
    tokens, state = torch.randint(256, (2, 40)), None
    with torch.no_grad():
        whole, sizes = model(tokens), set()
        for place in range(40):
            scores, state = model.step(tokens[:, place], state)
            torch.testing.assert_close(scores, whole[:, place], rtol=1e-4, atol=1e-5)
            sizes.add(sum(x.numel() for x in torch.utils._pytree.tree_leaves(state) if isinstance(x, torch.Tensor)))
    assert len(sizes) == 1


def test_its_couplings_are_those_of_prefixes() -> None:
    model = create_model("aaren_tiny", dim=12, depth=2, num_heads=3, hidden_dim=20).eval()
    with mereo.record(model) as trace:
        model(torch.randint(256, (2, 9)))
    assert len(trace) == 2
    for couplings in trace.values():
        assert couplings.shape == (2, 3, 9, 9) and (couplings.triu(1) == 0).all()
        rows = couplings / couplings[..., :1]  # every row has the same scores
        torch.testing.assert_close(rows.tril(), rows[..., -1:, :].expand_as(rows).tril(), rtol=1e-4, atol=1e-6)
