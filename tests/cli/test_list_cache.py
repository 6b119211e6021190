"""Lists are read from the cache only where their own sources made them."""

import json
import os
import subprocess
import sys

import pytest

from mereo.cli.list_cache import cache_file, cached_list, digest
from mereo.cli.lists import LISTS


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def made(calls):
    calls.append(1)
    return [{"name": "a"}]


def test_a_list_is_made_once_for_the_same_sources():
    calls = []
    for _ in range(3):
        assert cached_list("things", lambda: made(calls), "no.such.module") == [{"name": "a"}]
    assert len(calls) == 1


def test_a_list_of_other_sources_is_not_used():
    calls = []
    cached_list("things", lambda: made(calls), "no.such.module")
    kept = json.loads(cache_file().read_text())
    cache_file().write_text(json.dumps(kept | {"sources": "others"}))
    cached_list("things", lambda: made(calls), "no.such.module")
    assert len(calls) == 2


@pytest.mark.parametrize("content", ["", "[]", "{}", "3", '{"sources": null}', "\x00"])
def test_a_broken_cache_is_made_anew(content):
    cache_file().parent.mkdir(parents=True)
    cache_file().write_text(content)
    assert cached_list("things", lambda: made([]), "no.such.module") == [{"name": "a"}]


def test_a_process_with_a_register_makes_its_own_list():
    calls = []
    for _ in range(2):
        cached_list("things", lambda: made(calls), "mereo.cli.lists")
    assert len(calls) == 2 and not cache_file().exists()


def test_the_digest_changes_with_content_names_and_new_files(tmp_path):
    (tmp_path / "a").mkdir()
    source = tmp_path / "a" / "one.py"
    source.write_text("x = 1")
    seen = {digest(tmp_path)}
    stat = source.stat()
    source.write_text("x = 2")  # of the same length and time
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    seen.add(digest(tmp_path))
    source.rename(tmp_path / "a" / "two.py")
    seen.add(digest(tmp_path))
    (tmp_path / "three.safetensors").touch()
    seen.add(digest(tmp_path))
    assert len(seen) == 4


@pytest.mark.slow
@pytest.mark.parametrize("command", ["models", "mechanisms", "tasks"])
def test_a_kept_list_is_that_of_the_register_and_needs_no_torch(command):
    program = f"""
import sys
from mereo.cli.main import main
assert main([{command!r}, "--json"]) == 0
print("torch" in sys.modules, file=sys.stderr)
"""
    shown = []
    for torch in ("True", "False"):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stderr.strip() == torch
        shown.append(json.loads(done.stdout))
    assert shown[0] == shown[1] == LISTS[command]()
