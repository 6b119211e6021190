"""Put finished comparisons into a page of the documentation: python tools/comparison_page.py PAGE FOLDER ...

Each folder is one that `mereo compare` wrote, compare-<data>. Its tables and notes take the place of what is between
`<!-- compare-<data> -->` and `<!-- end -->` in the page; its pictures go to docs/images/<page>/.
"""

import re
import sys
from pathlib import Path

from PIL import Image

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
        found = re.fullmatch(r"!\[(.*)\]\((\w+)\.png\)", line)
        if not found:
            return line
        picture = f"{folder.name.removeprefix('compare-').partition(':')[0]}_{found[2]}.png"
        copy_picture(folder / f"{found[2]}.png", IMAGES / name / picture)
        return f"![{found[1]}](images/{name}/{picture})"

    return "\n".join(map(moved, lines)).strip()


def fill(page: Path, folders: list[Path]) -> None:
    """Replace the sections of these comparisons."""
    text = page.read_text()
    for folder in folders:
        mark = f"<!-- {folder.name} -->"
        if mark not in text:
            raise SystemExit(f"{page} has no line {mark}")
        before, _, rest = text.partition(mark)
        _, end, after = rest.partition("<!-- end -->")
        text = f"{before}{mark}\n\n{section(folder, page.stem)}\n\n{end}{after}"
    page.write_text(text)


if __name__ == "__main__":
    fill(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
