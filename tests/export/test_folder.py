"""Folders: what is saved comes back, to timm and to the hub's mixin too; what was tampered with is refused."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import mereo
from mereo.errors import UsageError
from mereo.models import CapsNet

FAMILIES = ["mspcaps_tiny", "capsnet", "efficient_capsnet"]
every_family = pytest.mark.parametrize("name", FAMILIES)


@every_family
def test_what_is_saved_comes_back(make, images, tmp_path, name):
    model = make(name)
    mereo.save_pretrained(model, tmp_path / "net", record={"data": "digits", "seed": 4})
    again = mereo.from_pretrained(tmp_path / "net")
    assert torch.equal(again(images(model)), model(images(model)))
    assert (again.class_names, again.config, again.pretrained_cfg) == (
        model.class_names,
        model.config,
        model.pretrained_cfg,
    )
    assert not again.training and again.metadata["seed"] == 4
    mereo.save_pretrained(again, tmp_path / "second" / "net")
    for file in ("config.json", "README.md"):
        assert (tmp_path / "second" / "net" / file).read_text() == (tmp_path / "net" / file).read_text()
    assert sorted(p.name for p in (tmp_path / "net").iterdir()) == ["README.md", "config.json", "model.safetensors"]


@pytest.mark.long
def test_timm_makes_the_same_networks(make, images, tmp_path, python):
    models = {name: make(name) for name in FAMILIES}
    for name, model in models.items():
        mereo.save_pretrained(model, tmp_path / name, card=False)
        torch.save(images(model), tmp_path / name / "images.pt")
    code = (
        "import sys, timm, torch, mereo\n"
        "for name in sys.argv[1:]:\n"
        "    model = timm.create_model(f'local-dir:{name}', pretrained=True).eval()\n"
        "    assert model.class_names[1] == 'class 1' and model.pretrained_cfg['mean'][0] == 0.4\n"
        "    torch.save(model(torch.load(f'{name}/images.pt')).detach(), f'{name}/scores.pt')\n"
    )
    subprocess.run([python, "-c", code, *FAMILIES], check=True, capture_output=True, cwd=tmp_path)
    for name, model in models.items():
        torch.testing.assert_close(
            torch.load(tmp_path / name / "scores.pt"), model(images(model)), rtol=0, atol=1e-5, msg=name
        )


def test_timm_reads_the_folder_itself(make, tmp_path):
    from timm.models._hub import load_model_config_from_path, load_state_dict_from_path

    model = make("capsnet")
    mereo.save_pretrained(model, tmp_path)
    cfg, name, arguments = load_model_config_from_path(tmp_path)
    assert name == "capsnet" and arguments["img_size"] == [20, 22]
    assert cfg["input_size"] == (1, 20, 22) and cfg["mean"] == [0.4]
    assert cfg["label_names"] == list(model.class_names)
    assert load_state_dict_from_path(tmp_path).keys() == model.state_dict().keys()


def test_the_hubs_mixin_makes_the_same_network(make, images, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    model = make("capsnet", img_size=20)
    mereo.save_pretrained(model, tmp_path)

    class HubCapsNet(CapsNet, hub.PyTorchModelHubMixin):
        pass

    again = HubCapsNet.from_pretrained(str(tmp_path), strict=True)
    assert torch.equal(again(images(model)), model(images(model)))


def test_labels_and_preprocessing_may_be_edited(make, tmp_path):
    mereo.save_pretrained(make("capsnet"), tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    content["label_names"], content["pretrained_cfg"]["mean"] = ["cat", "dog", "cow"], [0.1]
    (tmp_path / "config.json").write_text(json.dumps(content))
    model = mereo.from_pretrained(tmp_path)
    assert model.class_names == ("cat", "dog", "cow") and model.pretrained_cfg["mean"] == (0.1,)


def test_a_folder_needs_no_hub_library(make, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    mereo.save_pretrained(make("capsnet"), tmp_path)
    assert mereo.from_pretrained(str(tmp_path)).num_classes == 3


TAMPERED = [
    (lambda c: c.update(architecture="capsnets"), "did you mean"),
    (lambda c: c.update(architecture="capsnet_mnist"), "architecture of .* differ"),
    (lambda c: c["model_args"].update(primary_types=10**6), "model_args of .* differ"),
    (lambda c: c.update(model_args=[1]), "lacks model_args"),
    (lambda c: c.pop("pretrained_cfg"), "lacks pretrained_cfg"),
    (lambda c: c["pretrained_cfg"].update(mean=["0.4"]), "mean and std"),
    (lambda c: c["pretrained_cfg"].update(std=[0]), "mean and std"),
    (lambda c: c["pretrained_cfg"].update(std=[1, 1]), "mean and std"),
    (lambda c: c["pretrained_cfg"].update(input_size=[1, 9, 9]), "input_size"),
    (lambda c: c.update(label_names=["one"]), "list of 3 names"),
    (lambda c: c.update(label_names=[1, 2, 3]), "list of 3 names"),
]


@pytest.mark.parametrize(("change", "message"), TAMPERED, ids=[message for _, message in TAMPERED])
def test_a_changed_configuration_is_refused(make, tmp_path, change, message):
    mereo.save_pretrained(make("capsnet"), tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    change(content)
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=message):
        mereo.from_pretrained(tmp_path)


def test_broken_files_are_refused(make, tmp_path):
    mereo.save_pretrained(make("capsnet"), tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    whole, text = weights.read_bytes(), config.read_text()
    for content in (whole[:-10], b"", b"\x80\x02}q\x00."):
        weights.write_bytes(content)
        with pytest.raises(UsageError, match="not a readable safetensors file"):
            mereo.from_pretrained(tmp_path)
    weights.write_bytes(whole)
    save_file(load_file(weights), tmp_path / "bare.safetensors")
    (tmp_path / "bare.safetensors").replace(weights)
    with pytest.raises(UsageError, match="no description of a model"):
        mereo.from_pretrained(tmp_path)
    weights.write_bytes(whole)
    for content in ("{", "[]", "null"):
        config.write_text(content)
        with pytest.raises(UsageError, match=r"config\.json"):
            mereo.from_pretrained(tmp_path)
    config.unlink()
    with pytest.raises(UsageError, match=r"not a readable config\.json"):
        mereo.from_pretrained(tmp_path)
    config.write_text(text)
    weights.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"pytorch_model\.bin\) are not opened"):
        mereo.from_pretrained(tmp_path)


def test_a_network_without_a_record_of_its_arguments_is_refused(tmp_path):
    with pytest.raises(UsageError, match="create_model"):
        mereo.save_pretrained(CapsNet(), tmp_path)
