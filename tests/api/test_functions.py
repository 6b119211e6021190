"""The commands as functions: the same options, the same results, inputs of every kind, errors that name the remedy."""

import inspect
import json
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image

import mereo
from mereo.api import Predictions
from mereo.api.images import labelled
from mereo.api.training import configuration
from mereo.cli.comparison_options import CompareOptions
from mereo.cli.main import main
from mereo.cli.options import EvaluateOptions, ExplainOptions, PredictOptions
from mereo.inference.evaluate import normalise
from mereo.inference.predict import Prediction
from mereo.inference.views import augmented_views, trained_augmentation
from mereo.measure import load_trained_models
from mereo.training.arguments import fit_all
from mereo.training.config import FIELDS, TrainConfig
from mereo.training.plan import make_plan


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEREO_DATA", raising=False)


@pytest.fixture
def photo():
    """A colour image as an array (height, width, channels)."""
    return np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def scores_of(predictions):
    return [dict(zip(item.classes, item.scores, strict=True)) for item in predictions]


@pytest.mark.long
def test_a_training_is_that_of_the_command(run, tmp_path):
    words = ["--data", "digits", "--limit", "256", "--batch-size", "32", "--epochs", "1", "--device", "cpu"]
    assert main(["train", *words, "--no-tensorboard", "--model-args", "channels=[4,8,8]", "--name", "same"]) == 0
    assert TrainConfig.from_yaml(run.folder.config).to_dict() | {"name": "", "output": ""} == (
        TrainConfig.from_yaml(tmp_path / "runs" / "same" / "config.yaml").to_dict() | {"name": "", "output": ""}
    )
    assert run.results["test_best"] == json.loads((tmp_path / "runs/same/results.json").read_text())["test_best"]


def test_a_finished_training_is_a_table_and_pictures(run):
    assert str(run).startswith("test accuracy") and str(run.folder.path) in str(run)
    assert "<table>" in run._repr_html_() and run._repr_html_().count("data:image/png") == 2
    assert run._repr_png_().startswith(b"\x89PNG")
    assert run.accuracy == run.test_best.accuracy


def test_every_option_of_the_command_is_an_argument():
    values = {name: getattr(TrainConfig(), name) for name in FIELDS}
    assert fit_all(get_type_hints(TrainConfig), "mereo.train", values, {}) == values


OF_THE_COMMAND = {"weights", "json", "prompt", "length", "temperature", "seed"}
"""Options without an argument, or, of networks that read tokens, of what `mereo.load` returns."""


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (mereo.predict, PredictOptions),
        (mereo.evaluate, EvaluateOptions),
        (mereo.explain, ExplainOptions),
        (mereo.compare, CompareOptions),
    ],
)
def test_an_option_of_the_command_is_an_argument_with_the_same_default(function, options):
    arguments = inspect.signature(function).parameters
    defaults = {field.name: field.default for field in fields(options)}
    assert defaults.keys() - OF_THE_COMMAND <= arguments.keys()
    shared = {name for name in defaults if name in arguments and arguments[name].kind is inspect.Parameter.KEYWORD_ONLY}
    assert {name: arguments[name].default for name in shared} == {name: defaults[name] for name in shared}


@pytest.mark.long
def test_a_configuration_or_a_plan_with_other_values(run, capsys):
    config = TrainConfig.from_yaml(run.folder.config).replace(output="runs", name="plan")
    assert mereo.train(make_plan(config), quiet=True).results["test_best"] == run.results["test_best"]
    assert capsys.readouterr().out == ""
    with pytest.raises(mereo.UsageError, match="is a plan"):
        mereo.train(make_plan(config), epochs=3)
    changed = {"img_size": "16x16", "augment": "flip", "model_args": {"routing_steps": 2}, "dry_run": True}
    for first in (run.folder.path, str(run.folder.config), config):
        assert mereo.train(first, **changed) is None
        assert "FLOPs" in capsys.readouterr().out


