"""One run of the agent inside this process."""

import socket
import threading
from dataclasses import dataclass

from agent.allocator.allocator import Allocator
from agent.app.container_setup import Upkeep
from agent.kubelet.podresources import PodResources
from agent.kubelet.registration import Registrar
from simulator.node.mortal import Death, MortalOutbox


@dataclass(slots=True)
class AgentLife:
    """One run of the agent, from its start to its end."""

    allocator: Allocator
    registrar: Registrar
    channel: PodResources
    writer: MortalOutbox
    death: Death
    works: Upkeep
    thread: threading.Thread | None = None

    def start(self) -> None:
        """Read the record off the kubelet's record, then let the kubelet in."""
        self.allocator.refresh()
        self.works.tick()
        self.thread = threading.Thread(target=self.registrar.run, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Stop."""
        self.registrar.stop()
        if self.thread is not None:
            self.thread.join(5)
        self.works.close()
        self.channel.close()

    def kill(self) -> None:
        """Die: calls under way are cut, nothing more is said or written, sockets stay."""
        sockets = self.registrar.sockets
        self.death.come()
        self.end()
        for path in sockets:
            path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as left:  # closed, but its file stays
                left.bind(str(path))
