"""A file holds what a network is, surgery included, or saving refuses and names what it cannot hold."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import mereo
from mereo.errors import UsageError
from mereo.export.programs import open_program
from mereo.export.writing import export_model
from mereo.models import VisionModel
from mereo.models.registry import families
from mereo.models.weights import load_state
from mereo.surgery import SURGERIES, linearise, set_keep_rate, watchable

Surgery = Callable[[nn.Module], nn.Module]
DONE: dict[str, Surgery] = {
    "moh": lambda m: mereo.moh(m, 0.5),
    "moh by tokens": lambda m: mereo.moh(m, 0.5, layers=(1,), routing="tokens"),
    "evit": lambda m: mereo.evit(m, (0.5, 0.6), layers=(0, 1)),
    "dual": lambda m: mereo.dual_cross_attention(m, 0.5),
    "linearise": lambda m: linearise(m, 2, down_factor=2),
    "sea": lambda m: mereo.sea(m, columns=4, top_k=2),
    "sparsifiner": lambda m: mereo.sparsifiner(m, 0.5),
    "watchable": watchable,
    "two": lambda m: mereo.sparsifiner(mereo.evit(m, 0.5), layers=[0]),
    "one after another": lambda m: mereo.moh(watchable(m), 0.5),
}
every_surgery = pytest.mark.parametrize("name", DONE)


def vit(**changes: Any) -> VisionModel:
    torch.manual_seed(0)
    model = mereo.create_model("vit_tiny_patch16_224", **{**(families()["vit"].tiny or {}), **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def images_of(model: VisionModel) -> Tensor:
    return torch.rand(2, *model.image_shape, generator=torch.Generator().manual_seed(1))


@every_surgery
def test_files_and_folders_hold_a_surgery(name: str, tmp_path: Path) -> None:
    plain = vit()
    model: Any = DONE[name](plain).eval()
    images = images_of(model)
    expected = model(images)
    assert ("surgery" not in plain.config and not torch.equal(expected, plain(images))) or name == "watchable"
    mereo.save_weights(tmp_path / "a.safetensors", model)
    mereo.save_pretrained(model, tmp_path / "folder")
    for loaded in (mereo.load(tmp_path / "a.safetensors"), mereo.from_pretrained(tmp_path / "folder")):
        assert torch.equal(loaded(images), expected) and loaded.config == model.config
    again = mereo.create_model("vit_tiny_patch16_224", weights=tmp_path / "a.safetensors").eval()
    assert torch.equal(again(images), expected)
    with pytest.raises(UsageError, match="went through"):
        load_state(plain, tmp_path / "a.safetensors")


def test_every_surgery_is_tried() -> None:
    tried = {entry["name"] for make in DONE.values() for entry in make(vit()).config["surgery"]}
    assert tried <= SURGERIES.keys() and tried >= {"moh", "evit", "dual_cross_attention", "linearise", "sea"}
    assert tried >= {"sparsifiner", "watchable"}


def test_timm_makes_the_same_of_a_folder(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    model: Any = mereo.moh(mereo.create_model("evit_deit_small", **(families()["evit"].tiny or {})).eval(), 0.5)
    mereo.save_pretrained(model, tmp_path / "f")
    there = timm.create_model(f"local-dir:{tmp_path / 'f'}", pretrained=True).eval()
    assert torch.equal(there(images_of(model)), model(images_of(model)))


def test_a_rate_that_is_set_later_is_saved(tmp_path: Path) -> None:
    for model in (mereo.evit(vit(), 0.9), mereo.create_model("evit_deit_small", **(families()["evit"].tiny or {}))):
        set_keep_rate(model.eval(), 0.3)
        mereo.save_weights(tmp_path / "a.safetensors", model)  # type: ignore[arg-type]
        images = images_of(model)  # type: ignore[arg-type]
        assert torch.equal(mereo.load(tmp_path / "a.safetensors")(images), model(images))


def test_a_compiled_network_is_saved_as_itself(tmp_path: Path) -> None:
    model = vit()
    mereo.save_weights(tmp_path / "a.safetensors", torch.compile(model))  # type: ignore[arg-type]
    mereo.save_pretrained(torch.compile(model), tmp_path / "f")  # type: ignore[arg-type]
    for loaded in (mereo.load(tmp_path / "a.safetensors"), mereo.from_pretrained(tmp_path / "f")):
        assert torch.equal(loaded(images_of(model)), model(images_of(model)))


class Adapter(nn.Module):
    """A low-rank addition to a linear layer, as of LoRA."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def _scaled_head(model: Any) -> None:
    model.head = nn.Sequential(model.head)


