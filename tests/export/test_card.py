"""The card holds the numbers of the run, and its command repeats the run."""

import json
import shlex

import pytest
import yaml

import mereo
from mereo.api.training import configuration
from mereo.cli.train import given
from mereo.errors import UsageError
from mereo.export.card import model_card
from mereo.export.record import command_of, read_record
from mereo.inference.flops import forward_flops
from mereo.models import get_model_entry
from mereo.training.config import TrainConfig
from mereo.training.plan import resolve
from mereo.training.recipes import apply_recipe
from mereo.training.run_folder import INCIDENTAL


def card_of(run, weights):
    model = mereo.load(weights)
    return model, model_card(model, {**model.metadata, **read_record(weights)}, "my_net")


@pytest.mark.parametrize("which", ["best", "last"])
def test_the_card_holds_the_numbers_of_the_run(run, which):
    results = json.loads((run / "results.json").read_text())
    model, card = card_of(run, run / "weights" / f"{which}.safetensors")
    test = results[f"test_{which}"]
    for share in ("accuracy", "accuracy_low", "accuracy_high"):
        assert f"{100 * test[share]:.2f} %" in card
    assert f"| parameters | {results['parameters']:,} |" in card
    assert f"| FLOPs of one image | {forward_flops(model):,} " in card
    assert "| test images | 359 |" in card and "| seed | 3 |" in card and "| data | digits: " in card
    epoch = f"epoch {results['best_epoch']} of 3, chosen on held-out validation images"
    assert (epoch if which == "best" else "the last of 3 epochs") in card
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in card and "1 x 16 x 16" in card and "[0.5]" in card
    assert "no stated licence" in card and "eprint = {2508.16922}" in card and f"# {'my_net'}\n" in card


def test_the_hub_reads_the_front_matter(run):
    hub = pytest.importorskip("huggingface_hub")
    _, card = card_of(run, run)
    data = hub.ModelCard(card).data
    assert (data.library_name, data.license, data.pipeline_tag) == ("mereo", None, "image-classification")
    (result,) = data.eval_results
    accuracy = json.loads((run / "results.json").read_text())["test_best"]["accuracy"]
    assert (result.metric_type, result.dataset_name) == ("accuracy", "digits")
    assert result.metric_value == round(100 * accuracy, 2)


def test_a_licence_is_stated_where_one_was_named(make):
    model = make("capsnet")
    model.pretrained_cfg["license"] = "cc-by-4.0"
    card = model_card(model, {}, "net")
    assert "The weights are under cc-by-4.0." in card and yaml.safe_load(card.split("---")[1])["license"] == "cc-by-4.0"


def test_a_card_states_differences_from_the_published_network():
    published = model_card(mereo.create_model("mspcaps_tiny"), {}, "net")
    assert "344 thousand parameters. `mspcaps_tiny` of mereo, arXiv:2508.16922." in published
    variant = model_card(mereo.create_model("mspcaps_tiny", num_classes=3, patch_size=2), {}, "net")
    assert "A variant of `mspcaps_tiny`" in variant and "parameters): num_classes 3, patch_size 2." in variant


@pytest.mark.parametrize("arguments", [{}, {"num_classes": 3}])
def test_a_card_marks_a_reconstruction(arguments):
    marked = get_model_entry("rs_capsnet_small").reconstruction
    assert marked and marked in model_card(mereo.create_model("rs_capsnet_small", **arguments), {}, "net")
    assert "reconstruction:" not in model_card(mereo.create_model("mspcaps_tiny", **arguments), {}, "net")


def test_a_card_without_a_run_claims_nothing(make):
    card = model_card(make("capsnet"), {}, "net")
    assert "no measurements" in card and "accuracy" not in card and "mereo train" not in card
    assert "model-index" not in yaml.safe_load(card.split("---")[1])


def test_weights_outside_a_run_have_no_record(run, tmp_path):
    alone = tmp_path / "weights.safetensors"
    alone.write_bytes((run / "weights" / "best.safetensors").read_bytes())
    assert read_record(alone) == {}


def test_broken_results_are_refused(run, tmp_path):
    (tmp_path / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    assert read_record(tmp_path) == {}
    for content in ("{", "{}", "[]"):
        (tmp_path / "results.json").write_text(content)
        with pytest.raises(UsageError, match=r"results\.json"):
            read_record(tmp_path)


CONFIGS = {
    "defaults": TrainConfig(),
    "fields": TrainConfig().replace(
        epochs=3, lr=1e-2, augment=["none"], model_args={"channels": [4, 8, 8], "routing": "dynamic"}, in_chans=3,
        mean=[0.1, 0.2, 0.3], std=[1.0, 1.0, 1.0], paper_protocol=True, tensorboard=False, seed=7, ema_decay=0.9,
    ),
    "oblong": TrainConfig().replace(img_size=[24, 16]),
    "recipe": apply_recipe("mspcaps_paper", None, "cifar10").replace(epochs=2),
    "recipe of another network": apply_recipe("capsnet_paper", "efficient_capsnet", "fashion_mnist"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_the_command_repeats_the_run(case):
    config = resolve(CONFIGS[case])
    words = shlex.split(command_of(config))
    assert words[:2] == ["mereo", "train"]
    again, stated = resolve(configuration(*given(words[2:]))).to_dict(), config.to_dict()
    assert {name for name in stated if again[name] != stated[name]} <= INCIDENTAL
    if config.recipe is None:
        assert {"--img-size", "--epochs", "--batch-size", "--lr", "--augment", "--warmup-epochs"} <= {*words}


def test_the_command_leaves_out_what_follows_by_itself(run):
    command = command_of(resolve(apply_recipe("digits_demo").replace(epochs=6)))
    assert command == "mereo train --recipe digits_demo --model mspcaps_tiny --data digits --epochs 6"
    assert read_record(run)["command"] == (
        "mereo train --model mspcaps_tiny --data digits --model-args 'channels=[4, 8, 8]' patch_size=2 --img-size 16"
        " --epochs 3 --batch-size 32 --lr 0.005 --warmup-epochs 0.0 --augment none --sampler shuffle --limit 300"
        " --seed 3"
    )
