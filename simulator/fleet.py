"""A cluster of several nodes: a simulated kubelet and a real agent for each."""

from collections.abc import Callable, Sequence
from pathlib import Path

from contract.inventory import PublishedInventory, decode_inventory
from simulator.cluster import NAMES, Cluster, free_port
from simulator.manifests import Json, read_manifests, write_yaml
from simulator.objects import annotations

SHIPPED = Path(__file__).parents[1] / "deploy/components/scheduler-extender/kube-scheduler.yaml"


class Fleet(Cluster):
    """A cluster whose nodes all have the same cards.

    Args:
        cards: makes the cards file of a node from its number.
    """

    def __init__(
        self,
        cards: Callable[[int], Json],
        nodes: Sequence[str],
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(cards(0), seed=seed)
        self.nodes = tuple(nodes)
        self._cards_of = cards

    def start_nodes(self) -> None:
        """Start the kubelets and agents of all nodes, and the scheduler between them."""
        for number, name in enumerate(self.nodes):
            home = self.root / name
            for each in ("kubelet", "plugins"):
                (home / each).mkdir(parents=True)
            write_yaml(home / "cards.yaml", self._cards_of(number))
            files = (f"--root-dir={home}/kubelet", f"--trace={home}/trace")
            self.start(
                *("kubelet", f"--node-name={name}", *self._sockets(home), *files),
                label=f"kubelet-{name}",
            )
        self.start("scheduler")
        for name in self.nodes:
            home = self.root / name
            own = (
                f"--kubelet-dir={home}/plugins",
                *self._sockets(home),
                f"--cards={home}/cards.yaml",
                f"--state-dir={home}/state",
                f"--cri-socket={home}/cri.sock",
                f"--http-port={free_port()}",
            )
            self.start("agent", f"--node-name={name}", *own, label=f"agent-{name}")

    def inventories(self) -> dict[str, PublishedInventory]:
        """Read what the nodes show of their cards."""
        return {
            each["metadata"]["name"]: decode_inventory(annotations(each)[NAMES.gpu_cards])
            for each in self.api.list("/api/v1/nodes")["items"]
        }

    def let_the_scheduler_see_cards(self) -> None:
        """Replace the scheduler by one that asks the extender, configured as it is installed."""
        self.start("extender")
        self.wait("extender", self.answers("extender"))
        self.kill("scheduler")
        (configuration,) = read_manifests(SHIPPED)
        (entry,) = configuration["extenders"]
        entry["urlPrefix"] = self.extender_url
        entry["tlsConfig"] = {"serverName": "localhost", "caFile": "certs/ca.crt"}
        entry["managedResources"] = [{"name": NAMES.core}]
        write_yaml(self.root / "kube-scheduler.yaml", configuration)
        self.start("scheduler", "--config=kube-scheduler.yaml")

    @staticmethod
    def _sockets(home: Path) -> tuple[str, str]:
        return (f"--plugin-dir={home}/plugins", f"--pod-resources-socket={home}/podres.sock")
