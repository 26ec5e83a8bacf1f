"""One run of the agent inside this process."""

import threading
from dataclasses import dataclass, field

from agent.kubelet import Registrar
from agent.podresources import PodResources
from agent.turnstile import Turnstile


@dataclass(slots=True)
class AgentLife:
    """One run of the agent, from its start to its end."""

    turnstile: Turnstile
    registrar: Registrar
    channel: PodResources
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def start(self) -> None:
        """Read the ledger off the kubelet's record, then let the kubelet in."""
        self.turnstile.rebuild()
        self.thread = threading.Thread(target=self.registrar.run, args=(self.stop,), daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Stop."""
        self.stop.set()
        if self.thread is not None:
            self.thread.join(5)
        self.channel.close()
