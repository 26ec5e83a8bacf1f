"""Pods of other systems, and what the webhook makes of them."""

import json
from collections.abc import Mapping
from typing import Any

from contract.names import Names
from contract.other_systems import Dialect
from tests.webhook.admission.building import Json, applied, decide
from webhook.admission.options import AdmissionOptions

NAMES = Names()
ACCEPT = AdmissionOptions(accept=frozenset(Dialect) - {Dialect.GPUSHARE_MIB}, largest_card=96)
"""All systems are accepted, and the largest card has 24 GiB."""

_STAMPS = {NAMES.predicate_time, NAMES.admission_order, NAMES.gpu_assigned, NAMES.translated_from}
_SHORT = {NAMES.core: "cores", NAMES.memory: "blocks"}


def pod_of(*limits: Mapping[str, Any], **annotations: str) -> Json:
    """Build a pod with a main container for each of these limits: c0, c1, ..."""
    containers = [
        {"name": f"c{at}", "resources": {"limits": dict(each)}} for at, each in enumerate(limits)
    ]
    return {"metadata": {"annotations": annotations}, "spec": {"containers": containers}}


def translated(pod: Json, options: AdmissionOptions = ACCEPT) -> Json:
    decision = decide(pod, options)
    assert decision.errors == ()
    return applied(pod, decision)


def became(pod: Json, options: AdmissionOptions = ACCEPT) -> list[dict[str, int]]:
    """Return cores, blocks and number of cards of each container of an allowed pod."""
    created = translated(pod, options)
    annotations = created["metadata"].get("annotations", {})
    found = []
    for container in created["spec"]["containers"]:
        limits = container["resources"]["limits"]
        counts = {_SHORT.get(name, name): int(value) for name, value in limits.items()}
        cards = annotations.get(NAMES.gpu_cards_of(container["name"]))
        found.append(counts | ({"cards": int(cards)} if cards else {}))
    return found


def wishes_of(pod: Json, options: AdmissionOptions = ACCEPT) -> dict[str, str]:
    """Return the annotations of an allowed pod but for stamps and ``translated-from``."""
    given = translated(pod, options)["metadata"]["annotations"]
    return {
        key.removeprefix("tencent.com/"): value
        for key, value in given.items()
        if key not in _STAMPS
    }


def errors_of(pod: Json, options: AdmissionOptions = ACCEPT) -> list[str]:
    return [str(each) for each in decide(pod, options).errors]


def warnings_of(pod: Json, options: AdmissionOptions = ACCEPT) -> tuple[str, ...]:
    lines = decide(pod, options).warnings
    return tuple(each for each in lines if ": translated from " not in each)


def original_of(pod: Json, options: AdmissionOptions = ACCEPT) -> Json:
    """Return what the annotation ``translated-from`` of an allowed pod keeps."""
    kept: Json = json.loads(
        translated(pod, options)["metadata"]["annotations"][NAMES.translated_from]
    )
    return kept
