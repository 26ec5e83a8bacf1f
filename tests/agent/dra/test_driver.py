"""Claims that are prepared or refused, and their CDI specs, which are the driver's only memory."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ClaimError, Unavailable
from agent.injection.inject import Injection
from contract.allocation import Allocation, Evidence
from contract.inventory import Amounts
from contract.resource import Resource
from tests.agent.builders import INIT, container, device_table, patient, view
from tests.agent.dra.a_claim import DRIVER, result
from tests.agent.dra.claim_node import TABLE, ClaimNode, free
from tests.agent.fakes import DEADLINE_S, short_dir
from tests.agent.injection.test_cdi import schema
from tests.agent.killing import killed

NO_RESPONSE = Unavailable("no response")
_SHARES = st.tuples(
    st.sampled_from(["gpu-0", "gpu-1"]), st.sampled_from([30, 50, 60, 100]), st.integers(1, 10)
)
_ACTIONS = ["prepare", "unprepare", "restart", "reboot", "delete", "deallocate", "refresh"]
_STEPS = st.lists(st.tuples(st.sampled_from(_ACTIONS), st.integers(0, 2)), max_size=30)


@patient
@given(st.lists(_SHARES, min_size=3, max_size=3), _STEPS)
def test_no_card_is_ever_given_twice(
    shares: list[tuple[str, int, int]], steps: list[tuple[str, int]]
) -> None:
    with short_dir() as folder:
        node = ClaimNode(folder)
        refs = [node.add(f"p{at}", *share) for at, share in enumerate(shares)]
        driver, prepared = node.driver(), dict[int, Any]()
        ended, inherited = set[int](), set[int]()  # claims without a share; of an earlier agent
        for step, at in steps:
            if step == "prepare":
                together = [shares[each] for each in {*prepared, at}]
                on_card = [each for each in together if each[0] == shares[at][0]]
                cores, blocks = sum(each[1] for each in on_card), sum(each[2] for each in on_card)
                if at in ended:
                    with pytest.raises(ClaimError, match=r"Not found|Required value"):
                        driver.prepare(refs[at])
                elif cores > 100 or blocks > 10:
                    with pytest.raises(ClaimError, match="are held by"):
                        driver.prepare(refs[at])
                else:
                    devices = driver.prepare(refs[at])
                    assert prepared.setdefault(at, devices) == devices
                    schema().validate(node.spec(refs[at]))
            elif step == "unprepare":
                driver.unprepare(refs[at])
                prepared.pop(at, None)
            elif step in {"delete", "deallocate"}:
                getattr(node, step)(refs[at])
                ended.add(at)
            elif step == "refresh":
                driver.refresh()
                prepared = {at: prepared[at] for at in prepared.keys() - (ended & inherited)}
                inherited.clear()
            else:
                if step == "reboot":
                    prepared.clear()
                    for each in node.cdi.iterdir():
                        each.unlink()
                driver, inherited = node.driver(), set(prepared)
            for card in TABLE.inventory.cards:
                own = [shares[at] for at in prepared if shares[at][0] == f"gpu-{card.index}"]
                cores = sum(each[1] for each in own)
                whole = any(each[1] == 100 for each in own)
                assert driver.free(Resource.CORE)[card.uuid] == 100 - cores >= 0
                blocks = 0 if whole else 10 - sum(each[2] for each in own)
                assert driver.free(Resource.MEMORY)[card.uuid] == blocks >= 0
            holders = {each.ref.pod.name for each in driver.holdings().holders}
            assert holders == {f"p{at}" for at in prepared}
            assert node.specs() == {refs[at].uid for at in prepared}


def test_calls_at_the_same_time_are_checked_one_after_the_other(claims: ClaimNode) -> None:
    refs = [claims.add(f"p{at}", "gpu-0", 30, 1) for at in range(8)]
    driver = claims.driver()
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(driver.prepare, each) for each in refs]
        assert [each.exception() is None for each in calls].count(True) == 3
    assert free(driver) == [10, 100]


def test_shares_of_two_cards_have_one_cdi_device(claims: ClaimNode) -> None:
    ref = claims.add("a", "gpu-0", 200, 0)
    claims.allocate(ref, *(result("c0", each, 100, 1) for each in ("gpu-1", "gpu-0")))
    own = f"{DRIVER}/claim=uid-a-0"
    for mode, names, visible in (
        (Injection.NODES, (own,), "GPU-0,GPU-1"),
        (Injection.CDI, (own, "nvidia.com/gpu=0", "nvidia.com/gpu=1"), "void"),  # of the host
    ):
        devices = claims.driver(mode).prepare(ref)
        found = [(each.device, names) for each, names in devices.items()]
        assert found == [("gpu-0", names), ("gpu-1", ())]
        (edits,) = claims.spec(ref)["devices"]
        assert f"NVIDIA_VISIBLE_DEVICES={visible}" in edits["containerEdits"]["env"]


def test_cdi_devices_are_numbered_by_request_whatever_the_order_of_the_containers(
    claims: ClaimNode,
) -> None:
    """The runtime keeps the names: a claim that is prepared again must not exchange them."""
    ref = claims.add("a", "gpu-0", 30, 4)
    claims.infos[0] = view("a", container("z", 30, 4), container("b", 20, 2))
    claims.allocate(ref, result("z", "gpu-0", 30, 4), result("b", "gpu-1", 20, 2))
    found = {share.request: names for share, names in claims.driver().prepare(ref).items()}
    assert found == {"b": (f"{DRIVER}/claim=uid-a-0",), "z": (f"{DRIVER}/claim=uid-a-1",)}
    cards = {
        each["name"]: env.partition("=")[2]
        for each in claims.spec(ref)["devices"]
        for env in each["containerEdits"]["env"]
        if env.startswith("NVIDIA_VISIBLE_DEVICES")
    }
    assert cards == {"uid-a-0": "GPU-1", "uid-a-1": "GPU-0"}


def test_limits_are_in_the_spec(claims: ClaimNode) -> None:
    ref = claims.add("a", "gpu-0", 30, 4)
    claims.infos[0] = view("a", container("c0", 30, 4), container("c1", 100, 1))
    claims.allocate(ref, result("c0", "gpu-0", 30, 4), result("c1", "gpu-1", 100, 1))
    claims.driver(Injection.ENVVAR).prepare(ref)
    share, whole = (each["containerEdits"] for each in claims.spec(ref)["devices"])
    assert {"CUDA_DEVICE_SM_LIMIT=30", "CUDA_DEVICE_MEMORY_LIMIT_0=1024m"} <= {*share["env"]}
    assert whole["env"] == ["NVIDIA_VISIBLE_DEVICES=GPU-1"]
    (shared,) = [each for each in share["mounts"] if each["options"][0] == "rw"]
    assert Path(shared["hostPath"]).is_file()


def test_the_entitlement_of_a_container_is_by_pod_and_name(claims: ClaimNode) -> None:
    driver = claims.driver()
    for pod, device in (("c", "gpu-0"), ("a", "gpu-1")):
        driver.prepare(claims.add(pod, device, 30, 4))
    found = driver.entitled("u-a", "c0")
    assert found is not None
    assert (found.cards, found.uid) == ({"GPU-1": Amounts(30, 4)}, "u-a")
    assert driver.entitled("u-a", "c1") is None


def test_the_allocation_is_written_until_the_pod_shows_it_or_has_ended(claims: ClaimNode) -> None:
    driver = claims.driver()
    driver.prepare(claims.add("a", "gpu-1", 30, 4))
    expected = {"c0": Allocation(("GPU-1",), 30, 4, Evidence.CLAIM)}
    for change, written in (
        ({}, {"a": expected}),
        ({"annotated": expected}, {}),
        ({"annotated": {}, "terminal": True}, {}),
    ):
        claims.written.clear()
        claims.infos[0] = replace(claims.infos[0], **change)
        driver.refresh()
        assert claims.written == written


@pytest.mark.parametrize("end", ["deleted", "terminal"])
def test_files_stay_until_a_pod_holds_nothing(claims: ClaimNode, end: str) -> None:
    ref, driver = claims.add("a", "gpu-1", 30, 4), claims.driver()

    def swept() -> bool:
        driver.sweep()
        return not list((claims.folder / "state").rglob("owner.json"))

    driver.prepare(ref)
    assert not driver.refresh()
    assert not swept()
    driver.unprepare(ref)
    assert driver.refresh()
    assert not driver.refresh()
    by_plugin = {"c0": Allocation(("GPU-1",), 30, 4, Evidence.RECORD)}
    claims.infos[0] = replace(claims.infos[0], annotated=by_plugin)
    assert not swept()
    claims.infos = [] if end == "deleted" else [replace(claims.infos[0], terminal=True)]
    assert swept()


def test_a_refusal_is_reported_to_the_pod_and_an_unreachable_api_server_is_not(
    claims: ClaimNode,
) -> None:
    ref, driver = claims.add("a", "gpu-1", 30, 4), claims.driver()
    claims.watch(ref)
    info = claims.infos.pop()  # the watch does not show it yet
    claims.error = NO_RESPONSE
    with pytest.raises(Unavailable):
        driver.prepare(ref)
    assert claims.refusals == []
    claims.error = None
    with pytest.raises(ClaimError, match="is not running on this node"):
        driver.prepare(ref)
    assert claims.refusals == ["a"]
    claims.fetched = info
    assert driver.prepare(ref)


def test_a_claim_that_is_allocated_again_is_checked_again(claims: ClaimNode) -> None:
    ref, other = claims.add("a", "gpu-0", 60, 4), claims.add("b", "gpu-1", 60, 4)
    driver = claims.driver()
    driver.prepare(ref)
    driver.prepare(other)
    claims.allocate(ref, result("c0", "gpu-1", 60, 4))
    with pytest.raises(ClaimError, match="60 of 100 are held by default/b-gpus"):
        driver.prepare(ref)


def test_a_card_that_became_unhealthy_after_its_allocation_gets_no_new_container(
    claims: ClaimNode,
) -> None:
    runs, ref = claims.add("runs", "gpu-0", 30, 4), claims.add("a", "gpu-0", 30, 4)
    driver = claims.driver()
    driver.prepare(runs)
    claims.unhealthy = {"GPU-0": "Xid 79"}
    message = (
        r"claim default/a-gpus: card GPU-0 is unhealthy \(Xid 79\), and gets no new container: "
        "delete the pod, so that another card is chosen"
    )
    with pytest.raises(ClaimError, match=message):
        driver.prepare(ref)
    assert driver.prepare(runs)
    claims.unhealthy = {}
    assert driver.prepare(ref)


def test_a_prepared_claim_is_prepared_again_though_less_memory_is_offered_now(
    claims: ClaimNode,
) -> None:
    """``--reserved-memory`` may change at any time."""
    ref, other = claims.add("a", "gpu-0", 30, 10), claims.add("b", "gpu-0", 30, 1)
    claims.driver().prepare(ref)
    driver = claims.driver(table=device_table(2, blocks=8))
    assert driver.prepare(ref)
    assert driver.free(Resource.MEMORY)["GPU-0"] == 0
    with pytest.raises(ClaimError, match="10 of 8 are held by default/a-gpus"):
        driver.prepare(other)
    driver.unprepare(ref)
    with pytest.raises(ClaimError, match="10 memory blocks of card GPU-0, but it has 8 now: "):
        driver.prepare(ref)


def test_a_claim_waits_for_the_end_of_a_pod_that_was_deleted_by_force(claims: ClaimNode) -> None:
    ended = claims.add("ended", "gpu-0", 60, 4)
    driver = claims.driver(ending=2 * DEADLINE_S)
    driver.prepare(ended)
    claims.delete(ended)  # the scheduler allocates its card; the kubelet still stops it
    following, twice = claims.add("next", "gpu-0", 60, 4), claims.add("twice", "gpu-0", 60, 4)
    claims.watched.collection.list()
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(driver.prepare, following)
        driver.unprepare(ended)
        waits.result(DEADLINE_S)
        claims.watch(following)  # it has not ended: nothing waits for it
        refused = pool.submit(driver.prepare, twice).exception(DEADLINE_S)
        assert "60 of 100 are held by default/next-gpus: it starts once" in str(refused)
        by_plugin = {"c0": Allocation(("GPU-1",), 60, 4, Evidence.RECORD)}  # without a claim
        claims.infos.append(replace(view("old", container("c0", 60, 4)), annotated=by_plugin))
        refused = pool.submit(driver.prepare, claims.add("b", "gpu-1", 60, 4)).exception(DEADLINE_S)
        assert "60 of 100 are held by default/old: it starts once" in str(refused)


def test_cards_that_a_device_plugin_allocated_are_held_until_their_pods_end(
    claims: ClaimNode,
) -> None:
    """The node was not drained before it got the label. Init containers leave their devices."""
    ours = Allocation(("GPU-0",), 60, 4, Evidence.RECORD)
    old = view("old", container("first", 60, 4, kind=INIT), container("c0", 40, 6))
    annotated = {"first": ours, "c0": Allocation(("GPU-0",), 40, 6, Evidence.TICKET)}
    claims.infos.append(replace(old, annotated=annotated))
    ref, driver = claims.add("a", "gpu-0", 50, 4), claims.driver()
    message = "50 cores of card GPU-0, but 60 of 100 are held by default/old"
    with pytest.raises(ClaimError, match=message):
        driver.prepare(ref)
    assert free(driver) == [40, 100]
    assert [each.ref.container for each in driver.holdings().holders] == ["c0", "first"]
    claims.infos[0] = replace(claims.infos[0], terminal=True)
    driver.prepare(ref)
    mixed = {**annotated, "first": replace(ours, evidence=Evidence.CLAIM)}
    claims.infos[0] = replace(claims.infos[0], annotated=mixed, terminal=False)
    assert free(driver) == [50, 100]
    forged = {"c0": Allocation(("GPU-0",), 50, 4, Evidence.TICKET)}
    claims.infos[1] = replace(claims.infos[1], annotated=forged)
    assert free(driver) == [50, 100]


def test_a_pod_gets_no_second_claim_for_the_same_container(claims: ClaimNode) -> None:
    """Its limits, which quotas count, are those of one."""
    ref = claims.add("a", "gpu-0", 30, 4)
    second = claims.add_claim("a", "more", result("c0", "gpu-1", 30, 4))
    driver = claims.driver()
    driver.prepare(ref)
    message = 'claim default/more: request "c0": claim default/a-gpus serves this container'
    with pytest.raises(ClaimError, match=message):
        driver.prepare(second)
    assert driver.prepare(ref)


def test_a_claim_that_was_deleted_or_created_again_is_refused(claims: ClaimNode) -> None:
    ref, driver = claims.add("a", "gpu-0", 30, 4), claims.driver()
    message = "claim default/a-gpus: Not found: it was deleted, or deleted and created again"
    with pytest.raises(ClaimError, match=message):
        driver.prepare(ref._replace(uid="u-old"))
    claims.delete(ref)
    with pytest.raises(ClaimError, match=message):
        driver.prepare(ref)
    with pytest.raises(ClaimError, match="its UID has other characters"):
        driver.unprepare(ref._replace(uid="../etc"))


def test_a_claim_of_an_earlier_agent_with_another_domain_is_kept(claims: ClaimNode) -> None:
    ref = claims.add("a", "gpu-0", 30, 4)
    claims.driver().prepare(ref)
    claims.allocate(ref, {"driver": "gpu.old"})
    driver = claims.driver()
    driver.refresh()
    assert (free(driver), driver.confirmed) == ([70, 100], True)


def test_an_unreachable_api_server_loses_no_prepared_claim(claims: ClaimNode) -> None:
    kept, ended = claims.add("a", "gpu-0", 30, 4), claims.add("b", "gpu-0", 30, 4)
    for each in (kept, ended):
        claims.driver().prepare(each)
    claims.error = NO_RESPONSE
    driver = claims.driver()
    driver.refresh()
    with pytest.raises(Unavailable, match="no response"):
        driver.prepare(kept)
    driver.unprepare(ended)
    assert (free(driver), driver.confirmed) == ([70, 100], False)
    claims.error = None
    driver.refresh()
    assert (free(driver), driver.confirmed) == ([70, 100], True)


def test_the_api_server_is_called_only_for_claims_that_the_watch_does_not_show(
    claims: ClaimNode,
) -> None:
    old, ref = claims.add("a", "gpu-0", 30, 4), claims.add("b", "gpu-0", 30, 4)
    for each in (old, ref):
        claims.watch(each)
    driver = claims.driver()
    found = claims.claims[old.name]
    claims.claims[old.name] = {**found, "metadata": {**found["metadata"], "uid": "uid-new"}}
    assert driver.prepare(old._replace(uid="uid-new"))
    claims.error = NO_RESPONSE
    assert driver.prepare(ref)


def test_the_entitlement_of_an_unknown_container_causes_no_request(claims: ClaimNode) -> None:
    """A container registers at vcuda's socket: claims are looked up by one thread only."""
    claims.error = AssertionError("a request")
    assert claims.driver().entitled("u-b", "c0") is None


