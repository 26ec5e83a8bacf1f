"""The driver's memory: sums, idempotence, restarts, and an end at every step."""

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.slots import DeviceTable
from agent.dra.claims import ClaimRef, is_allocated
from agent.dra.driver import ClaimDriver
from agent.dra.server import DriverServer
from agent.dra.specs import ClaimSpecs
from agent.enforcement.hami import HamiCore
from agent.enforcement.hami_library import HamiLibrary
from agent.errors import ClaimError, Unavailable
from agent.holdings.edits import ContainerEdits
from agent.holdings.holding import Holding
from agent.injection.inject import Injection, inject
from agent.kubernetes_api.client import CLAIMS, Api
from agent.kubernetes_api.pods import PodCache
from agent.kubernetes_api.watched_objects import WatchedObjects
from common.kubelet_api import dra_pb2 as pb
from contract.allocation import Allocation, Evidence
from contract.inventory import Amounts
from contract.resource import Resource
from placement.pods import PodInfo
from tests.agent.builders import BLOCK, INIT, cases, container, device_table, patient, raising, view
from tests.agent.dra.a_claim import (
    DRIVER,
    NODE,
    DraKubelet,
    channel_to,
    claim_of,
    claims_stub,
    message_of,
    result,
    spec_of,
)
from tests.agent.fakes import DEADLINE_S, short_dir
from tests.agent.injection.test_cdi import schema
from tests.agent.killing import killed

TABLE = device_table(2)
MODES = (Injection.NODES, Injection.CDI)


class FakeNode:
    """Pods, claims and the annotations that are written, without an API server."""

    def __init__(self) -> None:
        self.infos: list[PodInfo] = []
        self.claims: dict[str, Any] = {}
        self.written: dict[str, Any] = {}
        self.unhealthy: dict[str, str] = {}
        self.refusals: list[str] = []
        self.cache = WatchedObjects(
            cast(Api, self),
            CLAIMS,
            "ResourceClaim",
            keeps=lambda each: is_allocated(each, DRIVER, NODE),
        )
        self.cache.synced.set()

    def add(self, name: str, device: str, cores: int, memory: int) -> ClaimRef:
        self.infos.append(view(name, container("c0", cores, memory)))
        claim = claim_of(
            {"metadata": {"name": name, "uid": f"u-{name}"}}, result("c0", device, cores, memory)
        )
        claim["metadata"]["uid"] = f"uid-{name}"
        self.claims[claim["metadata"]["name"]] = claim
        return ClaimRef("default", claim["metadata"]["name"], f"uid-{name}")

    def delete(self, ref: ClaimRef) -> None:
        self.claims.pop(ref.name, None)

    def deallocate(self, ref: ClaimRef) -> None:
        self.claims.get(ref.name, {})["status"] = {}

    def pods(self) -> list[PodInfo]:
        return self.infos

    def fetch(self, namespace: str, name: str) -> PodInfo | None:
        return None

    def get_claim(self, namespace: str, name: str) -> Any:
        return self.claims.get(name)

    def put(self, info: PodInfo, allocations: Mapping[str, Any]) -> None:
        self.written[info.id.name] = allocations

    def list(self, *_: object) -> Any:
        return [], "1", ""

    def driver(
        self,
        folder: Path,
        mode: Injection = Injection.NODES,
        table: DeviceTable = TABLE,
        *,
        ending: float = 0.0,
    ) -> ClaimDriver:
        """A driver that has just been started."""

        def edits(holding: Holding) -> ContainerEdits:
            names = {card.uuid: f"nvidia.com/gpu={card.index}" for card in TABLE.inventory.cards}
            return inject(holding, TABLE.inventory, mode, cdi_names=names)

        (folder / "lib").mkdir(exist_ok=True)
        (folder / "lib/libvgpu.so").touch()
        library = HamiLibrary(folder / "lib", on_outdated=lambda _outdated: None)
        return ClaimDriver(
            table=table,
            driver=DRIVER,
            pool=NODE,
            claims=self.cache,
            api=cast(Api, self),
            pods=cast(PodCache, self),
            specs=ClaimSpecs(folder / "cdi", DRIVER),
            inject=edits,
            enforcer=HamiCore(
                state_dir=folder / "state",
                library=library,
                block=BLOCK,
                cards=TABLE.inventory.cards,
            ),
            writer=self,
            unhealthy=lambda card: self.unhealthy.get(card, ""),
            on_refusal=lambda ref, _reason: self.refusals.append(ref.pod.name),
            ending=ending,
        )


