"""The program of the documentation runs under torchrun and prints what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from processes import needs_gloo

PAGE = (Path(__file__).parents[3] / "docs" / "distributed_attention.md").read_text()


@needs_gloo
@pytest.mark.long
def test_the_program_under_torchrun(tmp_path) -> None:
    (tmp_path / "long.py").write_text(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1])
    words = re.search(r"```sh\ntorchrun (.*?)\n```", PAGE, re.DOTALL)[1].split()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words], cwd=tmp_path, env=environment, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed, shown = done.stdout.strip(), re.search(r"prints `(.*?)`", PAGE)[1]
    assert printed.rpartition(" ")[0] == shown.rpartition(" ")[0]
    assert float(printed.rpartition(" ")[2]) < 1e-14 and float(shown.rpartition(" ")[2]) < 1e-14
