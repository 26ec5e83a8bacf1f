"""A node of claims without an API server: its pods, its claims, and drivers of both."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from agent.allocator.slots import DeviceTable
from agent.dra.claims import ClaimRef, is_allocated
from agent.dra.driver import ClaimDriver
from agent.dra.specs import ClaimSpecs
from agent.enforcement.hami import HamiCore
from agent.enforcement.hami_library import HamiLibrary
from agent.holdings.edits import ContainerEdits
from agent.holdings.holding import Holding
from agent.holdings.interfaces import Enforcer
from agent.injection.inject import Injection, inject
from agent.kubernetes_api.client import CLAIMS, Api
from agent.kubernetes_api.pods import PodCache
from agent.kubernetes_api.watched_objects import WatchedObjects
from contract.resource import Resource
from placement.pods import PodInfo
from tests.agent.builders import BLOCK, container, device_table, view, write_hami_core
from tests.agent.dra.a_claim import DRIVER, NODE, claim_of, result, spec_of

TABLE = device_table(2)


class ClaimNode:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cdi = folder / "cdi"
        self.infos: list[PodInfo] = []  # that the watch shows
        self.fetched: PodInfo | None = None  # that the API server returns
        self.error: Exception | None = None
        self.claims: dict[str, Any] = {}
        self.written: dict[str, Any] = {}
        self.unhealthy: dict[str, str] = {}
        self.refusals: list[str] = []
        self.watched = WatchedObjects(
            cast(Api, self),
            CLAIMS,
            "ResourceClaim",
            keeps=lambda each: is_allocated(each, DRIVER, NODE),
        )
        self.watched.synced.set()

    def add(self, name: str, device: str, cores: int, memory: int) -> ClaimRef:
        self.infos.append(view(name, container("c0", cores, memory)))
        return self.add_claim(name, f"{name}-gpus", result("c0", device, cores, memory))

    def add_claim(self, pod: str, name: str, *results: Mapping[str, Any]) -> ClaimRef:
        claim = claim_of({"metadata": {"name": pod, "uid": f"u-{pod}"}}, *results, name=name)
        uid = claim["metadata"]["uid"] = f"uid-{name.removesuffix('-gpus')}"
        self.claims[name] = claim
        return ClaimRef("default", name, uid)

    def allocate(self, ref: ClaimRef, *results: Mapping[str, Any]) -> None:
        self.claims[ref.name]["status"]["allocation"]["devices"]["results"] = list(results)

    def delete(self, ref: ClaimRef) -> None:
        self.claims.pop(ref.name, None)

    def deallocate(self, ref: ClaimRef) -> None:
        self.claims.get(ref.name, {})["status"] = {}

    def watch(self, ref: ClaimRef) -> None:
        self.watched.collection.apply("ADDED", self.claims[ref.name])

    def spec(self, ref: ClaimRef) -> dict[str, Any]:
        return spec_of(self.cdi, ref)

    def specs(self) -> set[str]:
        names = (each.name for each in self.cdi.glob("*.json"))
        return {each.removeprefix("gpu-turnstile-claim-").removesuffix(".json") for each in names}

    def pods(self) -> list[PodInfo]:
        return self.infos

    def fetch(self, namespace: str, name: str) -> PodInfo | None:
        if self.error is not None:
            raise self.error
        return self.fetched

    def get_claim(self, namespace: str, name: str) -> Any:
        if self.error is not None:
            raise self.error
        return self.claims.get(name)

    def put(self, info: PodInfo, allocations: Mapping[str, Any]) -> None:
        self.written[info.id.name] = allocations

    def list(self, *_: object) -> Any:
        return [], "1", ""

    def driver(
        self,
        mode: Injection = Injection.NODES,
        table: DeviceTable = TABLE,
        *,
        ending: float = 0.0,
        enforcer: Enforcer | None = None,
    ) -> ClaimDriver:
        def edits(holding: Holding) -> ContainerEdits:
            names = {card.uuid: f"nvidia.com/gpu={card.index}" for card in TABLE.inventory.cards}
            return inject(holding, TABLE.inventory, mode, cdi_names=names)

        write_hami_core(self.folder / "libvgpu.so")
        library = HamiLibrary(self.folder, on_outdated=lambda _outdated: None)
        return ClaimDriver(
            table=table,
            driver=DRIVER,
            pool=NODE,
            claims=self.watched,
            api=cast(Api, self),
            pods=cast(PodCache, self),
            specs=ClaimSpecs(self.cdi, DRIVER),
            inject=edits,
            enforcer=enforcer
            or HamiCore(
                state_dir=self.folder / "state",
                library=library,
                block=BLOCK,
                cards=TABLE.inventory.cards,
            ),
            writer=self,
            unhealthy=lambda card: self.unhealthy.get(card, ""),
            on_refusal=lambda ref, _reason: self.refusals.append(ref.pod.name),
            ending=ending,
        )


def free(driver: ClaimDriver) -> list[int]:
    return list(driver.free(Resource.CORE).values())
