"""SSD: loops in float64 from the equations, its twin S6 where all decays are equal, and its start."""

import torch

from mereo.mechanisms.scan import S6, SSD


def test_the_layer_equals_its_equations() -> None:
    layer, u = SSD(6, 2, state_dim=3).double(), torch.randn(2, 7, 6, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    expected = torch.zeros(2, 7, 6, dtype=torch.float64)
    for sample in range(2):
        h = torch.zeros(2, 3, 3, dtype=torch.float64)
        for i in range(7):
            mixed = layer.to_terms.weight @ u[sample, i]
            b, c, y = mixed[2:5], mixed[5:], []
            for head in range(2):
                own = u[sample, i, 3 * head : 3 * head + 3]
                delta = (1 + (mixed[head] + layer.step_bias[head]).exp()).log()
                h[head] = (-layer.a_log[head].exp() * delta).exp() * h[head] + delta * torch.outer(b, own)
                y.append(c @ h[head] + layer.D[3 * head : 3 * head + 3] * own)
            expected[sample, i] = layer.proj.weight @ torch.cat(y)
    torch.testing.assert_close(layer(u), expected)


def test_it_is_s6_where_all_decays_of_s6_are_equal() -> None:
    ssd, s6, u = SSD(5, state_dim=3), S6(5, 3, rank=1), torch.randn(2, 9, 5)
    with torch.no_grad():
        ssd.a_log.fill_(0.4)
        s6.to_terms.weight.copy_(ssd.to_terms.weight)
        s6.to_steps.weight.fill_(1)
        s6.to_steps.bias.copy_(ssd.step_bias.expand(5))
        s6.A_log.fill_(0.4)
        s6.proj.weight.copy_(ssd.proj.weight)
    torch.testing.assert_close(ssd(u), s6(u), rtol=1e-5, atol=1e-7)


def test_its_start_and_its_state() -> None:
    layer = SSD(32, 8)
    steps = torch.nn.functional.softplus(layer.step_bias)
    assert (steps > 0.99e-3).all() and (steps < 0.101).all() and (layer.a_log == 0).all()
    _, state = layer.extend(torch.randn(2, 70, 32))
    assert state.memory.shape == (2, 8, 16, 4)
