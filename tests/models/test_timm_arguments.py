"""Arguments that people know from timm, and why a network lacks them."""

import pytest

import mereo


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("mspcaps_tiny", {"drop_rate": 0.1}, "no dropout before its classifier. Instead: it has coupling_drop"),
        ("resnet20", {"drop_path_rate": 0.1}, "drops no residual branches. Instead: leave it out"),
        ("capsnet", {"global_pool": "avg"}, "one way to pool"),
        ("davit_tiny", {"drop_rate": 0.1}, "it has drop_path_rate"),
        ("resnet20", {"cache_dir": "x"}, "HF_HOME"),
        ("resnet20", {"pretrained_cfg": {}}, "pretrained_cfg"),
        ("resnet20", {"features_only": "yes"}, "True or False"),
        ("resnet20", {"width": 3}, "did you mean 'widths'"),
    ],
)
def test_an_argument_that_a_network_lacks_is_explained(name, given, message):
    with pytest.raises(mereo.UsageError) as error:
        mereo.create_model(name, **given)
    assert message in str(error.value)


def test_arguments_that_are_none_are_the_presets():
    assert mereo.create_model("resnet20", global_pool=None, drop_rate=None).num_classes == 10
