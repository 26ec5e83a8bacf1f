"""``python -m agent.supervisor`` runs ``python -m agent`` with its arguments, again when it died.

The kubelet starts a container that has died, but not while it admits a pod. A pod that asks for
GPUs waits for the agent in just that moment, so under load the kubelet would come to the agent's
container only after the proxy's patience. This process starts the agent again without asking the
kubelet. It imports nothing of the agent: it is small, and has little that could fail.
"""

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from common.logs import configure

log = logging.getLogger("agent.supervisor")

QUICK_SECONDS = 10.0
MOST_QUICK = 3
"""An agent that dies so often, so soon after its start, is left to the kubelet and its pauses."""
_BAD_SETTINGS = 2


def supervise(command: Sequence[str]) -> int:
    """Run a command until it ends by itself, or is asked to end with this process.

    Returns:
        The exit status for this process.
    """
    asked: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        if child is not None:
            child.send_signal(number)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, forward)
    quick = 0
    while not asked:
        began = time.monotonic()
        child = subprocess.Popen(command)  # noqa: S603 -- our own program
        if asked:  # before there was a child to tell
            child.send_signal(asked[-1])
        status = child.wait()
        if asked or status in (0, _BAD_SETTINGS):
            return max(status, 0)
        lived = time.monotonic() - began
        quick = quick + 1 if lived < QUICK_SECONDS else 0
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        log.error("the agent has died", extra={"how": how, "lived_seconds": round(lived, 1)})
        if quick >= MOST_QUICK:
            return 1
    return 0


def main() -> None:
    """Keep the agent of this container."""
    configure()
    sys.exit(supervise([sys.executable, "-m", "agent", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
