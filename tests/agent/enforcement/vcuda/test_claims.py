"""What may be believed of a container that registers: tables of what is proven and claimed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from agent.enforcement.vcuda.claims import (
    ClaimedIdentity,
    Forbidden,
    check_claims,
    check_container,
    check_holding,
    check_runtime,
    folders_of,
)
from agent.runtime.cgroups import ContainerCgroup
from agent.runtime.cri import ContainerInfo
from tests.agent.enforcement.vcuda.vcuda_site import (
    ID_A,
    ID_A2,
    POD_A,
    POD_B,
    UID_A,
    UID_B,
    held,
)

REF = ContainerCgroup(ID_A, UID_A, ())
INFO = ContainerInfo("main", UID_A, ended=False)
BUS_IDS = ("00000000:3b:00.0", "0000:af:00.0")


def container(claimed: str, ref: ContainerCgroup | None = REF) -> Callable[[], object]:
    return lambda: check_container(ref, ClaimedIdentity(container_id=claimed))


def named(name: str) -> Callable[[], object]:
    return lambda: check_runtime(REF, replace(INFO, name=name))


def claiming(**claims: str) -> Callable[[], object]:
    return lambda: check_claims(ClaimedIdentity(**claims), INFO, BUS_IDS)


NO_LABEL = "its container's name is not a DNS label"


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (container("", None), "its process is in no container"),
        (container(f"crio-{ID_A2}"), f"it claims to be container 'crio-{ID_A2}'"),
        (container(ID_A[:12]), "it claims to be container 'aaaaaaaaaaaa'"),
        (container("x" * 1000), f"it claims to be container '{'x' * 80}'"),
        (lambda: check_runtime(REF, None), "the container runtime has no such container"),
        (
            lambda: check_runtime(REF, replace(INFO, pod_uid=UID_B)),
            f"its pod is {UID_A} by its cgroup, {UID_B} by the runtime",
        ),
        *(
            (
                container("", replace(REF, container_id=text)),
                f"its container's ID is not 64 hexadecimal digits: {text!r}",
            )
            for text in ("../x", ID_A[:-1], f"{ID_A}\n", ID_A.upper(), "٣" * 64)
        ),
        (named(".."), f"{NO_LABEL}: '..'"),
        (named("Main"), f"{NO_LABEL}: 'Main'"),
        (named("a\n"), f"{NO_LABEL}: 'a\\n'"),
        (named("a" * 64), f"{NO_LABEL}: '{'a' * 64}'"),
        (claiming(pod_uid=UID_B), f"it claims to be of pod '{UID_B}'"),
        (claiming(pod_uid="y" * 1000), f"it claims to be of pod '{'y' * 80}'"),
        (claiming(container_name="other"), "it claims to be container 'other'"),
        (
            claiming(bus_id="0000:99:00.0"),
            "it holds no card 0000:99:00.0, but 0000:3B:00.0, 0000:AF:00.0",
        ),
        (
            claiming(bus_id="x"),
            'vcuda.config: bus_id: must be a PCI bus id such as 0000:3B:00.0: "x"',
        ),
    ],
)
def test_a_claim_that_contradicts_the_kernel_or_the_runtime_is_refused(
    check: Callable[[], object], reason: str
) -> None:
    with pytest.raises(Forbidden) as error:
        check()
    assert str(error.value) == reason


def test_a_holding_may_lack_the_uid_but_must_not_have_another() -> None:
    check_holding(held(), INFO)
    check_holding(held(POD_A._replace(uid="")), INFO)
    check_holding(replace(held(POD_B), runtime_uid=UID_A), INFO)  # a static pod
    for other in (held(POD_B), held(name="other")):
        with pytest.raises(Forbidden, match=r"^these devices are held by "):
            check_holding(other, INFO)


@pytest.mark.parametrize(
    "claims",
    [
        ClaimedIdentity(),
        ClaimedIdentity("0000:3B:00.0", UID_A, "main", ID_A),
        ClaimedIdentity(bus_id="3b:00.0"),
        ClaimedIdentity(bus_id="00000000:AF:00.0"),
    ],
)
def test_a_claim_may_be_absent_or_true(claims: ClaimedIdentity) -> None:
    check_claims(claims, INFO, BUS_IDS)
    for claimed in ("", ID_A, f"crio-{ID_A}"):  # CRI-O's form of it
        assert check_container(REF, ClaimedIdentity(container_id=claimed)) is REF
    for uid in (None, UID_A):  # a cgroup that names no pod contradicts nothing
        assert check_runtime(replace(REF, pod_uid=uid), INFO) is INFO
    # A card whose bus ID is not known may be the one that is claimed.
    check_claims(ClaimedIdentity(bus_id="0000:99:00.0"), INFO, ("",))
    assert ClaimedIdentity("b" * 99).log_fields()["bus_id"] == "b" * 80


@pytest.mark.parametrize(
    ("claims", "folders"),
    [
        (ClaimedIdentity(), {ID_A}),
        (ClaimedIdentity(container_id=f"crio-{ID_A}"), {ID_A, f"crio-{ID_A}"}),
        (ClaimedIdentity(container_name="main"), {ID_A, "", "main"}),
        (ClaimedIdentity(container_name="main", container_id=ID_A), {ID_A, "", "main"}),
    ],
)
def test_a_container_finds_its_files_at_the_expected_paths(
    claims: ClaimedIdentity, folders: set[str]
) -> None:
    assert folders_of(claims, REF, INFO) == folders
