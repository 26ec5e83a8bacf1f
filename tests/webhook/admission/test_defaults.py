import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.names import Names
from contract.requests import read_pod_demand
from contract.resource import Resource
from tests.deploy.creation_examples import Creation
from tests.deploy.manifests import base, find
from tests.deploy.policies import denials
from tests.examples import share
from tests.webhook.admission.building import ANY, Json, applied, decide
from tests.webhook.admission.test_pods import SPEC
from webhook.admission.decision import Decision
from webhook.admission.defaults import adjust_memory
from webhook.admission.options import AdmissionOptions, DefaultMemory

NAMES = Names()
CORE, MEMORY = NAMES.core, NAMES.memory
PROPORTIONAL = AdmissionOptions(97, DefaultMemory.PROPORTIONAL)


def test_the_containers_of_a_pod_are_copied_once_however_many_there_are(
    pod: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 25,000 copies of as many, a body of 3 MiB took 18 s."""
    copies = []

    def copied(listed: Iterable[Json]) -> list[Json]:
        copies.append([*listed])
        return copies[-1]

    monkeypatch.setattr("webhook.admission.defaults.list", copied, raising=False)
    pod["spec"]["containers"] = [_container(f"c{each}", limits={CORE: "1"}) for each in range(40)]
    assert len(adjust_memory(pod, names=NAMES, options=PROPORTIONAL).patch) == 40
    assert len(copies) == 1


def _container(name: str, **resources: Json) -> Json:
    return {"name": name, "resources": resources}


def test_shares_without_memory_get_their_part_of_the_largest_card(pod: Json) -> None:
    """Requests are written too where the API server has made them from the limits."""
    pod["spec"]["initContainers"] = [
        _container("load", limits={CORE: "1"}, requests={CORE: "1", "cpu": "1"}),
        _container("side", limits={CORE: 50}) | {"restartPolicy": "Always"},
    ]
    pod["spec"]["containers"] = [
        _container("main", limits={CORE: "99"}, requests={}),
        _container("zero", limits={CORE: "10", MEMORY: "0"}, requests={CORE: "10", MEMORY: "0"}),
        _container("knows", limits={CORE: "50", MEMORY: "8"}),
        _container("whole", limits={CORE: "200"}),
        _container("plain", limits={"cpu": "1"}),
    ]
    verdict = decide(pod, PROPORTIONAL)
    assert verdict.warnings == (
        "container load: no memory: gets 1 block, 1% of the largest card (97)",
        "container side: no memory: gets 48 blocks, 50% of the largest card (97)",
        "container main: no memory: gets 96 blocks, 99% of the largest card (97)",
        "container zero: no memory: gets 9 blocks, 10% of the largest card (97)",
    )
    after = applied(pod, verdict)
    changed = [*after["spec"]["initContainers"], *after["spec"]["containers"][:2]]
    assert [each["resources"] for each in changed] == [
        {"limits": {CORE: "1", MEMORY: "1"}, "requests": {CORE: "1", "cpu": "1", MEMORY: "1"}},
        {"limits": {CORE: 50, MEMORY: "48"}},
        {"limits": {CORE: "99", MEMORY: "96"}, "requests": {MEMORY: "96"}},
        {"limits": {CORE: "10", MEMORY: "9"}, "requests": {CORE: "10", MEMORY: "9"}},
    ]
    assert after["spec"]["containers"][2:] == pod["spec"]["containers"][2:]
    assert decide(after, PROPORTIONAL).warnings == ()  # a reinvocation has nothing more to fill in


def test_a_share_of_several_cards_gets_its_part_of_each(pod: Json) -> None:
    pod["metadata"]["annotations"] = {
        NAMES.gpu_cards_of("halves"): "2",
        NAMES.gpu_cards_of("slivers"): "3",
        NAMES.gpu_cards_of("knows"): "2",
    }
    pod["spec"]["containers"] = [
        _container("halves", limits={CORE: "100"}),
        _container("slivers", limits={CORE: "3"}),
        _container("knows", limits={CORE: "198", MEMORY: "2"}),
    ]
    verdict = decide(pod, PROPORTIONAL)
    of_largest = "of the largest card (97)"
    assert verdict.warnings == (
        f"container halves: no memory: gets 48 blocks of each of 2 cards, 50% {of_largest}",
        f"container slivers: no memory: gets 1 block of each of 3 cards, 1% {of_largest}",
    )
    after = applied(pod, verdict)
    blocks = [each["resources"]["limits"][MEMORY] for each in after["spec"]["containers"]]
    assert blocks == ["96", "3", "2"]


@pytest.mark.parametrize("default", DefaultMemory)
def test_whole_cards_are_given_no_more_memory_than_they_have(
    pod: Json, default: DefaultMemory
) -> None:
    """gpu-manager did not read memory beside whole cards; here no card would fit, ever."""
    pod["spec"]["containers"] = [
        _container("one", limits={CORE: "100", MEMORY: "6"}, requests={CORE: "100", MEMORY: "6"}),
        _container("two", limits={CORE: "200", MEMORY: "9"}),
        _container("fits", limits={CORE: "200", MEMORY: "8"}),
        _container("a-share", limits={CORE: "50", MEMORY: "6"}),
    ]
    verdict = decide(pod, AdmissionOptions(4, default))
    assert verdict.warnings == (
        "container one: memory 6 lowered to 4, all that its whole cards have",
        "container two: memory 9 lowered to 8, all that its whole cards have",
        "container a-share: 6 memory blocks, but the largest known card has 4",
    )
    one, two, *others = applied(pod, verdict)["spec"]["containers"]
    assert one["resources"] == {
        listing: {CORE: "100", MEMORY: "4"} for listing in ("limits", "requests")
    }
    assert two["resources"] == {"limits": {CORE: "200", MEMORY: "8"}}
    assert others == pod["spec"]["containers"][2:]
    assert decide(pod, AdmissionOptions(0, DefaultMemory.REFUSE)).warnings == ()


@settings(max_examples=share(100))
@given(
    st.builds(lambda spec: {"spec": spec}, ANY | SPEC), st.integers(1, 8) | st.integers(1, 2**31)
)
def test_only_missing_memory_and_too_much_of_it_are_changed(pod: Json, largest: int) -> None:
    before = copy.deepcopy(pod)
    options = AdmissionOptions(largest, DefaultMemory.PROPORTIONAL)
    adjusted = adjust_memory(pod, names=NAMES, options=options)
    assert pod == before
    assert applied(copy.deepcopy(pod), Decision(patch=adjusted.patch)) == adjusted.pod
    demand, errors = read_pod_demand(pod, NAMES)
    after, left = read_pod_demand(adjusted.pod, NAMES)
    assert [each for each in errors if each.rule != "share-without-memory"] == list(left)
    for old, new in zip(demand.containers, after.containers, strict=True):
        assert (old.name, old.kind, old.index) == (new.name, new.kind, new.index)
        assert old.demand.cores == new.demand.cores
        if new.demand != old.demand and old.demand.is_share:
            assert new.demand.memory == max(1, old.demand.cores * largest // 100) <= largest
        elif new.demand != old.demand:
            assert new.demand.memory == old.demand.cards * largest < old.demand.memory
        elif not errors:
            assert old.demand.is_share or old.demand.most_per_card(Resource.MEMORY) <= largest


@settings(max_examples=share(50))
@given(st.lists(st.integers(1, 99), min_size=1, max_size=20), st.integers(20, 10_000))
def test_shares_of_one_card_together_fit_the_largest(cores: list[int], largest: int) -> None:
    """Unless they are so small that each gets the one block that it cannot do without."""
    together = [each for n, each in enumerate(cores) if sum(cores[: n + 1]) <= 100]
    containers = [_container(f"c{n}", limits={CORE: each}) for n, each in enumerate(together)]
    pod: Json = {"spec": {"containers": containers}}
    options = AdmissionOptions(largest, DefaultMemory.PROPORTIONAL)
    demand, _ = read_pod_demand(adjust_memory(pod, names=NAMES, options=options).pod, NAMES)
    assert sum(each.demand.memory for each in demand.containers) <= max(largest, len(together))


@pytest.mark.parametrize("init", [(), [("50", "")], [("50", "", "Always")]])
def test_policies_accept_a_pod_that_the_webhook_has_completed(init: Any) -> None:
    creation = Creation("no memory", [("50", "")], init)
    policy = find(base(), "ValidatingAdmissionPolicy", "gpu-turnstile-requests")
    assert denials(policy, creation.request()) != []
    made = applied(creation.pod(), decide(creation.pod(), PROPORTIONAL))
    assert denials(policy, replace(creation.request(), new=made)) == []
