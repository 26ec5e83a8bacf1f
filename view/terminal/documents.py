"""Manifests in, JSON and YAML out. The only module here that knows YAML."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from view.model.manifest import InvalidManifest


def read_manifests(text: str) -> Iterator[Mapping[str, Any]]:
    """Read YAML or JSON, one or several objects; a ``List`` is taken apart.

    Raises:
        InvalidManifest: it cannot be read, or is no object.
    """
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidManifest(f"error parsing: {' '.join(str(error).split())}") from error
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, Mapping):
            raise InvalidManifest("error parsing: a manifest must be an object")
        items = document.get("items")
        if document.get("kind") == "List" and isinstance(items, list):
            yield from (each for each in items if isinstance(each, Mapping))
        else:
            yield document


def write_document(value: Any, form: str) -> str:
    """Write plain values.

    Args:
        value: as :func:`view.model.encoding.to_json` returns them.
        form: ``json`` or ``yaml``.
    """
    if form == "json":
        return json.dumps(value, indent=2) + "\n"
    return str(yaml.safe_dump(value, sort_keys=False, default_flow_style=False))