@contextmanager
def serving(folder: Path, driver: ClaimDriver) -> Iterator[DraKubelet]:
    """A kubelet that has registered this driver."""
    kubelet = DraKubelet(folder)
    server = DriverServer(driver, plugins=folder / DRIVER, registry=folder / "plugins_registry")
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        kubelet.register()
        yield kubelet
    finally:
        server.stop()
        thread.join()


_SHARES = st.tuples(
    st.sampled_from(["gpu-0", "gpu-1"]), st.sampled_from([30, 50, 60, 100]), st.integers(1, 10)
)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["prepare", "unprepare", "restart", "reboot", "delete", "deallocate", "refresh"]
        ),
        st.integers(0, 2),
    ),
    max_size=30,
)


@patient
@given(st.lists(_SHARES, min_size=3, max_size=3), _STEPS)
def test_no_card_is_ever_given_twice(
    shares: list[tuple[str, int, int]], steps: list[tuple[str, int]]
) -> None:
    with short_dir() as folder:
        node = FakeNode()
        refs = [node.add(f"p{at}", *share) for at, share in enumerate(shares)]
        driver, prepared = node.driver(folder), dict[int, Any]()
        gone, inherited = set[int](), set[int]()  # claims without a share; of an earlier agent
        for step, at in steps:
            if step == "prepare":
                together = [shares[each] for each in {*prepared, at}]
                on_card = [each for each in together if each[0] == shares[at][0]]
                cores, blocks = sum(each[1] for each in on_card), sum(each[2] for each in on_card)
                if at in gone:
                    with pytest.raises(ClaimError, match=r"Not found|Required value"):
                        driver.prepare(refs[at])
                elif cores > 100 or blocks > 10:
                    with pytest.raises(ClaimError, match="are held by"):
                        driver.prepare(refs[at])
                else:
                    devices = driver.prepare(refs[at])
                    assert prepared.setdefault(at, devices) == devices
                    schema().validate(spec_of(folder / "cdi", refs[at]))
            elif step == "unprepare":
                driver.unprepare(refs[at])
                prepared.pop(at, None)
            elif step in {"delete", "deallocate"}:
                getattr(node, step)(refs[at])
                gone.add(at)
            elif step == "refresh":
                driver.refresh()
                prepared = {at: prepared[at] for at in prepared.keys() - (gone & inherited)}
                inherited.clear()
            else:
                if step == "reboot":
                    prepared.clear()
                    for each in (folder / "cdi").iterdir():
                        each.unlink()
                driver, inherited = node.driver(folder), set(prepared)
            for card in TABLE.inventory.cards:
                own = [shares[at] for at in prepared if shares[at][0] == f"gpu-{card.index}"]
                cores = sum(each[1] for each in own)
                whole = any(each[1] == 100 for each in own)
                assert driver.free(Resource.CORE)[card.uuid] == 100 - cores >= 0
                blocks = 0 if whole else 10 - sum(each[2] for each in own)
                assert driver.free(Resource.MEMORY)[card.uuid] == blocks >= 0
            assert {each.ref.pod.name for each in driver.holdings().holders} == {
                f"p{at}" for at in prepared
            }
            assert {each.name for each in (folder / "cdi").iterdir()} == {
                f"gpu-turnstile-claim-{refs[at].uid}.json" for at in prepared
            }


