"""timm's published weights where their hub cannot be reached: at once from its cache, or a clear error."""

import os
import socket
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

PATIENCE = 3.0
"""Seconds to wait for a connection."""
FILES = ("model.safetensors", "pytorch_model.bin")


def hub_host() -> tuple[str, int]:
    """Host and port of the Hugging Face hub, or of the mirror that HF_ENDPOINT names."""
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    return address.hostname or "huggingface.co", address.port or (80 if address.scheme == "http" else 443)


def hub_is_reachable() -> bool:
    """Whether something accepts a connection there; behind a proxy that is not known, and counts as true."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if getproxies():
        return True
    try:
        socket.create_connection(hub_host(), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


def without_network(timm: Any, name: str) -> dict[str, Any]:
    """Arguments for `timm.create_model(name, pretrained=True)`: none, or the file of its cache where there is no hub.

    Without this, timm tries for about a minute, even for weights that its cache holds.

    Raises:
        ConnectionError: where the hub cannot be reached and the cache does not hold the weights.
    """
    configuration = timm.get_pretrained_cfg(name)
    repository = getattr(configuration, "hf_hub_id", None)
    if not repository or hub_is_reachable():
        return {}
    from huggingface_hub import try_to_load_from_cache

    for file in (getattr(configuration, "hf_hub_filename", None), *FILES):
        path = try_to_load_from_cache(repository, file) if file else None
        if isinstance(path, str):
            return {"pretrained_cfg_overlay": {"file": path}}
    raise ConnectionError(f"{hub_host()[0]} cannot be reached, and {repository} is not in the cache")
