"""Run by test_kills: runs command lines of mereo, each in a fork of this process, which has imported everything before.

An order is a line of JSON on standard input: {"words": [...], "seconds": s or null, "event": n or null}. The answer is
the exit code of the fork, as `os.waitstatus_to_exitcode` gives it. With seconds it is killed so long after its start;
with an event it kills itself just before it touches a file of its run for the n-th time.
"""

import json
import os
import signal
import sys
import time
from importlib import import_module

import torch

from mereo.cli.main import main

for module in (
    "accelerate", "matplotlib.backends.backend_agg", "matplotlib.figure", "mereo.cli.train", "mereo.training.trainer",
    "tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer",
):  # fmt: skip
    import_module(module)

TOUCHES = {"open", "os.rename", "os.remove", "os.mkdir", "os.chmod"}


def die_before(event: int) -> None:
    seen = 0

    def hook(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if name in TOUCHES and "runs/" in str(arguments[0]):
            seen += 1
            if seen == event:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def run(order: dict) -> int:
    with open("output.txt", "a") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    torch.set_num_threads(1)
    if order["event"] is not None:
        die_before(order["event"])
    return main(order["words"])


def wait(process: int, seconds: float | None) -> int:
    began = time.monotonic()
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status
        if seconds is not None and time.monotonic() - began > seconds:
            os.kill(process, signal.SIGKILL)  # not waited for yet, so the number is still its own
        time.sleep(0.002)


if __name__ == "__main__":
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            code = 70
            try:
                code = run(json.loads(line))
            finally:
                sys.stdout.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(wait(process, json.loads(line)["seconds"])), flush=True)
