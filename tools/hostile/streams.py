"""Data that is read one by one: tar files, Parquet and Arrow, tables of paths, names of the hub, patterns of files."""

import io
import os
import tarfile
from pathlib import Path
from random import Random
from typing import Any

from hostile.ground import NAMES, Try, command, damage, image

LABELS = [
    b"0", b"1", b"1", b"cat", b"", b"-1", b"9" * 30, b"\xff", b"[" * 10_000, b'{"label": 1}', b"x" * 10**6, b"1.5",
    b"nan", b"\0", "é".encode(), b'{"cls": {"label": 0}}', b"true", b"0_1",
]  # fmt: skip
PATTERNS = [
    "{0..999999999}{0..999999999}.tar", "{0..9999}{0..9999}{0..9999}.tar", "{a,b}" * 60 + ".tar", "{" * 3000 + ".tar",
    "{0..9" + "9" * 5000 + "}.tar", "{}.tar", "{5..1}.tar", "{a..b}.tar", "{0..3}.{tar,zip}", "odd/*.tar", "**/*.tar",
    "/**/*.tar", "odd/[!]]*.tar", "[.tar", "{train,val}-{0..1}.tar", "{,}" * 25 + "x.tar", "odd/{0..999999}.tar",
    "/dev/*.tar", "~nosuchuser/*.tar", "\0*.tar", "*" * 500 + ".tar", "?" * 3000 + ".tar", "{0..1}" * 3000 + ".tar",
]  # fmt: skip
HUB = [
    "hf:", "hf:.", "hf:/", "hf:photos", "hf:./photos", "hf:~", "hf:a/b/c", "hf:a/b:c:d", "hf:\0", "hf:../here",
    "hf:csv", "hf:imagefolder", "hf:no/such:thing", "hf:" + "x" * 5000, "hf:photos.zip", "hf:http://a/b",
]  # fmt: skip


def _use(random: Random, data: str, about: str) -> Try:
    words = random.choice([
        ["train", "--dry-run", "--img-size", "16"], ["evaluate", "network.safetensors", "--limit", "8"],
        ["train", "--epochs", "1", "--limit", "16", "--batch-size", "8", "--img-size", "16", "--no-tensorboard",
         "--model-args", "channels=[4,8,8]", "patch_size=2"],
    ])  # fmt: skip
    attempt = command([*words, "--data", data, "--device", "cpu"])
    return Try(f"{about}; {attempt.what}", attempt.work)


def _content(random: Random, n: int) -> bytes:
    good = image(mode="L", size=(16, 16), shade=n)
    return random.choice([good] * 12 + [damage(random, good), b"", bytes(10**6)])


def _shard(random: Random, odd: bool) -> bytes:
    """A tar file of a dozen samples; an odd one has members of other kinds and headers with other numbers."""
    stream = io.BytesIO()
    form = random.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for n in range(12):
            stem = (
                random.choice([f"{n:04d}"] * 150 + ["a/b/0", "../x", "/abs", "é" * 40, ".hidden", "0000"]) if odd else n
            )
            content = _content(random, n) if odd else image(mode="L", size=(16, 16), shade=n)
            label = random.choice(LABELS) if odd and random.random() < 0.02 else str(n % 2).encode()
            for suffix, data in ((".png", content), (random.choice([".cls", ".json"]), label)):
                member = tarfile.TarInfo(f"{stem}{suffix}")
                member.size = len(data)
                if odd and random.random() < 0.01:
                    member.type = random.choice([tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE,
                                                 tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE, b"Z"])  # fmt: skip
                    member.linkname = random.choice(["/etc/passwd", "0000.png", f"{stem}{suffix}"])
                archive.addfile(member, io.BytesIO(data))
    content = bytearray(stream.getvalue())
    if odd and random.random() < 0.5:  # a header with another size and a checksum that fits
        blocks = [n for n in range(0, len(content), 512) if content[n + 257 : n + 262] == b"ustar"]
        start = random.choice(blocks)
        size = random.choice([b"\xff" * 12, b"\x80" + b"\xff" * 11, b"77777777777\0", b"\xff" * 10 + b"\xfe\x00",
                              b"00000000000\0", b"-0000001000\0", b"           \0"])  # fmt: skip
        content[start + 124 : start + 136] = size
        if random.random() < 0.4:
            content[start + 156 : start + 157] = random.choice([b"L", b"K", b"x", b"g", b"S", b"5"])
        content[start + 148 : start + 156] = b" " * 8
        content[start + 148 : start + 156] = b"%06o\0 " % sum(content[start : start + 512])
    return damage(random, bytes(content)) if odd and random.random() < 0.3 else bytes(content)


def tars(random: Random) -> Try:
    """Folders of tar files with hostile members, headers, labels, indices and files beside them."""
    Path("odd").mkdir()
    for n in range(random.choice([1, 2, 3])):
        split = random.choice(["train", "train", "val", "test"])
        Path(f"odd/{split}-{n}.tar").write_bytes(_shard(random, odd=random.random() < 0.7))
    about = random.choice(["nothing", "nothing", "pipe", "device", "folder", "names", "loop"])
    if about == "pipe":
        os.mkfifo("odd/pipe.tar")
    elif about == "device":
        Path("odd/device.tar").symlink_to("/dev/zero")
    elif about == "folder":
        Path("odd/folder.tar").mkdir()
    elif about == "loop":
        Path("odd/loop.tar").symlink_to("loop.tar")
    elif about == "names":
        names = [random.choice(NAMES) for _ in range(random.choice([0, 1, 2, 2, 3]))]
        Path("odd/classes.txt").write_bytes("\n".join(names).encode(errors="surrogateescape"))
    return _use(random, random.choice(["odd", "odd", "odd/*.tar", "odd/{train,val}-{0..2}.tar"]), f"tar, {about}")


