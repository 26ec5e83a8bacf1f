"""Kubernetes' own schemas of its objects. The only importer of ``kubernetes_validate``."""

from functools import cache

import kubernetes_validate  # type: ignore[import-untyped]  # has no type information
from kubernetes_validate import utils

from tests.deploy.manifests import CUSTOM, Json

# It would read all definitions of a version anew for each object.
utils.schema_contents = cache(utils.schema_contents)

OLDEST = "1.30"
"""What deploy/ supports: ValidatingAdmissionPolicy is v1 from here on."""


def newest() -> str:
    return str(kubernetes_validate.latest_version())


def check(obj: Json, version: str) -> None:
    """Raise ValueError about an invalid object, or a field that the version does not know."""
    if obj["kind"] in CUSTOM:
        return
    if obj["apiVersion"] == "resource.k8s.io/v1" and version == OLDEST:
        return  # the component dra needs a newer one
    if obj["kind"] == "EndpointSlice":
        # The schema demands it and API servers do not; whoever applies it takes it from the leader.
        assert "endpoints" not in obj
        obj = obj | {"endpoints": []}
    try:
        kubernetes_validate.validate(obj, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        name = (obj.get("metadata") or {}).get("name")
        raise ValueError(f"{obj['kind']} {name}, {version}: {error.message}") from error