@cases(
    "status, freed",
    {
        "it is allocated": (None, False),
        "it has no card any more": ({}, True),
        "another driver's domain": (
            {"allocation": {"devices": {"results": [{"driver": "gpu.old"}]}}},
            False,
        ),
    },
)
def test_claims_of_an_earlier_agent_are_kept_while_they_are_allocated(
    tmp_path: Path, status: Any, *, freed: bool
) -> None:
    node = FakeNode()
    ref = node.add("a", "gpu-0", 30, 4)
    node.driver(tmp_path).prepare(ref)
    node.claims[ref.name] |= {} if status is None else {"status": status}
    driver = node.driver(tmp_path)
    driver.refresh()
    assert driver.free(Resource.CORE)["GPU-0"] == (100 if freed else 70)
    assert driver.confirmed


def test_an_api_server_that_is_away_loses_no_prepared_claim(tmp_path: Path) -> None:
    node = FakeNode()
    kept, ended = node.add("a", "gpu-0", 30, 4), node.add("b", "gpu-0", 30, 4)
    node.driver(tmp_path).prepare(kept)
    node.driver(tmp_path).prepare(ended)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "get_claim", raising(Unavailable("no response")))
        driver = node.driver(tmp_path)
        driver.refresh()
        with pytest.raises(Unavailable, match="no response"):
            driver.prepare(kept)
        driver.unprepare(ended)
        assert driver.free(Resource.CORE)["GPU-0"] == 70
        assert not driver.confirmed
    driver.refresh()
    assert driver.free(Resource.CORE)["GPU-0"] == 70
    assert driver.confirmed


def test_names_of_the_host_are_beside_our_own_and_not_in_it() -> None:
    with short_dir() as folder:
        node = FakeNode()
        ref = node.add("a", "gpu-1", 30, 4)
        (names,) = node.driver(folder, Injection.CDI).prepare(ref).values()
        assert names == (f"{DRIVER}/claim=uid-a-0", "nvidia.com/gpu=1")
        (edits,) = spec_of(folder / "cdi", ref)["devices"]
        assert "NVIDIA_VISIBLE_DEVICES=void" in edits["containerEdits"]["env"]


def test_shares_of_two_cards_have_one_cdi_device() -> None:
    with short_dir() as folder:
        node = FakeNode()
        ref = node.add("a", "gpu-0", 30, 4)
        node.infos[0] = view("a", container("c0", 200, 0))
        results = [result("c0", each, 100, 1) for each in ("gpu-1", "gpu-0")]
        node.claims[ref.name]["status"]["allocation"]["devices"]["results"] = results
        devices = node.driver(folder).prepare(ref)
        assert [(each.device, names) for each, names in devices.items()] == [
            ("gpu-0", (f"{DRIVER}/claim=uid-a-0",)),
            ("gpu-1", ()),
        ]
        (edits,) = spec_of(folder / "cdi", ref)["devices"]
        assert "NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1" in edits["containerEdits"]["env"]


def test_a_driver_killed_at_every_step_has_prepared_all_or_nothing() -> None:
    steps = ("mkdir", "open", "write", "fchmod", "rename", "unlink", "scandir")
    with short_dir() as folder:
        node = FakeNode()
        other, ref = node.add("other", "gpu-0", 60, 4), node.add("a", "gpu-0", 40, 4)
        expected = node.driver(folder).prepare(other)
        at = 0
        while True:
            driver = node.driver(folder)
            died = killed(at, steps, lambda driver=driver: driver.prepare(ref))  # type: ignore[misc]
            successor = node.driver(folder)
            assert successor.free(Resource.CORE)["GPU-0"] in (0, 40)
            assert [each.device for each in successor.prepare(ref)] == ["gpu-0"]
            schema().validate(spec_of(folder / "cdi", ref))
            assert successor.prepare(other) == expected
            gone = killed(at, steps, lambda driver=successor: driver.unprepare(ref))  # type: ignore[misc]
            node.driver(folder).unprepare(ref)
            assert node.driver(folder).free(Resource.CORE)["GPU-0"] == 40
            if not died and not gone:
                break
            at += 1
        assert at > 5
        assert [each.name for each in (folder / "cdi").glob("*.json")] == [
            "gpu-turnstile-claim-uid-other.json"
        ]