def test_forms_of_a_value_and_recipes(run):
    words = {"img_size": "16x16", "augment": "flip", "recipe": "mspcaps_short"}
    given = fit_all(get_type_hints(TrainConfig), "mereo.train", words, {})
    assert given == {"img_size": 16, "augment": ("flip",), "recipe": "mspcaps_short"}
    config = configuration(None, given)
    assert config.recipe == "mspcaps_short" and config.model == "mspcaps_tiny"
    assert configuration(run.folder.path, {"data": "mnist"}).limit == 256


def test_one_picture_in_every_form_gets_one_prediction(run, photo):
    image = Image.fromarray(photo)
    image.save("photo.png")
    tensor = torch.from_numpy(photo).permute(2, 0, 1)
    forms = [
        "photo.png", "*.png", ".", [image], image, photo, photo[None], photo / 255.0, tensor, tensor[None],
        tensor.float() / 255, [photo, "photo.png"], (each for each in [photo]),
    ]  # fmt: skip
    reference = scores_of(mereo.predict(run, "photo.png"))[0]
    for form in forms:
        for scores in scores_of(mereo.predict(run, form)):
            assert scores == pytest.approx(reference, abs=1e-5), form
    assert len(mereo.predict(run, [photo, "photo.png"])) == 2
    grey = photo[..., 0]
    of_grey = scores_of(mereo.predict(run, grey))
    assert scores_of(mereo.predict(run, grey[..., None])) == of_grey
    for scores in scores_of(mereo.predict(run, np.stack([grey] * 5))):
        assert scores == pytest.approx(of_grey[0], abs=1e-5)
    assert scores_of(mereo.predict(run, Image.fromarray(grey))) == of_grey


def test_predictions_are_those_of_the_command(run, photo, capsys):
    Image.fromarray(photo).save("photo.png")
    assert main(["predict", "photo.png", "--weights", str(run.folder.path), "--json", "--top", "2"]) == 0
    printed = json.loads(capsys.readouterr().out)["predictions"]
    for model in (run, run.model, str(run.folder.path), run.folder.best):
        predictions = mereo.predict(model, "photo.png", top=2)
        assert predictions.to_dicts() == printed
    assert predictions.classes == [printed[0]["class"]]
    assert predictions.scores == [max(printed[0]["scores"].values())]
    assert str(predictions).splitlines()[0].split() == ["image", "class", "and", "probability", "next"]
    assert predictions._repr_html_().count("data:image/png") == 1
    assert len(predictions[:0]) == 0 and "photo.png" in str(predictions[0].path)


def test_probabilities_are_those_of_the_predicted_class():
    values = {"class": "a", "scores": {"a": 0.9, "b": 0.4}}
    plain = Prediction(Path("x.png"), values)
    calibrated = Prediction(Path("x.png"), values | {"probabilities": {"a": 0.7, "b": 0.3}})
    assert Predictions([calibrated, calibrated], Path("run")).probabilities == [0.7, 0.7]
    assert Predictions([calibrated, plain], Path("run")).probabilities is None


def test_names_of_files_are_escaped_in_html(run, photo):
    Image.fromarray(photo).save("<script>.png")
    html = mereo.predict(run, "<script>.png")._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


@pytest.mark.long
def test_an_evaluation_is_that_of_the_command(run):
    evaluation = mereo.evaluate(run, limit=50, quiet=True)
    assert main(["evaluate", str(run.folder.path), "--limit", "50", "--out", "report"]) == 0
    with open("report/report.json") as file:
        (expected,) = json.load(file)["models"].values()
    assert evaluation.models[run.folder.path.name] == expected
    assert evaluation.accuracy == expected["accuracy"]
    assert "accuracy" in str(evaluation) and evaluation._repr_html_().count("data:image/png") == 1
    assert evaluation.markdown.startswith("# digits") and evaluation.pictures
    both = mereo.evaluate([run, run.model], data="digits", limit=50, out="two", quiet=True)
    assert len(both.models) == 2 and (both.folder / "report.md").exists()


