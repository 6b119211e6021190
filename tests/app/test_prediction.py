"""Predictions and explanations for the page: equal to those of `mereo predict`, and each change has its effect."""

import base64
import warnings

import pytest
import torch

import mereo
from mereo.app.changes import change_image, silence, silenced_senders
from mereo.app.prediction import encode_map, occlusion, predict_image
from mereo.app.request import parse_request
from mereo.app.runs import curves, describe_models, errors, list_test_images
from mereo.app.session import KEPT, Session
from mereo.core import Grid
from mereo.core.observe import Call
from mereo.errors import MereoError, UsageError
from mereo.explain import occlusion_maps
from mereo.inference.predict import predict, read_images
from mereo.measure import load_trained_models, replace_couplings
from mereo.models import load
from uploads import picture


@pytest.fixture
def session(run, other):
    sources = [run, other]
    return Session(sources, [load(source, torch.device("cpu")) for source in sources])


def scores_of(prediction):
    return {each["name"]: each["score"] for each in prediction["classes"]}


def test_an_upload_is_read_and_classified_like_a_file(session, tmp_path):
    for kind, mode in (("PNG", "RGB"), ("JPEG", "L"), ("GIF", "P"), ("TIFF", "L")):
        path = tmp_path / f"image.{kind.lower()}"
        path.write_bytes(picture((33, 21), kind, mode))
        name = session.upload(path.read_bytes())
        for number, network in enumerate(session.models):
            _, images = read_images([path], network.model)
            torch.testing.assert_close(session.uploaded_image(name, network).image, images, rtol=0, atol=0)
            (expected,) = predict(network.model, [path], top=3)
            prediction = predict_image(session, number, parse_request({"image": name}))
            assert prediction["classes"][0]["name"] == expected.values["class"]
            for title, score in expected.values["scores"].items():
                assert scores_of(prediction)[title] == pytest.approx(score, abs=1e-5)
            assert sum(each["probability"] for each in prediction["classes"]) == pytest.approx(1)


@pytest.mark.parametrize("content", [b"", b"text", picture()[:60], b"\x89PNG\r\n\x1a\n" + bytes(80), b"%!PS-Adobe-3.0"])
def test_invalid_images_are_refused_in_one_line(session, content):
    with pytest.raises(MereoError, match="could not be read as an image"):
        session.upload(content)


def test_an_image_of_too_many_pixels_is_refused(session, monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 100)
    with pytest.raises(MereoError, match="could not be read as an image"), warnings.catch_warnings():
        session.upload(picture((40, 30)))


def test_the_oldest_upload_is_dropped(session):
    names = [session.upload(picture((5, 5))) for _ in range(KEPT + 1)]
    with pytest.raises(UsageError, match="upload it again"):
        predict_image(session, 0, parse_request({"image": names[0]}))
    assert predict_image(session, 0, parse_request({"image": names[1]}))["title"] == "image"


def test_networks_read_the_same_test_image_and_its_class(session, run):
    (trained,) = load_trained_models([run], device="cpu")
    batch = trained.split.batch(torch.tensor([4]))
    prediction = predict_image(session, 0, parse_request({"owner": 0, "index": 4}))
    assert prediction["truth"] == trained.class_names[int(batch.labels[0])]
    assert prediction["correct"] == (prediction["predicted"] == int(batch.labels[0]))
    second = predict_image(session, 1, parse_request({"owner": 0, "index": 4}))
    assert second["truth"] == prediction["truth"] and second["correct"] is None
    assert second["tree"] is None and "no couplings" in second["words"]


def test_replaced_couplings_are_those_recorded(session):
    model = session.models[0].model
    images = torch.rand(2, *model.image_shape)
    with torch.no_grad(), mereo.record(model) as own:
        model(images)
    with torch.no_grad(), replace_couplings(model, "uniform"), mereo.record(model) as equal:
        model(images)
    with torch.no_grad(), replace_couplings(model, "shuffled"), mereo.record(model) as mixed:
        model(images)
    for name in own:
        axis = {"receivers": -2, "senders": -1}[model.get_submodule(name).over]
        first, couplings = own.calls(name)[0].couplings, equal.calls(name)[0].couplings
        if name == next(iter(own)):
            torch.testing.assert_close(couplings, first.mean(axis, keepdim=True).expand_as(first))
            shuffled = mixed.calls(name)[0].couplings
            torch.testing.assert_close(shuffled.sort(-1).values, first.sort(-1).values)
            assert not torch.equal(shuffled, first)
        assert bool((couplings == couplings.select(axis, 0).unsqueeze(axis)).all())


