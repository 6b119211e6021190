"""Command lines: words drawn from the options that each command declares, with values wrong, absurd or nearly right.

The work itself is kept tiny; amounts of work are drawn small or wrong, never absurd.
"""

import dataclasses
import re
from random import Random
from typing import Any

from hostile.ground import NAMES, Try, command

SMALL = ["--model-args", "channels=[4,8,8]", "patch_size=2"]
BEGIN: dict[str, tuple[str, list[str]]] = {
    "train": ("TrainOptions", ["--limit", "32", "--epochs", "1", "--img-size", "16", "--device", "cpu", *SMALL]),
    "predict": ("PredictOptions", ["photo.png", "--weights", "network.safetensors"]),
    "explain": ("ExplainOptions", ["photo.png", "--weights", "network.safetensors"]),
    "evaluate": ("EvaluateOptions", ["network.safetensors", "--limit", "10"]),
    "export": ("ExportOptions", ["network.safetensors", "--limit", "10"]),
    # These take minutes however little is asked of them, so they are stopped by a device that is not there.
    "demo": ("DemoOptions", ["--device", "cuda:9"]),
    "reproduce": ("ReproduceOptions", ["coupling_axis", "--device", "cuda:9"]),
    "compare": ("CompareOptions", ["mspcaps_tiny", "--device", "cuda:9"]),
    "bench": ("BenchOptions", ["routing", "--device", "cuda:9"]),
    "doctor": ("DoctorOptions", []),
    "models": ("ListOptions", []),
    "mechanisms": ("MechanismsOptions", []),
    "datasets": ("ListOptions", []),
    "tasks": ("ListOptions", []),
    "recipes": ("ListOptions", []),
}
STOPPED = {"demo", "reproduce", "compare", "bench"}
WORK = {"epochs", "limit", "steps", "queries", "restarts", "seeds", "threads", "seconds", "keep", "images"}
"""Amounts of work: an absurd one is a long wait, which is what was asked for."""
SLOW = {"compile"}
WHOLE = ["0", "-1", "1", "2", "3", "1_0", "1.5", "0x10", "nan"]
HUGE = ["2147483647", "4294967296", "99999999999999999999", "9" * 5000, "-2147483648"]
REAL = ["0", "-1", "0.5", "1", "2.5", "1e-9", "nan", "inf", "-inf", "one", "1e308", "5e-324"]
MEANT: dict[str, list[str]] = {
    "model": ["capsnet", "mspcaps_tiny", "efficient_capsnet", "capsnet_multimnist", "mspcap_tiny"],
    "data": ["digits", "mnist", "multimnist", "svhn", "photos", "photos.zip", "file"],
    "recipe": ["mspcaps_paper", "capsnet_paper", "mspcaps_papr"],
    "device": ["cpu", "cpu:0", "cpu:7", "cuda:-1", "cuda:99999999999", "meta", "xla", "mps"],
    "augment": ["none", "auto", "flip", "flip=2", "rotate=inf", "crop=99999999", "shift=2.5", "contrast=nan:1",
    "rotate="],
    "weights": ["network.safetensors", "photo.png", "photos", "mspcaps_tiny.mnist"],
    "config": ["network.safetensors", "file", "photo.png"],
    "images": ["photo.png", "file", "photos", "*", "network.safetensors"],
    "sizes": ["batch=0", "batch=99999999999", "nope=1", "batch=", "=1", "batch=1,2"],
    "models": ["mspcaps_tiny", "mspcaps_tiny:depth=0", "capsnet:routing_steps=-1", "capsnet:", ":", "mspc"],
    "to": ["hub", "timm", "tim"], "precision": ["fp32", "bf16", "int8", "fp16", "fp33"],
    "study": ["coupling_axis", "coupling_axes"], "variants": ["receivers", "recievers"],
    "suite": ["routing", "models", "nope", "os:system"], "img_size": ["16", "8x16", "2147483647", "16x2147483647", "x"],
    "model_args": [
        "depth=0", "depth=99999999999", "depth=0x" + "f" * 5000, "depth=true", "depth=!!binary Mg==", "depth", "=1",
        "channels=[4,8]", "channels=[4,8,0]", "channels=[4,8,.nan]", "channels={a: 1}", "scales=[]", "scales=[2,1]",
        "channels=[1000000,1000000,1000000]", "coupling_drop=.inf", "img_size=99999999", "img_size=!!binary NjQ=",
        "num_classes=2147483647", "in_chans=2147483647", "pretrained=true", "mid_dim=2001-99-99", "mid_dim=&a [*a]",
        "mid_dim=" + "[" * 2000, "out_dim=1000000000000", "pose_dims=[8,8,7]", "patch_size=99", "learned_prior=true",
    ],
}  # fmt: skip
"""Values for some options that get further than most."""


