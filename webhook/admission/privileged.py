"""Privileged containers of GPU pods: such a container sees every card of its node."""

from collections.abc import Iterator, Sequence
from enum import StrEnum

from contract.errors import FieldError
from contract.requests import walk_containers
from webhook.admission.decision import short


class Privileged(StrEnum):
    """What happens to GPU pods with a privileged container."""

    WARN = "warn"
    DENY = "deny"


def check_privileged(
    spec: object,
    treatment: Privileged,
    *,
    path: str,
    fields: Sequence[str] = ("initContainers", "containers"),
) -> tuple[tuple[FieldError, ...], tuple[str, ...]]:
    """Return an error or a warning for each privileged container of a GPU pod.

    The device plugin returns the device nodes of one card, but the runtime gives a privileged
    container all devices of the host. This applies to every container of the pod, also to those
    that request no GPU.

    *path* is that of *spec* in its object; *fields* are the lists of containers to check.
    """
    found = tuple(_privileged(spec, fields))
    if treatment is Privileged.WARN:
        return (), tuple(
            f"container {short(name)}: privileged, it sees every card of its node"
            for _, name in found
        )
    return tuple(
        FieldError(
            f"{path}.{where}.securityContext.privileged",
            "a privileged container sees every card of its node, and this cluster denies it in "
            "GPU pods: remove it",
            "privileged",
            "true",
        )
        for where, _ in found
    ), ()


def _privileged(spec: object, fields: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the path in the spec and the name of each privileged container."""
    for field, index, container in walk_containers(spec, fields):
        context, name = container.get("securityContext"), container.get("name")
        if isinstance(context, dict) and context.get("privileged") is True:
            yield f"{field}[{index}]", name if isinstance(name, str) else ""
