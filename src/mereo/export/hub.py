"""Networks from and to the Hugging Face hub, or a local folder of the same layout."""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mereo.errors import MereoError, UsageError, check_text, first_line, type_of
from mereo.export.folder import CONFIG, WEIGHTS, load_folder, save_pretrained
from mereo.models import VisionModel
from mereo.runtime.libraries import require

_ID = re.compile(r"[\w.-]+/[\w.-]+")


def check_id(repo_id: str) -> None:
    """UsageError unless it is owner/name."""
    check_text(repo_id=repo_id)
    if not _ID.fullmatch(repo_id):
        raise UsageError(f"repo_id is {repo_id!r}; it must be owner/name, such as me/mspcaps-digits.")


def from_pretrained(
    source: str | Path, *, device: str = "cpu", revision: str | None = None, **download: Any
) -> VisionModel:
    """A network from a folder written by `save_pretrained`, or from the Hugging Face hub, in eval mode.

    Args:
        source: a folder, or owner/name of a repository.
        device: of the network.
        revision: branch, tag or commit of the repository.
        download: further arguments of `huggingface_hub.hf_hub_download`, such as token, cache_dir, local_files_only.
    """
    if not isinstance(source, str | Path):
        raise UsageError(f"source is {type_of(source)}; give a folder, or owner/name on the hub.")
    folder = Path(source)
    if folder.is_dir():
        return load_folder(folder, device)
    if not isinstance(source, str) or not _ID.fullmatch(source) or source.startswith("."):
        raise UsageError(f"source is {str(source)!r}; it must be a folder that exists, or owner/name on the hub.")
    require(f"loading {source} from the hub", ("huggingface_hub",), "hub")
    from huggingface_hub import hf_hub_download

    try:
        files = [Path(hf_hub_download(source, name, revision=revision, **download)) for name in (CONFIG, WEIGHTS)]
    except Exception as error:  # its many errors have no common base but OSError's and ValueError's
        raise MereoError(f"cannot get {source} from the hub: {first_line(error)}") from error
    return load_folder(files[0].parent, device)


def push_to_hub(
    model: VisionModel,
    repo_id: str,
    *,
    token: str | None = None,
    private: bool = False,
    revision: str | None = None,
    message: str = "Add network",
    record: Mapping[str, Any] | None = None,
) -> str:
    """Upload what `save_pretrained` writes to a repository of the Hugging Face hub, which is created if missing.

    Returns:
        The address of the commit.
    """
    check_id(repo_id)
    require("pushing to the hub", ("huggingface_hub",), "hub")
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as parent:
        folder = save_pretrained(model, Path(parent) / repo_id.partition("/")[2], record=record)
        try:
            api = HfApi(token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            done = api.upload_folder(
                repo_id=repo_id, folder_path=str(folder), revision=revision, commit_message=message
            )
        except Exception as error:
            raise MereoError(f"cannot push to {repo_id}: {first_line(error)}") from error
    return str(getattr(done, "commit_url", done))
