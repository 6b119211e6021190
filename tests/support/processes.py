"""Functions run in several processes of one gloo group, as `torchrun` would start them."""

import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

needs_gloo = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="gloo is not there")


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def _start(rank: int, size: int, port: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    try:
        result = function(*arguments)
    except BaseException:
        result = traceback.format_exc()
        raise
    finally:
        torch.save(result, Path(folder) / f"{rank}.pt")
        dist.destroy_process_group()


def in_processes(size: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What the function returned in each process of a new group of `size`; its errors are raised here."""
    # A server that has imported the library starts processes much faster than they could import it.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["mereo.attention", "sharded_checks"])
    given = (size, _free_port(), str(folder), function, arguments)
    multiprocessing.start_processes(_start, given, nprocs=size, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]