def test_a_driver_killed_at_every_step_has_prepared_all_or_nothing(claims: ClaimNode) -> None:
    steps = ("mkdir", "open", "write", "fchmod", "rename", "unlink", "scandir")
    other, ref = claims.add("other", "gpu-0", 60, 4), claims.add("a", "gpu-0", 40, 4)
    expected = claims.driver().prepare(other)
    at = 0
    while True:
        driver = claims.driver()
        died = killed(at, steps, lambda driver=driver: driver.prepare(ref))  # type: ignore[misc]
        successor = claims.driver()
        assert free(successor)[0] in (0, 40)
        assert [each.device for each in successor.prepare(ref)] == ["gpu-0"]
        schema().validate(claims.spec(ref))
        assert successor.prepare(other) == expected
        ended = killed(at, steps, lambda driver=successor: driver.unprepare(ref))  # type: ignore[misc]
        claims.driver().unprepare(ref)
        assert free(claims.driver())[0] == 40
        if not died and not ended:
            break
        at += 1
    assert at > 5
    assert claims.specs() == {"uid-other"}


@pytest.mark.parametrize(
    "broken",
    ["{", "[]", '{"annotations": {}}', '{"annotations": {"gpu-turnstile.io/claim": "1"}}'],
)
def test_a_broken_spec_is_left_and_written_again(claims: ClaimNode, broken: str) -> None:
    ref = claims.add("a", "gpu-0", 30, 4)
    claims.driver().prepare(ref)
    (claims.cdi / "gpu-turnstile-claim-uid-a.json").write_text(broken)
    driver = claims.driver()
    assert free(driver) == [100, 100]
    driver.prepare(ref)
    schema().validate(claims.spec(ref))


def test_specs_by_another_name_and_other_files_are_ignored(
    claims: ClaimNode, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy, or one whose claim has a UID that is a path: neither could be removed."""
    claims.driver().prepare(claims.add("a", "gpu-0", 30, 4))
    for name in ("nvidia.json", "gpu-turnstile-claim-uid-b.yaml"):
        (claims.cdi / name).write_text("{")
    assert free(claims.driver()) == [70, 100]
    assert "CDI spec of a claim cannot be read" not in caplog.text
    path = claims.cdi / "gpu-turnstile-claim-uid-a.json"
    path.with_name("gpu-turnstile-claim-copy.json").write_text(path.read_text())
    path.write_text(path.read_text().replace("uid-a", "../uid-a"))
    driver = claims.driver()
    driver.refresh()
    assert (free(driver), driver.confirmed) == ([100, 100], True)
