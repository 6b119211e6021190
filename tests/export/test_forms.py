"""ONNX and torch programs: equal to the network, also in a process of their own; nothing unequal is left."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import mereo
from mereo.errors import MereoError, UsageError
from mereo.export import FORMS, export_model, writing
from mereo.export.images import find_images, read_images
from mereo.export.record import read_record
from mereo.models import get_model_entry
from mereo.training.run_lock import RunLock

silent = {"say": lambda line: None}


@pytest.mark.parametrize("name", ["mspcaps_tiny", pytest.param("capsnet", marks=pytest.mark.long)])
def test_every_form_is_written_and_equal(make, tmp_path, name):
    model = make(name)
    forms = list(FORMS)
    found = export_model(model, forms, tmp_path, **silent)
    assert [each.form for each in found] == forms
    for each in found:
        assert each.difference <= FORMS[each.form].limit and each.size > 1000
        assert each.batches == (1, 2, 7) and each.images == "random"
        assert all((tmp_path / file).is_file() for file in each.files)
    files = {"README.md", "config.json", "model.onnx", "model.pixels.onnx", "model.pt2", "model.safetensors"}
    assert {p.name for p in tmp_path.iterdir()} == files
    assert {p.name for p in tmp_path.iterdir() if p.stat().st_mode & 0o077 != 0o044} == set()


def test_large_scores_are_compared_by_their_size():
    images = [torch.rand(14, 3)]
    own, scale = (lambda x: 100 * x), torch.tensor([1.0, 1.0, 2.0])
    assert writing.differ(own, own, images, "a form") == 0
    largest = 100 * images[0].max()
    found = writing.differ(lambda x: own(x) + 1e-3, own, images, "a form")
    assert 1e-3 / largest * 0.9 <= found <= 1e-3
    assert writing.differ(lambda x: x * scale, lambda x: x, images, "a form") == pytest.approx(
        float(images[0][:, 2].max())
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["pointer_network", "tnl_tiny"])
def test_networks_of_points_and_of_tokens_are_written_as_programs_and_folders(tmp_path, name):
    arguments = get_model_entry(name).tiny
    model = mereo.create_model(name, **arguments).eval()
    found = export_model(model, ["torch", "hub"], tmp_path, **silent)
    assert [each.form for each in found] == ["torch", "hub"] and all(each.difference <= 1e-5 for each in found)
    inputs = model.example_inputs(2)
    with torch.no_grad():
        torch.testing.assert_close(mereo.from_pretrained(tmp_path)(inputs), model(inputs))
    assert f"reads {model.input_kind}" in (tmp_path / "README.md").read_text()
    for forms, precision in ((["onnx"], "fp32"), (["torch"], "bf16")):
        with pytest.raises(UsageError, match=f"reads {model.input_kind}; give --to torch hub"):
            export_model(model, forms, tmp_path, precision=precision, **silent)
    with pytest.raises(UsageError, match=f"data is 'digits'.*reads {model.input_kind}"):
        find_images(model, "digits", None, None)


@pytest.mark.long
def test_onnx_runs_without_torch_and_has_metadata(make, tmp_path, python):
    model = make("mspcaps_tiny")
    export_model(model, ["onnx"], tmp_path, record={"data": "digits", "seed": 2}, **silent)
    images = torch.rand(5, *model.image_shape)
    np.save(tmp_path / "images.npy", images.numpy())
    code = (
        "import json, sys, numpy, onnxruntime\n"
        "session = onnxruntime.InferenceSession('model.onnx', providers=['CPUExecutionProvider'])\n"
        "numpy.save('scores.npy', session.run(['scores'], {'images': numpy.load('images.npy')})[0])\n"
        "assert 'torch' not in sys.modules\n"
        "print(session.get_modelmeta().custom_metadata_map['mereo'])\n"
    )
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    difference = torch.from_numpy(np.load(tmp_path / "scores.npy")) - model(images)
    assert difference.abs().max() < 1e-4
    notes = json.loads(done.stdout)
    assert notes["class_names"] == list(model.class_names) and notes["pretrained_cfg"]["mean"] == [0.4]
    assert (notes["model"], notes["seed"], notes["precision"]) == ("mspcaps_tiny", 2, "fp32")


@pytest.mark.long
def test_a_program_runs_without_mereo(make, tmp_path, python):
    model = make("capsnet")
    export_model(model, ["torch"], tmp_path, **silent)
    images = torch.rand(5, *model.image_shape)
    torch.save(images, tmp_path / "images.pt")
    code = (
        "import json, sys, torch\n"
        "extra = {'mereo.json': ''}\n"
        "program = torch.export.load('model.pt2', extra_files=extra)\n"
        "torch.save(program.module()(torch.load('images.pt')).detach(), 'scores.pt')\n"
        "assert 'mereo' not in sys.modules and json.loads(extra['mereo.json'])['model'] == 'capsnet'\n"
    )
    subprocess.run([python, "-W", "ignore", "-c", code], check=True, capture_output=True, cwd=tmp_path)
    torch.testing.assert_close(torch.load(tmp_path / "scores.pt"), model(images), rtol=0, atol=1e-5)


def test_real_images_are_shown_where_they_are_at_hand(run, tmp_path):
    model = mereo.load(run)
    images, reason = find_images(model, None, None, 50)
    assert images is not None and reason == "" and len(images.test) == 50
    (found,) = export_model(model, ["hub"], tmp_path / "net", record=read_record(run), images=images, **silent)
    assert found.images == "random, digits test" and found.difference <= 1e-5
    accuracy = json.loads((run / "results.json").read_text())["test_best"]["accuracy"]
    assert f"{100 * accuracy:.2f} %" in (tmp_path / "net" / "README.md").read_text()


def test_data_that_is_not_there(make, run, tmp_path, monkeypatch):
    monkeypatch.setenv("MEREO_DATA", str(tmp_path))
    model = mereo.load(run)
    model.metadata = {"data": "cifar10"}
    images, reason = find_images(model, None, None, None)
    assert images is None and "cifar10 is not available" in reason
    assert find_images(make("capsnet"), None, None, None)[0] is None
    with pytest.raises(UsageError, match="10 classes; the network has 3"):
        read_images(make("capsnet"), "digits", None, None)


@pytest.mark.long
@pytest.mark.parametrize("form", ["onnx", "torch", "hub"])
def test_what_differs_is_not_left_behind(make, tmp_path, monkeypatch, form):
    model, other = make("capsnet"), make("capsnet")
    with torch.no_grad():
        next(other.parameters()).add_(0.1)
    opener = {"onnx": "open_onnx", "torch": "open_program", "hub": "load_folder"}[form]
    monkeypatch.setattr(writing, opener, lambda *_: other)
    with pytest.raises(MereoError, match=f"--to {form} differs"):
        export_model(model, [form], tmp_path, **silent)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from mereo.export.writing import export_model
from mereo.models import create_model

model = create_model("capsnet", img_size=20, conv_channels=8, primary_types=2).eval()
export_model(model, ["hub"], Path(sys.argv[1]), say=lambda line: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.long
def test_what_a_killed_export_left_is_removed_by_the_next(make, tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()
    assert done.returncode == -signal.SIGKILL and left.name.startswith(".unchecked-")
    (tmp_path / ".unchecked-by-hand").mkdir()
    running = tmp_path / ".unchecked-running"
    running.mkdir()
    lock = RunLock(running)
    export_model(make("capsnet"), ["hub"], tmp_path, **silent)
    lock.release()
    assert {path.name for path in tmp_path.glob(".*")} == {".unchecked-by-hand", ".unchecked-running"}


def test_scores_that_are_none_are_refused(make, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "open_program", lambda path: lambda images: torch.full((len(images), 3), torch.nan))
    with pytest.raises(MereoError, match="not finite"):
        export_model(make("capsnet"), ["torch"], tmp_path, **silent)


@pytest.mark.parametrize(("form", "library"), [("onnx", "onnxscript"), ("onnx", "onnxruntime"), ("timm", "timm")])
def test_a_missing_library_is_named(make, tmp_path, monkeypatch, form, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=f"--to {form} needs {library}.*pip install"):
        export_model(make("capsnet"), [form], tmp_path, **silent)


def test_wrong_forms_are_refused(make, tmp_path):
    for forms, precision, message in (
        ([], "fp32", "to is empty"),
        (["onx"], "fp32", "Did you mean 'onnx'"),
        (["hub"], "bf16", "available for torch"),
        (["onnx"], "bf16", "available for torch"),
        (["timm"], "int8", "available for onnx, torch"),
        (["onnx"], "int8", "give data"),
    ):
        with pytest.raises(UsageError, match=message):
            export_model(make("capsnet"), forms, tmp_path, precision=precision, **silent)


def test_reparametrised_layers_are_folded(tmp_path):
    torch.manual_seed(0)
    plain = mereo.create_model("causal_transformer_tiny", **get_model_entry("causal_transformer_tiny").tiny)
    model = mereo.sigma_reparam(plain)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # away from the start: sigma is not exact
            parameter.add_((0.3 if name.endswith("original") else 0.05) * torch.randn_like(parameter))
    model.eval()
    said: list[str] = []
    found = export_model(model, ["torch", "hub"], tmp_path, say=said.append)
    assert [line for line in said if "sigma_reparam" in line] == said[:1]
    tokens, again = model.example_inputs(3), mereo.from_pretrained(tmp_path)
    for state in (torch.export.load(tmp_path / "model.pt2").state_dict, again.state_dict()):
        assert state.keys() == plain.state_dict().keys()
    for score in (found[0].score, again):
        torch.testing.assert_close(score(tokens), model(tokens), rtol=0, atol=1e-6)
    assert not torch.allclose(mereo.fold(model)(tokens), model(tokens), rtol=0, atol=1e-4)  # it iterates further
    assert any("parametrizations" in name for name in model.state_dict()) and "surgery" in model.config


@pytest.mark.parametrize("forms", [["timm"], ["hub", "timm"]])
def test_timm_reads_a_network_whose_name_is_also_its_own(tmp_path, forms):
    model = mereo.create_model("vit_tiny", **get_model_entry("vit_tiny").tiny).eval()
    found = export_model(model, forms, tmp_path, **silent)
    assert all(each.difference <= 1e-5 for each in found)
    assert json.loads((tmp_path / "config.json").read_text())["architecture"] == "mereo_vit_tiny_patch16_224"
    images = torch.rand(2, *model.image_shape)
    torch.testing.assert_close(mereo.from_pretrained(tmp_path)(images), model(images))
