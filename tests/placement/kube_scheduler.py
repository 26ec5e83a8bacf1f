"""How kube-scheduler allocates a claim on one node: its structured allocator, in few lines.

It tries devices in their order, one pick after the other, and goes back where a pick is impossible.
Within a request it goes on behind the last device. A constraint needs its attribute on every device
of its requests, also on the first one (``matchAttributeConstraint``). Selectors are left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agent.allocator.slots import DeviceTable
from agent.dra.devices import devices_of
from contract.inventory import Inventory
from tests.agent.builders import BLOCK

Json = dict[str, Any]
Allocated = dict[str, tuple[str, ...]]
"""The devices of each request, by name."""


def published(inventory: Inventory) -> list[Json]:
    return devices_of(
        DeviceTable(inventory, BLOCK),
        domain="tencent.com",
        driver_version="",
        unhealthy=lambda _uuid: "",
        cordoned=set(),
        pcie_root=lambda _bus: "",
    )


def allocate(
    devices: Sequence[Json], template: Mapping[str, Any], held: Mapping[str, Mapping[str, int]]
) -> Allocated | None:
    """Allocate a claim; ``None`` if the node cannot have it.

    Args:
        devices: of the node's slices.
        template: the spec of the claim's template.
        held: what other claims consume, by device and capacity.
    """
    spec = template["spec"]["devices"]
    picks = [each for each in spec["requests"] for _ in range(each["exactly"]["count"])]
    free = {
        each["name"]: {
            name: _number(capacity["value"]) - held.get(each["name"], {}).get(name, 0)
            for name, capacity in each["capacity"].items()
        }
        for each in devices
    }
    chosen: list[tuple[str, int]] = []

    def goes_on() -> bool:
        if len(chosen) == len(picks):
            return True
        request = picks[len(chosen)]
        name = request["name"]
        own = [at for of, at in chosen if of == name]
        for at in range(own[-1] + 1 if own else 0, len(devices)):
            wanted, left = _wanted(devices[at], request), free[devices[at]["name"]]
            of_constraint = [
                [devices[one] for of, one in (*chosen, (name, at)) if of in each["requests"]]
                for each in spec.get("constraints", ())
                if name in each["requests"]
            ]
            if any(left[key] < amount for key, amount in wanted.items()) or not all(
                admits(each["matchAttribute"], those)
                for each, those in zip(_of(spec, name), of_constraint, strict=True)
            ):
                continue
            chosen.append((name, at))
            free[devices[at]["name"]] = {key: left[key] - wanted[key] for key in left}
            if goes_on():
                return True
            chosen.pop()
            free[devices[at]["name"]] = left
        return False

    if not goes_on():
        return None
    return {
        each["name"]: tuple(devices[at]["name"] for of, at in chosen if of == each["name"])
        for each in spec["requests"]
    }


def admits(match_attribute: str, devices: Sequence[Json]) -> bool:
    _, _, name = match_attribute.partition("/")
    values = [each["attributes"].get(name) for each in devices]
    return None not in values and all(each == values[0] for each in values)


def _of(spec: Json, request: str) -> list[Json]:
    return [each for each in spec.get("constraints", ()) if request in each["requests"]]


def _wanted(device: Json, request: Json) -> dict[str, int]:
    wanted = request["exactly"]["capacity"]["requests"]
    return {
        name: _number(wanted.get(name, capacity["requestPolicy"]["default"]))
        for name, capacity in device["capacity"].items()
    }


def _number(quantity: str) -> int:
    return int(quantity.removesuffix("k")) * (1000 if quantity.endswith("k") else 1)
