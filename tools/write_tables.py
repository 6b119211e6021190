"""Writes the table of mechanisms into docs/architecture.md from their declarations."""

import sys
from pathlib import Path

from mereo.mechanisms import MECHANISMS

PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
START, END = "<!-- mechanisms -->\n", "<!-- end -->"


def table() -> str:
    columns = ("mechanism", "kind", "couplings sum to one over", "a sender says", "steps", "update", "source")
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, m in sorted(MECHANISMS.items()):
        source = f"[{m.paper}]({m.paper.replace('arXiv:', 'https://arxiv.org/abs/')})"
        rows.append(f"| `{name}` | {m.kind} | {m.over} | {m.says} | {m.steps} | {m.update} | {source} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    before, _, rest = PAGE.read_text().partition(START)
    _, _, after = rest.partition(END)
    return before + START + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(table())
