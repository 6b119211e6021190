"""Give mereo what nobody would mean, thousands of times; list tracebacks, hangs, much memory and wrong results.

python tools/try_hostile.py --tries 10000               all areas in turn
python tools/try_hostile.py --area weights --tries 500
python tools/try_hostile.py --area weights --number 17  one try again, with all it says
"""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from hostile.run import AREAS, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--area", choices=sorted(AREAS), action="append")
    parser.add_argument("--number", type=int, help="one try alone")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--longest", type=float, default=60.0, help="seconds of one try")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    areas = given.area or list(AREAS)
    numbers = range(-(-given.tries // len(areas))) if given.number is None else [given.number]
    orders = [(area, number) for number in numbers for area in areas][: given.tries]
    began, faults, codes, slowest = time.monotonic(), 0, Counter(), 0.0
    for verdict in run(orders, given.seed, given.jobs, given.longest):
        codes[verdict.area, verdict.code] += 1
        if codes.total() % 200 == 0:
            print(f"{codes.total()} of {len(orders)} tries", file=sys.stderr, flush=True)
        slowest = max(slowest, verdict.seconds)
        if verdict.fault or given.number is not None:
            faults += bool(verdict.fault)
            print(f"\n--- {verdict.area} {verdict.number} (seed {given.seed}), {verdict.seconds:.1f} s: {verdict.what}")
            print(verdict.fault or f"as it should be, exit code {verdict.code}", flush=True)
        if time.monotonic() - began > given.seconds:
            break
    seconds = time.monotonic() - began
    for area in areas:
        print(f"{area:<16}", ", ".join(f"{code}: {n}" for (a, code), n in sorted(codes.items(), key=str) if a == area))
    print(f"{codes.total()} tries in {seconds:.0f} s, the slowest {slowest:.1f} s; {faults} ended as they must not")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