@pytest.mark.long
def test_an_evaluation_over_views_is_that_of_the_command_and_of_a_loop(run, capsys):
    words = [str(run.folder.path), "--tta", "--limit", "50", "--no-couplings", "--out", "report"]
    assert main(["evaluate", *words]) == 0
    printed = capsys.readouterr()
    assert "digits, 50 test images, mean over 9 views" in printed.out and "mean over 9 views" in printed.err
    with open("report/report.json") as file:
        (expected,) = json.load(file)["models"].values()
    evaluation = mereo.evaluate(run, tta=True, limit=50, couplings=False, quiet=True)
    assert evaluation.models[run.folder.path.name] == expected
    assert evaluation.title == "digits, 50 test images, mean over 9 views"
    (one,) = load_trained_models([run.folder.path], limit=50)
    cfg, views = run.model.pretrained_cfg, augmented_views(trained_augmentation(one.model))(one.split.images / 255)
    with torch.no_grad():
        scores = sum(one.model.eval()(normalise(view, cfg["mean"], cfg["std"])) for view in views)
    assert expected["accuracy"] == (scores.argmax(1) == one.split.labels).double().mean()


def test_predictions_over_five_crops_need_a_border(run, photo):
    with pytest.raises(mereo.UsageError, match="five_crop is set, and the network takes whole images"):
        mereo.predict(run, photo, five_crop=True)
    run_cfg = run.model.pretrained_cfg
    run.model.pretrained_cfg = {**run_cfg, "crop_pct": 0.8}
    try:
        (plain,), (averaged,) = (scores_of(mereo.predict(run, photo, five_crop=on)) for on in (False, True))
    finally:
        run.model.pretrained_cfg = run_cfg
    assert plain != averaged


