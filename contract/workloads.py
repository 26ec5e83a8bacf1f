"""The workloads of Kubernetes: their resources, and where their pod templates are."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class WorkloadKind(NamedTuple):
    """A kind of workload, in version v1.

    Attributes:
        group: its API group; empty for the core API.
        resource: its plural, as in paths.
        template: the steps to the pod template.
    """

    group: str
    resource: str
    template: tuple[str, ...] = ("spec", "template")

    @property
    def api(self) -> str:
        """The path of its API."""
        return f"/apis/{self.group}/v1" if self.group else "/api/v1"


WORKLOADS: Mapping[str, WorkloadKind] = {
    "Deployment": WorkloadKind("apps", "deployments"),
    "StatefulSet": WorkloadKind("apps", "statefulsets"),
    "DaemonSet": WorkloadKind("apps", "daemonsets"),
    "ReplicaSet": WorkloadKind("apps", "replicasets"),
    "ReplicationController": WorkloadKind("", "replicationcontrollers"),
    "Job": WorkloadKind("batch", "jobs"),
    "CronJob": WorkloadKind("batch", "cronjobs", ("spec", "jobTemplate", "spec", "template")),
    "PodTemplate": WorkloadKind("", "podtemplates", ("template",)),
}
"""All of Kubernetes' own objects with a pod template, by kind."""


def template_of(workload: object, steps: Iterable[str]) -> Mapping[str, Any]:
    """Return the pod template of a workload, possibly hostile; empty if it has none there.

    Without *steps* it is a pod, and returned itself.
    """
    found = workload
    for step in steps:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