def test_silenced_senders_are_those_of_all_types_at_the_nearest_cell():
    # Two types on 2 x 3 cells of 4 pixels after one sender without a place; 8 x 12 pixels.
    grid = Grid(2, 3, 2, first=2.0, step=4.0, prefix=1)
    call = Call(scores=torch.zeros(1, 1, 2, 13), over="senders", senders=grid)
    assert silenced_senders(call, [(0.0, 0.0)], (8, 12)) == [1, 7]
    assert silenced_senders(call, [(0.5, 0.9), (1.0, 1.0)], (8, 12)) == [5, 6, 11, 12]
    assert silenced_senders(Call(scores=call.scores, over="senders"), [(0.5, 0.5)], (8, 12)) == []


def test_silencing_zeroes_the_couplings_of_a_position_only(session):
    model, counts = session.models[0].model, []
    images = torch.rand(1, *model.image_shape)
    with torch.no_grad(), mereo.record(model) as own:
        model(images)
    with (
        torch.no_grad(),
        silence(model, [(0.1, 0.1)], model.image_shape[1:], counts.append),
        mereo.record(model) as trace,
    ):
        model(images)
    first = next(iter(trace))
    call = trace.calls(first)[0]
    gone = silenced_senders(call, [(0.1, 0.1)], model.image_shape[1:])
    kept = [n for n in range(call.couplings.shape[-1]) if n not in gone]
    assert gone and not call.couplings[..., gone].any()
    assert torch.equal(call.couplings[..., kept], own.calls(first)[0].couplings[..., kept])
    assert counts
    whole = predict_image(session, 0, parse_request({"owner": 0, "index": 0}))
    every = [[(x + 0.5) / 8, (y + 0.5) / 8] for x in range(8) for y in range(8)]
    mute = predict_image(session, 0, parse_request({"owner": 0, "index": 0, "silence": every}))
    assert max(scores_of(mute).values()) < 0.01 < max(scores_of(whole).values()) and mute["silenced"] > 1


def test_changes_affect_the_prediction_and_not_the_network(session):
    before = predict_image(session, 0, parse_request({"owner": 0, "index": 1}))
    of_image = ({"rotate": 90}, {"noise": 0.3}, {"attack": 0.1})
    for change in (*of_image, {"couplings": "uniform"}, {"silence": [[0.5, 0.5]]}):
        prediction = predict_image(session, 0, parse_request({"owner": 0, "index": 1, **change}))
        assert scores_of(prediction) != scores_of(before)
        assert (prediction["image"] != before["image"]) == (change in of_image)
    after = predict_image(session, 0, parse_request({"owner": 0, "index": 1}))
    assert {**after, "milliseconds": 0} == {**before, "milliseconds": 0}


def test_an_attack_lowers_the_true_class_and_keeps_its_bound(session):
    clean = predict_image(session, 0, parse_request({"owner": 0, "index": 2}))
    attacked = predict_image(session, 0, parse_request({"owner": 0, "index": 2, "attack": 0.1}))
    assert scores_of(attacked)[clean["truth"]] < scores_of(clean)[clean["truth"]]
    picture_of = session.test_image(session.models[0], session.models[0], 2)
    changed = change_image(session.models[0].model, picture_of.image, picture_of.label, 0, 0, 0.1)
    assert (changed - picture_of.image).abs().max() <= 0.1 + 1e-6


def test_any_class_can_be_explained(session):
    prediction = predict_image(session, 0, parse_request({"owner": 0, "index": 0, "explain": 7}))
    assert prediction["explained"] == 7 and prediction["tree"].startswith("<svg") and "Class 7" in prediction["words"]
    with pytest.raises(UsageError, match="explain is 10"):
        predict_image(session, 0, parse_request({"owner": 0, "index": 0, "explain": 10}))


