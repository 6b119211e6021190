"""Networks in the loops of other libraries: trained, saved, and resumed to the same weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import mereo

pytestmark = pytest.mark.filterwarnings("ignore")  # what these libraries warn of is theirs


class Images(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        drawn = torch.Generator().manual_seed(index)
        return {"images": torch.rand(3, 12, 12, generator=drawn), "labels": index % 4}


def network() -> nn.Module:
    torch.manual_seed(0)
    return mereo.create_model("resnet_cifar", blocks=1, widths=(4, 6, 8), num_classes=4, img_size=12)


def equal(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    class Trainer(transformers.Trainer):  # type: ignore[name-defined,misc]
        def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            scores = model(inputs["images"])
            loss = F.cross_entropy(scores, inputs["labels"])
            return (loss, {"scores": scores}) if return_outputs else loss

    def trained(resume: Path | None = None) -> tuple[nn.Module, Any]:
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=4, save_steps=2, per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True,
            remove_unused_columns=False, label_names=["labels"], report_to=[], disable_tqdm=True,
        )  # fmt: skip
        model = network()
        trainer = Trainer(model, arguments, train_dataset=Images(), eval_dataset=Images())
        trainer.train(resume_from_checkpoint=resume and str(resume))
        return model, trainer

    model, trainer = trained()
    assert trainer.evaluate()["eval_loss"] > 0
    assert equal(model, trained(tmp_path / "checkpoint-2")[0]) and not equal(model, network())
    other = network()
    other.load_state_dict(load_file(tmp_path / "checkpoint-4" / "model.safetensors"))
    assert equal(model, other)
    mereo.save_weights(tmp_path / "ours.safetensors", model)
    assert equal(model, mereo.load(tmp_path / "ours.safetensors"))


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            return F.cross_entropy(self.model(batch["images"]), batch["labels"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-2)

    def trained(epochs: int, resume: Path | None = None) -> tuple[nn.Module, Any]:
        module = Module()
        trainer = lightning.Trainer(
            default_root_dir=tmp_path, max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_checkpointing=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, DataLoader(Images(), 4), ckpt_path=resume)
        return module.model, trainer

    trained(1)[1].save_checkpoint(tmp_path / "one.ckpt")
    assert equal(trained(2)[0], trained(2, tmp_path / "one.ckpt")[0])


def test_accelerate(tmp_path: Path) -> None:
    from accelerate import Accelerator

    def trained(steps: range, load: bool = False, save: bool = False) -> nn.Module:
        accelerator, model = Accelerator(cpu=True), network()
        parts = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2), DataLoader(Images(), 4))
        model, optimizer, batches = parts
        if load:
            accelerator.load_state(str(tmp_path))
        for step, batch in enumerate(batches):
            if step in steps:
                accelerator.backward(F.cross_entropy(model(batch["images"]), batch["labels"]))
                optimizer.step()
                optimizer.zero_grad()
        if save:
            accelerator.save_state(str(tmp_path))
        return model

    trained(range(2), save=True)
    assert equal(trained(range(4)), trained(range(2, 4), load=True))


def test_a_state_dict_is_written_as_it_is(tmp_path: Path) -> None:
    model, other = mereo.create_model("vit_tiny", depth=1, img_size=32), mereo.create_model("resnet20")
    for each in (model, other):
        save_file(each.state_dict(), tmp_path / "weights.safetensors")
        assert all(torch.equal(each.state_dict()[k], v) for k, v in load_file(tmp_path / "weights.safetensors").items())


def test_a_config_takes_attributes_that_are_no_part_of_it() -> None:
    model = network()
    before = dict(model.config)
    model.config.use_cache = False
    assert model.config == before == model.config.to_dict() and '"resnet20"' in model.config.to_json_string()