def test_a_spec_that_somebody_has_broken_is_left_and_written_again(tmp_path: Path) -> None:
    node = FakeNode()
    ref = node.add("a", "gpu-0", 30, 4)
    node.driver(tmp_path).prepare(ref)
    path = tmp_path / "cdi" / f"gpu-turnstile-claim-{ref.uid}.json"
    for broken in (
        "",
        "{",
        "[]",
        '{"annotations": {}}',
        '{"annotations": {"gpu-turnstile.io/claim": "1"}}',
    ):
        path.write_text(broken)
        driver = node.driver(tmp_path)
        assert driver.free(Resource.CORE)["GPU-0"] == 100
        driver.prepare(ref)
        schema().validate(spec_of(tmp_path / "cdi", ref))


def test_a_spec_by_another_name_is_none_of_ours(tmp_path: Path) -> None:
    """A copy, or one whose claim has a UID that is a path: neither could be removed."""
    node = FakeNode()
    node.driver(tmp_path).prepare(node.add("a", "gpu-0", 30, 4))
    path = tmp_path / "cdi" / "gpu-turnstile-claim-uid-a.json"
    path.with_name("gpu-turnstile-claim-copy.json").write_text(path.read_text())
    path.write_text(path.read_text().replace("uid-a", "../uid-a"))
    driver = node.driver(tmp_path)
    driver.refresh()
    assert driver.free(Resource.CORE)["GPU-0"] == 100
    assert driver.confirmed


def test_files_of_others_in_the_folder_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = FakeNode()
    node.driver(tmp_path).prepare(node.add("a", "gpu-0", 30, 4))
    for name in ("nvidia.json", "gpu-turnstile-claim-uid-b.yaml"):
        (tmp_path / "cdi" / name).write_text("{")
    assert node.driver(tmp_path).free(Resource.CORE)["GPU-0"] == 70
    assert "CDI spec of a claim cannot be read" not in caplog.text


def test_a_call_that_the_kubelet_has_cancelled_prepares_nothing() -> None:
    """The pod was deleted meanwhile: nobody would call ``NodeUnprepareResources`` again."""
    asked, answers, ended = (threading.Event() for _ in range(3))
    with short_dir() as folder:
        node = FakeNode()
        ref = node.add("a", "gpu-0", 30, 4)
        driver = node.driver(folder)
        prepare = driver.prepare

        def get_claim(namespace: str, name: str) -> Any:
            asked.set()
            answers.wait(DEADLINE_S)
            return node.claims[name]

        def watched(*args: Any) -> Any:
            try:
                return prepare(*args)
            finally:
                ended.set()

        with (
            pytest.MonkeyPatch.context() as patch,
            serving(folder, driver) as kubelet,
            channel_to(kubelet.endpoint) as channel,
        ):
            patch.setattr(node, "get_claim", get_claim)
            patch.setattr(driver, "prepare", watched)
            stub, claims = claims_stub(channel), [message_of(ref)]
            call = stub.NodePrepareResources.future(pb.NodePrepareResourcesRequest(claims=claims))
            assert asked.wait(DEADLINE_S)
            call.cancel()
            stub.NodeUnprepareResources(pb.NodeUnprepareResourcesRequest(claims=claims))
            answers.set()
            assert ended.wait(DEADLINE_S)
            assert not list((folder / "cdi").glob("*.json"))
            assert driver.free(Resource.CORE)["GPU-0"] == 100
            patch.undo()
            assert kubelet.prepare(ref)[ref.uid].error == ""


def test_the_entitlement_of_a_container_is_by_pod_and_name() -> None:
    with short_dir() as folder:
        node = FakeNode()
        driver = node.driver(folder)
        driver.prepare(node.add("c", "gpu-0", 30, 4))
        driver.prepare(node.add("a", "gpu-1", 30, 4))
        found = driver.entitled("u-a", "c0")
        assert found is not None
        assert (found.cards, found.uid) == ({"GPU-1": Amounts(30, 4)}, "u-a")
        assert found.memory_limits == {"GPU-1": 4}
        assert driver.entitled("u-a", "c1") is None
        assert driver.entitled("u-b", "c0") is None


