"""Pods of other systems, and what every reader of them must hold to."""

from collections.abc import Callable, Mapping
from typing import Any

from contract.requests import walk_containers
from webhook.admission.dialects.reading import CardRequest, Reading

Reader = Callable[..., Reading | None]


def read(reader: Reader, pod: Mapping[str, Any], **options: Any) -> Reading:
    reading = reader(pod, path="", **options)
    assert reading is not None
    return reading


def requests_of(reading: Reading) -> list[CardRequest | None]:
    return [each.request for each in reading.containers]


def errors_of(reading: Reading) -> str:
    return "\n".join(str(each) for each in reading.errors)


def check_any_reading(reader: Reader, pod: Mapping[str, Any]) -> Reading | None:
    """Check what holds for any reading of any pod, and return the reading."""
    reading = reader(pod, path="spec.template.")
    if reading is None:
        return None
    there = {(field, index) for field, index, _ in walk_containers(pod.get("spec"))}
    read = [(each.field, each.index) for each in reading.containers]
    assert len(read) == len(set(read))
    assert set(read) <= there
    for error in reading.errors:
        assert error.path.startswith(("spec.template.spec.", "spec.template.metadata."))
        assert error.value
    for each in reading.containers:
        request = each.request
        if request is not None:
            assert request.cards >= 1
            assert request.cores is None or 1 <= request.cores <= 100
            assert request.memory is None or request.memory >= 1
            assert request.percent is None or 0 < request.percent <= 100
            assert request.memory is None or request.percent is None
    return reading
