"""Arguments that people know from timm: those that a network has under another name, and why it lacks the others."""

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
def test_an_argument_that_a_network_lacks_says_why(name, given, message):
    with pytest.raises(mereo.UsageError) as error:
        mereo.create_model(name, **given)
    assert message in str(error.value)


def test_rates_of_dropped_branches_have_either_name():
    small = {"depth": 2, "embed_dim": 16, "num_heads": 2, "img_size": 32, "num_classes": 3}
    model = mereo.create_model("cait_xxs24", drop_path_rate=0.25, **small)
    assert model.config["args"]["path_drop"] == 0.25 and "drop_path_rate" not in model.config["args"]


def test_arguments_that_are_none_are_the_presets():
    assert mereo.create_model("resnet20", global_pool=None, drop_rate=None).num_classes == 10
