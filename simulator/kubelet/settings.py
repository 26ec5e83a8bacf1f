"""The settings of a simulated kubelet, with its hooks for faults."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from simulator.kubelet.numa import NumaHint, no_hint
from simulator.kubelet.podresources import BURST, RATE
from simulator.kubelet.pods import Pod
from simulator.kubelet.sockets import Misbehavior


@dataclass(frozen=True, slots=True)
class HookPoint:
    """A moment just before or after a call to a plugin or a write of the checkpoint.

    Attributes:
        when: ``before`` or ``after``.
        what: ``GetPreferredAllocation``, ``Allocate``, ``Checkpoint``, ``PreStartContainer``.
        resource: empty for the checkpoint.
    """

    when: Literal["before", "after"]
    what: str
    pod: Pod
    container: str
    resource: str = ""


Hook: TypeAlias = Callable[[HookPoint], None]
"""Called at every hook point; if it raises ``CrashHere``, the kubelet crashes at once."""


def no_hook(moment: HookPoint) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a kubelet.

    Attributes:
        root_dir: for files that survive a restart, apart from the checkpoint in *plugin_dir*.
        plugin_dir: the folder of ``kubelet.sock`` and of the plugins' sockets.
        pod_resources_socket: ``None`` for a node without one.
        trace_path: the file to which the trace is appended, JSON lines; ``None`` for memory only.
        seed: of all random choices.
        active_pods_only: whether ``List`` shows only pods that have not ended (1.34 and newer), or
            all that the API server still has (K8).
        removed_pods_stay: whether a pod deleted with grace period 0 stays in ``List``, with
            its devices, until its containers have ended (K20), or leaves at once.
        list_rate, list_burst: the limit on ``List`` (K5).
        preferred_when_exact: see ``devices``.
        numa_hint: stands for the topology manager (K23).
        overtaken_writes: the probability that a checkpoint write for a plugin's device list is
            delayed until after the next write (K33).
        endpoint_grace_s: how long a disconnected plugin is remembered.
        plugin_wait_s: after a restart, how long the first pods wait for the plugins of the
            checkpoint; the real kubelet waits only for its node informer.
        init_run_s: an init container runs for a random time between these two.
        grace_s: a deleted pod ends after a random time between these two.
        start_retry_s: time until a failed start is tried again; 10 s in the real kubelet.
        node_status_s: time between reports of the node if nothing changes.
        hook: called before and after each call, for tests.
        misbehavior: faults at its sockets.
    """

    node_name: str
    root_dir: Path
    plugin_dir: Path
    pod_resources_socket: Path | None = None
    trace_path: Path | None = None
    seed: int = 0
    active_pods_only: bool = True
    removed_pods_stay: bool = True
    list_rate: float = RATE
    list_burst: int = BURST
    preferred_when_exact: bool = True
    numa_hint: NumaHint = no_hint
    overtaken_writes: float = 0.0
    endpoint_grace_s: float = 300.0
    plugin_wait_s: float = 0.0
    init_run_s: tuple[float, float] = (0.01, 0.05)
    grace_s: tuple[float, float] = (0.01, 0.05)
    start_retry_s: float = 0.5
    node_status_s: float = 10.0
    hook: Hook = no_hook
    misbehavior: Misbehavior = field(default_factory=Misbehavior)
