"""Whole rotations in a cluster in memory: killed anywhere, several at once, over years."""

import base64
import copy
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certs.errors import Conflict
from certs.loop import Environment, keep_rotating, unless_repeated
from certs.objects import Json
from certs.reading import is_issued_by
from certs.rotation import Done, Wait
from tests.certs import fakes
from tests.certs.fakes import (
    CA,
    GRACE,
    PATCHES,
    SECRETS,
    SETTLE,
    START,
    TLS,
    FakeReplicas,
    Killed,
    World,
    at,
    drop,
    install,
    installed,
    interleave,
    renew_both,
    renew_serving,
    switch,
)
from tests.certs.fakes import settings as rotation
from tests.examples import share

pytestmark = pytest.mark.usefixtures("certificates_read_once")


def _data(world: World, name: str, key: str) -> bytes:
    return base64.b64decode(world.secret(name)["data"][key])


def test_an_installation_needs_no_waiting_and_writes_each_object_once() -> None:
    world = World()
    done = world.run()
    assert isinstance(done, Done)
    assert world.api.writes == [f"POST secrets/{CA}", *PATCHES, f"POST secrets/{TLS}"]
    assert world.accepted_now()
    assert done.renewal == world.serving().renew_at
    assert sorted(world.secret(TLS)["data"]) == ["ca.crt", "tls.crt", "tls.key"]
    assert world.secret(TLS)["type"] == "kubernetes.io/tls"
    assert _data(world, TLS, "ca.crt") == _data(world, CA, "ca.crt")
    assert b"PRIVATE" in _data(world, CA, "ca.key")
    assert isinstance(world.run(), Done)
    assert len(world.api.writes) == 4  # a second run writes nothing


def test_a_serving_certificate_is_renewed_at_two_thirds_under_the_same_authority() -> None:
    world = at(installed)
    authority, first = world.authority(), world.serving()
    world.clock.now = first.renew_at - timedelta(seconds=1)
    assert isinstance(world.run(), Done)
    assert world.serving() == first
    world.clock.now = first.renew_at
    world.api.writes.clear()
    assert isinstance(world.run(), Done)
    assert world.api.writes == [f"PUT secrets/{TLS}"]
    assert world.serving() != first
    assert world.authority() == authority


def test_an_authority_is_renewed_at_two_thirds_in_phases_that_wait() -> None:
    world = at(renew_both)
    old, serving = world.authority(), world.serving()
    world.api.writes.clear()
    settling = world.run()
    assert world.api.writes == [f"PUT secrets/{CA}", *PATCHES, f"PUT secrets/{TLS}"]
    assert settling == Wait(
        old.renew_at.replace(microsecond=0) + SETTLE,
        "API servers may not have seen the changed caBundle",
    )
    assert world.serving() == serving
    assert world.run() == settling  # too early: nothing happens
    world.clock.now = settling.until
    world.api.writes.clear()
    grace = world.run()
    assert world.api.writes == [f"PUT secrets/{TLS}"]
    assert grace == Wait(settling.until + GRACE, "webhooks may not serve the new certificate yet")
    assert is_issued_by(world.serving(), world.authority())
    assert world.observed().serving.trusted == (world.authority(), old)
    world.clock.now = grace.until
    world.api.writes.clear()
    assert isinstance(world.run(), Done)
    assert world.api.writes == [*PATCHES, f"PUT secrets/{TLS}"]
    assert all(
        bundle == (world.authority(),)
        for each in world.observed().configurations
        for bundle in each.bundles
    )
    assert world.accepted_now()


def test_an_old_authority_is_dropped_only_when_every_webhook_serves_the_new_certificate() -> None:
    world = at(renew_both)
    old = world.serving()
    for _ in range(2):
        found = world.run()
        assert isinstance(found, Wait)
        world.clock.now = found.until
    again = world.clock.now + timedelta(minutes=1)
    why = "the new certificate is not served by"
    world.api.writes.clear()
    for served, text in (
        ({}, "no webhook was found"),
        ({"10.0.0.1": old, "10.0.0.2": world.serving()}, f"{why} 10.0.0.1"),
        ({"10.0.0.2": old, "10.0.0.1": None}, f"{why} 10.0.0.1, 10.0.0.2"),
    ):
        world.settings = rotation(replicas=FakeReplicas("hook", 1, served))
        assert world.run() == Wait(again, text)
    assert world.api.writes == []
    ended = copy.deepcopy(world)
    world.settings = rotation(replicas=FakeReplicas("hook", 1, {"10.0.0.1": world.serving()}))
    assert isinstance(world.run(), Done)
    assert len(world.api.writes) == 3
    # Once the old authority has ended, webhooks are not checked.
    ended.clock.now = ended.observed().configurations[0].bundles[0][1].not_after + timedelta(
        seconds=1
    )
    assert isinstance(ended.run(), Done)


def test_a_deleted_secret_is_created_again_at_the_next_run() -> None:
    world = World()
    pauses = 0

    def sleep(duration: timedelta) -> None:
        nonlocal pauses
        pauses += 1
        assert duration == timedelta(seconds=60)
        if pauses == 2:
            del world.api.objects[f"{SECRETS}/{TLS}"]
        if pauses == 6:
            raise Killed

    env = Environment(world.clock, sleep, unless_repeated(world.log))
    cluster = fakes.FakeCluster(world.settings, world.api, lambda: None)
    with pytest.raises(Killed):
        keep_rotating(cluster, env, every=timedelta(seconds=60), longest=timedelta(minutes=30))
    assert world.api.writes.count(f"POST secrets/{TLS}") == 2
    messages = [each.partition(":")[0] for each in world.logged]
    assert messages == [
        *("new authority", "trust changed", "trust changed", "new serving certificate"),
        *("nothing to do", "new serving certificate", "nothing to do"),
    ], "a line that equals the one before is omitted"