def test_an_evaluation_of_arrays(run):
    from mereo.data import load_split

    split = load_split("digits", img_size=run.model.image_shape[1:])
    images, labels = split.images[:80], split.labels[:80]
    with torch.no_grad():
        cfg = run.model.pretrained_cfg
        mean, std = (torch.tensor(cfg[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
        expected = (run.model((images / 255 - mean) / std).argmax(1) == labels).float().mean().item()
    for data in ((images, labels), (images.permute(0, 2, 3, 1).numpy(), [str(label) for label in labels.tolist()])):
        assert mereo.evaluate(run, data=data, quiet=True).accuracy == pytest.approx(expected)


@pytest.mark.long
def test_an_explanation_is_a_picture_and_a_table(run, photo):
    explanation = mereo.explain(run, [photo, photo], classes=["3", 4])
    assert explanation.classes == ["3", "4"] and explanation.scores.shape == (2, 10)
    assert explanation._repr_png_().startswith(b"\x89PNG") and "<table>" in explanation._repr_html_()
    assert "head.coupling" in explanation[0].maps
    assert mereo.explain(run, photo).classes == mereo.predict(run, photo).classes
    assert len(mereo.explain(run, np.stack([photo] * 13))) == 2
    assert str(explanation).splitlines()[0].split() == ["image", "class", "score"]


@pytest.mark.long
def test_files_of_an_explanation(run, photo):
    with pytest.raises(mereo.UsageError, match="give out"):
        mereo.explain(run, photo, only=["page"])
    written = mereo.explain(run, photo, out="explained", only=["page", "picture"]).written
    assert sorted(written) == ["page", "picture"] and all(path.exists() for files in written.values() for path in files)
    assert mereo.explain(run, photo, out="one.png").written["picture"][0].name == "one.png"


def test_explain_is_a_function_and_a_package():
    import mereo.explain

    assert callable(mereo.explain) and mereo.explain.explain is not mereo.explain
    assert list(inspect.signature(mereo.explain).parameters)[:2] == ["model", "images"]


def test_training_on_arrays(photo):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 12, 10, 3), dtype=np.uint8)
    labels = np.array(["cat", "dog"] * 20)
    small = {"epochs": 1, "batch_size": 8, "tensorboard": False, "model_args": {"channels": [4, 8, 8]}, "quiet": True}
    trained = mereo.train(data=(images, labels), **small)
    assert trained.model.class_names == ("cat", "dog") and trained.results["test_best"]["count"] == 8
    assert trained.model.image_shape[0] == 3
    of_pictures = mereo.train(data=([Image.fromarray(image) for image in images], labels.tolist()), **small)
    assert of_pictures.results["test_best"] == trained.results["test_best"]
    assert set(mereo.predict(str(trained.folder.path), images).classes) <= {"cat", "dog"}
    assert mereo.evaluate(trained, data=(images, labels), quiet=True).title == "arrays, 40 test images"


def test_training_on_arrays_with_masks():
    images = np.random.default_rng(0).integers(0, 200, (30, 8, 8, 3), dtype=np.uint8)
    masks = (images[..., 0] > 100).astype(np.int64) + 2 * (images[..., 1] > 150)
    masks[:, 0] = 255
    small = {"epochs": 1, "batch_size": 8, "tensorboard": False, "model_args": {"widths": (4, 4)}, "img_size": 8}
    trained = mereo.train(data=(images, masks), task="segmentation", quiet=True, **small)
    assert trained.model.num_classes == 4 and trained.results["test_best"]["count"] == 6
    for wrong in (masks[:29], masks.astype(float), masks - 1):
        with pytest.raises(mereo.UsageError, match=r"masks are .* \(30, 8, 8\)"):
            mereo.train(data=(images, wrong), task="segmentation", quiet=True, **small)
    with pytest.raises(mereo.UsageError, match="needs labels"):
        mereo.train(data=(images, masks), task="classification", quiet=True)


WRONG = {
    "an unknown option": (lambda run, x: mereo.train(epoch=3), "did you mean 'epochs'"),
    "the name of a folder in the first place": (lambda run, x: mereo.train("photos"), "data='photos'"),
    "a dict in the first place": (lambda run, x: mereo.train({"epochs": 3}), "config is a dict"),
    "data that are no pair": (lambda run, x: mereo.train(data={"x": 1}), "data is a dict"),
    "data without a class": (lambda run, x: mereo.train(data=(x[None], ["a"])), "at least 2"),
    "NaN as a number": (lambda run, x: mereo.train(data=([x, x], [0.5, float("nan")])), "1 entries that are NaN"),
    "one number for all": (lambda run, x: mereo.train(data=([x, x], [0.5, 0.5])), "the same for all images"),
    "labels of another number": (lambda run, x: mereo.train(data=([x, x], ["a"])), "2 images and 1 label"),
    "images of several sizes": (lambda run, x: mereo.train(data=([x, x[:9]], ["a", "b"])), "several sizes"),
    "resuming in memory": (lambda run, x: mereo.train(data=([x, x], ["a", "b"]), resume=True), "resume is True"),
    "labels in a dict": (lambda run, x: mereo.train(data=([x, x], {"a": 0, "b": 1})), "labels is a dict"),
    "labels as text": (lambda run, x: mereo.train(data=([x, x], "ab")), "labels is a str"),
    "labels as rows": (lambda run, x: mereo.train(data=([x, x], np.eye(2))), "labels.argmax(1)"),
    "the number of classes": (lambda run, x: mereo.train(num_classes=3), "num_classes is 3; it follows from the data"),
    "an argument of the network": (lambda run, x: mereo.train(patch_size=3), "model_args={'patch_size': 3}"),
    "text for a number": (lambda run, x: mereo.train(epochs="three"), "epochs is 'three'; it must be a whole number"),
    "a switch for a number": (lambda run, x: mereo.train(lr=True), "lr is True"),
    "a number for a switch": (lambda run, x: mereo.train(compile="yes"), "True or False"),
    "a run in the place of images": (lambda run, x: mereo.predict(run, str(run.folder.path)), "holds trained weights"),
    "a run to explain": (lambda run, x: mereo.explain(run, [x, run.folder.path]), "holds trained weights"),
    "networks of a wrong type": (lambda run, x: mereo.compare(["capsnet"], seeds="two"), "seeds is 'two'"),
    "an unknown choice": (lambda run, x: mereo.train(optimizer="adamx"), "Did you mean"),
    "a dict as images": (lambda run, x: mereo.predict(run, {"a": x}), "images is a dict"),
    "None as images": (lambda run, x: mereo.predict(run, None), "images is None"),
    "no images": (lambda run, x: mereo.predict(run, []), "no image"),
    "channels first in an array": (lambda run, x: mereo.predict(run, x.transpose(2, 0, 1)), "transpose"),
    "channels last in a tensor": (lambda run, x: mereo.predict(run, torch.from_numpy(x)), "channels, height"),
    "normalised images": (lambda run, x: mereo.predict(run, x / 100.0), "outside 0 .. 1"),
    "large integers": (lambda run, x: mereo.predict(run, x.astype(np.int64)), "int64"),
    "an image without pixels": (lambda run, x: mereo.predict(run, x[:0]), "without pixels"),
    "no file": (lambda run, x: mereo.predict(run, "nothing.png"), "nothing.png"),
    "an empty folder of runs": (lambda run, x: mereo.train(output=""), "output is ''"),
    "an empty path": (lambda run, x: mereo.predict(run, ""), "one of the paths is ''"),
    "empty weights": (lambda run, x: mereo.predict("", x), "model is ''"),
    "weights of an empty path": (lambda run, x: mereo.load(""), "weights are ''"),
    "an empty output": (lambda run, x: mereo.explain(run, x, out=""), "out is ''"),
    "an empty folder": (lambda run, x: mereo.evaluate(run, out=""), "out is ''"),
    "no weights": (lambda run, x: mereo.predict("nothing", x), "nothing"),
    "a model of torch": (lambda run, x: mereo.predict(torch.nn.Linear(3, 3), x), "model is a Linear"),
    "a number as model": (lambda run, x: mereo.evaluate(3), "model is an int"),
    "an option that is an argument": (lambda run, x: mereo.predict(run, x, weights="a"), "the first argument, model"),
    "an option of texts": (lambda run, x: mereo.predict(run, x, prompt="a"), "generate"),
    "an unknown option of predict": (lambda run, x: mereo.predict(run, x, tops=2), "did you mean 'top'"),
    "an option that only attacks use": (lambda run, x: mereo.evaluate(run, steps=3), "attack"),
    "an unknown attack": (lambda run, x: mereo.evaluate(run, attack="fgsmm"), "Did you mean 'fgsm'"),
    "unknown classes": (lambda run, x: mereo.evaluate(run, data=([x, x], ["a", "b"])), "unknown class"),
    "classes to explain in a dict": (lambda run, x: mereo.explain(run, x, classes={"0": 1}), "classes is a dict"),
    "a fraction of a class": (lambda run, x: mereo.explain(run, x, classes=1.5), "classes is a float"),
    "an image that is a number": (lambda run, x: mereo.predict(run, 3), "images is an int"),
    "an unknown class to explain": (lambda run, x: mereo.explain(run, x, classes="cat"), "unknown class 'cat'"),
    "other numbers of classes": (lambda run, x: mereo.explain(run, x, classes=["1", "2"]), "2 entries for 1 images"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case, run, photo):
    call, message = WRONG[case]
    with pytest.raises(mereo.UsageError) as error:
        call(run, photo)
    assert message in str(error.value)


def test_models_without_scores_or_for_tokens_are_refused(photo):
    for model in (
        mereo.create_model("resnet20", features_only=True),
        mereo.create_model("tnl_tiny", vocab_size=8, context=8, dim=8, depth=1, num_heads=1),
    ):
        with pytest.raises(mereo.UsageError, match="model is a"):
            mereo.predict(model, photo)


@pytest.mark.long
def test_rooms_are_attributes_and_import_nothing_before_they_are_used(python):
    code = "import sys, mereo; assert 'torch' not in sys.modules; mereo.measure.attacks; mereo.explain.observe"
    subprocess.run([python, "-c", code], check=True)
    assert {"train", "predict", "evaluate", "explain", "compare"} <= set(dir(mereo))


@pytest.mark.parametrize(("modes", "channels"), [(("L", "1"), 1), (("L", "RGBA"), 3)])
def test_pictures_as_wide_as_a_colour_has_channels_are_images(modes, channels):
    images, labels = labelled(([Image.new(mode, (4, 5)) for mode in modes], ["a", "b"]))
    assert images.shape == (2, channels, 5, 4) and labels == ["a", "b"]
