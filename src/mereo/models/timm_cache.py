"""Published weights without a network: from the caches at once, or an error that names the missing file."""

import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

PATIENCE = 3.0
"""Seconds to wait for a connection."""
FILES = ("model.safetensors", "pytorch_model.bin")
LONGEST_REASON = 400
"""Number of characters that are shown of an error of these libraries."""


def hub_host() -> tuple[str, int]:
    """Host and port of the Hugging Face hub, or of the mirror that HF_ENDPOINT names."""
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    return address.hostname or "huggingface.co", address.port or (80 if address.scheme == "http" else 443)


def hub_is_reachable() -> bool:
    """Whether something accepts a connection there; behind a proxy this is unknown, and counts as true."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if getproxies():
        return True
    return _accepts(*hub_host())


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


def check_download(url: str) -> None:
    """ConnectionError, with the file and where it is looked for, unless PyTorch has it or can download it."""
    address, folder = urlsplit(url), Path(torch.hub.get_dir()) / "checkpoints"
    file = Path(address.path).name
    host = address.hostname or ""
    if not (folder / file).exists() and not getproxies() and not _accepts(host, address.port or 443):
        raise ConnectionError(f"{file} is not in {folder}, and {host} cannot be reached to download {url}")


def without_network(timm: Any, name: str) -> dict[str, Any]:
    """Arguments for `timm.create_model(name, pretrained=True)`: none, or the cached file if the hub cannot be reached.

    Without this, timm tries for about a minute, even for weights that its cache holds.

    Raises:
        ConnectionError: if the hub cannot be reached and the cache does not hold the weights.
    """
    configuration = timm.get_pretrained_cfg(name)
    repository = getattr(configuration, "hf_hub_id", None)
    if not repository or hub_is_reachable():
        return {}
    from huggingface_hub import constants, try_to_load_from_cache

    files = [file for file in (getattr(configuration, "hf_hub_filename", None), *FILES) if file]
    for file in files:
        path = try_to_load_from_cache(repository, file)
        if isinstance(path, str):
            return {"pretrained_cfg_overlay": {"file": path}}
    place = f"https://{hub_host()[0]}/{repository}/resolve/main/{files[0]}"
    raise ConnectionError(
        f"{files[0]} of {repository} is not in {constants.HF_HUB_CACHE}, and {hub_host()[0]} cannot be reached to"
        f" download {place}"
    )
