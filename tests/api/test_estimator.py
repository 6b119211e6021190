"""The classifier as a person with arrays uses it, and scikit-learn's checks of it."""

import inspect
import pickle
import subprocess
import textwrap
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

import mereo
from mereo.api.estimator import ImageClassifier, _rows
from mereo.api.images import labelled
from mereo.data import load_split

SMALL = {"epochs": 2, "batch_size": 16, "model": "resnet20", "img_size": 8, "device": "cpu"}


@pytest.fixture(scope="module")
def digits():
    """300 digits as uint8 (n, 8, 8), and their labels."""
    split = load_split("digits", "train", img_size=8, validation_fraction=0.0)
    return split.images[:300, 0].numpy(), split.labels[:300].numpy()


@pytest.fixture(scope="module")
def fitted(digits):
    images, labels = digits
    return ImageClassifier(**SMALL).fit(images, np.array(list("abcdefghij"))[labels])


@pytest.mark.long
def test_it_learns_and_its_parts_agree(digits):
    images, labels = digits
    classifier = ImageClassifier(epochs=8, batch_size=16, lr=3e-3, model_args={"channels": [8, 16, 32]}, device="cpu")
    assert classifier.fit(images[:240], labels[:240]) is classifier
    predicted, shares = classifier.predict(images[240:]), classifier.predict_proba(images[240:])
    accuracy = (predicted == labels[240:]).mean()
    assert accuracy > 0.7 and classifier.score(images[240:], labels[240:]) == accuracy
    np.testing.assert_allclose(shares.sum(1), 1)
    assert (classifier.classes_[shares.argmax(1)] == predicted).all() and (shares >= 0).all()
    assert (
        len(classifier.history_) == 8 and classifier.history_[-1]["train_loss"] < classifier.history_[0]["train_loss"]
    )
    weights = np.zeros(60)
    weights[0] = 1
    assert classifier.score(images[240:], labels[240:], weights) == float(predicted[0] == labels[240])


@pytest.mark.long
def test_labels_keep_their_type_and_images_any_form(fitted, digits):
    images, labels = digits
    assert fitted.classes_.tolist() == list("abcdefghij") and fitted.predict(images[:5]).dtype.kind == "U"
    assert fitted.model_.class_names == tuple("abcdefghij") and fitted.n_features_in_ == 64
    expected = fitted.predict_proba(images[:6])
    forms = [
        images[:6, ..., None], images[:6].reshape(6, 64), list(images[:6]), torch.from_numpy(images[:6, None]),
        [Image.fromarray(image) for image in images[:6]], images[:6].astype(np.float64),
    ]  # fmt: skip
    for form in forms:
        np.testing.assert_array_equal(fitted.predict_proba(form), expected)
    assert mereo.predict(fitted, images[:6]).classes == fitted.predict(images[:6]).tolist()
    assert mereo.evaluate(fitted, data=(images[:40], list(np.array(list("abcdefghij"))[labels[:40]])), quiet=True)


def test_numbers_outside_the_unit_range_are_scaled_by_those_of_fit(fitted, digits):
    images, labels = digits
    scaled = ImageClassifier(**SMALL).fit(images / 16.0 - 3, np.array(list("abcdefghij"))[labels])
    assert scaled.value_range_ == (-3, 255 / 16 - 3)
    np.testing.assert_array_equal(scaled.predict_proba(images / 16.0 - 3), fitted.predict_proba(images))
    again = ImageClassifier(**SMALL, value_range=(0, 10))
    again.value_range_ = again._chosen_range(images / 16.0)
    assert again.value_range_ == (0, 10)
    again._shape = (1, 3)
    assert again._pixels(np.array([[-1.0, 5.0, 11.0]])).flatten().tolist() == [0, 128, 255]


def test_it_is_the_training_of_the_command_and_repeatable(digits):
    images, labels = digits
    first, second = (ImageClassifier(**SMALL, random_state=3).fit(images[:60], labels[:60]) for _ in range(2))
    np.testing.assert_array_equal(first.predict_proba(images), second.predict_proba(images))
    restored = pickle.loads(pickle.dumps(first))
    np.testing.assert_array_equal(first.predict_proba(images), restored.predict_proba(images))
    given = ImageClassifier(lr=0.5, optimizer="sgd", options={"clip_norm": 1})._given(4)
    assert (given["lr"], given["optimizer"], given["clip_norm"], given["seed"]) == (0.5, "sgd", 1.0, 4)
    assert not {"model", "batch_size"} & given.keys(), "these are chosen"
    assert given["epochs"] == 20  # a number that followed from a measured time would differ between fits
    timed = ImageClassifier(options={"minutes": 0.5})._given(4)
    assert timed["minutes"] == 0.5 and "epochs" not in timed


