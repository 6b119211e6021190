"""The results of a run as plain values: written as JSON, read back, compared."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mereo.bench.counting import Rates, bound
from mereo.bench.suite import Work
from mereo.bench.timing import Quartiles
from mereo.errors import UsageError

SCHEMA = 1


@dataclass
class Measurement:
    """One contender of one case in one mode.

    Attributes:
        case, sizes, axis, threads, mode, contender, role: the subject of the measurement.
        reference: the contender it was compared with.
        status: "ok"; "WRONG"; "unchecked" (compared with nothing); "left out" and "failed", with the reason in `note`.
        output_error, gradient_error: largest relative errors; None if not measured.
        first: wall seconds of the first call, compilation included.
        wall, cpu: seconds of one call.
        flops, bytes: of the task.
        own_flops, own_bytes: of this contender's own formulation, if it was given.
        bound, bound_by: least seconds of the task on this machine, and whether arithmetic or traffic sets them.
        own_bound: least seconds of the formulation.
        resident, allocator: peak bytes above inputs and contender.
        process: peak bytes of the whole process, libraries, weights and inputs included.
        memory_note: why there is no peak.
    """

    case: str
    sizes: dict[str, Any]
    axis: str
    threads: int
    mode: str
    contender: str
    role: str
    reference: str
    status: str = "ok"
    note: str = ""
    output_error: float | None = None
    gradient_error: float | None = None
    first: float | None = None
    wall: Quartiles | None = None
    cpu: Quartiles | None = None
    flops: float | None = None
    bytes: float | None = None
    own_flops: float | None = None
    own_bytes: float | None = None
    bound: float | None = None
    bound_by: str = ""
    own_bound: float | None = None
    resident: int | None = None
    allocator: int | None = None
    process: int | None = None
    memory_note: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the same measurement in another run."""
        return self.case, self.mode, self.contender

    @property
    def trusted(self) -> bool:
        """Whether its time may be compared with the reference's."""
        return self.status == "ok" and self.wall is not None


@dataclass
class Run:
    """All results of one `mereo bench`.

    Attributes:
        skipped: cases that could not be measured, with the reason; the others are described by their types.
    """

    suite: str
    created: str
    machine: dict[str, Any]
    options: dict[str, Any]
    tolerance: float = 0.0
    probes: dict[str, dict[str, float]] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    finished: bool = False

    def to_json(self) -> str:
        """Everything, with the version of the format."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"

    def find(self, case: str, mode: str, contender: str) -> Measurement | None:
        """One measurement."""
        return next((m for m in self.measurements if m.key == (case, mode, contender)), None)

    def set_bounds(self) -> None:
        """Compute all bounds from the best rates of the machine so far."""
        for m in self.measurements:
            rates = self.probes.get(str(m.threads))
            if rates is None:
                continue
            if m.flops is not None and m.bytes is not None:
                least = bound(Work(m.flops, m.bytes), Rates(**rates))
                m.bound, m.bound_by = least.seconds, least.by
            if m.own_flops is not None and m.own_bytes is not None:
                m.own_bound = bound(Work(m.own_flops, m.own_bytes), Rates(**rates)).seconds

    def groups(self) -> list[list[Measurement]]:
        """Measurements of the same case and mode together, in the order in which they were made."""
        groups: dict[tuple[str, str], list[Measurement]] = {}
        for m in self.measurements:
            groups.setdefault((m.case, m.mode), []).append(m)
        return list(groups.values())


def read_run(path: Path) -> Run:
    """A run from its file; UsageError for any other file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"against is {str(path)!r}, which cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"against is {str(path)!r}, which is not JSON: {error}.") from error
    if not isinstance(content, dict) or "schema" not in content:
        raise UsageError(f"against is {str(path)!r}, which is not a file that `mereo bench --json` wrote.")
    if content.pop("schema") != SCHEMA:
        raise UsageError(f"against is {str(path)!r}, of another version than {SCHEMA}; measure it again.")
    try:
        rows = content.pop("measurements")
        for row in rows:
            row |= {name: Quartiles(**row[name]) for name in ("wall", "cpu") if row.get(name)}
        return Run(**content, measurements=[Measurement(**row) for row in rows])
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"against is {str(path)!r}, whose content is invalid: {error}.") from error
