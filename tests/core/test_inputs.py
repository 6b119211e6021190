"""Inputs that do not fit: each mechanism refuses them in words, and so does each network."""

import inspect

import pytest
import torch
from torch import nn

import mereo
from mereo.catalogue import MECHANISMS
from mereo.core.inputs import check_inputs
from mereo.errors import UsageError

CLASSES = sorted(name for name, entry in MECHANISMS.items() if inspect.isclass(entry.target))
ODD = {
    "fewer axes": lambda x: x[0], "more axes": lambda x: x.unsqueeze(0), "a number": lambda x: 3,
    "integers": lambda x: x.long(), "booleans": lambda x: x > 0, "complex": lambda x: x.to(torch.complex64),
    "sparse": lambda x: x.to_sparse(), "meta": lambda x: x.to("meta"),
}  # fmt: skip


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
@pytest.mark.parametrize("name", CLASSES)
def test_a_mechanism_refuses_inputs_of_another_kind(name, change):
    torch.manual_seed(0)
    module, inputs = MECHANISMS[name].example()
    names = list(inspect.signature(module.forward).parameters)
    if change is ODD["meta"] and next(module.parameters(), None) is None:
        assert module(*(change(x) for x in inputs)).device.type == "meta"  # there is no other device to be on
        return
    for place in range(len(inputs)):
        if change is ODD["integers"] and inputs[place].dtype == torch.int64:
            continue  # they are what it takes
        changed = [change(x) if n == place else x for n, x in enumerate(inputs)]
        with pytest.raises(UsageError, match=f"{type(module).__name__}: {names[place]} "):
            module(*changed)


@pytest.mark.parametrize("name", CLASSES)
def test_other_types_and_sizes_work_or_are_refused(name):
    torch.manual_seed(0)
    module, inputs = MECHANISMS[name].example()
    for place in range(len(inputs)):
        for change in (torch.Tensor.double, torch.Tensor.half, lambda x: x[..., :-1], lambda x: x[:, :0]):
            changed = [change(x) if n == place else x for n, x in enumerate(inputs)]
            try:
                assert module(*changed).isfinite().all()
            except UsageError as error:
                assert type(module).__name__ in str(error) or "(batch" in str(error)


def test_types_that_differ_are_named():
    attention = MECHANISMS["multi_head"].example()[0]
    with pytest.raises(UsageError, match=r"tokens is torch.float64 and the weights are torch.float32"):
        attention(torch.randn(2, 5, 12, dtype=torch.float64))
    with pytest.raises(UsageError, match=r"context is torch.float64"):
        attention(torch.randn(2, 5, 12), context=torch.randn(2, 5, 8).double())


def test_the_example_draws_no_random_numbers_when_it_is_asked_for_its_axes():
    class Adds(nn.Module):
        def forward(self, x):
            return x + 1

    check_inputs(Adds, lambda: (Adds(), (torch.randn(2, 3),)))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with pytest.raises(UsageError, match="x has the shape"):
        Adds()(torch.zeros(2))
    assert torch.equal(torch.rand(3), expected)


def test_an_error_of_the_callers_own_is_passed_on():
    attention, inputs = MECHANISMS["multi_head"].example()

    def fail(couplings):
        raise RuntimeError("a mistake of the caller")

    with mereo.intervene(attention, {"coupling": fail}), pytest.raises(RuntimeError, match="a mistake") as caught:
        attention(*inputs)
    assert not isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    "change",
    [torch.Tensor.double, torch.Tensor.half, torch.Tensor.byte, lambda x: x[0], lambda x: x > 0,
     lambda x: x.to(torch.complex64), lambda x: x[:, :0], lambda x: x.unsqueeze(0), lambda x: x.to_sparse(),
     lambda x: x.to("meta")],
)  # fmt: skip
@pytest.mark.parametrize("name", ["mspcaps_tiny", "capsnet", "efficient_capsnet"])
def test_a_network_refuses_images_of_another_kind(name, change):
    model = mereo.create_model(name).eval()
    with torch.no_grad(), pytest.raises(UsageError, match="images are"):
        model(change(torch.rand(2, *model.image_shape)))
