"""The CDI specs of claims, the driver's only memory: restarts, kills, and other files."""

import pytest

from agent.errors import Unavailable
from tests.agent.dra.claim_node import ClaimNode, free
from tests.agent.injection.test_cdi import schema
from tests.agent.killing import killed

NO_RESPONSE = Unavailable("no response")


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


def test_a_spec_by_another_name_is_ignored(claims: ClaimNode) -> None:
    """A copy, or one whose claim has a UID that is a path: neither could be removed."""
    claims.driver().prepare(claims.add("a", "gpu-0", 30, 4))
    path = claims.cdi / "gpu-turnstile-claim-uid-a.json"
    path.with_name("gpu-turnstile-claim-copy.json").write_text(path.read_text())
    path.write_text(path.read_text().replace("uid-a", "../uid-a"))
    driver = claims.driver()
    driver.refresh()
    assert (free(driver), driver.confirmed) == ([100, 100], True)


def test_other_files_in_the_folder_are_ignored(
    claims: ClaimNode, caplog: pytest.LogCaptureFixture
) -> None:
    claims.driver().prepare(claims.add("a", "gpu-0", 30, 4))
    for name in ("nvidia.json", "gpu-turnstile-claim-uid-b.yaml"):
        (claims.cdi / name).write_text("{")
    assert free(claims.driver()) == [70, 100]
    assert "CDI spec of a claim cannot be read" not in caplog.text