def test_maps_are_quantised_to_bytes():
    encoded = encode_map("map", torch.tensor([[1.0, 3.0], [2.0, 5.0]]))
    assert list(base64.b64decode(encoded["bytes"])) == [0, 128, 64, 255]
    assert (encoded["low"], encoded["high"], encoded["signed"]) == (1.0, 5.0, False)
    signed = encode_map("map", torch.tensor([[-2.0, 0.0], [1.0, 2.0]]), signed=True)
    assert list(base64.b64decode(signed["bytes"])) == [1, 128, 192, 255]
    assert set(base64.b64decode(encode_map("flat", torch.zeros(2, 2), signed=True)["bytes"])) == {128}


def test_the_occlusion_map_has_the_size_of_the_image(session):
    encoded = occlusion(session, 1, parse_request({"owner": 0, "index": 0, "explain": 2}))
    assert (encoded["height"], encoded["width"]) == (32, 32) and encoded["signed"]


def test_the_occlusion_map_is_that_of_the_changed_network(session):
    served = session.models[0]
    image = session.test_image(served, served, 0).image
    encoded = occlusion(session, 0, parse_request({"owner": 0, "index": 0, "couplings": "uniform"}))
    own, _ = occlusion_maps(served.model, image)
    with replace_couplings(served.model, "uniform"):
        uniform, _ = occlusion_maps(served.model, image)
    assert encoded["high"] == pytest.approx(uniform.max().item(), abs=1e-6) != pytest.approx(own.max().item(), abs=1e-6)


def test_class_names_are_not_markup(session):
    prediction = predict_image(session, 1, parse_request({"owner": 0, "index": 0}))
    assert "<b>" in scores_of(prediction)  # escaped where it is shown, as text of an element
    assert describe_models(session)[1]["classes"][0] == "<b>"


def test_the_curves_errors_and_test_images_of_a_run(session, run):
    history = curves(session, 0)
    assert history["columns"]["epoch"] == [1, 2, 3] and history["results"]["best_epoch"] in (1, 2, 3)
    with pytest.raises(UsageError, match="no curves"):
        curves(session, 1)
    (trained,) = load_trained_models([run], device="cpu")
    wrong = errors(session, 0)
    assert wrong["count"] == wrong["of"] == len(trained.split) == sum(map(sum, wrong["confusion"]))
    right = sum(row[n] for n, row in enumerate(wrong["confusion"]))
    assert wrong["accuracy"] == pytest.approx(right / wrong["count"]) and wrong["wrong"] == wrong["count"] - right
    for each in wrong["errors"][:3]:
        again = predict_image(session, 0, parse_request({"owner": 0, "index": each["index"]}))
        assert again["correct"] is False and again["truth"] == each["class"] != each["predicted"]
    page = list_test_images(session, 0, 30)
    assert page["start"] == 24 and [each["index"] for each in page["images"]] == list(range(24, 48))
    with pytest.raises(UsageError, match="do not name the data"):
        list_test_images(session, 1, 0)


@pytest.mark.parametrize(
    "given",
    [
        [], "text", None, {"image": 3}, {"image": "x" * 100}, {"owner": "a"}, {"owner": True}, {"index": 2**40},
        {"index": -1}, {"rotate": "1"}, {"rotate": 200}, {"rotate": float("nan")}, {"noise": -0.1}, {"noise": 2},
        {"attack": 1}, {"attack": float("inf")}, {"couplings": "none"}, {"couplings": ["own"]}, {"silence": "all"},
        {"silence": [[0.5]]}, {"silence": [[0.5, 2]]}, {"silence": [[0, 0]] * 65}, {"explain": 1.5}, {"owner": 9},
        {"silence": [["0", "1"]]}, {"silence": [[float("nan"), 0]]}, {"explain": -1}, {"image": "../../etc/passwd"},
    ],
)  # fmt: skip
def test_invalid_requests_are_refused_in_one_line(session, given):
    with pytest.raises(UsageError) as refused:
        predict_image(session, 0, parse_request(given))
    assert "\n" not in str(refused.value)


def test_networks_that_are_not_classifiers_are_refused(run):
    model = load(run, torch.device("cpu"))
    model.metadata = {"task": "reconstruction"}
    with pytest.raises(UsageError, match="is not a classifier"):
        Session([run], [model])