def _doubled(*inputs: Any) -> Tensor:
    return 2 * inputs[-1]


CHANGED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "head": (lambda m: setattr(m, "head", nn.Linear(m.num_features, 3)), "head"),
    "wrapped head": (_scaled_head, "head"),
    "activation": (lambda m: setattr(m.blocks[1].mlp, "activation", nn.SiLU()), "blocks.1.mlp.activation"),
    "epsilon": (lambda m: setattr(m.blocks[0].norm1, "eps", 1e-2), "eps of blocks.0.norm1"),
    "adapter": (lambda m: setattr(m.blocks[1].attn, "proj", Adapter(m.blocks[1].attn.proj)), "blocks.1.attn.proj"),
    "pruned": (lambda m: prune.l1_unstructured(m.head, "weight", 0.5), "head.weight"),
    "parametrised": (lambda m: parametrizations.weight_norm(m.head), "head"),
    "one block less": (lambda m: m.blocks.pop(1), "blocks.1"),
    "surgery of a part": (lambda m: m.blocks.__setitem__(0, mereo.moh(m.blocks[0], 0.5)), "blocks.0"),
    "sparse": (lambda m: setattr(m.head, "weight", nn.Parameter(m.head.weight.detach().to_sparse())), "head.weight"),
    "meta": (lambda m: m.blocks[1].to("meta"), "blocks.1"),
    "replaced forward": (lambda m: setattr(m.blocks[0], "forward", lambda x: x), "forward of blocks.0"),
    "hook": (lambda m: m.blocks[0].register_forward_hook(lambda *x: 2 * x[-1]), "blocks.0 has the hook"),
    "hook before": (lambda m: m.head.register_forward_pre_hook(partial(_doubled, 2)), "head has the hook partial"),
    "hook of the network": (lambda m: m.register_forward_hook(_doubled), "the network has the hook _doubled"),
    "compiled head": (lambda m: setattr(m, "head", torch.compile(m.head)), "head"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_other_changes_are_refused_and_named(name: str, tmp_path: Path) -> None:
    change, where = CHANGED[name]
    model = vit()
    change(model)
    for save in (lambda: mereo.save_weights(tmp_path / "a.safetensors", model),
                 lambda: mereo.save_pretrained(model, tmp_path / "f")):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            save()
        assert where in str(caught.value) and not list(tmp_path.rglob("*.safetensors"))


def test_programs_run_hooks_and_folders_are_refused(tmp_path: Path) -> None:
    model = vit()
    model.blocks[0].register_forward_hook(_doubled)
    plain, images = vit(), images_of(model)
    export_model(model, ["torch"], tmp_path, say=lambda line: None)
    scores = open_program(tmp_path / "model.pt2")(images)
    torch.testing.assert_close(scores, model(images), rtol=1e-4, atol=1e-5)
    assert (scores - plain(images)).abs().max() > 1e-2
    for form in ("hub", "timm"):
        with pytest.raises(UsageError, match=r"blocks\.0 has the hook"):
            export_model(model, [form], tmp_path, say=lambda line: None)


def test_copies_without_a_config_and_wrappers_are_refused(tmp_path: Path) -> None:
    for model in (vit().fuse(), nn.Sequential(vit()), nn.Linear(2, 2)):
        with pytest.raises(UsageError, match=type(model).__name__):
            mereo.save_weights(tmp_path / "a.safetensors", model)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "surgery",
    [
        3, [3], [{"name": "moh"}], [{"name": "nothing", "args": {}}], [{"name": "moh", "args": {"active": "x"}}],
        [{"name": "moh", "args": {"model": 1}}], [{"name": "moh", "args": {"layers": [7]}}],
        [{"name": "sea", "args": {"columns": 10**12}}], [{"name": "sparsifiner", "args": {"tokens": -1}}],
        [{"name": "evit", "args": {}}] * 1000, [{"name": "moh", "args": {"routing": "tokens"}}],
    ],
)  # fmt: skip
def test_files_with_another_surgery_are_refused(surgery: Any, tmp_path: Path) -> None:
    from mereo.models.weights import load_tensors, save_tensors

    path = tmp_path / "a.safetensors"
    mereo.save_weights(path, mereo.moh(vit(), 0.5))  # type: ignore[arg-type]
    tensors, metadata = load_tensors(path)
    save_tensors(path, tensors, json.loads(json.dumps({**metadata, "surgery": surgery})))
    with pytest.raises(UsageError, match=r"a\.safetensors"):
        mereo.load(path)