@pytest.mark.parametrize("begin", [install, renew_serving, renew_both, switch, drop])
def test_a_run_killed_anywhere_is_continued_by_the_next(begin: Callable[[World], None]) -> None:
    """Before the first write and after each; the clients' view is checked at each write."""
    writes, survived = 0, False
    while not survived:
        world = at(begin)
        try:
            world.run(world.kill_after(writes))
            survived = True
        except Killed:
            done = world.run_to_the_end()
            assert done.renewal > world.clock.now
        if not survived:
            assert world.accepted_now()
            assert {
                each for found in world.observed().configurations for each in found.bundles
            } == {(world.authority(),)}
        writes += 1
    assert writes > 1


def test_an_authority_that_is_trusted_already_helps_soonest() -> None:
    """After long without a run the serving certificate has ended, and the authority is due."""
    world = at(installed)
    world.clock.now = world.authority().renew_at
    world.api.writes.clear()
    assert isinstance(world.run(), Wait)
    assert world.api.writes[:2] == [f"PUT secrets/{TLS}", f"PUT secrets/{CA}"]


def test_an_authority_near_its_end_signs_no_certificate() -> None:
    world = at(installed)
    authority = world.authority()
    world.clock.now = authority.not_after - timedelta(days=60)
    world.api.writes.clear()
    world.run_to_the_end()
    assert world.api.writes[0] == f"PUT secrets/{CA}"
    assert world.api.writes.count(f"PUT secrets/{CA}") == 1
    assert world.authority() != authority
    assert world.accepted_now()


_MOVES = st.one_of(
    st.tuples(st.just("pass"), st.integers(0, 900)),
    st.tuples(st.just("days"), st.integers(1, 60)),
    st.tuples(st.just("until due"), st.just(0)),
    st.tuples(st.just("run"), st.just(0)),
    st.tuples(st.just("kill"), st.integers(0, 4)),
    st.tuples(st.just("three"), st.integers(0, 2**60)),
    st.tuples(st.just("rename"), st.integers(0, 2)),
    st.tuples(st.just("lose the authority"), st.just(0)),
)


@settings(max_examples=share(40))
@given(st.lists(_MOVES, max_size=25))
def test_over_any_history_every_api_server_accepts_every_webhook(
    moves: list[tuple[str, int]],
) -> None:
    """Late API servers and late webhooks included, and the authority's Secret lost at times."""
    world = at(installed)
    for move, number in moves:
        match move:
            case "pass":
                world.clock.now += timedelta(seconds=number)
            case "days":
                world.clock.now += timedelta(days=number)
            case "until due":
                world.clock.now = max(world.clock.now, world.serving().renew_at)
            case "run":
                world.run()
            case "kill":
                with suppress(Killed):
                    world.run(world.kill_after(number))
            case "three":
                turns = [number >> bit & 3 for bit in range(0, 60, 2)]
                interleave([world.run, world.run, world.run], turns)
                observed = world.observed()
                assert observed.authority.pair is not None  # certificate and key belong together
                assert observed.serving.pair is not None
            case "rename":
                world.settings = rotation(service=f"hook-{number}")
            case _:
                world.api.objects.pop(f"{SECRETS}/{CA}", None)
        world.check()
    done = world.run_to_the_end()
    assert done.renewal > world.clock.now
    assert world.accepted_now()
    assert world.serving().names == world.settings.names


def test_requests_are_retried_after_an_outage_of_the_api_server() -> None:
    """At any request: one whose response is lost may have been carried out."""
    world = at(renew_both)
    requests = 0

    def lose_some() -> None:
        nonlocal requests
        requests += 1
        if requests % 7 == 0:
            raise Conflict("no response")

    assert isinstance(world.run(lose_some, until=world.clock.now + timedelta(hours=1)), Done)
    assert world.logged.count("reading again: no response") > 20  # but never so many in a row
    assert world.accepted_now()


def test_twenty_conflicts_in_a_row_end_the_run() -> None:
    world = at(installed)
    world.watched = False

    def meddle() -> None:
        world.api.put(f"{SECRETS}/{TLS}", world.secret(TLS))

    world.clock.now = world.serving().renew_at
    before = len(world.logged)
    with pytest.raises(Conflict, match="has changed"):
        world.run(meddle)
    assert world.logged[before:] == ["reading again: has changed"] * 19


def test_keys_are_never_logged() -> None:
    world = at(renew_both)
    world.run_to_the_end()
    objects: list[Json] = [world.secret(CA), world.secret(TLS)]
    secrets = {each["data"][key] for each in objects for key in each["data"] if ".key" in key}
    output = "\n".join(world.logged) + repr(world.observed())
    assert len(secrets) == 2
    assert "PRIVATE" not in output
    assert not any(each in output for each in secrets)


def test_a_short_lived_authority_comes_into_use_before_it_is_renewed_again() -> None:
    """Runs once a day, with an authority whose two thirds are over every second day."""
    world = World(rotation(ca_days=3))
    now: datetime = START
    world.run()
    for day in range(1, 30):
        world.clock.now = now = START + timedelta(days=day)
        world.run()
        assert world.accepted_now(), day
    assert now == world.clock.now
