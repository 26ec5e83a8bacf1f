"""Cluster, webhook, agent and the kubelet's record together, and the waiting on them."""

import shlex
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from agent.cards import parse_inventory
from agent.errors import Unavailable
from agent.podresources import PodResources
from agent.tickets import Resource, TicketBook
from agent.witness import Snapshot
from contract.allocation import Allocation, decode_allocations
from contract.demand import ContainerDemand, ContainerKind, parse_pod_demand
from contract.names import Names
from simulator.manifests import write_yaml
from tests.e2e.audit import Seen, findings
from tests.e2e.cluster import ApiError, Cluster, Json
from tests.e2e.manifests import CARDS, Maker, cards_file, limits, visible, webhooks
from tests.e2e.programs import Program, issue_certificates
from tests.e2e.settings import Settings

SETTLE_SECONDS = 150.0
_CLIENTS = 16
_NO_PLUGIN_SECONDS = 60.0
_RESTART_SECONDS = 180.0


def wait(what: str, condition: Callable[[], object], *, within: float = 60.0) -> None:
    """Wait until *condition* holds; not in time is a failure that says what was waited for."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within:g} s")
        time.sleep(0.1)


class Stage:
    """Everything one run of the suite has to itself.

    Args:
        settings: what the suite was told.
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
        self.settings = settings
        self.cluster = cluster
        self.node = node
        self.report = report
        self.names = Names()
        self.make = Maker(node=node, image=settings.image, names=self.names)
        self.cards = [each["uuid"] for each in cards_file()["cards"]]
        self.no_webhook: str | None = None
        self._folder = folder
        self._ports = {"agent": _free_port(), "webhook": _free_port()}
        self._book = TicketBook(parse_inventory(cards_file()), 256 << 20)
        self._record = PodResources(
            settings.pod_resources_socket,
            resources={self.names.core: Resource.CORE, self.names.memory: Resource.MEMORY},
        )
        host, port = settings.webhook_host, self._ports["webhook"]
        self._webhook_url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self.webhook = Program(
            shlex.split(
                f"webhook --host {host} --port {port} "
                f"--cert {folder}/certs/tls.crt --key {folder}/certs/tls.key"
            ),
            folder / "webhook.log",
        )
        self.agent = Program(
            shlex.split(
                f"agent --node-name {node} --kubeconfig {settings.kubeconfig} "
                f"--cards {folder}/cards.yaml --plugin-dir {settings.plugin_dir} "
                f"--pod-resources-socket {settings.pod_resources_socket} "
                f"--enforcement vcuda --state-dir {folder}/state "
                f"--http-host 127.0.0.1 --http-port {self._ports['agent']}"
            ),
            folder / "agent.log",
        )

    # --- start and end ---------------------------------------------------------------

    def open(self) -> None:
        """Start everything; the node must not have an agent yet."""
        wait(
            f"node {self.node} has no other agent that offers {self.names.core}",
            lambda: self.offered() == 0,
            within=_NO_PLUGIN_SECONDS,
        )
        self.cluster.create_namespace()
        wait("the namespace's service account", self.cluster.has_service_account)
        write_yaml(self._folder / "cards.yaml", cards_file())
        issue_certificates(self._folder / "certs", self.settings.webhook_host)
        self.start_webhook()
        ca = (self._folder / "certs" / "ca.crt").read_bytes()
        name = self.cluster.namespace
        self.cluster.create_webhooks(webhooks(name, self._webhook_url, ca, self.names))
        self.no_webhook = self._try_webhook()
        if self.no_webhook is not None:
            self.cluster.delete_webhooks(name)
        self.agent.start()
        self.wait_for_cards()

    def close(self) -> None:
        """End everything and remove what was made in the cluster, as far as it came."""
        try:
            self.cluster.delete_webhooks(self.cluster.namespace)
            if self.cluster.has_namespace():
                self.clear()
                self.cluster.delete_namespace()
                wait("the namespace's end", lambda: not self.cluster.has_namespace(), within=120)
        finally:
            self.agent.stop()
            self.webhook.stop()
            self._record.close()
            self.cluster.close()

    def clear(self) -> None:
        """Delete all pods and wait until the kubelet has forgotten them."""
        self.cluster.delete_pods()
        wait("the pods' end", lambda: not self.cluster.pods() and not self.listed(), within=120)

    def start_webhook(self) -> None:
        self.webhook.start()
        context = ssl.create_default_context(cafile=self._folder / "certs" / "ca.crt")

        def ready() -> bool:
            url = f"{self._webhook_url}/readyz"
            try:
                with urllib.request.urlopen(url, timeout=2, context=context) as answer:
                    return bool(answer.status == 200)
            except (urllib.error.URLError, OSError):
                assert self.webhook.alive, f"the webhook has died: {self.webhook.tail()}"
                return False

        wait("the webhook", ready)

    def restart_kubelet(self) -> None:
        done = subprocess.run(
            self.settings.restart_kubelet,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_RESTART_SECONDS,
            check=False,
            text=True,
        )
        assert done.returncode == 0, f"the command that restarts the kubelet: {done.stdout}"

    # --- looking ---------------------------------------------------------------------

    def offered(self) -> int:
        """Give how many cores the node offers."""
        allocatable = self.cluster.node(self.node)["status"].get("allocatable", {})
        return int(allocatable.get(self.names.core, "0"))

    def registered(self) -> bool:
        """Tell whether the agent says that the kubelet knows it."""
        assert self.agent.alive, f"the agent has died: {self.agent.tail()}"
        try:
            url = f"http://127.0.0.1:{self._ports['agent']}/readyz"
            with urllib.request.urlopen(url, timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait_for_cards(self) -> None:
        """Wait until the agent is registered and the node offers all its places."""
        wait("the node's cards", lambda: self.registered() and self.offered() == CARDS * 100)

    def listed(self) -> dict[tuple[str, str], dict[Resource, frozenset[str]]]:
        """Read the kubelet's own record: (pod, container) -> device IDs."""
        return {
            (pod.name, container.name): dict(container.held)
            for pod in self._snapshot().pods
            if pod.namespace == self.cluster.namespace
            for container in pod.containers
        }

    def _snapshot(self) -> Snapshot:
        deadline = time.monotonic() + 30
        while True:
            try:
                return self._record.list(within=5)
            except Unavailable as error:  # the kubelet may just be restarting
                if time.monotonic() > deadline:
                    raise AssertionError(f"no record from the kubelet: {error}") from error
                time.sleep(0.2)

    def allocations(self, pod: Json) -> dict[str, Allocation]:
        notes = pod["metadata"].get("annotations") or {}
        return decode_allocations(notes.get(self.names.gpu_allocation, "{}"))

    # --- doing -----------------------------------------------------------------------

    def submit(self, pods: Sequence[Json]) -> list[Future[Json]]:
        """Create all *pods* from 16 clients at once, in the background."""
        pool = ThreadPoolExecutor(_CLIENTS)
        created = [pool.submit(self.cluster.create, each) for each in pods]
        pool.shutdown(wait=False)
        return created

    def run(self, *pods: Json) -> dict[str, Json]:
        """Create pods and wait until each runs or was refused."""
        for done in self.submit(pods):
            done.result(60)
        return self.settled(each["metadata"]["name"] for each in pods)

    def settled(self, names: Iterable[str]) -> dict[str, Json]:
        """Wait until each of these pods runs, with its record on it, or was refused."""
        wanted = sorted(names)
        found: dict[str, Json] = {}

        def settled() -> bool:
            listed = self.cluster.pods()
            found.update({name: listed[name] for name in wanted if name in listed})
            return all(name in found and self._is_settled(found[name]) for name in wanted)

        try:
            wait("pods", settled, within=SETTLE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._unsettled(wanted, found)}") from error
        return found

    def _is_settled(self, pod: Json) -> bool:
        if phase(pod) == "Failed":
            return True
        recorded = self.allocations(pod)
        # Running is told once any container runs; the others' logs are waited for later.
        return phase(pod) == "Running" and all(
            each.name in recorded or each.kind is ContainerKind.INIT for each in self._asking(pod)
        )

    def _asking(self, pod: Json) -> tuple[ContainerDemand, ...]:
        return parse_pod_demand(pod["spec"], self.names).containers

    def _unsettled(self, wanted: Sequence[str], found: dict[str, Json]) -> str:
        late = [n for n in wanted if n not in found or not self._is_settled(found[n])]
        status = found[late[0]].get("status") if late and late[0] in found else "not there"
        return f"{len(late)} not settled, such as {late[:3]}: {status}"

    def audit(self, what: str, pods: dict[str, Json], *, init_recorded: bool = True) -> list[Seen]:
        """Compare everybody's word on every container that runs, and tell the report.

        Raises:
            AssertionError: with all findings.
        """
        running = {name: pod for name, pod in pods.items() if phase(pod) == "Running"}
        asking = [(name, each) for name, pod in running.items() for each in self._asking(pod)]
        with ThreadPoolExecutor(_CLIENTS) as pool:
            logs = list(pool.map(lambda each: self.told(each[0], each[1].name), asking))
        held = self.listed()
        seen = [
            Seen(
                pod=name,
                container=container,
                held=held.get((name, container.name), {}),
                recorded=self.allocations(running[name]).get(container.name),
                visible=visible(log),
                uid=running[name]["metadata"]["uid"],
                limits=limits(log),
            )
            for (name, container), log in zip(asking, logs, strict=True)
        ]
        wrong = findings(seen, init_recorded=init_recorded)
        evidence = Counter(each.recorded.evidence.value for each in seen if each.recorded)
        self.report(
            f"{what}: {len(seen)} containers of {len(running)} pods, {len(wrong)} findings; "
            f"evidence: {dict(sorted(evidence.items()))}"
        )
        assert not wrong, "\n".join(wrong)
        return seen

    def told(self, pod: str, container: str) -> str:
        """Give a container's log once it says which cards it sees, or as it is in the end."""
        deadline = time.monotonic() + 60
        while True:
            log = self.cluster.log(pod, container)
            if visible(log) is not None or time.monotonic() > deadline:
                return log
            time.sleep(0.2)

    def refused(self, pods: dict[str, Json]) -> dict[str, str]:
        """Give the messages of the pods that the node refused."""
        return {
            name: str(pod["status"].get("message"))
            for name, pod in sorted(pods.items())
            if phase(pod) == "Failed"
        }

    def wait_for_event(self, pod: str, reason: str) -> None:
        """Wait until a pod has an event of ours, as ``kubectl describe`` shows it."""
        wait(
            f"the event {reason} on {pod}",
            lambda: reason in {each["reason"] for each in self.cluster.events(pod)},
        )

    def _try_webhook(self) -> str | None:
        """Tell why the API server cannot ask the webhook; ``None`` when it can."""
        reason = ""

        def reached() -> bool:
            nonlocal reason
            try:
                made = self.cluster.create(self.make.single("probe", 5, 4), dry_run=True)
            except ApiError as error:
                reason = str(error)
                return False
            return self.names.predicate_time in (made["metadata"].get("annotations") or {})

        try:
            wait("the API server asks the webhook", reached, within=30)
        except AssertionError as error:
            return f"{error}: {reason or 'it does not ask it'}"
        return None


def phase(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def choose_node(nodes: Sequence[Json], asked: str | None, host: str) -> str | None:
    """Choose the node to work on: the one asked for, the only one, or the one of this host."""
    known: dict[str, set[str]] = {
        each["metadata"]["name"]: {
            each["metadata"]["name"],
            *(a["address"] for a in each.get("status", {}).get("addresses", ())),
        }
        for each in nodes
    }
    if asked is not None:
        return asked if asked in known else None
    if len(known) == 1:
        return next(iter(known))
    return next((name for name, also in sorted(known.items()) if host in also), None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
