"""The command line as a person uses it: what it prints, the exit codes, wrong use reported in one line."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from PIL import Image

import mereo
from mereo.api.training import configuration
from mereo.catalogue import get_mechanism
from mereo.cli.lists import LISTS
from mereo.cli.main import COMMANDS, main
from mereo.cli.options import PredictOptions
from mereo.cli.parse import parse
from mereo.cli.train import given
from mereo.models import get_model_entry

SMALL = [
    "--data", "digits", "--limit", "64", "--batch-size", "32", "--epochs", "1", "--device", "cpu", "--no-tensorboard",
    "--model-args", "channels=[4,8,8]",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEREO_DATA", raising=False)


@pytest.fixture
def call(capsys):
    def run(*words):
        code = main(list(words))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def trained(call):
    """A trained network in runs/small, and two photos in photos/."""
    code, _, err = call("train", "--name", "small", *SMALL)
    assert code == 0, err
    os.mkdir("photos")
    for name, shade in (("dark.png", 20), ("bright.jpg", 220)):
        Image.new("RGB", (40, 30), (shade, shade, 90)).save(f"photos/{name}")


def test_help_lists_every_command(call):
    code, out, _ = call("--help")
    assert code == 0
    assert all(f"  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(call, command):
    code, out, _ = call(command, "--help")
    assert code == 0
    assert f"mereo {command}" in out and "{None}" not in out


@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["predict", "--help"], ["recipes"], ["reproduce"], ["datasets"]]
)
def test_help_and_lists_import_no_torch(python, words):
    code = (
        f"import sys; from mereo.cli.main import main; done = main({words!r}); sys.exit(done or 'torch' in sys.modules)"
    )
    subprocess.run([python, "-c", code], check=True, capture_output=True)


def test_options_are_frozen(call, frozen):
    text = ""
    for command in COMMANDS:
        _, out, _ = call(command, "--help")
        options = sorted({w.rstrip(",") for w in out.replace("│", " ").split() if w.startswith("--") and len(w) > 2})
        text += f"mereo {command}\n" + "".join(f"  {option}\n" for option in options)
    frozen("options.txt", text)


def test_python_dash_m_is_the_same_command(python):
    done = subprocess.run([python, "-m", "mereo", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == __import__("mereo").__version__


WRONG = [
    (["trian"], "did you mean 'train'"),
    (["train", "--epoch", "3"], "--epochs"),
    (["train", "--epochs", "three"], "epochs is 'three'; it must be a whole number."),
    (["compare", "--family", "x"], "family is 'x'; it must be one of 'capsule', 'vision'."),
    (["compare", "--epochs", "x"], "epochs is 'x'; it must be a whole number."),
    (["train", "--optimizer", "adamm"], "Did you mean 'adam'"),
    (["train", "--epochs=1.5"], "epochs is '1.5'; it must be a whole number."),
    (["train", "--epochs"], "epochs has no value; give one after --epochs."),
    (["train", "--minutes", "five"], "minutes is 'five'; it must be a number."),
    (["train", "--in-chans", "grey"], "in_chans is 'grey'; it must be a whole number."),
    (["train", "--mean", "a", "b", "--lr", "1"], "mean is 'a b'; it must be numbers."),
    (["train", "--sampler", "weights"], "sampler is 'weights'; it must be one of 'balanced', 'shuffle'."),
    (["train", "--img-size", "small"], "error: img_size is 'small'; it must be"),
    (["train", "--augment", "none", "flip"], "augment is 'none flip'; give 'none' by itself"),
    (["export", "--to", "onyx"], "error: to is 'onyx'; it must be one of"),
    (["evaluate", "--epsilon", "0.1"], "epsilon is 0.1, which only applies to attacks"),
    (["evaluate", "--epsilon", "a"], "epsilon is 'a'; it must be numbers."),
    (["train", "--epochs", "-1"], "epochs is -1"),
    (["train", "--batch-size", "0"], "batch_size is 0"),
    (["train", "--lr", "nan"], "lr is nan"),
    (["train", "--optimizer", "foo"], "adamw"),
    (["train", "--model", "mspcap_tiny"], "mspcaps_tiny"),
    (["train", "--data", "digitz"], "digits"),
    (["train", "--recipe", "mspcaps_papr"], "mspcaps_paper"),
    (["train", "--augment", "rotat=3"], "rotate"),
    (["train", "--device", "cuda:77"], "cpu"),
    (["train", "--img-size", "4"], "patch_size"),
    (["train", "--img-size", "64", "48"], "write --img-size 64x48"),
    (["train", "--img-size", "64x"], "such as 64x48"),
    (["train", "--in-chans", "2"], "in_chans is 2"),
    (["train", "--model-args", "pach_size=2"], "patch_size"),
    (["train", "--model-args", "patch_size"], "name=value"),
    (["train", "--model-args", "patch_size=x"], "patch_size"),
    (["train", "--model", "capsnet", "--img-size", "12"], "at least 17"),
    (["train", "--weights", "nothing.safetensors"], "no such file or folder; there are mspcaps_tiny."),
    (["train", "nothing.yaml"], "nothing.yaml"),
    (["train", "--name", "a/b"], "slashes"),
    (["train", "--name", ".."], "slashes"),
    (["train", "/dev/zero"], "not a regular file"),
    (["train", "--lr", "1e300"], "lr is 1e+300"),
    (["train", "--decay-rate", "1.5"], "at most 1"),
    (["train", "--mean", "inf", "--std", "1"], "mean is (inf,)"),
    (["train", "--in-chans", "1000000000"], "in_chans is 1000000000"),
    (["train", "--dry-run", "--model-args", "img_size=1.5"], "img_size is 1.5"),
    (["train", "--model", "capsnet", "--img-size", "20000"], "GiB of weights"),
    (["train", "--img-size", "9" * 30], "img_size is too large"),
    (["train", "--augment", "crop=99999999"], "below 1,048,576"),
    (["train", "--model-args", "num_classes=3"], "follows from the data"),
    (["train", "--model-args", "depth=99999"], "at most 1,000 layers"),
    (["train", "--model-args", "depth=!!bool x"], "a value for depth"),
    (["train", "--model", "capsnet", "--model-args", "routing_steps=99999"], "at most 1000"),
    (["train", "--model", "efficient_capsnet", "--model-args", "stem=[[5,a,1]]"], "lists of whole numbers"),
    (["train", "--model", "efficient_capsnet", "--model-args", "primary_kernel=1.5"], "it must be a whole number"),
    (["predict"], "no image"),
    (["predict", "nothing.png"], "nothing.png"),
    (["explain", "nothing.png"], "nothing.png"),
    (["reproduce", "coupling_axes"], "coupling_axis"),
    (["models", "nonsense"], "unknown model"),
    (["demo", "--epochs", "0"], "epochs is 0"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=lambda v: " ".join(v) if isinstance(v, list) else None)
def test_wrong_use_is_one_line_and_exit_code_2(call, words, message):
    code, out, err = call(*words)
    assert code == 2
    assert message in err
    assert err.startswith("mereo: error: ") and err.count("\n") == 1
    assert "Traceback" not in err + out


def test_no_command_shows_the_usage(call):
    code, out, _ = call()
    assert code == 2
    assert "usage: mereo" in out


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["predict", ""], "images"), (["predict", "--tta", ""], "images"), (["predict", "photo.png", ""], "images"),
        (["predict", "photo.png", "--weights", ""], "weights"), (["predict", "photo.png", "--weights="], "weights"),
        (["predict", "photo.png", "--out", ""], "out"), (["evaluate", "--data", ""], "data"),
        (["train", "--output", ""], "output"), (["train", "--name", ""], "name"), (["train", "--epochs", ""], "epochs"),
        (["train", "--model-args", ""], "model_args"), (["export", "--out="], "out"), (["bench", "--json", ""], "json"),
    ],
)  # fmt: skip
def test_an_empty_argument_is_refused(call, words, name):
    code, out, err = call(*words)
    assert code == 2 and out == "" and err.startswith(f"mereo: error: {name} is ''; ") and "\\x00" not in err


def test_an_empty_prompt_is_continued():
    assert parse(PredictOptions, ["--prompt", ""], "predict").prompt == ""
    assert parse(PredictOptions, ["--prompt="], "predict").prompt == ""


def test_broken_weights_are_refused(call, trained):
    path = "runs/small/weights/best.safetensors"
    content = Path(path).read_bytes()
    for name, broken in (("cut", content[:-100]), ("empty", b""), ("pickle", b"\x80\x02}q\x00.")):
        Path(f"{name}.safetensors").write_bytes(broken)
        code, _, err = call("predict", "photos", "--weights", f"{name}.safetensors")
        assert code == 2 and "safetensors" in err and err.count("\n") == 1


def test_a_missing_dataset_is_reported_with_the_searched_folder(call, monkeypatch):
    import torchvision.datasets.utils as downloads

    def no_network(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(downloads, "_urlretrieve", no_network)
    code, _, err = call("train", "--data", "mnist", "--data-root", "elsewhere")
    assert code in (1, 2)
    assert "elsewhere/MNIST/raw" in err and "train-images-idx3-ubyte" in err and err.count("\n") == 1


def test_training_reports_results_and_folder(call, trained, capsys):
    code, out, _ = call("train", *SMALL)
    assert code == 0
    assert "epoch 1/1" in out and "test accuracy" in out and "runs/mspcaps_tiny-digits" in out
    code, out, _ = call("train", *SMALL)
    assert "runs/mspcaps_tiny-digits-2" in out


def test_a_configuration_repeats_and_can_be_changed(call, trained):
    code, out, err = call("train", "runs/small/config.yaml", "--seed", "5", "--name", "other")
    assert code == 0, err
    assert "runs/other" in out
    import yaml

    first, second = (yaml.safe_load(Path(f"runs/{n}/config.yaml").read_text()) for n in ("small", "other"))
    assert {k for k in first if first[k] != second[k]} == {"seed", "name"}


@pytest.mark.long
def test_resume_by_name_and_by_configuration(call, trained):
    for words in (["--name", "small"], ["runs/small/config.yaml"], ["runs/small"]):
        code, out, err = call("train", *words, "--resume")
        assert code == 0, err
        assert "runs/small" in out
    assert os.listdir("runs") == ["small"]
    code, _, err = call("train", "--name", "small", "--resume", "--lr", "0.5")
    assert code == 2 and "lr was" in err


def test_resume_needs_a_run_and_names_those_there_are(call, trained):
    for words in (["--name", "smal"], ["--data", "photos"]):
        code, _, err = call("train", *words, "--resume", *SMALL)
        assert code == 2 and "mereo train runs/small --resume" in err and "leave out --resume" in err
    assert os.listdir("runs") == ["small"]
    code, _, err = call("train", "--resume", "--output", "elsewhere", *SMALL)
    assert code == 2 and "elsewhere has no runs" in err


def test_images_that_do_not_fit_in_memory_are_refused(call, monkeypatch):
    monkeypatch.setattr("mereo.training.plan.free_memory", lambda device: 16 * 2**30)
    code, out, err = call("train", "--img-size", "20000")
    assert code == 2 and out == "" and err.count("\n") == 1
    assert "img_size is 20000x20000" in err and "16.00 GiB" in err and "--img-size 10000 would fit" in err


def test_resuming_a_finished_run_is_reported(call, trained):
    code, out, _ = call("train", "--name", "small", "--resume")
    assert code == 0 and out.startswith("runs/small is already finished") and "runs/small/results.json" in out
    code, out, err = call("train", "--name", "small", "--resume", "--epochs", "7")
    assert code == 2 and "already finished" not in out and "epochs was" in err


@pytest.mark.long
def test_images_need_not_be_square(call, trained):
    code, _, err = call("train", *SMALL, "--img-size", "24x16", "--name", "oblong")
    assert code == 0, err
    code, _, err = call("train", "runs/oblong/config.yaml", "--name", "again")
    assert code == 0, err
    assert mereo.load("runs/again").image_shape == (1, 24, 16)
    for words in (["predict", "photos", "--weights"], ["explain", "photos", "--weights"], ["evaluate", "--limit=30"]):
        code, _, err = call(*words, "runs/oblong")
        assert code == 0, err


def test_recipes_can_be_overridden():
    config = configuration(*given(["--recipe", "mspcaps_paper", "--data", "mnist", "--epochs", "7"]))
    assert (config.epochs, config.lr, config.augment, config.recipe) == (7, 5e-4, ("rotate=15",), "mspcaps_paper")
    config = configuration(*given(["--recipe", "mspcaps_paper", "--data", "svhn", "--model-args", "patch_size=2"]))
    assert config.model_args == {"coupling_drop": 0.0, "patch_size": 2}
    config = configuration(*given(["--recipe", "mspcaps_paper", "--model", "mspcaps_large"]))
    assert (config.model, config.data) == ("mspcaps_large", "cifar10")


def test_dry_run_trains_nothing(call):
    code, out, _ = call("train", "--dry-run", *SMALL)
    assert code == 0
    for word in ("parameters", "FLOPs", "memory", "an epoch", "the run"):
        assert word in out
    assert not os.path.exists("runs")


def test_predict_prints_a_table_or_json(call, trained):
    code, out, err = call("predict", "photos", "--weights", "runs/small")
    assert code == 0, err
    assert "photos/bright.jpg" in out and "photos/dark.png" in out
    code, out, err = call("predict", "photos/*.png", "--json", "--top", "2")
    assert code == 0, err
    assert "using runs/small" in err
    (row,) = json.loads(out)["predictions"]
    assert row["path"] == "photos/dark.png"
    assert len(row["scores"]) == 2 and row["class"] == next(iter(row["scores"]))
    assert all(0 <= v <= 1 for v in row["scores"].values())


def test_predict_names_files_that_are_no_images(call, trained):
    with open("photos/notes.png", "w") as file:
        file.write("not an image")
    code, out, err = call("predict", "photos", "--weights", "runs/small")
    assert "mereo: warning:" in err and "photos/notes.png (not an image)" in err
    assert code == 0 and "bright.jpg" in out and "notes.png" not in out
    code, _, err = call("predict", "photos", "--weights", "runs/small", "--strict")
    assert code == 1 and "notes.png" in err
    code, _, err = call("predict", "photos/notes.png", "--weights", "runs/small")
    assert code == 1 and "cannot be read as an image" in err


def test_explain_draws_a_picture(call, trained):
    code, out, err = call("explain", "photos", "--weights", "runs/small", "--out", "pictures/seen.png")
    assert code == 0, err
    assert "pictures/seen.png" in out
    with Image.open("pictures/seen.png") as picture:
        assert picture.width > 400 and len(picture.convert("L").getcolors(256 * 256)) > 20


@pytest.mark.parametrize("command", sorted(LISTS))
def test_lists_are_searchable_and_have_sources(call, command):
    code, out, _ = call(command, "--json")
    rows = json.loads(out)
    assert code == 0
    assert all(row["name"] and row["what"] and row.get("source", command == "tasks") for row in rows)
    name = rows[0]["name"]
    assert [row["name"] for row in json.loads(call(command, name[:-1] + "*", "--json")[1])][0] == name
    assert name in call(command, name)[1]


def test_lists_take_aliases_and_mark_reconstructions(call):
    shown = call("models", "vb_small")[1]
    assert "variational_capsnet_small" in shown and "routing_steps" in shown
    assert "variational_capsnet_tiny" in call("models", "vb_*")[1]
    for command, name, entry in (
        ("models", "aa_capsnet_28", get_model_entry("aa_capsnet_28")),
        ("mechanisms", "capsule_gate", get_mechanism("capsule_gate")),
    ):
        assert entry.reconstruction and entry.reconstruction in call(command, name)[1]


def test_demo_ends_with_a_table_and_a_picture(call):
    code, out, err = call("demo", "--epochs", "1", "--device", "cpu")
    assert code == 0, err
    assert "test accuracy" in out and "explanation" in out
    path = out.split("\nexplanation")[1].split()[0]
    with Image.open(path) as picture:
        assert picture.width > 600


def test_runs_of_different_data_are_not_chosen_from_silently(call, trained):
    make = [*SMALL[2:], "--model-args", "img_size=16", "patch_size=2"]
    for name in ("crow", "owl"):
        for split in ("train", "test"):
            os.makedirs(f"birds/{split}/{name}")
            for number in range(8):
                Image.new("RGB", (16, 16), (20 * number, 90, 9)).save(f"birds/{split}/{name}/{number}.png")
    assert call("predict", "photos")[0] == 0
    assert call("train", "--data", "birds", *make)[0] == 0
    code, _, err = call("predict", "photos")
    assert code == 2 and "--weights runs/small (trained on digits)" in err and "trained on birds" in err
    assert call("predict", "photos", "--weights", "runs/small")[0] == 0