def test_the_allocation_is_written_to_a_pod_until_it_shows_it_or_has_ended(tmp_path: Path) -> None:
    node = FakeNode()
    driver = node.driver(tmp_path)
    driver.prepare(node.add("a", "gpu-1", 30, 4))
    expected = {"c0": Allocation(("GPU-1",), 30, 4, Evidence.CLAIM)}
    for change, written in (
        ({}, {"a": expected}),
        ({"annotated": expected}, {}),
        ({"annotated": {}, "terminal": True}, {}),
    ):
        node.written.clear()
        node.infos[0] = replace(node.infos[0], **change)
        driver.refresh()
        assert node.written == written


def test_files_stay_until_a_pod_holds_nothing(tmp_path: Path) -> None:
    node = FakeNode()
    ref = node.add("a", "gpu-1", 30, 4)
    driver = node.driver(tmp_path)

    def swept() -> bool:
        driver.sweep()
        return not list((tmp_path / "state").rglob("owner.json"))

    driver.prepare(ref)
    assert not driver.refresh()
    assert not swept()
    driver.unprepare(ref)
    assert driver.refresh()
    assert not driver.refresh()
    by_plugin = {"c0": Allocation(("GPU-1",), 30, 4, Evidence.RECORD)}
    node.infos[0] = replace(node.infos[0], annotated=by_plugin)
    assert not swept()
    node.infos.clear()
    assert swept()


def test_a_refusal_is_said_to_the_pod_and_an_api_server_that_is_away_is_not(tmp_path: Path) -> None:
    node = FakeNode()
    ref = node.add("a", "gpu-1", 30, 4)
    (info,) = node.infos
    node.infos.clear()  # the watch does not show it yet
    driver = node.driver(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "fetch", raising(Unavailable("no response")))
        with pytest.raises(Unavailable):
            driver.prepare(ref)
        assert node.refusals == []
        patch.setattr(node, "fetch", lambda _namespace, _name: None)
        with pytest.raises(ClaimError, match="is not running on this node"):
            driver.prepare(ref)
        assert node.refusals == ["a"]
        patch.setattr(node, "fetch", lambda _namespace, _name: info)
        assert driver.prepare(ref)


def test_a_claim_that_is_allocated_anew_is_checked_anew(tmp_path: Path) -> None:
    node = FakeNode()
    ref, other = node.add("a", "gpu-0", 60, 4), node.add("b", "gpu-1", 60, 4)
    driver = node.driver(tmp_path)
    driver.prepare(ref)
    driver.prepare(other)
    results = [result("c0", "gpu-1", 60, 4)]
    node.claims[ref.name]["status"]["allocation"]["devices"]["results"] = results
    with pytest.raises(ClaimError, match="60 of 100 are held by default/b-gpus"):
        driver.prepare(ref)


def test_a_card_that_got_unhealthy_after_the_scheduler_chose_it_is_given_to_no_new_container() -> (
    None
):
    with short_dir() as folder:
        node = FakeNode()
        runs, ref = node.add("runs", "gpu-0", 30, 4), node.add("a", "gpu-0", 30, 4)
        driver = node.driver(folder)
        driver.prepare(runs)
        node.unhealthy = {"GPU-0": "Xid 79"}
        with pytest.raises(
            ClaimError,
            match=r"claim default/a-gpus: card GPU-0 is unhealthy \(Xid 79\), and gets no new "
            "container: delete the pod, so that another card is chosen",
        ):
            driver.prepare(ref)
        assert driver.prepare(runs)
        node.unhealthy = {}
        assert driver.prepare(ref)


def test_a_prepared_claim_is_prepared_again_though_less_memory_is_offered_now() -> None:
    """``--reserved-memory`` may change at any time."""
    with short_dir() as folder:
        node = FakeNode()
        ref, other = node.add("a", "gpu-0", 30, 10), node.add("b", "gpu-0", 30, 1)
        node.driver(folder).prepare(ref)
        driver = node.driver(folder, table=device_table(2, blocks=8))
        assert driver.prepare(ref)
        assert driver.free(Resource.MEMORY)["GPU-0"] == 0
        with pytest.raises(ClaimError, match="10 of 8 are held by default/a-gpus"):
            driver.prepare(other)
        driver.unprepare(ref)
        with pytest.raises(
            ClaimError,
            match="10 memory blocks of card GPU-0, but it has 8 now: delete the pod",
        ):
            driver.prepare(ref)


