"""Files from anywhere: weights, images, archives, configurations, states and results."""

import io
import json
import os
import zipfile
from pathlib import Path
from random import Random
from typing import Any

from hostile.ground import NAMES, NUMBERS, Try, command, damage, image, value, write_weights

KINDS = ["cat", "dog", "../out", "/abs", "a/b", "é", "$x$", "-", "CON", "a\\b", "\x1b["]
USES = [
    ["predict", "photo.png", "--weights", "odd.safetensors"],
    ["predict", "photos", "--json", "--weights", "odd.safetensors"],
    ["explain", "photo.png", "--only", "picture", "--weights", "odd.safetensors"],
    ["evaluate", "odd.safetensors", "--limit", "10"],
    ["export", "odd.safetensors", "--limit", "8"],
    ["train", "--limit", "32", "--dry-run", "--weights", "odd.safetensors"],
]


def _told(random: Random, words: list[str], about: str) -> Try:
    attempt = command(words)
    return Try(f"{about}; {attempt.what}", attempt.work)


def weights(random: Random) -> Try:
    """A file of weights with damaged bytes, or with metadata or tensors of other kinds."""
    from mereo.models.weights import load_tensors

    tensors, metadata = load_tensors("network.safetensors")
    way = random.choice(["bytes", "metadata", "metadata", "argument", "argument", "preprocessing", "tensor"])
    about = way
    if way == "bytes":
        Path("odd.safetensors").write_bytes(damage(random, Path("network.safetensors").read_bytes()))
        return _told(random, random.choice(USES), about)
    if way == "tensor":
        name = random.choice(sorted(tensors))
        change = random.choice([lambda t: t[..., :-1].contiguous(), lambda t: t * float("nan"),
        lambda t: t.double() * 1e300,
                                lambda t: t.half(), lambda t: t * 1e30, lambda t: -t, lambda t: t * 0])  # fmt: skip
        if tensors[name].is_floating_point():
            tensors[name] = change(tensors[name])
        about = f"tensor {name}"
    else:
        part = {"argument": "args", "preprocessing": "pretrained_cfg"}.get(way)
        table: dict[str, Any] = metadata if part is None else metadata[part]
        for _ in range(random.randint(1, 2)):
            key = random.choice([*table, *table, "results", "command", "license", random.choice(NAMES)])
            table[key] = value(random)
            about += f" {key!r}={str(table[key])[:80]!r}"
    write_weights("odd.safetensors", metadata, tensors)
    return _told(random, random.choice(USES), about)


def images(random: Random) -> Try:
    """Image files of any form, damaged, among good ones."""
    from mereo.data.decode import FORMATS

    Path("odd").mkdir()
    Path("odd/good.png").write_bytes(image())
    for n in range(random.randint(1, 4)):
        kind, mode = random.choice(list(FORMATS)), random.choice(["L", "RGB"])
        size = random.choice([(1, 1), (23, 31), (1, 3000), (3000, 1), (500, 500)])
        content = image(kind, size, mode=mode) if kind != "GIF" or mode == "L" else image(kind, size)
        Path(f"odd/{n}.{random.choice(['png', 'jpg', 'tif', 'gif'])}").write_bytes(damage(random, content))
    words = random.choice([["predict", "odd"], ["predict", "odd", "--strict"], ["explain", "odd", "--only", "picture"]])
    return command([*words, "--weights", "network.safetensors", "--device", "cpu"])


