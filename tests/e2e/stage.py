"""Webhook, proxy and agent as processes, on a node of the cluster."""

import os
import shlex
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contract.names import Names
from simulator.cluster import free_port, read_lines
from simulator.manifests import write_yaml
from simulator.webhooks import set_address
from tests.e2e.cluster import ApiError, Cluster, Json
from tests.e2e.ground import Ground, wait
from tests.e2e.manifests import CARDS, cards_file, webhooks
from tests.e2e.settings import Settings

_STOP_SECONDS = 30.0


class Program:
    """``python -m NAME``, started, killed and started again, with one log file throughout."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = 0
        self.log = log
        log.touch()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONWARNINGS": "default"},
            )

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, number: int = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{self._arguments[0]} did not end: {self.tail()}") from None

    def beside(self, arguments: Sequence[str]) -> "Program":
        """Make another one that writes to the same log; :meth:`events` are those of both."""
        made = Program(arguments, self.log)
        made._mark = self._mark
        return made

    def mark(self) -> None:
        self._mark = len(read_lines(self.log))

    def events(self, event: str) -> list[dict[str, Any]]:
        return [each for each in read_lines(self.log)[self._mark :] if each.get("message") == event]

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-2000:]


class Webhook(Program):
    """The webhook for one namespace; *host* is where the API server reaches this host."""

    def __init__(self, cluster: Cluster, folder: Path, host: str, *options: str) -> None:
        port = free_port()
        self._cluster = cluster
        self._certificates = folder / "certs"
        self._host = host
        self._url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        files = f"--cert {folder}/certs/tls.crt --key {folder}/certs/tls.key"
        arguments = shlex.split(f"webhook --host {host} --port {port} {files}")
        super().__init__([*arguments, *options], folder / "webhook.log")

    def start(self) -> None:
        if not self._certificates.exists():
            issue = ["issue", "--out", str(self._certificates), "--ip", self._host]
            subprocess.run(
                [sys.executable, "-m", "certs", *issue], check=True, timeout=_STOP_SECONDS
            )
        super().start()
        context = ssl.create_default_context(cafile=self._certificates / "ca.crt")

        def ready() -> bool:
            url = f"{self._url}/readyz"
            try:
                with urllib.request.urlopen(url, timeout=2, context=context) as response:
                    return bool(response.status == 200)
            except (urllib.error.URLError, OSError):
                assert self.alive, f"the webhook has ended: {self.tail()}"
                return False

        wait("the webhook", ready)

    def install(self, configuration: Json) -> None:
        set_address(configuration, self._url, (self._certificates / "ca.crt").read_bytes())
        self._cluster.create_webhooks(configuration)

    def configure(self, probe: Json, names: Names) -> str | None:
        """Make the API server call it; return why it cannot, ``None`` if *probe* was stamped."""
        self.install(webhooks(self._cluster.namespace))
        reason = ""

        def reached() -> bool:
            nonlocal reason
            try:
                made = self._cluster.create(probe, dry_run=True)
            except ApiError as error:
                reason = str(error)
                return False
            return names.admission_order in (made["metadata"].get("annotations") or {})

        try:
            wait("the API server calls the webhook", reached, within=30)
        except AssertionError as error:
            return f"{error}: {reason or 'it does not call it'}"
        return None


PATIENCE = 20.0
"""Seconds for which calls of the kubelet wait for the agent."""


class Stage(Ground):
    own_limits = True
    """Whether containers find their limits in a file, as vcuda's library reads them."""
    mode = "plugin"
    """Of agent and proxy: ``plugin`` or ``dra``."""
    webhook_options: Sequence[str] = ()

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        *,
        node: str,
        folder: Path,
        **more: Any,
    ) -> None:
        super().__init__(settings, cluster, node=node, enforced=self.own_limits, **more)
        self.cards = [each["uuid"] for each in cards_file()["cards"]]
        self.no_webhook: str | None = None
        self._folder = folder
        self.plugins = folder / "plugins"
        self._ports = {each: free_port() for each in ("agent", "proxy")}
        self.webhook = Webhook(cluster, folder, settings.webhook_host, *self.webhook_options)
        self.proxy = Program(
            shlex.split(
                f"proxy --mode {self.mode} "
                f"--kubelet-dir {settings.plugin_dir} --plugin-dir {self.plugins} "
                f"--patience {PATIENCE:g} --http-host 127.0.0.1 --http-port {self._ports['proxy']}"
            ),
            folder / "proxy.log",
        )
        self.agent = Program(self._agent_options(), folder / "agent.log")

    def _agent_options(self) -> list[str]:
        settings, folder = self.settings, self._folder
        return shlex.split(
            f"agent --mode {self.mode} --node-name {self.node} --kubeconfig {settings.kubeconfig} "
            f"--cards {folder}/cards.yaml --kubelet-dir {settings.plugin_dir} "
            f"--plugin-dir {self.plugins} "
            f"--pod-resources-socket {settings.pod_resources_socket} "
            f"{self.enforcement()} --cri-socket {settings.cri_socket} "
            f"--http-host 127.0.0.1 --http-port {self._ports['agent']}"
        )

    def enforcement(self) -> str:
        """Return the agent's flags that say how it limits shares."""
        folder = self._folder
        return f"--enforcement vcuda --driver-dir {folder}/driver --state-dir {folder}/state"

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
        try:
            self.cluster.delete_webhooks(self.cluster.namespace)
            self.leave()
        finally:
            self.agent.stop()
            self.proxy.stop()
            self.webhook.stop()
            self.disconnect()

    def kill_agent(self, *, gap: float = 0.0) -> None:
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

    def disturb(self, how: str) -> None:
        """Do what the name of a test's case says."""
        acts = {"agent killed": self.kill_agent, "agent upgraded": self.upgrade_agent}
        acts |= {"kubelet killed": self.kill_kubelet, "kubelet restarted": self.restart_kubelet}
        if how != "nothing":
            acts[how]()

    def registered(self) -> bool:
        assert self.agent.alive, f"the agent has ended: {self.agent.tail()}"
        try:
            url = f"http://127.0.0.1:{self._ports['agent']}/readyz"
            with urllib.request.urlopen(url, timeout=2) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait_for_allocations(self, number: int) -> None:
        wait("a burst is under way", lambda: len(self.agent.events("allocate")) >= number)

    def wait_for_cards(self) -> None:
        wait("the node's cards", lambda: self.registered() and self.offered() == CARDS * 100)
