"""Who is called again when a later webhook changed the object (K22)."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import trustme

from simulator.api.server import ApiServer
from simulator.client import ApiClient, Json
from tests.simulator.api_helpers import (
    CORE,
    PODS,
    Hook,
    Respond,
    allow,
    patch_with,
    pod,
    running_hook,
)

Join = Callable[..., Hook]


@pytest.fixture
def calls() -> list[str]:
    """Who was called, in order."""
    return []


@pytest.fixture
def join(server: ApiServer, authority: trustme.CA, calls: list[str]) -> Iterator[Join]:
    """Add a webhook of a configuration of this name."""
    with ExitStack() as stack:

        def add(name: str, respond: Respond | None = None, **webhook: Any) -> Hook:
            hook = stack.enter_context(running_hook(authority))
            answer = respond or allow()

            def heard(request: Json) -> Json:
                calls.append(name)
                return answer(request)

            hook.respond = heard
            configuration = hook.configuration(name=f"{name}.example.com", **webhook)
            server.apply(configuration | {"metadata": {"name": name}})
            return hook

        yield add


def _label(name: str) -> Respond:
    """Set a label; to set it again changes nothing."""
    return patch_with({"op": "add", "path": "/metadata/labels", "value": {name: "1"}})


def _count() -> Respond:
    """Change the object each time it is called."""
    seen: list[Json] = []

    def respond(request: Json) -> Json:
        seen.append(request)
        value = {"count": str(len(seen))}
        operation = {"op": "add", "path": "/metadata/annotations", "value": value}
        return patch_with(operation)(request)

    return respond


def test_webhooks_are_called_by_the_names_of_their_configurations(
    client: ApiClient, join: Join, calls: list[str]
) -> None:
    for name in ("zebra", "gpu-turnstile", "ant"):
        join(name)
    client.create(PODS, pod())
    assert calls == ["ant", "gpu-turnstile", "zebra"]


@pytest.mark.parametrize(
    ("policy", "again"), [("IfNeeded", ["a"]), ("Never", []), (None, [])], ids=str
)
def test_who_was_called_before_a_change_is_called_again_if_it_wants_to_be(
    client: ApiClient, join: Join, calls: list[str], policy: str | None, again: list[str]
) -> None:
    join("a", **({"reinvocationPolicy": policy} if policy else {}))
    join("b", _label("b"), reinvocationPolicy="IfNeeded")
    client.create(PODS, pod())
    assert calls == ["a", "b", *again]


def test_a_change_in_the_second_round_is_told_to_those_after_it_and_ends_there(
    client: ApiClient, join: Join, calls: list[str]
) -> None:
    join("a", _count(), reinvocationPolicy="IfNeeded")
    join("b", _label("b"), reinvocationPolicy="IfNeeded")
    made = client.create(PODS, pod())
    assert calls == ["a", "b", "a", "b"], "there is no third round"
    assert made["metadata"]["annotations"] == {"count": "2"}


ASKS = [
    {
        "name": "asks-for-gpus",
        "expression": "object.spec.containers.exists(c, has(c.resources) && "
        f"has(c.resources.limits) && '{CORE}' in c.resources.limits)",
    }
]
_ASK = patch_with(
    {"op": "add", "path": "/spec/containers/0/resources", "value": {"limits": {CORE: "150"}}}
)


def test_a_webhook_that_was_passed_over_is_never_called_for_the_first_time_later(
    client: ApiClient, join: Join, calls: list[str]
) -> None:
    """K22: what a later webhook makes of the pod never reaches an earlier one."""
    join("gpu-turnstile", matchConditions=ASKS, reinvocationPolicy="IfNeeded")
    join("late", _ASK)
    made = client.create(PODS, pod())
    assert calls == ["late"]
    limits = made["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {CORE: "150"}


def test_a_webhook_that_was_called_is_passed_over_once_its_condition_no_longer_holds(
    client: ApiClient, join: Join, calls: list[str]
) -> None:
    join("gpu-turnstile", matchConditions=ASKS, reinvocationPolicy="IfNeeded")
    join("late", patch_with({"op": "remove", "path": "/spec/containers/0/resources"}))
    client.create(PODS, pod(limits={CORE: "50"}))
    assert calls == ["gpu-turnstile", "late"]


def test_what_a_webhook_added_has_its_defaults_before_the_next_one_sees_it(
    client: ApiClient, join: Join
) -> None:
    join("a", _ASK)
    later = join("b")
    made = client.create(PODS, pod())
    (review,) = later.reviews
    resources = review["object"]["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {CORE: "150"}, "requests": {CORE: "150"}}
    assert made["spec"]["containers"][0]["resources"] == resources
