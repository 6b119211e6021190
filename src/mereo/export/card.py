"""The model card of a network: what it is, its measurements, how to use it."""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from mereo.data import load_size
from mereo.data.sets import find_dataset, is_dataset
from mereo.escape import fenced, for_markdown, for_terminal
from mereo.inference.flops import forward_flops
from mereo.inference.predict import task_of
from mereo.inference.temperature import describe_calibration
from mereo.models import VisionModel, get_model_entry
from mereo.runtime.text import duration, percent

NOT_MEASURED = "These weights came without the results of a run; no measurements are available."


def chosen(results: Mapping[str, Any]) -> str:
    """The epoch of the weights, and how it was chosen."""
    if results["which"] == "last" or results["chosen_on"] == "last epoch":
        return f"the last of {results['epochs']} epochs"
    on = "held-out validation images" if results["chosen_on"] == "validation" else "the TEST images, as in the papers"
    return f"epoch {results['best_epoch']} of {results['epochs']}, chosen on {on}"


def front_matter(model: VisionModel, record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The part of a card that the hub reads."""
    task = task_of(model)
    metric, classifies = task.chooses[0], task.scores_classes
    kind = "image-classification" if classifies else task.name
    content: dict[str, Any] = {
        "library_name": "mereo",
        **({"license": for_terminal(model.pretrained_cfg["license"])} if model.pretrained_cfg.get("license") else {}),
        **({"pipeline_tag": kind} if classifies else {}),
        "tags": [
            kind,
            *(["capsule-network"] if model.has_capsules else []),
            "mereo",
            *(["timm"] if model.registered_with_timm else []),
        ],
    }
    if "results" in record and "data" in record:
        data = for_terminal(str(record["data"]).rstrip("/").rpartition("/")[2])
        value = record["results"]["test"][metric]
        measured = round(100 * value, 2) if task.is_share else value
        content["model-index"] = [
            {
                "name": for_terminal(name),
                "results": [
                    {
                        "task": {"type": kind},
                        "dataset": {"name": data, "type": data},
                        "metrics": [
                            {"type": metric, "value": measured, "name": f"test {metric}{' in %' * task.is_share}"}
                        ],
                    }
                ],
            }
        ]
    return content


def _what(model: VisionModel) -> str:
    """The published network that this is, or is a variant of, and the differences."""
    entry, arguments = get_model_entry(model.config["model"]), model.config["args"]
    preset = entry.defaults
    other = ", ".join(for_markdown(f"{name} {value}") for name, value in arguments.items() if value != preset[name])
    known = f"`{entry.name}` of mereo, {entry.source}"
    is_ours = f" The network is a reconstruction: {entry.reconstruction}." if entry.reconstruction else ""
    if other:
        return f"A variant of {known} ({entry.summary.rstrip('.')}): {other}.{is_ours}"
    return f"{entry.summary} {known}.{is_ours}"


def _licence(name: str | None) -> str:
    return f"The weights are under {for_markdown(name)}." if name else "These weights have no stated licence."


def _measured(model: VisionModel, record: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    results: Mapping[str, Any] = record.get("results", {})
    if results:
        test, task = results["test"], task_of(model)
        if task.scores_classes:
            low, high = percent(test["accuracy_low"]), percent(test["accuracy_high"])
            rows.append(("test accuracy", f"{percent(test['accuracy'])} (95 % interval {low} to {high})"))
        else:
            rows.append((f"test {task.chooses[0]}", task.show(test[task.chooses[0]])))
        rows.append((f"test {task.unit}", f"{test['count']:,}"))
        if "mean_hits" in test:
            rows.append(("objects hit", f"{percent(test['mean_hits'])} of all"))
        rows.append(("weights", chosen(results)))
    rows.append(("parameters", f"{sum(p.numel() for p in model.parameters()):,}"))
    one = "image" if model.input_kind == "images" else "input"
    rows.append((f"FLOPs of one {one}", f"{forward_flops(model):,} (a multiply-add is two)"))
    if "data" in record:
        name = str(record["data"])
        info = find_dataset(name) if is_dataset(name) else None
        rows.append(("data", for_markdown(record["data"]) + (f": {info.summary} ({info.source})" if info else "")))
    if "seed" in record:
        rows.append(("seed", str(record["seed"])))
    if results:
        trained = f"{results['train_images']:,} {task.unit}, {duration(results['seconds'])}"
        made = f"{for_markdown(results['device'])}, torch {for_markdown(results['torch'])}"
        rows.append(("training", f"{trained} on {made}"))
    return rows


_SCORES = {
    "lengths": "The scores are the lengths of the class capsules, in (0, 1).",
    "activations": "The scores are the activations of the class capsules, in [0, 1].",
    "logits": "The scores are logits; their softmax gives probabilities.",
}


def _scores(model: VisionModel) -> str:
    """What the network returns, in a sentence."""
    task = task_of(model)
    return _SCORES[model.score_kind] if task.scores_classes else for_markdown(task.outputs_in_words())


def _table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _quoted(text: str) -> str:
    """Text as a Python literal."""
    return json.dumps(text)


_COLOURS = {1: ("L", "grey (`L`)"), 3: ("RGB", "RGB")}


def preprocessing(model: VisionModel) -> str:
    """The preprocessing of an image file, as in `mereo predict`, in words and as code; of other inputs, their shape."""
    if model.input_kind != "images":
        shape = " x ".join(map(str, model.input_shape))
        return f"The network reads {model.input_kind}; one input is {shape}. {_scores(model)}"
    channels, height, width = model.image_shape
    cfg = model.pretrained_cfg
    mean, std = list(cfg["mean"]), list(cfg["std"])
    normalised = f"divided by 255, less the mean {mean}, divided by {std}, by channel"
    if channels not in _COLOURS:
        views = " (two views side by side in a file, the left one first)" if channels == 2 else ""
        shape = f"{channels} x {height} x {width} (channels, height, width)"
        return f"Images of {shape}{views}; {normalised}. {_scores(model)}"
    stored_height, stored_width = load_size((height, width), cfg["crop_pct"])
    mode, colours = _COLOURS[channels]
    top, left = (stored_height - height) // 2, (stored_width - width) // 2
    cropped = cfg["crop_pct"] != 1
    steps = [
        "turned by its EXIF tag",
        f"transparent pixels on black, converted to {colours}",
        f"cut to the largest box in its centre with the proportions {stored_height} : {stored_width} (height : width)",
        f"that box resized to {stored_height} x {stored_width} with Pillow's bilinear filter, which antialiases",
        *([f"the {height} x {width} pixels in the centre"] if cropped else []),
        normalised,
    ]
    crop = f"[{top} : {top + height}, {left} : {left + width}]" if cropped else ""
    code = f"""import numpy as np
from PIL import Image, ImageOps

image = ImageOps.exif_transpose(Image.open(path))
if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
    image = image.convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
image = image.convert("RGB").convert({_quoted(mode)})
height = min(image.height, max(round(image.width * {stored_height} / {stored_width}), 1))
width = min(image.width, max(round(image.height * {stored_width} / {stored_height}), 1))
top, left = (image.height - height) // 2, (image.width - width) // 2
image = image.crop((left, top, left + width, top + height))
image = image.resize(({stored_width}, {stored_height}), Image.Resampling.BILINEAR)
pixels = np.asarray(image, dtype=np.float32).reshape({stored_height}, {stored_width}, {channels}){crop} / 255
images = ((pixels - {mean}) / {std}).transpose(2, 0, 1)[None].astype(np.float32)"""
    listed = "\n".join(f"{place}. {step};" for place, step in enumerate(steps, start=1))
    return (
        f"Of an image file, in this order:\n\n{listed}\n\nwhich gives (channels, height, width) = {channels} x {height}"
        f" x {width}. Files of more than 8 bits are scaled to 8. The same in Python:\n\n{fenced(code, 'python')}\n\n"
        "An ONNX file written with `mereo export --to onnx --preprocess` includes all but the first two steps."
        f" {_scores(model)}"
    )


def model_card(model: VisionModel, record: Mapping[str, Any], name: str) -> str:
    """README.md of a folder called `name`."""
    calibrated = describe_calibration(model) if task_of(model).scores_classes else None
    cfg, source = model.pretrained_cfg, get_model_entry(model.config["model"]).citation
    matter = yaml.safe_dump(front_matter(model, record, name), sort_keys=False, allow_unicode=True)
    labels = (
        ", ".join(map(for_markdown, model.class_names))
        if model.class_names
        else f"{model.num_classes} {'classes' if task_of(model).scores_classes else 'outputs'} without names"
    )
    call = f"outputs = model({model.input_kind})"
    if task_of(model).scores_classes:
        call = "scores = model(images)          # (batch, classes)"
    if model.has_capsules:
        call += "\ncapsules = model.capsules(images)"
    parts = [
        f"---\n{matter}---\n",
        f"# {for_markdown(name)}\n",
        f"{_what(model)}\n",
        "## Measured\n",
        *([] if "results" in record else [f"{NOT_MEASURED}\n"]),
        _table(_measured(model, record)) + "\n",
    ]
    if "command" in record:
        parts += ["The command that made it:\n", fenced(record["command"], "sh") + "\n"]
    with_timm = [
        "With timm, after `import mereo`:\n",
        fenced(f"timm.create_model({_quoted('local-dir:' + name)}, pretrained=True)", "python") + "\n",
    ]
    parts += [
        "## Use\n",
        fenced(
            f"import mereo\n\nmodel = mereo.from_pretrained({_quoted(name)})  # this folder, or owner/name on the hub\n"
            f"{call}",
            "python",
        )
        + "\n",
        *(with_timm if model.registered_with_timm else []),
        *(["## Labels\n", f"{labels}\n"] if model.num_classes else []),
        "## Preprocessing\n",
        f"{preprocessing(model)}\n",
        *([] if calibrated is None else ["## Probabilities\n", f"{calibrated}\n"]),
        "## Licence\n",
        f"{_licence(cfg.get('license'))} The data has its own licence.\n",
        "## Citation\n",
        f"```bibtex\n{source.citation}\n```\n",
    ]
    return "\n".join(parts)
