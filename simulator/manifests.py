"""Read and write YAML; the simulator's only module that imports PyYAML."""

from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times as fast, if PyYAML was built with it."""


def read_manifests(path: Path) -> list[Json]:
    """Read every object of one YAML file.

    Raises:
        ValueError: it is not YAML, or a document is not an object; the message names the file.
        OSError: the file cannot be read.
    """
    try:
        documents = list(yaml.load_all(path.read_text(encoding="utf-8"), Loader=_LOADER))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    objects = [each for each in documents if each is not None]
    for each in objects:
        if not isinstance(each, dict) or "kind" not in each:
            raise ValueError(f"{path}: every document must be an object with a kind")
    return objects


def write_yaml(path: Path, document: object) -> None:
    """Write one YAML file."""
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
