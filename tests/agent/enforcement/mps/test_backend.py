"""The variables and mounts of containers that MPS limits."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cards.pci import parse_address
from agent.enforcement.mps.backend import PIPES
from agent.enforcement.mps.files import DaemonStatus, MpsClient
from agent.errors import EnforcementError
from agent.holdings.edits import ContainerEdits, Mount
from agent.holdings.holding import UNKNOWN, ContainerRef, Holding, are_whole, make_key
from contract.inventory import Amounts
from tests.agent.builders import holding, ids, patient, pod_id
from tests.mps.node import BLOCKS, MpsNode, report

MIB = 256
REF = ContainerRef(pod_id("p"), "c0")


def held(
    cards: dict[str, Amounts], *, core_limit: int | None = None, processes: int = 1
) -> Holding:
    key = make_key("".join(cards))
    return Holding(REF, key, cards, are_whole(cards), core_limit, processes=processes)


@pytest.fixture
def node(tmp_path: Path) -> MpsNode:
    return MpsNode(tmp_path)


ADDRESSES = ("0000:3b:00.0", "0000:0F:00.0", "0000:07:00.0", "00000001:00:00.0")


@given(
    on=st.lists(st.sampled_from(range(4)), min_size=1, max_size=4, unique=True),
    cores=st.integers(1, 99),
    blocks=st.integers(1, 320),
    core_limit=st.none() | st.integers(1, 100),
    processes=st.integers(1, 48),
    split=st.booleans(),
)
@patient
def test_the_limits_of_all_processes_are_the_containers_share(  # noqa: PLR0917 -- by hypothesis
    tmp_path_factory: pytest.TempPathFactory,
    on: list[int],
    cores: int,
    blocks: int,
    core_limit: int | None,
    processes: int,
    split: bool,
) -> None:
    """By one call of a claim, or by two of a device plugin: the same variables."""
    node = MpsNode(tmp_path_factory.mktemp("node"))
    mps = node.agent(*ADDRESSES)
    cards = {f"GPU-{at}": Amounts(cores, blocks) for at in sorted(on)}
    parts = [cards]
    if split:
        parts = [
            {each: Amounts(cores, 0) for each in cards},
            {each: Amounts(0, blocks) for each in cards},
        ]
    edits = ContainerEdits()
    for part in parts:
        edits = edits.merged_with(
            mps.prepare_allocation(held(part, core_limit=core_limit, processes=processes))
        )
    share = node.files.read_shares()[make_key("".join(cards))]
    assert edits.mounts == (
        Mount(PIPES, str(node.files.part(share.set, "pipe")), read_only=False),
        Mount("/dev/shm", str(node.files.shm), read_only=False),
    )
    envs = dict(edits.envs)
    percent = int(envs.pop("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"))
    memory = envs.pop("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
    order = {} if len(on) == 1 else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert envs == {"CUDA_MPS_PIPE_DIRECTORY": PIPES, **order}
    assert percent == max(1, (core_limit or cores) // processes)
    mib = max(1, blocks * MIB // processes)
    assert memory == ",".join(f"{ordinal}={mib}M" for ordinal in range(len(on)))
    assert share.cards == tuple(
        sorted(cards, key=lambda uuid: parse_address(ADDRESSES[int(uuid[-1])]) or ())
    )
    # All processes together have no more, down to the least that MPS can limit.
    assert percent * processes <= max(core_limit or cores, processes)
    assert mib * processes <= max(blocks * MIB, processes)


def test_cards_with_other_memory_are_numbered_as_the_container_does(node: MpsNode) -> None:
    mps = node.agent(*ADDRESSES)
    cards = {f"GPU-{at}": Amounts(40, 4 + at) for at in range(3)}
    assert mps.prepare_allocation(held(cards)).envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == (
        "0=1536M,1=1280M,2=1024M"
    )


def test_whole_cards_get_nothing_and_shares_that_have_ended_are_forgotten(node: MpsNode) -> None:
    mps = node.agent()
    mps.prepare_allocation(holding(REF, ids("GPU-0", range(30))))
    mps.prepare_allocation(holding(REF, ids("GPU-1", range(30))))
    whole = holding(REF, ids("GPU-0", range(100)), {"GPU-0": 4})
    assert mps.prepare_allocation(whole) == ContainerEdits()
    for part, edited in ((BLOCKS, False), (BLOCKS - 1, True)):  # the call for its memory alone
        edits = mps.prepare_allocation(held({"GPU-0": Amounts(0, part)}))
        assert (edits != ContainerEdits()) is edited
    assert [each.cards for each in node.files.read_shares().values()] == [("GPU-1",)]


def test_a_mig_instance_is_refused(node: MpsNode) -> None:
    with pytest.raises(EnforcementError, match="MPS does not limit MIG instances: MIG-1"):
        node.agent().prepare_allocation(holding(REF, ids("MIG-1", range(30))))


def test_nothing_starts_without_the_program(node: MpsNode) -> None:
    mps = node.agent(patience=0.1)
    share = holding(REF, ids("GPU-0", range(30)), {"GPU-0": 4})
    mps.prepare_allocation(share)
    missing = "the program that runs the MPS daemons does not run on this node"
    for call in (mps.open, mps.tick, lambda: mps.prepare_start(share)):
        with pytest.raises(EnforcementError, match=missing):
            call()
    assert missing in mps.problems()["GPU-0"]
    with pytest.raises(EnforcementError, match="its owner is not known yet"):
        mps.prepare_start(holding(UNKNOWN, ids("GPU-1", range(30))))


def test_variables_of_a_wrong_guess_veto_the_start_if_they_allow_more(
    node: MpsNode, caplog: pytest.LogCaptureFixture
) -> None:
    """A container's variables cannot be changed."""
    mps = node.agent(patience=0.1)
    cards = {"GPU-0": Amounts(30, 4)}
    mps.prepare_allocation(held(cards, core_limit=80))
    with pytest.raises(
        EnforcementError,
        match="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is 80, but this pod's annotations allow 30",
    ):
        mps.prepare_start(held(cards))
    with pytest.raises(EnforcementError, match="is 80, but this pod's annotations allow 40"):
        mps.prepare_start(held(cards, core_limit=80, processes=2))
    mps.prepare_allocation(held(cards))
    with pytest.raises(EnforcementError, match="does not run"):  # only its daemon is missing
        mps.prepare_start(held(cards, core_limit=80))
    assert "may use less than its annotations allow" in caplog.text


