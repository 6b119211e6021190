"""Put finished comparisons into a page of the documentation: python tools/comparison_page.py PAGE FOLDER ...

Each folder is one that `mereo compare` wrote, compare-<data>. Its tables and notes replace what stands below the mark
`<!-- compare <data> -->` of the page; its pictures go to docs/images/<page>/.
"""

import re
import sys
from pathlib import Path

from PIL import Image

import document_marks

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDTH, COLOURS = 1400, 64


def copy_picture(source: Path, target: Path) -> None:
    """The picture in fewer pixels and colours."""
    with Image.open(source) as picture:
        width = min(WIDTH, picture.width)
        small = picture.convert("RGB").resize(
            (width, round(picture.height * width / picture.width)), Image.Resampling.LANCZOS
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    small.quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)


def section(folder: Path, name: str) -> str:
    """The tables, notes and pictures of a comparison; pictures are copied."""
    lines = (folder / "comparison.md").read_text().splitlines()[1:]

    def moved(line: str) -> str:
        match = re.fullmatch(r"!\[(.*)\]\((\w+)\.png\)", line)
        if not match:
            return line
        picture = f"{folder.name.removeprefix('compare-').partition(':')[0]}_{match[2]}.png"
        copy_picture(folder / f"{match[2]}.png", IMAGES / name / picture)
        return f"![{match[1]}](images/{name}/{picture})"

    return "\n".join(map(moved, lines)).strip()


def fill(page: Path, folders: list[Path]) -> None:
    """Replace the sections of these comparisons."""
    of = {folder.name.removeprefix("compare-"): folder for folder in folders}
    document_marks.fill(page, "compare", of, lambda data: section(of[data], page.stem))


if __name__ == "__main__":
    fill(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