@pytest.mark.parametrize("channels", [1, 3])
def test_the_same_images_give_the_same_settings_from_a_folder_from_arrays_and_here(tmp_path, monkeypatch, channels):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (90, 24, 20, channels), dtype=np.uint8)
    labels = np.array(["left", "right", "none"] * 30)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (tmp_path / label).mkdir(exist_ok=True)
        Image.fromarray(image.squeeze()).save(tmp_path / label / f"{number}.png")
    plans = []

    def stopped(plan, *others, **named):
        plans.append(plan)
        raise KeyboardInterrupt

    monkeypatch.setattr("mereo.api.training.run_plan", stopped)
    monkeypatch.setattr("mereo.api.estimator.train", stopped)
    here = ImageClassifier(epochs=3, image_shape=(24, 20, channels), validation_fraction=0.28)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*no test split")
        for run in (
            lambda: mereo.train(data=str(tmp_path), epochs=3, quiet=True),
            lambda: mereo.train(data=(images, labels), epochs=3, quiet=True),
            lambda: here.fit(images, labels),
        ):
            with pytest.raises(KeyboardInterrupt):
                run()
    names = {"data", "output", "seed", "validation_fraction", "tensorboard"}
    folder, arrays, fitted = ({k: v for k, v in p.config.to_dict().items() if k not in names} for p in plans)
    assert folder == arrays == fitted
    assert folder["model"] == ("mspcaps_tiny", "resnet14_64")[channels == 3]
    assert folder["augment"] == [("crop=4", "zoom=0.5:1")[channels == 3]]
    assert [plan.info.splits["train"] for plan in plans] == [90, 90, 65]


