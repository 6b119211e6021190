"""What tries stand on: a small network, images, folders, and random values of every kind."""

import contextlib
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

NAMES = [
    "", " ", ".", "..", "/", "~", "~nosuchuser", "a b", "a\nb", "\t", "é", "🤖", "\u202eabc", "\udcff", "nul\0",
    "x" * 300,
    "x" * 5000, "$x^{$", "$$", "\\", "\x1b[2J", "| cell |", "# title", "<script>", "```", "%s%n", "{0}", "-", "--", "=",
    "None", "nan", "*", "[", "**", "'", '"', "; touch ran", "$(touch ran)", "/dev/null", "/dev/zero", "/proc/self/mem",
]  # fmt: skip
NUMBERS: list[Any] = [
    0, 1, -1, 2, 3, 7, 16, 100, 2**30, 2**31 - 1, 2**31, 2**63, 10**30, 0.5, 1e-5, 5e-324, 1e308, -0.0, 1e-9,
    float("nan"), float("inf"), float("-inf"), True, False,
]  # fmt: skip


@dataclass
class Try:
    """One try: what it is in words, and the work, which raises or returns an exit code with what was printed."""

    what: str
    work: Callable[[], "Done"]


@dataclass
class Done:
    """An exit code and what was printed."""

    code: int
    out: str = ""
    err: str = ""


def call(words: list[str]) -> Done:
    """One command in this process."""
    from mereo.cli.main import main

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return Done(code, *(s.buffer.getvalue().decode(errors="replace") for s in (out, err)))


def command(words: list[str]) -> Try:
    """The try of one command line."""
    return Try(f"mereo {words!r}", lambda: call(words))


def value(random: Random, depth: int = 0) -> Any:
    """A JSON value of any kind."""
    kind = random.choice(["name", "number", "number", "null", "list", "table"] if depth < 3 else ["name", "number"])
    if kind == "name":
        return random.choice(NAMES)
    if kind == "number":
        return random.choice(NUMBERS)
    if kind == "null":
        return None
    if kind == "list":
        return [value(random, depth + 1) for _ in range(random.choice([0, 1, 2, 3, 3, 10]))]
    return {random.choice(NAMES): value(random, depth + 1) for _ in range(random.randint(0, 3))}


def damage(random: Random, content: bytes) -> bytes:
    """Bytes with some of them lost, changed or put in, most often near the start."""
    damaged = bytearray(content)
    for _ in range(random.randint(1, 5)):
        place = random.randrange(min(64, len(damaged)) if random.random() < 0.5 else len(damaged)) if damaged else 0
        change = random.choice(["cut", "flip", "byte", "insert", "repeat", "zeros"])
        if change == "cut":
            del damaged[place:]
        elif change == "flip" and damaged:
            damaged[place] ^= 1 << random.randrange(8)
        elif change == "byte" and damaged:
            damaged[place] = random.randrange(256)
        elif change == "insert":
            damaged[place:place] = random.randbytes(random.randint(1, 20))
        elif change == "repeat":
            damaged += damaged[:place]
        else:
            damaged[place : place + 40] = bytes(40)
    return bytes(damaged)


def image(kind: str = "PNG", size: tuple[int, int] = (23, 31), shade: int = 90, mode: str = "RGB") -> bytes:
    """The bytes of an image."""
    from PIL import Image

    stream = io.BytesIO()
    Image.new(mode, size, shade if mode == "L" else (shade, 20, 200)).save(stream, kind)
    return stream.getvalue()


def network() -> Any:
    """A small network, the same each time."""
    import torch

    import mereo

    torch.manual_seed(0)
    return mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, patch_size=2).eval()


def lay_out() -> None:
    """What every try finds in its working folder."""
    import mereo

    for kind in ("cat", "dog"):
        for split in ("train", "val"):
            folder = Path("photos", split, kind)
            folder.mkdir(parents=True)
            for n in range(3):
                (folder / f"{n}.png").write_bytes(image(shade=40 * n, mode="L", size=(16, 16)))
    Path("photo.png").write_bytes(image())
    Path("file").write_text("some words")
    with zipfile.ZipFile("photos.zip", "w") as archive:
        for path in sorted(Path("photos").rglob("*.png")):
            archive.write(path, path.relative_to("photos"))
    mereo.save_weights("network.safetensors", network(), class_names=tuple("0123456789"), data="digits")
    Path("beside").mkdir()
    Path("beside/precious").write_text("years of work")


def write_weights(path: str, metadata: Any, tensors: dict[str, Any] | None = None) -> None:
    """A safetensors file with any metadata."""
    from safetensors.torch import save

    from mereo.models.weights import load_tensors

    own = load_tensors("network.safetensors")[0] if tensors is None else tensors
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    Path(path).write_bytes(save(own, {"format": "pt", "mereo": text}))
