"""Functions run in several processes of one gloo group."""

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from papers.common.processes import run_processes

needs_gloo = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="gloo is not there")


def in_processes(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What the function returned in each process."""
    return run_processes(size, function, *arguments, preload=["mereo.mechanisms.attention", "sharded_checks"])