def test_shares_of_pods_that_have_ended_are_removed(node: MpsNode) -> None:
    mps = node.agent()
    other = ContainerRef(pod_id("q"), "c0")
    mps.prepare_allocation(holding(REF, ids("GPU-0", range(30))))
    mps.prepare_allocation(holding(other, ids("GPU-0", range(30, 60))))
    mps.prune([other.pod])
    assert [each.ref for each in node.files.read_shares().values()] == [other]


def test_a_disk_error_is_reported(node: MpsNode) -> None:
    node.root.parent.joinpath("mps").write_text("a file")
    with pytest.raises(EnforcementError, match="mps-dir: cannot make the folders of a daemon: "):
        node.agent().prepare_allocation(holding(REF, ids("GPU-0", range(30))))


def test_unreadable_files_are_passed_over(node: MpsNode) -> None:
    node.files.shares.mkdir(parents=True)
    for name, text in (("a", "{"), ("b", "{}"), ("c", '{"ref": [1]}'), ("d", "[]")):
        (node.files.shares / f"{name}.json").write_text(text)
    assert node.files.read_shares() == {}
    assert node.files.read_status() is None


def test_clients_are_counted_for_each_container_whose_name_is_known(node: MpsNode) -> None:
    mps, other = node.agent(), ContainerRef(REF.pod, "c1")
    for at, ref in enumerate((REF, other)):
        mps.prepare_allocation(holding(ref, ids("GPU-0", range(30 * at, 30 * at + 30))))
    uid = REF.pod.uid
    clients = (MpsClient(7, uid, "a"), MpsClient(8, uid, "b"), MpsClient(9, uid, "b"))
    report(node.files, {"GPU-0": DaemonStatus(("GPU-0",), "1", "", clients=clients)})

    def counts() -> dict[ContainerRef, int | None]:
        return {each.share.ref: each.clients for each in mps.limited()}

    node.names = {"a": REF.container}
    assert counts() == {REF: None, other: None}  # the kubelet has not reported one of them yet
    node.names["b"] = other.container
    assert counts() == {REF: 1, other: 2}
    mps.prune([])
    mps.prepare_allocation(holding(other, ids("GPU-0", range(30))))
    assert counts() == {other: 3}  # all of the pod: no name is needed
