"""`mereo evaluate` as a person uses it."""

import json
import math
import os
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

import mereo
from mereo.cli.main import main
from mereo.errors import UsageError
from mereo.inference.answers import Answers
from mereo.inference.evaluate import normalise
from mereo.inference.temperature import Calibration
from mereo.measure import load_trained_models
from mereo.measure.classification import calibrated_error, classification_metrics
from mereo.measure.report import overview
from mereo.measure.trained_models import short_names
from mereo.training.config import TrainConfig

DIGITS = tuple(str(n) for n in range(10))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEREO_DATA", raising=False)


@pytest.fixture
def call_and_draw(capsys):
    def run(*words):
        code = main(["evaluate", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def call(call_and_draw, monkeypatch):
    """The command without rendering its pictures, which takes most of the time."""
    for module in ("classification_pictures", "curve_pictures", "equivariance_pictures"):
        monkeypatch.setattr(f"mereo.measure.{module}.save_figure", lambda figure, path: None)
    return call_and_draw


def save(path, *, names=DIGITS, data="digits", seed=0, **changes):
    torch.manual_seed(seed)
    arguments = {"channels": (4, 8, 8), "in_chans": 1, "img_size": 16, "num_classes": len(names) or 10, **changes}
    extra = {} if data is None else {"data": data}
    mereo.save_weights(path, mereo.create_model("mspcaps_tiny", **arguments), class_names=names, **extra)
    return str(path)


def save_run(folder, **changes):
    save(Path(folder) / "weights" / "best.safetensors", **changes)
    config = TrainConfig(model="mspcaps_tiny", data=changes.get("data", "digits"))
    Path(folder, "config.yaml").write_text(config.to_yaml())
    return str(folder)


def pictures(folder):
    found = {}
    for path in sorted(Path(folder).rglob("*.png")):
        with Image.open(path) as picture:
            found[str(path.relative_to(folder))] = (picture.width, len(picture.convert("L").getcolors(1 << 16)))
    return found


@pytest.mark.long
def test_everything_about_two_networks(call_and_draw, monkeypatch):
    for name, few in (("RESTARTS", 2), ("RANDOM_POINTS", 4), ("QUERIES", 10)):
        monkeypatch.setattr(f"mereo.measure.attacks.masking.{name}", few)
    # The checks are left out for networks that guess, as these do.
    monkeypatch.setattr("mereo.measure.attack_stage.is_at_chance", lambda model: False)
    first, second = save_run("runs/first"), save("second.safetensors", seed=1)
    code, out, err = call_and_draw(
        first, second, "--limit", "20", "--corruptions", "--equivariance", "--attack", "square", "pgd", "--epsilon",
        "0.1", "0.02", "--steps", "2", "--queries", "3", "--attack-limit", "12", "--masking-images", "4", "--seed", "3",
    )  # fmt: skip
    assert code == 0, err
    assert "digits, 20 test images" in out and "rotation" in out and "evaluation/report.md" in out
    assert err.count("\n") == len(err.strip().splitlines()) and "first: attack pgd" in err
    document = json.loads(Path("evaluation/report.json").read_text())
    assert set(document["models"]) == {"first", "second"} and document["split"] == "test"
    model = document["models"]["first"]
    assert model["count"] == 20 and sum(map(sum, model["confusion"])) == 20
    assert model["accuracy_low"] <= model["accuracy"] <= model["accuracy_high"]
    assert [p["amount"] for p in model["attacks"]["pgd"]] == [0.0, 0.02, 0.1]
    assert model["attacks"]["pgd"][0]["images"] == 12
    assert model["corruptions"]["blur"][0]["accuracy"] == model["accuracy"]
    names = [check["name"] for check in model["masking"]["checks"]]
    assert "transfer from second" in names and names[-1] == "accuracy over epsilon"
    assert [m["amount"] for m in model["equivariance"]["shift"]][0] == -20
    drawn = pictures("evaluation")
    for name in ("confusion", "calibration", "scores", "equivariance"):
        assert drawn[f"first/{name}.png"][0] > 400 and drawn[f"second/{name}.png"][1] > 10
    assert drawn["attacks.png"][0] > 600 and drawn["corruptions.png"][0] > 600
    text = Path("evaluation/report.md").read_text()
    for line in text.splitlines():
        if line.startswith("!["):
            assert Path("evaluation", line.split("(")[1].rstrip(")")).exists(), line
    assert "not probabilities" in text and "Gradient masking" in text


def test_the_newest_run_and_json(call):
    save_run("runs/only")
    code, out, err = call("--limit", "20", "--json")
    assert code == 0, err
    assert "using runs/only" in err
    document = json.loads(out)
    assert document["models"]["only"]["count"] == 20
    assert document == json.loads(Path("evaluation/report.json").read_text())
    code, out, _ = call("--limit", "20", "--json", "--batch-size", "7")
    assert os.path.isdir("evaluation-2")
    again = json.loads(out)["models"]["only"]
    # Matrix products of batches of other sizes round differently.
    assert again["confusion"] == document["models"]["only"]["confusion"]
    code, out, _ = call("--limit", "20", "--out", "elsewhere/here")
    assert code == 0 and os.path.exists("elsewhere/here/report.md")


def test_epsilon_zero_gives_the_clean_accuracy(call):
    weights = save("one.safetensors")
    code, out, err = call(weights, "--limit", "15", "--attack", "apgd", "--epsilon", "0", "--json")
    assert code == 0, err
    model = json.loads(out)["models"]["one"]
    (point,) = model["attacks"]["apgd"]
    assert point["accuracy"] == model["accuracy"] and "masking" not in model


def test_validation_images_are_those_held_out(call):
    folder = save_run("runs/held")
    (trained,) = load_trained_models([Path(folder)], split="validation")
    from mereo.data import load_splits

    held = load_splits("digits", img_size=16, in_chans=1, validation_fraction=0.1, seed=0).validation
    assert held is not None and torch.equal(trained.split.images, held.images)
    (trained,) = load_trained_models([Path(folder)], split="train", limit=50)
    assert len(trained.split) == 50 and len(set(trained.split.labels.tolist())) == 10


def test_training_images_are_never_used_as_held_out_ones(call):
    folder = Path(save_run("runs/held"))
    config = folder / "config.yaml"
    config.write_text(TrainConfig.from_yaml(config).replace(validation_fraction=0.0).to_yaml())
    for source in (folder, Path(save("alone.safetensors"))):
        with pytest.raises(UsageError, match="digits has no validation images"):
            load_trained_models([source], split="validation", data="digits")


def test_runs_of_other_limits_are_evaluated_on_their_own_images(call):
    folders = [Path(save_run(f"runs/{name}")) for name in ("few", "all")]
    config = folders[0] / "config.yaml"
    config.write_text(TrainConfig.from_yaml(config).replace(limit=100).to_yaml())
    few, all_of_them = load_trained_models(folders, split="train")
    assert len(few.split) == 100 < len(all_of_them.split)


def test_test_images_are_evaluated_where_a_class_has_one_training_image(call):
    for split in ("train", "val"):
        for name, shade in (("7", 200), ("3", 60)):
            os.makedirs(f"single/{split}/{name}")
            Image.new("L", (20, 20), shade).save(f"single/{split}/{name}/0.png")
    (trained,) = load_trained_models([Path(save_run("runs/held"))], data="single")
    assert len(trained.split) == 2


def test_a_folder_with_some_of_the_classes(call):
    for split in ("train", "val"):
        for name, shade in (("7", 200), ("3", 60)):
            os.makedirs(f"photos/{split}/{name}")
            for n in range(3):
                Image.new("L", (20, 20), shade + n).save(f"photos/{split}/{name}/{n}.png")
    (trained,) = load_trained_models([Path(save("one.safetensors"))], data="photos")
    assert trained.split.labels.tolist() == [3] * 3 + [7] * 3 and trained.class_names == DIGITS
    code, out, err = call("one.safetensors", "--data", "photos", "--attack", "fgsm", "--masking-images", "2", "--json")
    assert code == 0, err
    model = json.loads(out)["models"]["one"]
    assert [c["support"] for c in model["per_class"]] == [0, 0, 0, 3, 0, 0, 0, 3, 0, 0]


@pytest.mark.long
def test_a_folder_of_one_class_and_a_network_of_one(call):
    for split in ("train", "val"):
        os.makedirs(f"photos/{split}/cat")
        for n in range(3):
            Image.new("L", (20, 20), 90 + 10 * n).save(f"photos/{split}/cat/{n}.png")
    weights = save("cats.safetensors", names=("cat",), data=None)
    code, out, err = call(weights, "--data", "photos", "--corruptions", "--equivariance", "--json")
    if code == 0:
        assert json.loads(out)["models"]["cats"]["accuracy"] == 1
    else:  # data of one class may be refused where it is read
        assert code == 2 and err.strip().count("\n") == 0
    code, _, err = call(weights, "--data", "photos", "--attack", "fgsm")
    assert code == 2 and err.strip().splitlines()[-1].startswith("mereo: error:")


def test_names_are_short_and_different(tmp_path):
    for name in ("a/run", "b/run", "c"):
        (tmp_path / name / "weights").mkdir(parents=True)
        (tmp_path / name / "weights" / "best.safetensors").touch()
        (tmp_path / name / "weights" / "last.safetensors").touch()
    paths = ["a/run", "b/run", "c/weights/best.safetensors", "c/weights/last.safetensors"]
    assert short_names([tmp_path / p for p in paths]) == ["run", "run-2", "c", "c-last"]
    (tmp_path / "my.net.safetensors").touch()
    named = short_names([Path("mspcaps_tiny.mnist"), Path("mspcaps_tiny.cifar10"), tmp_path / "my.net.safetensors"])
    assert named == ["mspcaps_tiny.mnist", "mspcaps_tiny.cifar10", "my.net"]


@pytest.mark.long
def test_too_few_images_for_a_fit_are_reported(call_and_draw):
    code, out, err = call_and_draw(
        save("one.safetensors"), "--limit", "40", "--equivariance", "--attack", "fgsm", "pgd", "--epsilon", "0.1",
        "--steps", "2", "--attack-limit", "20", "--masking-images", "0",
    )  # fmt: skip
    assert code == 0, err
    assert "attacked: 20 of the 40 images" in out
    reason = "too few images of a class (4) to fit a rule; 10 are needed"
    assert f"rotation, one: {reason}" in out and f"shift, one: {reason}" in out
    text = Path("evaluation/report.md").read_text()
    assert text.count(f"No rule: {reason}.") == 2 and "On 20 of the 40 images." in text
    assert pictures("evaluation")["one/equivariance.png"][0] > 400


def test_attacked_images_are_those_of_the_strongest_attack(call, monkeypatch):
    titles = []
    monkeypatch.setattr(
        "mereo.measure.attack_stage.draw_attacked", lambda clean, attacked, truth, title, path: titles.append(title)
    )
    words = (save_run("runs/one"), "--limit", "100", "--epsilon", "0.3", "--masking-images", "0", "--queries", "1")
    code, out, err = call(*words, "--attack", "pgd", "square", "--json")
    assert code == 0, err
    attacks = json.loads(out)["models"]["one"]["attacks"]
    assert attacks["pgd"][1]["accuracy"] < attacks["square"][1]["accuracy"]
    assert titles == ["one under PGD (arXiv:1706.06083), the strongest of 2 attacks"]


WRONG = [
    (["nothing.safetensors"], "no such file or folder"),
    (["{w}", "--attack", "fgms"], "fgsm"),
    (["{w}", "--attack", "fgsm", "--epsilon", "0.1", "2"], "epsilon is 2.0"),
    (["{w}", "--attack", "fgsm", "--epsilon", "nan"], "epsilon is nan"),
    (["{w}", "--limit", "0"], "limit is 0"),
    (["{w}", "--steps", "0"], "steps is 0"),
    (["{w}", "--restarts", "-1"], "restarts is -1"),
    (["{w}", "--seed", "-1"], "seed is -1"),
    (["{w}", "--steps", "20"], "steps is 20"),
    (["{w}", "--epsilon", "0.3"], "--attack"),
    (["{w}", "--queries", "5"], "--attack"),
    (["{w}", "--restarts", "2"], "--attack"),
    (["{w}", "--attack-limit", "None"], "attack_limit is None"),
    (["{w}", "--masking-images", "5"], "masking_images is 5"),
    (["{w}", "--attack-loss", "margin"], "--attack"),
    (["{w}", "--tta", "--attack", "fgsm"], "attack is fgsm, and tta is set"),
    (["{w}", "--tta", "--five-crop"], "tta and five_crop are both set"),
    (["{w}", "--five-crop"], "takes whole images of 16 x 16"),
    (["{w}", "--masking-images", "-1"], "masking_images is -1"),
    (["{w}", "--data", "digitz"], "digits"),
    (["{w}", "--split", "tests"], "test"),
    (["{w}", "--device", "cuda:77"], "cpu"),
    (["{w}", "{other}"], "name one with --data"),
    (["{bare}"], "give --data"),
    (["{foreign}", "--data", "digits"], "does not have"),
    (["{w}", "--out", "{w}"], "a file"),
    (["{few}", "--data", "pets", "--attack", "apgd", "--attack-loss", "dlr"], "three classes"),
    ([], "mereo train"),
]


@pytest.mark.parametrize(("words", "named"), WRONG, ids=lambda v: " ".join(v) if isinstance(v, list) else None)
def test_wrong_use_is_one_line(call, words, named):
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            os.makedirs(f"pets/{split}/{name}")
            Image.new("L", (20, 20), 90).save(f"pets/{split}/{name}/0.png")
            Image.new("L", (20, 20), 70).save(f"pets/{split}/{name}/1.png")
    files = {
        "w": save("w.safetensors"),
        "other": save("other.safetensors", data="mnist"),
        "bare": save("bare.safetensors", data=None),
        "foreign": save("foreign.safetensors", names=("cat", "dog")),
        "few": save("few.safetensors", names=("cat", "dog"), data="pets"),
    }
    code, out, err = call(*[word.format(**files) for word in words])
    assert code == 2, err
    assert named in err and err.count("\n") == 1 and "Traceback" not in err + out
    assert not os.path.exists("evaluation")


def test_five_crops_are_cut_from_images_with_their_border(call, monkeypatch):
    titles = []
    monkeypatch.setattr(
        "mereo.measure.evaluation.draw_confusion", lambda confusion, names, title, path: titles.append(title)
    )
    torch.manual_seed(0)
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, num_classes=10).eval()
    model.pretrained_cfg = {**model.pretrained_cfg, "crop_pct": 0.8}
    mereo.save_weights("cut.safetensors", model, class_names=DIGITS, data="digits")
    code, out, err = call("cut.safetensors", "--limit", "60", "--five-crop", "--corruptions", "--equivariance")
    assert code == 0, err
    assert "digits, 60 test images, mean over 5 views" in out and "corners of images of 20 x 20" in out
    assert "cut: accuracy, mean over 5 views" in err and titles == ["cut, mean over 5 views"]
    text = Path("evaluation/report.md").read_text()
    assert text.startswith("# digits, 60 test images, mean over 5 views") and "from the image itself" in text
    document = json.loads(Path("evaluation/report.json").read_text())
    measured = document["models"]["cut"]
    assert measured["views"]["count"] == 5 and document["plan"]["five_crop"]
    (plain,) = load_trained_models([Path("cut.safetensors")], limit=60)
    images = plain.split.images / 255
    crops = [images[..., y : y + 16, x : x + 16] for y, x in ((0, 0), (0, 4), (4, 0), (4, 4), (2, 2))]
    cfg = plain.model.pretrained_cfg
    with torch.no_grad():
        scores = sum(plain.model.eval()(normalise(crop, cfg["mean"], cfg["std"])) for crop in crops)
    assert measured["accuracy"] == (scores.argmax(1) == plain.split.labels).double().mean()
    assert measured["couplings"]["own"] == measured["corruptions"]["blur"][0]["accuracy"] == measured["accuracy"]


def test_the_configuration_of_a_run_is_read(call):
    folder = save_run("runs/set")
    content = yaml.safe_load(Path(folder, "config.yaml").read_text())
    content["paper_protocol"] = True
    Path(folder, "config.yaml").write_text(yaml.safe_dump(content))
    code, _, err = call(folder, "--split", "validation")
    assert code == 2 and "held out none" in err


def test_a_network_without_names_uses_those_of_the_data():
    (trained,) = load_trained_models([Path(save("bare.safetensors", names=()))], limit=10)
    assert trained.class_names == DIGITS


def test_accuracy_and_couplings_are_reported_before_slow_measurements(call_and_draw, monkeypatch):
    """When the long part fails, the first answers are on the screen and on disk."""

    def stop(*arguments):
        document = json.loads(Path("evaluation/report.json").read_text())["models"]["one"]
        assert document["couplings"]["own"] == document["accuracy"] and "attacks" not in document
        raise KeyboardInterrupt

    monkeypatch.setattr("mereo.measure.evaluation.measure_attacks", stop)
    code, out, err = call_and_draw(save_run("runs/one"), "--limit", "40", "--attack", "pgd")
    assert code != 0
    assert "40 test images" in out and "couplings replaced by uniform" in out and "misclassified" in out
    assert "one: couplings replaced" in err
    text = Path("evaluation/report.md").read_text()
    assert "Couplings replaced" in text


def test_couplings_can_be_left_out(call):
    code, out, err = call(save_run("runs/one"), "--limit", "20", "--no-couplings", "--json")
    assert code == 0, err
    assert "couplings" not in json.loads(out)["models"]["one"]


def test_a_network_that_guesses_is_called_that_and_not_suspicious(call):
    code, out, err = call(
        save_run("runs/one"), "--attack", "fgsm", "--epsilon", "0.02", "--attack-limit", "20", "--masking-images", "4"
    )
    assert code == 0, err
    assert "one predicts no better than chance" in out and "suspicious" not in out
    assert "not measured, one: gradient masking, because it predicts no better than chance" in out
    model = json.loads(Path("evaluation/report.json").read_text())["models"]["one"]
    assert model["accuracy_low"] <= model["chance"]
    assert "predicts no better than chance" in Path("evaluation/report.md").read_text()


def test_balanced_accuracy_and_the_fitted_temperature_are_shown_where_they_say_something() -> None:
    models = {
        "even": {"accuracy": 0.5, "balanced_accuracy": 0.5},
        "uneven": {"accuracy": 0.9, "balanced_accuracy": 0.5, "calibrated": {"ece": 0.03, "temperature": 0.2}},
    }
    for model in models.values():
        calibration = {how: {"ece": 0.1, "brier": 0.2} for how in ("softmax", "normalised")}
        model |= {"accuracy_low": 0.1, "accuracy_high": 0.95, "per_class": [], "calibration": calibration}
    columns, (even, uneven) = overview(models)
    assert columns[3:5] == ["balanced accuracy", "ECE calibrated"]
    assert even[3:5] == ["50.00 %", "-"] and uneven[3:5] == ["50.00 %", "3.00 %"]
    columns, (row,) = overview({"even": models["even"]})
    assert "balanced accuracy" not in columns and "ECE calibrated" not in columns and len(row) == len(columns)


def test_metrics_of_uneven_classes_by_hand() -> None:
    # Three images of one class, all correct, and one of another, missed.
    scores = torch.tensor([[0.9, 0.1]] * 4)
    answers = Answers(scores, torch.tensor([0, 0, 0, 1]))
    metrics = classification_metrics(answers, ("a", "b"))
    assert metrics["accuracy"] == 0.75 and metrics["balanced_accuracy"] == 0.5
    # With temperature 0.8 / log 3 the confidence is 3/4, the accuracy.
    calibration = Calibration(0.8 / math.log(3), 10, 0.1, 0.1)
    assert calibrated_error(answers, calibration)["calibrated"]["ece"] == pytest.approx(0, abs=1e-6)
    assert calibrated_error(answers, None) == {}
