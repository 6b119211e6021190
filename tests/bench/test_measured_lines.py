"""tools/measured_lines.py writes what a run of the suite `backbones` measured into a page."""

from pathlib import Path
from typing import Any

import pytest

import measured_lines as tool
from document_marks import arguments
from mereo.bench.results import Measurement, Run
from mereo.bench.suites.backbones import PRESETS
from mereo.bench.timing import Quartiles

ROOT = Path(__file__).parents[2]


def measurement(contender: str, seconds: float, batch: int = 8, mode: str = "forward", **more: Any) -> Measurement:
    wall = Quartiles(seconds, seconds, seconds, 5)
    return Measurement(
        "", {"model": "net", "batch": batch}, "model", 2, mode, contender, "contender", "timm", wall=wall, **more
    )


def run_of(*measurements: Measurement) -> Run:
    return Run(
        "backbones",
        "",
        {"processor": "A processor", "torch": "2"},
        {"seconds": 2.0, "outside": ["theirs:net"]},
        measurements=[*measurements],
    )


TIMES = run_of(
    measurement("timm", 0.4), measurement("ours", 0.2), measurement("ours fused", 0.1),
    measurement("ours", 0.05, batch=1), measurement("timm", 0.06, batch=1, status="WRONG"),
    measurement("ours", 1.5, mode="training"), measurement("timm", 3.0, mode="training"),
)  # fmt: skip
PEAKS = run_of(
    measurement("timm", 9.0, resident=400 * 2**20), measurement("ours", 9.0, resident=100 * 2**20),
    measurement("ours compiled", 0.3), measurement("timm compiled", 0.33),
)  # fmt: skip


def test_a_line_has_every_time_and_peak_of_trusted_measurements() -> None:
    assert tool.line([TIMES, PEAKS], "net") == (
        "Measured, `net`: 8 images 200 ms, fused 100 ms, compiled 300 ms, timm 400 ms (2.00, fused 4.00, compiled 1.10"
        " times as fast); training step of 8 images 1,500 ms, timm 3,000 ms (2.00 times as fast); peak memory inference"
        " 100 MiB (0.25 of timm's); 1 image 50 ms."
    )
    assert tool.line([TIMES, PEAKS], "another") == ""


def test_code_of_the_authors_stands_in_the_place_of_timm() -> None:
    authors = run_of(measurement("ours", 0.2), measurement("theirs:net", 0.5))
    assert (
        tool.line([authors], "net")
        == "Measured, `net`: 8 images 200 ms, the authors' code 500 ms (2.50 times as fast)."
    )


def test_only_what_was_measured_is_replaced_and_twice_is_once(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "<!-- measured conditions -->\n<!-- end -->\n\n<!-- measured net -->\n\nold\n\n<!-- end -->\n\nText.\n"
    rest = "\n<!-- measured other -->\n\nkept\n\n<!-- end -->\n"
    page.write_text(text + rest)
    assert tool.fill(page, [TIMES]) == ["conditions", "net"]
    filled = page.read_text()
    assert "old" not in filled and filled.endswith(f"\n\nText.\n{rest}") and "A processor with 2 threads" in filled
    assert all(len(line) <= 120 for line in filled.splitlines())
    tool.fill(page, [TIMES])
    assert page.read_text() == filled


def test_memory_is_explained_only_where_it_was_measured() -> None:
    assert "memory" not in tool.conditions([TIMES]) and "memory above weights" in tool.conditions([TIMES, PEAKS])


def test_the_page_has_a_place_for_every_network_that_is_measured() -> None:
    assert sorted(arguments(ROOT / "docs" / "backbones.md", "measured")) == sorted([*PRESETS, "conditions"])


@pytest.mark.parametrize("name", PRESETS)
def test_every_network_has_its_page_in_its_section(name: str) -> None:
    page = (ROOT / "docs" / "backbones.md").read_text()
    section = next(part for part in page.split("\n### ") if f"<!-- measured {name} -->" in part)
    assert "](networks/" in section
