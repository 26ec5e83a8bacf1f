import json
from datetime import timedelta

from certs.objects import LABEL
from certs.report import as_json, as_table
from certs.rotation import Wait
from tests.certs.fakes import CA, TLS, VALIDATING, World


def test_before_an_installation_there_is_nothing() -> None:
    world = World()
    del world.cluster.configurations[VALIDATING]
    lines = as_table(world.observed(), world.settings.policy, world.clock.now).splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "OBJECT",
        f"secret {CA}",
        f"secret {TLS}",
        "mutatingwebhookconfiguration gpu-turnstile",
        "validatingwebhookconfiguration gpu-turnstile",
        "",
        "next: new authority: is not there",
    ]
    assert lines[1].split() == ["secret", CA, "absent"]
    assert lines[3].endswith("does not accept  trusts nobody")
    assert lines[4].endswith("absent")


def test_after_it_everybody_accepts() -> None:
    world = World()
    world.run()
    table = as_table(world.observed(), world.settings.policy, world.clock.now)
    authority = world.authority().fingerprint[:16]
    assert (
        table.count(f"accepts         trusts {authority}")
        + table.count(f"accepts  trusts {authority}")
        == 2
    )
    assert "ours     " in table
    assert "renewed from 2030-03-01 23:58 UTC" in table
    assert table.endswith("next: nothing to do before 2030-03-01 23:58:20 UTC")


def test_programs_read_the_same() -> None:
    world = World()
    world.run()
    world.clock.now = world.authority().renew_at - timedelta(days=1)
    world.run()
    world.clock.now = world.authority().renew_at
    waiting = world.run()
    assert isinstance(waiting, Wait)
    found = json.loads(as_json(world.observed(), world.settings.policy, world.clock.now))
    assert found["next"] == str(waiting)
    assert [each["origin"] for each in found["secrets"]] == ["ours", "ours"]
    assert found["secrets"][1]["certificate"]["names"] == ["hook.gpu.svc"]
    assert [len(bundle) for each in found["configurations"] for bundle in each["trusts"]] == [2] * 4
    assert all(each["acceptsServing"] for each in found["configurations"])
    assert found["missing"] == []


def test_what_is_wrong_is_told_and_what_rotation_would_refuse() -> None:
    world = World()
    world.run()
    world.cluster.secrets[TLS]["data"]["tls.crt"] = ""
    world.cluster.secrets[CA]["metadata"]["labels"] = {LABEL: "x"}
    table = as_table(world.observed(), world.settings.policy, world.clock.now)
    assert f"secret {TLS} ours tls.crt: not a PEM certificate" in " ".join(table.split())
    assert f"next: refused: secret {CA}: was made by somebody else" in table
    found = json.loads(as_json(world.observed(), world.settings.policy, world.clock.now))
    assert found["secrets"][1]["problem"] == "tls.crt: not a PEM certificate"
    assert found["secrets"][1]["certificate"] is None
