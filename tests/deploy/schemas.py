"""Kubernetes' own schemas of its objects. The only importer of ``kubernetes_validate``."""

import kubernetes_validate

from tests.deploy.manifests import CUSTOM, Json

OLDEST = "1.30"
"""What deploy/ supports: ValidatingAdmissionPolicy is v1 from here on."""


def newest() -> str:
    """Give the newest version whose schemas there are."""
    return str(kubernetes_validate.latest_version())


def check(obj: Json, version: str) -> None:
    """Validate an object; fields that the version does not know are errors.

    Raises:
        ValidationError: it is not what the version expects.
    """
    if obj["kind"] not in CUSTOM:
        kubernetes_validate.validate(obj, version, strict=True)
