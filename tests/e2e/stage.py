"""Webhook, proxy and agent as processes, on a node of the cluster."""

import shlex
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from simulator.cluster import free_port
from simulator.manifests import write_yaml
from tests.e2e.cluster import Cluster
from tests.e2e.ground import Ground, wait
from tests.e2e.manifests import CARDS, cards_file
from tests.e2e.programs import Program, Webhook
from tests.e2e.settings import Settings

PATIENCE = 20.0
"""Seconds for which calls of the kubelet wait for the agent."""


class Stage(Ground):
    """The processes of one run of the suite.

    Args:
        settings: of the suite.
        cluster: the cluster, and the namespace to make and remove.
        node: the node to work on.
        folder: for certificates, the cards file and logs.
        report: takes lines for the end of the run.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        *,
        node: str,
        folder: Path,
        report: Callable[[str], None],
    ) -> None:
        super().__init__(settings, cluster, node=node, report=report, enforced=True)
        self.cards = [each["uuid"] for each in cards_file()["cards"]]
        self.no_webhook: str | None = None
        self._folder = folder
        self.plugins = folder / "plugins"
        self._ports = {each: free_port() for each in ("agent", "proxy")}
        self.webhook = Webhook(cluster, folder, settings.webhook_host)
        self.proxy = Program(
            shlex.split(
                f"proxy --kubelet-dir {settings.plugin_dir} --plugin-dir {self.plugins} "
                f"--patience {PATIENCE:g} --http-host 127.0.0.1 --http-port {self._ports['proxy']}"
            ),
            folder / "proxy.log",
        )
        self.agent = Program(self._agent_options(), folder / "agent.log")

    def _agent_options(self) -> list[str]:
        settings, folder = self.settings, self._folder
        return shlex.split(
            f"agent --node-name {self.node} --kubeconfig {settings.kubeconfig} "
            f"--cards {folder}/cards.yaml --kubelet-dir {settings.plugin_dir} "
            f"--plugin-dir {self.plugins} "
            f"--pod-resources-socket {settings.pod_resources_socket} "
            f"--enforcement vcuda --driver-dir {folder}/driver --state-dir {folder}/state "
            f"--cri-socket {settings.cri_socket} "
            f"--http-host 127.0.0.1 --http-port {self._ports['agent']}"
        )

    # --- start and end ---------------------------------------------------------------

    def open(self) -> None:
        """Start everything; the node must not have an agent yet."""
        self.occupy()
        write_yaml(self._folder / "cards.yaml", cards_file())
        (self._folder / "driver").mkdir(exist_ok=True)  # what containers find as the driver's
        self.webhook.start()
        self.no_webhook = self.webhook.configure(self.make.single("probe", 5, 4), self.names)
        if self.no_webhook is not None:
            self.cluster.delete_webhooks(self.cluster.namespace)
        self.proxy.start()
        self.agent.start()
        self.wait_for_cards()

    def close(self) -> None:
        """End everything and remove all objects of the run."""
        try:
            self.cluster.delete_webhooks(self.cluster.namespace)
            self.leave()
        finally:
            self.agent.stop()
            self.proxy.stop()
            self.webhook.stop()
            self.disconnect()

    def kill_agent(self, *, gap: float = 0.0) -> None:
        """Kill the agent, start it again after a gap in seconds, and await it."""
        self.agent.stop(signal.SIGKILL)
        time.sleep(gap)
        self.agent.start()
        wait("the agent is registered", self.registered)

    def upgrade_agent(self) -> None:
        """Start the next agent beside this one, and end this one, as a rolling update does."""
        waits = "another agent serves this node: waiting for its end"
        before = len(self.agent.events(waits))
        self._ports["agent"] = free_port()
        old, self.agent = self.agent, self.agent.beside(self._agent_options())
        self.agent.start()
        wait("the next agent is ready", lambda: len(self.agent.events(waits)) > before)
        assert self.registered(), "ready beside the old one"
        old.stop()
        wait("the agent is registered", self.registered)

    # --- looking ---------------------------------------------------------------------

    def registered(self) -> bool:
        """Return whether the agent reports that it is registered with the kubelet."""
        assert self.agent.alive, f"the agent has ended: {self.agent.tail()}"
        try:
            url = f"http://127.0.0.1:{self._ports['agent']}/readyz"
            with urllib.request.urlopen(url, timeout=2) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait_for_cards(self) -> None:
        """Wait until the agent is registered and the node offers all its slots."""
        wait("the node's cards", lambda: self.registered() and self.offered() == CARDS * 100)