def _table(random: Random) -> Any:
    import pyarrow as pa

    count = random.choice([0, 1, 2, 12, 12, 12, 12])
    cells: list[Any] = [_content(random, n) for n in range(count)]
    kind = random.choice(["bytes", "struct", "struct", "path", "numbers", "nulls", "list", "dictionary", "text"])
    if kind == "struct":
        cells = [{"bytes": cell, "path": None} for cell in cells]
    elif kind == "path":
        places = ["/dev/zero", "pipe.png", "../photo.png", "\0", "", "/", "x" * 5000, "gone.png"]
        cells = [{"bytes": None, "path": random.choice(places)} for _ in cells]
    elif kind in ("numbers", "list", "text"):
        cells = [{"numbers": 1.5, "list": [1, 2], "text": "x"}[kind] for _ in cells]
    elif kind == "nulls":
        cells = [random.choice([None, cell]) for cell in cells]
    array = pa.array(cells, **({"type": pa.binary()} if kind == "bytes" else {}))
    array = array.dictionary_encode() if kind == "dictionary" else array
    labels: Any = random.choice([
        *[[n % 2 for n in range(count)]] * 4, [random.choice(["cat", "dog"]) for _ in range(count)],
        [random.choice([0, 1, None]) for _ in range(count)], [n / 2 for n in range(count)], [[n] for n in range(count)],
        [random.choice([-1, 2**62, 0]) for _ in range(count)], [b"x"] * count, [random.choice(NAMES[:-8]).encode(
            errors="replace").decode() for _ in range(count)], [True] * count, [-1] * count,
    ])  # fmt: skip
    names = random.choice(
        [["image", "label"]] * 8 + [["image", "image"], ["img", "fine_label"], ["a", "b"], ["", "label"]]
    )
    table = pa.table([array, pa.array(labels)], names=names)
    features = random.choice([b"{", b'{"info": {"features": {"label": {"names": ["a", "b"]}}}}', b"[" * 10**4,
                              b'{"info": {"features": {"label": {"names": [null, 1]}}}}', b'{"info": []}'])  # fmt: skip
    return table.replace_schema_metadata({"huggingface": features}) if random.random() < 0.4 else table


def tables(random: Random) -> Try:
    """Parquet and Arrow files with columns of other kinds, or damaged."""
    import pyarrow as pa
    from pyarrow import ipc, parquet

    Path("odd").mkdir()
    os.mkfifo("odd/pipe.png")
    table, stream, suffix = _table(random), io.BytesIO(), random.choice(["parquet", "parquet", "arrow"])
    try:
        if suffix == "parquet":
            parquet.write_table(table, stream, compression=random.choice(["snappy", "zstd", "none", "gzip"]),
                                row_group_size=random.choice([3, 100]))  # fmt: skip
        else:
            with random.choice([ipc.new_file, ipc.new_stream])(stream, table.schema) as writer:
                writer.write_table(table, max_chunksize=random.choice([None, 3]))
    except (pa.ArrowException, NotImplementedError):
        stream = io.BytesIO(b"nothing")
    content = stream.getvalue()
    harm = random.random() < 0.4
    Path(f"odd/train.{suffix}").write_bytes(damage(random, content) if harm else content)
    if random.random() < 0.2:
        os.mkfifo(f"odd/test.{suffix}")
    return _use(random, random.choice(["odd", f"odd/train.{suffix}"]), f"{suffix} {table.schema!s}"[:200])


def lists(random: Random) -> Try:
    """Tables of paths, .csv, with odd lines."""
    places = ["photo.png", "photos/train/cat/0.png", "photos/train/dog/1.png", "/dev/zero", "pipe.png", "", "gone.png",
              "../x", "\0", "photos", "/", "x" * 5000, '"quoted', "a,b", *NAMES]  # fmt: skip
    os.mkfifo("pipe.png")
    lines = [
        random.choice(["path,label,split"] * 6 + ["path,label", "label,path", "a,b", "", "path;label", "path,path"])
    ]
    for n in range(random.choice([0, 1, 8, 20])):
        place = random.choice(places) if random.random() < 0.2 else places[1 + n % 2]
        label = random.choice(["", *NAMES]) if random.random() < 0.1 else "cat" if n % 2 else "dog"
        lines.append(f"{place},{label},{random.choice(['train', 'train', 'val', 'test', random.choice(NAMES)])}")
    raw = random.choice(["\n", "\r\n", "\n"]).join(lines).encode(errors="surrogateescape")
    Path("odd.csv").write_bytes(damage(random, raw) if random.random() < 0.3 else raw)
    return _use(random, "odd.csv", f"table {lines[:3]!r}"[:300])


def patterns(random: Random) -> Try:
    """Patterns of files and names of the hub; most name nothing or far too much."""
    Path("odd").mkdir()
    for split in ("train", "val"):
        for n in range(2):
            Path(f"odd/{split}-{n}.tar").write_bytes(_shard(random, odd=False))
    data = random.choice([*PATTERNS, *HUB])
    if random.random() < 0.3:
        place = random.randrange(len(data) + 1)
        data = data[:place] + random.choice(["{", "}", "..", "*", ",", "[", "?", "/", ":", "{0..99}"]) + data[place:]
    return _use(random, data, "pattern")
