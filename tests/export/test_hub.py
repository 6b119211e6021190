"""The hub: what is sent and fetched, with the library replaced by one that keeps to this machine."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

import mereo
from mereo.errors import MereoError, UsageError

hub = pytest.importorskip("huggingface_hub")


class OneMachine:
    """As much of HfApi as is used."""

    kept: Path

    def __init__(self, token=None):
        self.token = token

    def create_repo(self, repo_id, private, exist_ok):
        assert exist_ok and private

    def upload_folder(self, repo_id, folder_path, revision, commit_message):
        if repo_id.startswith("nobody"):
            raise OSError("403 Forbidden\nfor a long reason")
        shutil.copytree(folder_path, self.kept / repo_id)
        return f"https://hub/{repo_id}/commit/1"


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(OneMachine, "kept", tmp_path, raising=False)
    monkeypatch.setattr(hub, "HfApi", OneMachine)
    monkeypatch.setattr(hub, "hf_hub_download", lambda repo, name, revision=None: str(tmp_path / repo / name))
    return tmp_path


def test_what_is_pushed_comes_back(make, images, kept):
    model = make("capsnet")
    url = mereo.push_to_hub(model, "me/digits-net", private=True)
    assert url == "https://hub/me/digits-net/commit/1"
    assert "# digits-net" in (kept / "me" / "digits-net" / "README.md").read_text()
    again = mereo.from_pretrained("me/digits-net")
    assert torch.equal(again(images(model)), model(images(model)))


def test_failures_are_one_line(make, kept):
    with pytest.raises(MereoError, match=r"cannot push to nobody/net: 403 Forbidden$"):
        mereo.push_to_hub(make("capsnet"), "nobody/net", private=True)
    with pytest.raises(UsageError, match="repo_id is 'net'"):
        mereo.push_to_hub(make("capsnet"), "net")
    for source in ("nowhere", "./no/where", "a/b/c"):
        with pytest.raises(UsageError, match="a folder that exists, or owner/name"):
            mereo.from_pretrained(source)


def test_no_answer_is_one_line(monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError("no network\nand more")

    monkeypatch.setattr(hub, "hf_hub_download", fail)
    with pytest.raises(MereoError, match=r"cannot get me/net from the hub: no network$"):
        mereo.from_pretrained("me/net")


def test_the_missing_library_is_named(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: mereo.from_pretrained("me/net"), lambda: mereo.push_to_hub(make("capsnet"), "me/net")):
        with pytest.raises(UsageError, match=r"huggingface_hub.*pip install 'mereo\[hub"):
            call()
