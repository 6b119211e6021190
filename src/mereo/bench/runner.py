"""Runs a suite: for every case it checks that contenders agree, then measures time, then memory."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from mereo.bench.cases import Request, contenders_of, make_cases
from mereo.bench.correctness import EXACT, Outcome, Step, compare, outcome
from mereo.bench.machine import clock_of, machine_facts, probe
from mereo.bench.memory import Peak, is_out_of_memory, measure_peak
from mereo.bench.results import Measurement, Run
from mereo.bench.suite import Case, Contender, Mode, Suite, UnavailableError, Work
from mereo.bench.tables import growth_tables
from mereo.bench.timing import Clock, interleave, quartiles, threads
from mereo.errors import UsageError
from mereo.runtime.memory import free_memory
from mereo.runtime.text import gibibytes

LEAST_ROUNDS, LEAST_ROUNDS_QUICK = 5, 2
ROOM = 0.6
"""Share of the free memory that a contender may need in this process."""
OUTSIDE_ERRORS = Exception
"""A contender may raise anything; its row shows the error, and the others continue."""

Progress = Callable[[str, int, int], None]
"""Called with (line, finished cases, all cases) after each measurement."""


class Bench:
    """One run of a suite.

    Args:
        suite: what to measure.
        request: how.
        progress: called after each measurement.
        save: called after every case with the results so far.
        clock: measures time; by default the clock of the device.
    """

    def __init__(
        self,
        suite: Suite,
        request: Request,
        *,
        progress: Progress = lambda line, done, total: None,
        save: Callable[[Run], None] = lambda run: None,
        clock: Clock | None = None,
    ) -> None:
        request.check()
        self.suite, self.request, self.progress, self.save = suite, request, progress, save
        self.cases, skipped = self._measurable(make_cases(suite, request))
        self.clock = clock or clock_of(request.device)
        # Check the names of contenders before minutes of measuring.
        contenders_of(suite, self.cases[0].setting, request)
        self.run = Run(
            suite.name,
            time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            machine_facts(request.device),
            {**asdict(request), "limit": self.limit, "growth": list(suite.growth), "theory": dict(suite.theory)},
            suite.tolerance,
            skipped=skipped,
        )
        self._peaks: dict[tuple[Any, ...], Peak] = {}
        self._too_large: set[tuple[str, str, str]] = set()

    def _measurable(self, cases: list[Case]) -> tuple[list[Case], list[str]]:
        """The cases that can be measured, and the reasons for the others; UsageError if none can be."""
        reasons = [self.suite.skip(case.setting) for case in cases]
        kept = [case for case, reason in zip(cases, reasons, strict=True) if reason is None]
        skipped = list(dict.fromkeys(reason for reason in reasons if reason is not None))
        if not kept:
            raise UsageError(f"{self.suite.name} has nothing to measure: {'; '.join(skipped)}.")
        return kept, skipped

    def measure(self) -> Run:
        """All cases. An interrupt leaves the results so far in `run`."""
        began = time.perf_counter()
        for reason in self.run.skipped:
            self.progress(f"{self.suite.name}: skipped, {reason}", 0, len(self.cases))
        for done, case in enumerate(self.cases):
            with threads(case.threads):
                for mode in case.modes:
                    if self.suite.timed:
                        self._probe(case.threads)
                    self._mode(case, mode)
                    self.progress(self._line(case, mode), done, len(self.cases))
            self._measure_memory(case)
            self.run.set_bounds()
            self.save(self.run)
            took = time.perf_counter() - began
            self.progress(f"{self.suite.name} {case.name}: done after {took:.0f} s", done + 1, len(self.cases))
        digests = [*growth_tables(self.run), *self.suite.digest(self.run)]
        tables = [*digests, *self.suite.tables(self.cases[0].setting, self.request.quick)]
        self.run.tables = [asdict(table) for table in tables]
        self.run.finished = True
        self.save(self.run)
        return self.run

    def _probe(self, count: int) -> None:
        """Measure the machine again and keep its best rates: other processes only slow a probe down."""
        before = self.run.probes.get(str(count), {"matmul": 0.0, "copy": 0.0})
        seconds, side = (0.02, 512) if self.request.quick else (0.15, 1024)
        now = asdict(probe(count, self.request.device, seconds=seconds, side=side))
        self.run.probes[str(count)] = {name: max(rate, before[name]) for name, rate in now.items()}

    def _row(self, case: Case, mode: Mode, contender: Contender, reference: str, work: Work | None) -> Measurement:
        sizes, name, role = dict(case.setting.sizes), contender.name, contender.role
        row = Measurement(case.name, sizes, case.axis, case.threads, mode, name, role, reference)
        if work is not None and contender.role != "part":
            row.flops, row.bytes = work.flops, work.bytes
            if contender.work is not None:
                own = contender.work(mode)
                row.own_flops, row.own_bytes = own.flops, own.bytes
        return row

    def _allowed(self) -> float:
        limit = self.limit
        return min(ROOM * free_memory(self.request.device), float("inf") if limit is None else limit)

    @property
    def limit(self) -> int | None:
        """Bytes that a contender may take while memory is measured."""
        return self.suite.limit if self.request.limit is None else self.request.limit

    def _mode(self, case: Case, mode: Mode) -> None:
        """Check and time all contenders of a case in one mode."""
        contenders = contenders_of(self.suite, case.setting, self.request)
        work = self.suite.work(case.setting, mode)
        # Otherwise the compiler would, after some cases, silently reuse code compiled for others.
        torch.compiler.reset()
        torch.manual_seed(0)
        inputs = self.suite.inputs(case.setting, mode)
        rows, steps = [], {}
        expected: Outcome | None = None
        for contender in contenders:
            row = self._row(case, mode, contender, contenders[0].name, work)
            rows.append(row)
            needs, allowed = contender.needs(mode), self._allowed()
            if needs > allowed:
                row.status, row.note = "left out", f"would take {gibibytes(needs)} of {gibibytes(allowed)}"
                self._too_large.add(row.key)
                continue
            try:
                step, result = self._first(row, contender, inputs, mode)
            except UnavailableError as error:
                row.status, row.note = "left out", str(error)
                continue
            except OUTSIDE_ERRORS as error:
                short = "does not fit in memory" if is_out_of_memory(error) else " ".join(str(error).split())[:200]
                row.status, row.note = "failed", f"{type(error).__name__}: {short}"
                continue
            steps[contender.name] = step
            if contender is contenders[0]:
                expected = result
            elif contender.role == "contender":
                self._check(row, contender, result, expected)
            elif contender.role == "unchecked":
                row.status = "unchecked"
        if self.suite.timed and steps:
            self._time(steps, rows)
        self.run.measurements += rows

    def _first(
        self, row: Measurement, contender: Contender, inputs: tuple[Any, ...], mode: Mode
    ) -> tuple[Step, Outcome]:
        torch.manual_seed(0)
        step = Step(contender.build(mode), inputs, mode)
        outcomes: list[Outcome] = []
        row.first, _ = self.clock.time(lambda: outcomes.append(outcome(step)))
        if self.suite.timed:
            step()
        return step, outcomes[0]

    def _check(self, row: Measurement, contender: Contender, result: Outcome, expected: Outcome | None) -> None:
        if expected is None:
            row.status = "unchecked"
            return
        exact = None
        if row.mode == "training" and contender.exact is not None and not self.request.quick:
            exact = contender.exact()
        agreement = compare(result, expected, by_norm=self.suite.by_norm, exact=exact)
        row.output_error, row.gradient_error = agreement.output, agreement.gradient
        if not agreement.within(self.suite.tolerance, self.suite.gradient_tolerance):
            row.status = "WRONG"
            row.note = "writes to its inputs" if agreement.altered else ""
            if exact is not None and exact > EXACT:
                row.note = f"its gradients in float64 differ by {exact:.1e}"

    def _time(self, steps: dict[str, Step], rows: list[Measurement]) -> None:
        least = LEAST_ROUNDS_QUICK if self.request.quick else LEAST_ROUNDS
        samples = interleave(dict(steps), seconds=self.request.seconds, least=least, clock=self.clock)
        for row in rows:
            if row.contender in samples:
                row.wall = quartiles(samples[row.contender].wall)
                row.cpu = quartiles(samples[row.contender].cpu)

    def _measure_memory(self, case: Case) -> None:
        """Peak memory of the contenders of a case, measured once for its sizes."""
        sizes = tuple(sorted(case.setting.sizes.items()))
        for mode in self.suite.memory if self.request.memory else ():
            for row in [m for m in self.run.measurements if m.case == case.name and m.mode == mode]:
                too_large = row.key in self._too_large
                # Under a limit, it is measured rather than estimated that it does not fit.
                if row.status in {"failed", "left out"} and not (too_large and self.limit):
                    continue
                key = (*sizes, mode, row.contender)
                if key not in self._peaks:
                    self._peaks[key] = measure_peak(case, row.contender, mode, self.request, self.limit)
                peak = self._peaks[key]
                row.resident, row.allocator, row.process = peak.resident, peak.allocator, peak.process
                row.memory_note = peak.failure
                if peak.failure and too_large:
                    row.note = peak.failure

    def _line(self, case: Case, mode: Mode) -> str:
        parts = []
        for m in self.run.measurements:
            if (m.case, m.mode) == (case.name, mode):
                median = f"{1e3 * m.wall.median:.4g} ms" if m.wall else ""
                parts.append(" ".join(p for p in (m.contender, median, m.status if m.status != "ok" else "") if p))
        return f"{self.suite.name} {case.name} {mode}: " + ", ".join(parts)
