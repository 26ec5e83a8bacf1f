"""``python -m agent.supervisor`` runs ``python -m agent`` with its arguments, and restarts it.

The kubelet restarts a container that has exited, but not while it admits a pod. If that pod
requests GPUs, its admission waits for the agent, so under load the kubelet would restart the
agent's container only after the proxy has given up. This process restarts the agent without the
kubelet. It imports nothing of the agent: it is small, and has little that could fail.
"""

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

from common.logs import configure

log = logging.getLogger("agent.supervisor")

QUICK_SECONDS = 10.0
MOST_QUICK = 3
"""After so many exits in a row, each so soon after its start, the kubelet restarts the container.

The kubelet waits longer after each restart.
"""
_BAD_SETTINGS = 2


def supervise(command: Sequence[str], *, clock: Callable[[], float] = time.monotonic) -> int:
    """Run a command, and run it again if it crashes, until it exits or this process gets a signal.

    *clock* returns seconds.

    Returns:
        The exit status for this process.
    """
    signals: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        if child is not None:
            child.send_signal(number)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, forward)
    quick = 0
    while not signals:
        started = clock()
        child = subprocess.Popen(command)  # noqa: S603 -- our own program
        if signals:  # one came before there was a child to forward it to
            child.send_signal(signals[-1])
        status = child.wait()
        if signals or status in (0, _BAD_SETTINGS):
            return max(status, 0)
        seconds = clock() - started
        quick = quick + 1 if seconds < QUICK_SECONDS else 0
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        log.error("the agent has exited", extra={"how": how, "ran_seconds": round(seconds, 1)})
        if quick >= MOST_QUICK:
            return 1
    return 0


def main() -> None:
    """Supervise the agent of this container."""
    configure()
    sys.exit(supervise([sys.executable, "-m", "agent", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
