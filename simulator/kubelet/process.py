"""A kubelet as a process of its own."""

import signal
import threading
from pathlib import Path
from typing import Any

from simulator.client import ApiClient
from simulator.kubelet.node import Kubelet
from simulator.kubelet.settings import Settings

_POLL_S = 0.1


def run_kubelet(  # noqa: PLR0913 - one argument for each command line flag
    *,
    node_name: str,
    server: str,
    root_dir: Path,
    plugin_dir: Path,
    pod_resources_socket: Path | None = None,
    trace: Path | None = None,
    seed: int = 0,
    stop: threading.Event | None = None,
    **knobs: Any,
) -> None:
    """Serve until SIGTERM or SIGINT, or until *stop* is set.

    Args:
        node_name: the node to register.
        server: base URL of the API server.
        root_dir: what survives a restart.
        plugin_dir: where ``kubelet.sock`` is made.
        pod_resources_socket: where PodResources is served; ``None`` for nowhere.
        trace: a file of JSON lines, appended to.
        seed: of every random choice.
        stop: instead of a signal, for a caller that is not the main thread.
        knobs: further fields of :class:`~simulator.kubelet.settings.Settings`.

    Raises:
        OSError: a directory or socket cannot be made.
        TypeError: a knob that does not exist.
    """
    ended = stop or threading.Event()
    if stop is None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
    settings = Settings(
        node_name=node_name,
        root_dir=root_dir,
        plugin_dir=plugin_dir,
        pod_resources_socket=pod_resources_socket,
        trace_path=trace,
        seed=seed,
        **knobs,
    )
    with ApiClient(server, user_agent=f"kubelet/{node_name}") as api:
        kubelet = Kubelet(settings, api)
        try:
            kubelet.start()
            # A signal may reach one of gRPC's threads: Python then runs our handler only
            # when the main thread wakes by itself.
            while not ended.wait(_POLL_S):
                pass
        finally:
            kubelet.stop()
