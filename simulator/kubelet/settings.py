"""How a simulated kubelet is set up, and where it can be made to misbehave."""

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
    """Just before or after a call to a plugin, or before the checkpoint is written.

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
"""Called at every moment; it may raise ``CrashHere``: the kubelet dies there and then."""


def no_hook(moment: HookPoint) -> None:
    """Let it go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a kubelet is told.

    Attributes:
        root_dir: what survives a restart, beside the checkpoint in *plugin_dir*.
        plugin_dir: where ``kubelet.sock`` is and plugins put theirs.
        pod_resources_socket: ``None`` for a node without one.
        trace_path: where the trace is appended, JSON lines; ``None`` for memory only.
        active_pods_only: ``List`` without pods that have ended (1.34 and newer), or with
            all that the API server still has (K8).
        removed_pods_stay: whether a pod deleted with grace period 0 stays in ``List``, with
            what it holds, until its containers have ended (K20), or leaves at once.
        list_rate, list_burst: the limit on ``List`` (K5).
        preferred_when_exact: see ``devices``.
        numa_hint: what a topology manager would say (K23).
        overtaken_writes: how likely a write of the checkpoint for a plugin's list is overtaken by
            the next one, and comes after it (K33).
        endpoint_grace_s: how long a plugin that went away is remembered.
        plugin_wait_s: after a restart, how long the first pods wait for the plugins of the
            checkpoint; the real one waits only as long as its node informer takes.
        init_run_s: an init container runs for a random time between these.
        grace_s: a deleted pod ends after a random time between these.
        start_retry_s: until a container whose start failed is tried again; 10 in the real one.
        mischief: what happens at its sockets beside what should.
        node_status_s: how often the node is reported when nothing changes.
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
    mischief: Misbehavior = field(default_factory=Misbehavior)