def test_calls_at_the_same_time_are_checked_one_after_the_other() -> None:
    with short_dir() as folder, ThreadPoolExecutor(8) as pool:
        node = FakeNode()
        refs = [node.add(f"p{at}", "gpu-0", 30, 1) for at in range(8)]
        driver = node.driver(folder)
        calls = [pool.submit(driver.prepare, each) for each in refs]
        refused = [each for each in calls if each.exception() is not None]
        assert len(refused) == 5
        assert driver.free(Resource.CORE)["GPU-0"] == 10


def test_a_claim_waits_for_the_end_of_a_pod_that_was_deleted_by_force() -> None:
    with short_dir() as folder, ThreadPoolExecutor(1) as pool:
        node = FakeNode()
        ended = node.add("ended", "gpu-0", 60, 4)
        driver = node.driver(folder, ending=2 * DEADLINE_S)
        driver.prepare(ended)
        node.delete(ended)  # the scheduler gives its card away; the kubelet still stops it
        following, twice = node.add("next", "gpu-0", 60, 4), node.add("twice", "gpu-0", 60, 4)
        node.cache.collection.list()
        waits = pool.submit(driver.prepare, following)
        driver.unprepare(ended)
        waits.result(DEADLINE_S)
        node.cache.collection.apply(
            "ADDED", node.claims[following.name]
        )  # it has not ended: nobody waits
        refused = pool.submit(driver.prepare, twice).exception(DEADLINE_S)
        assert "60 of 100 are held by default/next-gpus: it starts once" in str(refused)
        by_plugin = {"c0": Allocation(("GPU-1",), 60, 4, Evidence.RECORD)}  # its pod has no claim
        node.infos.append(replace(view("old", container("c0", 60, 4)), annotated=by_plugin))
        refused = pool.submit(driver.prepare, node.add("b", "gpu-1", 60, 4)).exception(DEADLINE_S)
        assert "60 of 100 are held by default/old: it starts once" in str(refused)


def test_cards_that_a_device_plugin_gave_away_are_held_until_their_pods_end() -> None:
    """The node was not drained before it got the label. Init containers leave their devices."""
    with short_dir() as folder:
        node = FakeNode()
        ours = Allocation(("GPU-0",), 60, 4, Evidence.RECORD)
        old = view("old", container("first", 60, 4, kind=INIT), container("c0", 40, 6))
        node.infos.append(
            replace(
                old,
                annotated={
                    "first": ours,
                    "c0": Allocation(("GPU-0",), 40, 6, Evidence.TICKET),
                },
            )
        )
        ref = node.add("a", "gpu-0", 50, 4)
        driver = node.driver(folder)
        with pytest.raises(
            ClaimError, match="50 cores of card GPU-0, but 60 of 100 are held by default/old"
        ):
            driver.prepare(ref)
        assert driver.free(Resource.CORE) == {"GPU-0": 40, "GPU-1": 100}
        assert [each.ref.container for each in driver.holdings().holders] == ["c0", "first"]
        node.infos[0] = replace(node.infos[0], terminal=True)
        driver.prepare(ref)
        mixed = {**node.infos[0].annotated, "first": replace(ours, evidence=Evidence.CLAIM)}
        node.infos[0] = replace(node.infos[0], annotated=mixed, terminal=False)
        assert driver.free(Resource.CORE) == {"GPU-0": 50, "GPU-1": 100}
        forged = {"c0": Allocation(("GPU-0",), 50, 4, Evidence.TICKET)}
        node.infos[1] = replace(node.infos[1], annotated=forged)
        assert driver.free(Resource.CORE) == {"GPU-0": 50, "GPU-1": 100}


