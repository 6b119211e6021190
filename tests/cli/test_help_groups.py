"""The help of training: every option in one group, options of daily use first."""

import re

from mereo.cli.help_groups import TRAIN_GROUPS, grouped
from mereo.training.config import FIELDS


def test_every_option_is_in_one_group_and_ten_are_first() -> None:
    names = [name for group in TRAIN_GROUPS.values() for name in group]
    assert sorted(names) == sorted(FIELDS)
    assert next(iter(TRAIN_GROUPS.values()))[:3] == ("data", "model", "pretrained")
    assert len(TRAIN_GROUPS["most used"]) == 10


def test_boxes_hold_the_options_of_their_group() -> None:
    options = ("│ -h, --help  │", "│ --b-c X     │", "│   more of b │", "│ --a, --no-a │")
    text = "\n".join(("usage", "╭─ options ───╮", *options, "╰─────────────╯", "end", ""))
    found = grouped(text, {"first": ("a",), "then": ("b_c",)})
    boxes = re.split(r"╭─ (\w+) ─+╮\n", found)
    assert boxes[0] == "usage\n" and boxes[1::2] == ["first", "then", "others"]
    assert boxes[2].startswith("│ --a, --no-a │\n╰")
    assert boxes[4].startswith("│ --b-c X     │\n│   more of b │\n╰")
    assert boxes[6].startswith("│ -h, --help  │\n╰") and found.endswith("╯\nend\n")
    assert {len(line) for line in found.splitlines()[1:-1]} == {15}
    assert grouped("no options here", {}) == "no options here"
