"""Encoded pictures for tests of sources, and one folder of them in the form of other sources."""

import io
import json
from pathlib import Path

import pytest

from pictures import picture

NAMES = ("cat", "dog", "eel")


def encoded(seed: int, size: tuple[int, int] = (9, 12), kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    picture(seed, size).save(stream, kind)
    return stream.getvalue()


def tables_of(folder: Path, target: Path, kind: str, *, rows: int = 5, known: bool = True) -> Path:
    """The folder as train.<kind> and test.<kind>, as Hugging Face `datasets` would write it."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import ipc, parquet

    target.mkdir(exist_ok=True)
    for split in ("train", "test"):
        files = [file for name in NAMES for file in sorted((folder / split / name).iterdir())]
        labels = [NAMES.index(file.parent.name) if known else file.parent.name for file in files]
        images = [{"bytes": file.read_bytes(), "path": None} for file in files]
        table = arrow.table({"image": images, "label": labels})
        if known:
            features = {"label": {"names": list(NAMES), "_type": "ClassLabel"}}
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        if kind == "parquet":
            parquet.write_table(table, target / f"{split}-00000-of-00001.parquet", row_group_size=rows)
            continue
        opener = ipc.new_file if kind == "file.arrow" else ipc.new_stream
        with opener(target / f"{split}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return target


def csv_of(folder: Path, target: Path) -> Path:
    files = [file for split in ("train", "test") for file in sorted((folder / split).glob("*/*"))]
    rows = [f"{file.relative_to(target.parent)},{file.parent.name},{file.parent.parent.name}" for file in files]
    target.write_text("path,label,split\n" + "\n".join(rows) + "\n")
    return target
