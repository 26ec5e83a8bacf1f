"""Rotations of objects that others have damaged, deleted or own."""

import base64
import json
from collections.abc import Callable
from datetime import timedelta

import pytest

from certs.errors import ClusterError, Foreign
from certs.issue import issue
from certs.names import parse_subject
from certs.objects import INJECTORS, LABEL
from certs.rotation import Done
from tests.certs.fakes import (
    CA,
    MUTATING,
    PATCHES,
    SECRETS,
    START,
    TLS,
    VALIDATING,
    World,
    at,
    configuration,
    drop,
    installed,
    renew_both,
    switch,
)
from tests.certs.fakes import settings as rotation

pytestmark = pytest.mark.usefixtures("certificates_read_once")


def damage(world: World, kind: str) -> None:  # noqa: PLR0912 -- one for each kind
    secrets = [f"{SECRETS}/{name}" for name in (CA, TLS)]
    authority, serving = (world.secret(name)["data"] for name in (CA, TLS))
    clients = [
        each["webhooks"][at]["clientConfig"] for each in world.configurations() for at in (0, 1)
    ]
    other = issue(parse_subject(["x"], [], 400), now=world.clock.now)
    match kind:
        case "empty Secrets":
            for path, name in zip(secrets, (CA, TLS), strict=True):
                world.api.put(path, {"metadata": {"name": name}})
        case "no Secrets":
            for path in secrets:
                del world.api.objects[path]
        case "other keys":
            serving["tls.key"] = base64.b64encode(other.serving.key).decode()
            authority["ca.key"] = base64.b64encode(other.authority.key).decode()
        case "no certificates":
            authority["ca.crt"] = serving["tls.crt"] = "anVuaw=="
        case "no base64":
            for data in (authority, serving):
                data |= {"tls.crt": "!", "ca.crt": 7, "tls.key": "!"}
        case "swapped pairs":
            for one, another in (("ca.crt", "tls.crt"), ("ca.key", "tls.key")):
                authority[one], serving[another] = serving[another], authority[one]
        case "all expired":
            world.clock.now += timedelta(days=4000)
        case "no bundles":
            world.api.install()
        case "no bundles that can be read":
            for client, bundle in zip(clients, ("Cg==", "!") * 2, strict=True):
                client["caBundle"] = bundle
        case "another authority is trusted":
            for client in clients[1::2]:
                pem = other.authority.certificate + base64.b64decode(client["caBundle"])
                client["caBundle"] = base64.b64encode(pem).decode()
        case stamp:
            for each in (*world.configurations(), world.secret(CA), world.secret(TLS)):
                found = each["metadata"].pop("annotations", {})
                if stamp != "no stamps":
                    each["metadata"]["annotations"] = dict.fromkeys(found, stamp)


@pytest.mark.parametrize(
    "kind",
    [
        *("empty Secrets", "no Secrets", "other keys", "no certificates", "no base64"),
        *("swapped pairs", "all expired", "no bundles", "no bundles that can be read"),
        *("another authority is trusted", "no stamps"),
        *("2999-01-01T00:00:00Z", "2030-01-01T00:00:00"),  # stamps of the future and without a zone
    ],
)
@pytest.mark.parametrize("when", [installed, renew_both, switch, drop])
def test_damage_of_any_kind_at_any_phase_is_repaired(
    kind: str, when: Callable[[World], None]
) -> None:
    world = at(when)
    world.watched = False
    damage(world, kind)
    world.run()
    world.run_to_the_end()
    assert world.accepted_now()
    assert isinstance(world.run(), Done)


@pytest.mark.parametrize("name", [CA, TLS])
def test_a_foreign_secret_is_not_changed_unless_forced(name: str) -> None:
    world = at(installed)
    world.secret(name)["metadata"]["labels"] = {LABEL: "Helm"}
    before = json.dumps(world.api.objects)
    with pytest.raises(Foreign) as caught:
        world.run()
    assert str(caught.value) == (
        f"secret {name}: belongs to another owner (it lacks our label {LABEL}): "
        "delete it, name another, or give --force to take it over"
    )
    assert json.dumps(world.api.objects) == before
    world.settings = rotation(force=True)
    assert isinstance(world.run(), Done)
    world.settings = rotation()
    assert isinstance(world.run(), Done)  # it is ours for good


@pytest.mark.parametrize("annotation", INJECTORS)
def test_a_bundle_that_cert_manager_writes_is_refused_before_anything_is_written(
    annotation: str,
) -> None:
    world = World()
    world.api.objects[VALIDATING]["metadata"]["annotations"] = {annotation: "x/y"}
    with pytest.raises(Foreign) as caught:
        world.run()
    assert str(caught.value) == (
        f"validatingwebhookconfiguration gpu-turnstile: annotation {annotation} makes cert-manager "
        "write its caBundle: remove the annotation, or let only cert-manager renew certificates"
    )
    assert world.api.writes == []


def test_a_missing_configuration_is_waited_for_or_an_error_at_the_end() -> None:
    world = World()
    late = world.api.objects.pop(VALIDATING)
    message = "^validatingwebhookconfiguration gpu-turnstile: not found: apply it$"
    with pytest.raises(ClusterError, match=message):
        world.run()
    assert world.accepted_now()
    assert len(world.api.writes) == 3
    sleep = world.clock.sleep

    def apply(duration: timedelta) -> None:
        sleep(duration)
        if world.clock.now >= START + timedelta(seconds=20):
            world.api.objects[VALIDATING] = late

    world.clock.sleep = apply  # type: ignore[method-assign]  # another program applies it
    assert isinstance(world.run(until=START + timedelta(minutes=5)), Done)
    assert world.accepted_now()
    assert world.clock.now == START + timedelta(seconds=20)
    waits = [each for each in world.logged if each.startswith("waiting: ")]
    assert waits == ["waiting: validatingwebhookconfiguration gpu-turnstile not found"]


def test_a_configuration_without_webhooks_is_not_changed() -> None:
    world = World()
    world.api.put(MUTATING, configuration(webhooks=0))
    assert isinstance(world.run(), Done)
    assert PATCHES[0] not in world.api.writes
