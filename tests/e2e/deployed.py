"""What is installed and what it works on, together, as the tests of it want them."""

from dataclasses import dataclass

from tests.e2e.ground import Ground, wait
from tests.e2e.installation import Installation
from tests.e2e.kubectl import Kubectl
from tests.e2e.load import Load
from tests.e2e.manifests import CARDS


@dataclass(frozen=True, slots=True)
class Deployed:
    """An installation, and the ground it works on."""

    ground: Ground
    installation: Installation
    kubectl: Kubectl

    def load(self) -> Load:
        """Clients that create GPU pods; none is kept, each must have got its stamp."""

        def create(number: int) -> None:
            pod = self.ground.make.single(f"load-{number}", 5, 4)
            made = self.ground.cluster.create(pod, dry_run=True)
            assert self.ground.names.admission_order in made["metadata"]["annotations"]

        return Load(create)

    def wait_for_cards(self) -> None:
        wait("the node's cards", lambda: self.ground.offered() == CARDS * 100)
