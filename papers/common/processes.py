"""Functions run in several processes of one group on this machine, as `torchrun` starts a program."""

import json
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.multiprocessing.spawn import start_processes

from mereo.errors import MereoError, check_positive
from mereo.files import write_atomically


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def _start(
    rank: int, size: int, port: int, threads: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    try:
        write_atomically(Path(folder) / f"{rank}.json", json.dumps(function(*arguments)).encode())
    finally:
        dist.destroy_process_group()


def run_processes(
    size: int, function: Callable[..., Any], *arguments: Any, threads: int = 1, preload: Sequence[str] = ()
) -> list[Any]:
    """Call a function in each of `size` processes that form a group (gloo, on CPUs).

    Args:
        function: of a module; the group is `torch.distributed.group.WORLD`. It returns plain values, as JSON has them.
        threads: of each process.
        preload: modules that the server of the processes imports once.

    Returns: what each process returned.

    Raises:
        MereoError: if PyTorch has no gloo.
    """
    check_positive(size=size, threads=threads)
    if not (dist.is_available() and dist.is_gloo_available()):
        raise MereoError("this PyTorch has no torch.distributed with gloo, which processes on CPUs need.")
    # A server that has imported the library starts processes much faster than they could import it.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["mereo.core.distributed", *preload])
    with tempfile.TemporaryDirectory() as folder:
        given = (size, _free_port(), threads, folder, function, arguments)
        start_processes(_start, given, nprocs=size, start_method="forkserver")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(size)]