def archives(random: Random) -> Try:
    """Archives and folders of images with hostile names, depths, links and contents."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for split in ("train", "val"):
            for kind in random.sample(
                ["cat", "dog", "../out", "/abs", "a/b", "é", "$x$", "-", "CON", "a\\b", "\x1b["], 3
            ):
                for n in range(3):
                    content = image(mode="L", size=(16, 16), shade=n)
                    content = random.choice([content, content, content, damage(random, content), b"", bytes(10**6)])
                    archive.writestr(f"{split}/{kind}/{'d/' * random.choice([0, 0, 0, 1, 300])}{n}.png", content)
    content = stream.getvalue()
    Path("odd.zip").write_bytes(damage(random, content) if random.random() < 0.5 else content)
    folder = Path("photos/train", random.choice(["cat", "dog"]))
    match random.choice(["loop", "up", "pipe", "device", "dangling", "none", "empty class"]):
        case "loop":
            (folder / "loop").symlink_to("..")
        case "up":
            (folder / "up").symlink_to("/")
        case "pipe":
            os.mkfifo(folder / "pipe.png")
        case "device":
            (folder / "device.png").symlink_to("/dev/zero")
        case "dangling":
            (folder / "gone.png").symlink_to("nowhere")
        case "empty class":
            Path("photos/train/empty").mkdir()
    data = random.choice(["odd.zip", "odd.zip", "photos"])
    words = [["train", "--dry-run", "--img-size", "16"], ["evaluate", "network.safetensors", "--limit", "8"]]
    return command([*random.choice(words), "--data", data, "--device", "cpu"])


def configurations(random: Random) -> Try:
    """config.yaml of fields with values of other kinds, tags, aliases, or damaged."""
    import yaml

    from mereo.training.config import FIELDS, TrainConfig

    small = {"limit": 32, "epochs": 1, "device": "cpu", "model_args": {"channels": [4, 8, 8], "patch_size": 2}}
    content = {**TrainConfig().to_dict(), **small}
    for _ in range(random.randint(1, 3)):
        table = random.choice([content, content, content["model_args"]])
        table = table if isinstance(table, dict) else content
        table[random.choice([*FIELDS, "depth", "img_size", "model_args", random.choice(NAMES)])] = value(random)
    text = yaml.safe_dump(content, allow_unicode=True)
    tags = [
        "!!binary NjQ=",
        "!!timestamp 2001-01-01",
        "2001-01-01",
        "!!set {a}",
        "!!python/name:os.system",
        "1:30",
        "&a [*a]",
    ]
    if random.random() < 0.4:
        text += f"{random.choice([*FIELDS])}: {random.choice(tags)}\n"
    raw = text.encode(errors="surrogatepass")
    Path("odd.yaml").write_bytes(damage(random, raw) if random.random() < 0.3 else raw)
    return _told(
        random, ["train", "odd.yaml", "--dry-run", "--device", "cpu", "--epochs", "1", "--limit", "32"], text[-300:]
    )


def results(random: Random) -> Try:
    """results.json of a run, or the results in a weight file, of other kinds."""
    import mereo
    from hostile.ground import network

    scores = {"count": 10, "accuracy": 0.5, "accuracy_low": 0.1, "accuracy_high": 0.9}
    good: dict[str, Any] = {
        "parameters": 1, "chosen_on": "validation", "best_epoch": 1, "train_images": 3, "seconds": 1.0, "device": "cpu",
        "torch": "2", "images_per_second": 1.0, "test_best": scores, "test_last": scores, "data": "digits",
        "test": scores,
        "which": "best", "epochs": 1,
    }  # fmt: skip
    for _ in range(random.randint(0, 2)):
        table = random.choice([good, scores])
        key = random.choice(sorted(table))
        table[key] = random.choice([value(random), random.choice(NUMBERS), random.choice(NAMES)])
        if random.random() < 0.2:
            del table[key]
    text = json.dumps(good)
    text = random.choice([text, text, text, "", "{}", "[" * 100_000, text[: len(text) // 2], '"' + "x" * 10**6 + '"'])
    if random.random() < 0.5:
        folder = Path("runs/compare-digits/mspcaps_tiny-seed0")
        words = random.choice([
            ["compare", "mspcaps_tiny", "--device", "cpu", "--epochs", "1", "--limit", "40"],
            ["export", str(folder), "--limit", "8"], ["evaluate", str(folder), "--limit", "8"],
        ])  # fmt: skip
        (folder / "weights").mkdir(parents=True)
        mereo.save_weights(folder / "weights/best.safetensors", network(), data="digits")
        if words[0] != "compare":
            (folder / "config.yaml").write_text("epochs: 1\ndevice: cpu\n")
        (folder / "results.json").write_text(text)
    else:
        extra = {random.choice(["results", "data", "command", "seed", "epoch"]): value(random)}
        mereo.save_weights("odd.safetensors", network(), **{"data": "digits", "results": good, **extra})
        words = ["export", "odd.safetensors", "--limit", "8"]
    return _told(random, words, text[:200])


def states(random: Random) -> Try:
    """A run that goes on from a damaged state, configuration or history."""
    from hostile.ground import call

    begin = ["train", "--name", "r", "--limit", "32", "--batch-size", "16", "--img-size", "16", "--device", "cpu",
             "--no-tensorboard", "--model-args", "channels=[4,8,8]", "patch_size=2"]  # fmt: skip
    name = random.choice(["state.safetensors", "state.safetensors", "config.yaml", "results.csv", "results.json"])
    seed = random.getrandbits(32)

    def work() -> Any:
        done = call([*begin, "--epochs", "1"])
        if done.code:
            return done
        path = Path("runs/r", name)
        path.write_bytes(damage(Random(seed), path.read_bytes()))
        return call([*begin, "--epochs", "1", "--resume"])

    return Try(f"resume with a damaged {name}, seed {seed}", work)
