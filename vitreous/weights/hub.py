"""Models in repositories of the Hugging Face hub, named ``hf_hub:user/name``.

Only repositories named by the caller are downloaded.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from vitreous.weights.reading import first_line

PREFIXES = ("hf_hub:", "hf-hub:", "hf://")
#: Files to download from a repository: weights in all supported formats, and their configuration.
FILES = ("*.safetensors", "*.safetensors.index.json", "config.json", "pytorch_model*")


def repository_of(source: object) -> str | None:
    """Return the repository in ``hf_hub:user/name``, or None if the source is not a repository."""
    if not isinstance(source, str):
        return None
    return next((source.removeprefix(prefix) for prefix in PREFIXES if source.startswith(prefix)), None)


def fetch_repository(repository: str) -> Path:
    """Download a repository's weights and configuration into the Hugging Face cache and return the folder."""
    hub = importlib.import_module("huggingface_hub")
    try:
        return Path(hub.snapshot_download(repository, allow_patterns=list(FILES)))
    except Exception as error:  # network, permission and naming errors are of many types
        raise ValueError(f"could not download {repository!r} from the Hugging Face hub: {first_line(error)}") from None