def test_a_pod_gets_no_second_claim_for_the_same_container() -> None:
    """Its limits, which quotas count, are those of one."""
    with short_dir() as folder:
        node = FakeNode()
        ref = node.add("a", "gpu-0", 30, 4)
        second = claim_of(
            {"metadata": {"name": "a", "uid": "u-a"}}, result("c0", "gpu-1", 30, 4), name="more"
        )
        second["metadata"]["uid"] = "uid-more"
        node.claims["more"] = second
        driver = node.driver(folder)
        driver.prepare(ref)
        with pytest.raises(
            ClaimError,
            match='claim default/more: request "c0": claim default/a-gpus serves this container',
        ):
            driver.prepare(ClaimRef("default", "more", "uid-more"))
        assert driver.prepare(ref)


def test_the_api_server_is_asked_for_claims_only_that_the_watch_does_not_show(
    tmp_path: Path,
) -> None:
    node = FakeNode()
    old, ref = node.add("a", "gpu-0", 30, 4), node.add("b", "gpu-0", 30, 4)
    for each in (old, ref):
        node.cache.collection.apply("ADDED", node.claims[each.name])
    driver = node.driver(tmp_path)
    node.claims[old.name] = json.loads(json.dumps(node.claims[old.name]))
    node.claims[old.name]["metadata"]["uid"] = "uid-new"
    assert driver.prepare(old._replace(uid="uid-new"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "get_claim", raising(Unavailable("no response")))
        assert driver.prepare(ref)


def test_a_claim_that_was_deleted_or_made_again_is_refused_with_words() -> None:
    with short_dir() as folder:
        node = FakeNode()
        ref = node.add("a", "gpu-0", 30, 4)
        driver = node.driver(folder)
        gone = "claim default/a-gpus: Not found: it was deleted, or deleted and created again"
        with pytest.raises(ClaimError, match=gone):
            driver.prepare(ref._replace(uid="u-old"))
        del node.claims[ref.name]
        with pytest.raises(ClaimError, match=gone):
            driver.prepare(ref)
        with pytest.raises(ClaimError, match="its UID has other characters"):
            driver.unprepare(ref._replace(uid="../etc"))


def test_who_asks_for_an_unknown_container_causes_no_request(tmp_path: Path) -> None:
    """Such as a container that registers at vcuda's socket: claims are looked for by one thread."""
    node = FakeNode()
    node.driver(tmp_path).prepare(node.add("a", "gpu-0", 30, 4))
    driver = node.driver(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "get_claim", raising(AssertionError("a request")))
        assert driver.entitled("u-b", "c0") is None
    assert not driver.confirmed


def test_cdi_devices_are_numbered_by_request_whatever_the_order_of_the_containers() -> None:
    """The runtime keeps the names: a claim that is prepared again must not exchange them."""
    with short_dir() as folder:
        node = FakeNode()
        ref = node.add("a", "gpu-0", 30, 4)
        node.infos[0] = view("a", container("z", 30, 4), container("b", 20, 2))
        results = [result("z", "gpu-0", 30, 4), result("b", "gpu-1", 20, 2)]
        node.claims[ref.name]["status"]["allocation"]["devices"]["results"] = results
        found = {share.request: names for share, names in node.driver(folder).prepare(ref).items()}
        assert found == {"b": (f"{DRIVER}/claim=uid-a-0",), "z": (f"{DRIVER}/claim=uid-a-1",)}
        cards = [
            each["name"] + " " + env
            for each in spec_of(folder / "cdi", ref)["devices"]
            for env in each["containerEdits"]["env"]
            if env.startswith("NVIDIA_VISIBLE_DEVICES")
        ]
        assert cards == [
            "uid-a-0 NVIDIA_VISIBLE_DEVICES=GPU-1",
            "uid-a-1 NVIDIA_VISIBLE_DEVICES=GPU-0",
        ]


def test_the_files_of_a_pod_that_has_ended_go_though_the_api_still_shows_it(tmp_path: Path) -> None:
    node = FakeNode()
    ref = node.add("a", "gpu-1", 30, 4)
    driver = node.driver(tmp_path)
    driver.prepare(ref)
    driver.unprepare(ref)
    driver.sweep()
    assert list((tmp_path / "state").rglob("owner.json"))
    node.infos[0] = replace(node.infos[0], terminal=True)
    driver.sweep()
    assert not list((tmp_path / "state").rglob("owner.json"))
