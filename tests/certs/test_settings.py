from datetime import timedelta
from typing import Any

import pytest

from certs.errors import InvalidField
from certs.objects import Kind
from certs.settings import parse_settings
from tests.certs.fakes import flags


def test_flags_become_settings() -> None:
    found = parse_settings(
        **flags(dns=("B.example",), mutating=("m", "n", "m"), validating=(), days=30, asks=True)
    )
    assert found.configurations == ((Kind.MUTATING, "m"), (Kind.MUTATING, "n"))
    assert found.subject.dns == ("hook.gpu.svc", "b.example")
    assert found.policy.names == {"hook.gpu.svc", "b.example"}
    assert (found.subject.days, found.ca_days) == (30, 365)
    assert (found.policy.settle, found.policy.grace) == (
        timedelta(minutes=2),
        timedelta(minutes=10),
    )
    assert found.policy.asks
    assert not found.policy.force


def test_a_server_that_api_servers_do_not_call_has_no_configuration() -> None:
    assert parse_settings(**flags(secrets_only=True)).configurations == ()


_NAME = "must be a name that Kubernetes allows"
_SAME = "must not be --ca-secret: webhooks are to see no CA key"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"namespace": ""}, f"namespace: Invalid value: '': {_NAME}"),
        ({"service": "a b"}, f"service: Invalid value: 'a b': {_NAME}"),
        ({"ca_secret": "Aa"}, f"ca-secret: Invalid value: 'Aa': {_NAME}"),
        ({"tls_secret": "../x"}, f"tls-secret: Invalid value: '../x': {_NAME}"),
        (
            {"tls_secret": "gpu-turnstile-webhook-ca"},
            f"tls-secret: Invalid value: 'gpu-turnstile-webhook-ca': {_SAME}",
        ),
        ({"mutating": ("a", "*.b.c")}, f"mutating: Invalid value: '*.b.c': {_NAME}"),
        ({"validating": ("1.2.3.4",)}, f"validating: Invalid value: '1.2.3.4': {_NAME}"),
        ({"days": 0}, "days: Invalid value: 0: must be 1 to 3650"),
        ({"ca_days": 89}, "ca-days: Invalid value: 89: must be --days (90) to 3650"),
        ({"ca_days": 3651}, "ca-days: Invalid value: 3651: must be --days (90) to 3650"),
        ({"settle": -1}, "settle: Invalid value: -1: must be 0 to 604800 seconds"),
        ({"grace": 604801}, "grace: Invalid value: 604801: must be 0 to 604800 seconds"),
    ],
)
def test_a_flag_that_cannot_be_used_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_settings(**flags(**changed))
    assert str(caught.value) == message
