"""S6: loops in float64 from the equations, its start, counts, and states of a fixed size."""

import torch

from mereo.mechanisms.scan import S6


def test_the_layer_equals_its_equations() -> None:
    layer, u = S6(5, 3, rank=2).double(), torch.randn(2, 7, 5, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    expected = torch.zeros(2, 7, 5, dtype=torch.float64)
    for sample in range(2):
        h = torch.zeros(5, 3, dtype=torch.float64)
        for i in range(7):
            mixed = layer.to_terms.weight @ u[sample, i]
            b, c = mixed[2:5], mixed[5:]
            delta = (1 + (layer.to_steps.weight @ mixed[:2] + layer.to_steps.bias).exp()).log()
            y = torch.zeros(5, dtype=torch.float64)
            for channel in range(5):
                for n in range(3):
                    decay = (-delta[channel] * layer.A_log[channel, n].exp()).exp()
                    h[channel, n] = decay * h[channel, n] + delta[channel] * b[n] * u[sample, i, channel]
                y[channel] = c @ h[channel] + layer.D[channel] * u[sample, i, channel]
            expected[sample, i] = layer.proj.weight @ y
    torch.testing.assert_close(layer(u), expected)


def test_it_starts_as_published() -> None:
    layer = S6(64, 4)
    torch.testing.assert_close(layer.A_log.exp(), torch.arange(1.0, 5).expand(64, -1))
    steps = torch.nn.functional.softplus(layer.to_steps.bias)
    assert (steps > 0.99e-3).all() and (steps < 0.101).all() and steps.log().std() > 0.7
    assert (layer.D == 1).all() and layer.rank == 4


def test_the_size_of_its_state() -> None:
    layer = S6(12, 4)
    _, state = layer.extend(torch.randn(2, 30, 12))
    assert state.memory.shape == (2, 12, 4, 1) and state.before is None
    assert sum(p.numel() for p in layer.parameters()) == 12 * 9 + 2 * 12 + 12 * 4 + 12 + 144


def test_steps_are_in_lambda_and_in_the_kernel() -> None:
    layer, u = S6(6, 4), torch.randn(2, 9, 6)
    apart, together = layer.terms(u, None)[0], layer.recurrence(u)
    assert apart.steps is not None and together.steps is None
    torch.testing.assert_close(apart.Lambda, together.Lambda)
    torch.testing.assert_close(apart.kernel(), together.kernel())
    torch.testing.assert_close(apart.run(), together.run())
