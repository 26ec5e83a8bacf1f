"""The ``status`` of a pod, derived from its containers. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from contract.demand import ContainerKind
from simulator.client import Json
from simulator.kubelet.pods import Container, Pod
from simulator.kubelet.runtime import ContainerRun


@dataclass(frozen=True, slots=True)
class Waiting:
    """The reason why a container does not run."""

    reason: str
    message: str


def status_body(
    pod: Pod, run_of: Callable[[str, str], ContainerRun | None], waiting: Mapping[str, Waiting]
) -> Json:
    """Build a pod's status.

    Args:
        pod: the pod.
        run_of: (pod UID, container name) -> the container in the runtime.
        waiting: container name -> why it could not be started.
    """
    runs = {each.name: run_of(pod.uid, each.name) for each in pod.containers}
    mains = [runs[each.name] for each in pod.containers if each.kind is ContainerKind.MAIN]
    running = [run is not None and run.running for run in mains]
    done = [run is not None and not run.running and run.finish_at is not None for run in mains]
    if mains and all(done):
        phase = "Succeeded" if not any(run and run.exit_code for run in mains) else "Failed"
    else:
        phase = "Running" if any(running) or any(done) else "Pending"
    ready = "True" if running and all(running) else "False"

    def states(*kinds: ContainerKind) -> list[Json]:
        return [
            _container_status(each, runs[each.name], waiting.get(each.name))
            for each in pod.containers
            if each.kind in kinds
        ]

    return {
        "phase": phase,
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "ContainersReady", "status": ready},
            {"type": "Ready", "status": ready},
        ],
        "initContainerStatuses": states(ContainerKind.INIT, ContainerKind.SIDECAR),
        "containerStatuses": states(ContainerKind.MAIN),
    }


def _container_status(
    container: Container, run: ContainerRun | None, waiting: Waiting | None
) -> Json:
    running = run is not None and run.running
    state: Json
    if run is not None and run.running:
        state = {"running": {"startedAt": show_time(run.started_at)}}
    elif waiting is not None:
        state = {"waiting": {"reason": waiting.reason, "message": waiting.message}}
    elif run is not None:
        reason = "Error" if run.exit_code else "Completed"
        state = {"terminated": {"exitCode": run.exit_code, "reason": reason}}
    else:
        state = {"waiting": {"reason": "PodInitializing"}}
    return {
        "name": container.name,
        "ready": running,
        "started": running,
        "restartCount": 0 if run is None else run.starts - 1,
        "state": state,
    }


def show_time(seconds: float) -> str:
    """Return unix seconds as the API shows a time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