def values_for(field: Any) -> list[str]:
    """What an option of its kind may be given: sensible, nearly sensible, and beyond all measure."""
    kind, work = str(field.type), field.name in WORK
    if field.name in MEANT:
        return MEANT[field.name] * 3 + NAMES
    if "Literal" in kind:
        return re.findall(r"'(\w+)'", kind) * 3 + NAMES[:4]
    if "int" in kind:
        return WHOLE + ([] if work else HUGE)
    if "float" in kind:
        return REAL[:10] if work else REAL
    return NAMES


def option(random: Random, declared: Any) -> list[str]:
    """One option of a command, or one that looks like it, with values of whatever kind."""
    field = random.choice([f for f in dataclasses.fields(declared) if f.name not in SLOW])
    kind, name = str(field.type), "--" + field.name.replace("_", "-")
    form = random.choice(["plain"] * 16 + ["equals", "no", "cut", "doubled", "bare", "odd"])
    if "bool" in kind and form == "plain":
        form = random.choice(["bare", "no"])
    if form in ("bare", "no", "cut"):
        return [{"bare": name, "no": f"--no-{name[2:]}", "cut": name[:-1]}[form]]
    count = random.randint(1, 3) if "tuple" in kind or "dict" in kind else 1
    pool = [*NAMES, *WHOLE, *REAL] if form == "odd" and field.name not in WORK else values_for(field)
    values = [random.choice(pool) for _ in range(count)]
    if form == "equals":
        return [f"{name}={values[0]}"]
    place = [] if "Positional" in kind else [name]
    return [*place, *values] * (2 if form == "doubled" else 1)


def draw(random: Random) -> Try:
    """A command line; what comes last counts, so what takes minutes ends with the words that stop it."""
    from mereo.cli import comparison_options, options

    name = random.choice([*BEGIN, "train", "train", "predict", "evaluate"])
    declared, begin = BEGIN[name]
    kind = (vars(options) | vars(comparison_options))[declared]
    words = [word for _ in range(random.randint(1, 2)) for word in option(random, kind)]
    first = name not in STOPPED and random.random() < 0.5
    return command([name, *(begin + words if first else words + begin)])


TRAINED: dict[str, list[str]] = {
    "--task": ["classification", "clasification", "", "detection", "os.system", "\0", "x" * 5000],
    "--freeze": ["[", "(", "*" * 500, "stem", "nope", "**", "", ".", "*.weight", "\\", "[!a]*", "*bias", "\0"],
    "--sampler": ["shuffle", "balanced", "balance", ""],
    "--mixup": REAL, "--cutmix": REAL, "--label-smoothing": REAL, "--layer-decay": REAL, "--ema-decay": REAL,
    "--lr": REAL, "--weight-decay": REAL, "--clip-norm": REAL, "--warmup-epochs": REAL, "--decay-rate": REAL,
    "--min-lr": REAL, "--warmup-steps": [*WHOLE, *HUGE], "--decay-steps": [*WHOLE, *HUGE], "--accumulate": WHOLE,
    "--loss": ["auto", "margin", "spread", "cross_entropy", "", "cross-entropy"],
    "--validation-fraction": REAL, "--reconstruction-weight": REAL, "--schedule": ["cosine", "exponential", "constant"],
    "--optimizer": ["sgd", "adam", "adamw"], "--weight-decay-norm": [""], "--no-weight-decay-norm": [""],
    "--batch-size": ["1", "7", "1000"], "--precision": ["bf16", "fp16"], "--limit": ["1", "2", "3", "11"],
    "--data": ["digits", "photos", "photos.zip"], "--model": ["capsnet", "mspcaps_tiny"],
}  # fmt: skip


def trainings(random: Random) -> Try:
    """Short trainings with options of the task, the loss, the optimiser and the sampler, odd and at once."""
    words = ["train", "--limit", "16", "--epochs", "1", "--batch-size", "8", "--img-size", "16", "--no-tensorboard"]
    model = SMALL
    for name in random.sample(sorted(TRAINED), random.randint(1, 4)):
        value = random.choice(TRAINED[name])
        words += [name] if name.endswith("-norm") and "clip" not in name else [name, value]
        if value == "capsnet":
            model = ["--img-size", "28", "--model-args", "channels=8", "types=2"]
        if value == "1000":
            words += ["--accumulate", "1"]
    return command([*words, "--device", "cpu", *model])