FOUR = np.arange(256.0).reshape(4, 8, 8)
WRONG = {
    "rows that are no square": ({}, np.zeros((4, 6)), list("abab"), "image_shape is None"),
    "rows of another shape": ({"image_shape": (2, 2)}, np.zeros((4, 6)), list("abab"), r"image_shape is \(2, 2\)"),
    "channels first": ({}, np.zeros((4, 3, 8, 8)), list("abab"), r"\(3, 8, 8\)"),
    "one image": ({}, np.zeros((8,)), list("ab"), "Reshape your data"),
    "several sizes": ({}, [np.zeros((8, 8)), np.zeros((9, 8))], list("ab"), "same shape"),
    "a dict": ({}, {"a": 1}, list("ab"), "2D array"),
    "text": ({}, "photos", list("ab"), "photos"),
    "nothing finite": ({}, np.full((4, 8, 8), np.nan), list("abab"), "NaN"),
    "one class": ({}, FOUR, list("aaaa"), "1 class"),
    "numbers to regress": ({}, FOUR, [0.1, 0.2, 0.3, 0.4], "Unknown label type"),
    "no labels": ({}, FOUR, None, "y is None|y to be passed"),
    "another number of labels": ({}, FOUR, list("ab"), r"\[4, 2\]"),
    "an unknown option": ({"options": {"clip": 3}}, FOUR, list("abab"), "'clip_norm'"),
    "an option that is an argument": ({"options": {"lr": 3}}, FOUR, list("abab"), "lr"),
    "text for a number": ({"epochs": "3"}, FOUR, list("abab"), "epochs is '3'"),
    "an unknown network": ({"model": "mspcaps"}, FOUR, list("abab"), "mspcaps_tiny"),
    "a range without length": ({"value_range": (1, 1)}, FOUR, list("abab"), "value_range"),
    "a range of one number": ({"value_range": (1,)}, FOUR, list("abab"), "value_range"),
    "a range that is a number": ({"value_range": 3}, FOUR, list("abab"), "value_range"),
    "a fraction that is text": ({"validation_fraction": "x"}, FOUR, list("abab"), "validation_fraction"),
    "a fraction above 1": ({"validation_fraction": 2}, FOUR, list("abab"), "validation_fraction"),
    "a shape that is text": ({"image_shape": "x"}, FOUR, list("abab"), "image_shape"),
    "options that are a number": ({"options": 3}, FOUR, list("abab"), "options"),
    "a seed that is none": ({"random_state": "a"}, FOUR, list("abab"), "random_state"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case):
    arguments, images, labels, message = WRONG[case]
    with pytest.raises((ValueError, TypeError), match=message):
        ImageClassifier(**arguments).fit(images, labels)


def test_prediction_needs_a_fit_and_images_of_the_same_form(fitted, digits):
    with pytest.raises(NotFittedError):
        ImageClassifier().predict(np.zeros((1, 8, 8)))
    with pytest.raises(ValueError, match="128 features"):
        fitted.predict(torch.zeros(1, 2, 8, 8))
    for one in (digits[0][0], digits[0][0][..., None], Image.fromarray(digits[0][0])):
        with pytest.raises(ValueError, match="8 features"):
            fitted.predict(one)


def test_features_are_what_the_last_layer_reads(fitted, digits):
    features = fitted.transform(digits[0][:5])
    assert features.shape == (5, fitted.model_.num_features)
    with torch.no_grad():
        scores = fitted.model_.get_classifier()(torch.from_numpy(features))
    np.testing.assert_array_equal(fitted.classes_[scores.argmax(1)], fitted.predict(digits[0][:5]))


@pytest.mark.long
def test_cross_validation_and_grid_search(digits):
    images, labels = digits[0][:80], digits[1][:80]
    classifier = ImageClassifier(**SMALL).set_params(epochs=1)
    assert clone(classifier).get_params() == classifier.get_params()
    assert len(cross_val_score(classifier, images, labels, cv=2, error_score="raise")) == 2
    search = GridSearchCV(classifier, {"lr": [1e-3, 3e-3]}, cv=2, scoring="neg_log_loss", error_score="raise")
    assert search.fit(images.reshape(80, 64), labels).best_params_["lr"] in (1e-3, 3e-3)
    assert search.predict(images.reshape(80, 64)).shape == (80,)
    chain = make_pipeline(clone(classifier), KNeighborsClassifier()).fit(images, labels)
    assert chain.predict(images).shape == (80,) and chain[0].transform(images).shape[1] == chain[0].model_.num_features


@pytest.mark.long
def test_scikit_learn_is_imported_with_the_classifier_only(python):
    code = """
    import sys
    import mereo
    assert "sklearn" not in sys.modules
    sys.modules["sklearn"] = None
    try:
        mereo.ImageClassifier
    except mereo.UsageError as error:
        assert "mereo[sklearn]" in str(error)
    """
    subprocess.run([python, "-c", textwrap.dedent(code)], check=True)


LEFT_OUT = {
    "check_methods_subset_invariance": "expects 1e-7, and float32 in batches of other sizes differs by 1e-6",
    "check_transformer_preserve_dtypes": "features are float32 for images of any type",
    "check_array_api_input": "needs array API dispatch",
}
QUICK = (
    "check_estimator_tags_renamed", "check_valid_tag_types", "check_estimator_repr", "check_no_attributes_set_in_init",
    "check_estimators_unfitted", "check_do_not_raise_errors_in_init_or_set_params", "check_mixin_order",
    "check_complex_data", "check_estimators_empty_data_messages", "check_estimator_sparse_array",
    "check_classifiers_one_label", "check_classifiers_regression_target", "check_supervised_y_no_nan",
    "check_parameters_default_constructible", "check_get_params_invariance", "check_set_params", "check_fit2d_1sample",
    "check_requires_y_none", "check_n_features_in_after_fitting", "check_dict_unchanged",
)  # fmt: skip
"""Checks that fit nothing or once."""


class OfRows(ImageClassifier):
    """Rows of a table as square images, because the checks of scikit-learn are on tables."""

    # The parameters are the base's.
    __init__ = ImageClassifier.__init__

    def _images(self, rows):
        side = max(int(np.ceil(rows.shape[1] ** 0.5)), 2)
        return super()._images(np.pad(rows, ((0, 0), (0, side * side - rows.shape[1]))))


def sklearn_checks():
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    return checks.estimator_checks_generator(OfRows(**SMALL | {"lr": 3e-3, "options": {"warmup_epochs": 0}}))


def named(check):
    return getattr(check, "func", check).__name__


def run_check(check, estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_quick_checks_of_scikit_learn():
    passed = set()
    for estimator, check in sklearn_checks():
        if named(check) in QUICK:
            run_check(check, estimator)
            passed.add(named(check))
    assert passed == set(QUICK)


@pytest.mark.long
def test_checks_of_scikit_learn():
    failed = {}
    for estimator, check in sklearn_checks():
        if named(check) not in (*LEFT_OUT, *QUICK):
            try:
                run_check(check, estimator)
            except Exception as error:
                failed[named(check)] = error
    assert failed == {}


def test_parameters_are_plain():
    assert not any(
        p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in inspect.signature(ImageClassifier).parameters.values()
    )


def test_pictures_of_any_mode_and_tensors_of_any_precision_become_their_pixels():
    red = Image.new("RGB", (4, 4), (255, 0, 0))
    for mode in ("P", "CMYK", "RGBA"):
        rows, shape = _rows([red.convert(mode)] * 2)
        assert shape == (4, 4, 3) and np.abs(rows[0, :3].astype(int) - [255, 0, 0]).max() <= 1
    assert _rows([Image.new("1", (4, 4), 1)])[0].max() == 255
    np.testing.assert_array_equal(_rows(torch.ones(2, 1, 4, 4, dtype=torch.bfloat16))[0], np.ones((2, 16)))


def test_pictures_in_grey_and_colour_may_be_mixed():
    grey = Image.new("L", (8, 8), 100)
    mixed = [grey, grey.convert("RGB"), grey.convert("RGBA"), grey.convert("P"), Image.new("I;16", (8, 8), 100 * 257)]
    rows, shape = _rows(mixed)
    assert shape == (8, 8, 3) and rows.shape == (5, 192) and (rows == 100).all()
    assert _rows([grey, mixed[-1]])[1] == (8, 8)
    stacked, _ = labelled((mixed, list("abcde")))
    assert stacked.shape == (5, 3, 8, 8) and (stacked == 100).all()
