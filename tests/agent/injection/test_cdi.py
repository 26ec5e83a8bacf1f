"""CDI specs as data; ours against CDI's own schema."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from referencing import Registry
from referencing.jsonschema import DRAFT7

from agent.cards.cards_file import decode_yaml
from agent.errors import SettingsError
from agent.holdings.edits import ContainerEdits, Mount
from agent.injection.cdi import (
    HOST_KIND,
    OWN_KIND,
    HostNames,
    Spec,
    SpecFile,
    names_on_host,
    own_names,
    parse_spec,
    spec_document,
)
from agent.injection.inject import DriverFiles, shared_by_all
from contract.inventory import Inventory
from tests.agent.builders import card, patient
from tests.agent.cards_strategy import inventories
from tests.examples import share

DATA = Path(__file__).parents[2] / "data" / "cdi"
TWO = Inventory((card(0), card(1)))
COMMON = shared_by_all(control_devices=["/dev/nvidiactl"], driver=DriverFiles("/opt/nvidia"))


@functools.cache
def schema() -> jsonschema.Draft7Validator:
    """CDI's own JSON schema."""
    main, definitions = (
        json.loads((DATA / name).read_text()) for name in ("schema.json", "defs.json")
    )
    registry: Registry[Any] = Registry().with_resource(
        "defs.json", DRAFT7.create_resource(definitions)
    )
    return jsonschema.Draft7Validator(main, registry=registry)


# --- ours -----------------------------------------------------------------------------------


def test_our_spec_has_the_edits_that_a_response_has_without_cdi() -> None:
    assert spec_document(TWO, COMMON) == {
        "cdiVersion": "0.3.0",
        "kind": "gpu-turnstile.io/gpu",
        "devices": [
            {
                "name": f"GPU-{n}",
                "containerEdits": {
                    "deviceNodes": [{"path": f"/dev/nvidia{n}", "permissions": "rw"}]
                },
            }
            for n in range(2)
        ],
        "containerEdits": {
            "env": [
                "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
                "NVIDIA_VISIBLE_DEVICES=void",
            ],
            "deviceNodes": [{"path": "/dev/nvidiactl", "permissions": "rw"}],
            "mounts": [
                {
                    "hostPath": "/opt/nvidia",
                    "containerPath": "/usr/local/nvidia",
                    "options": ["ro", "nosuid", "nodev", "rbind"],
                }
            ],
        },
    }


def test_a_spec_has_the_lowest_version_and_only_the_edits_that_it_needs() -> None:
    digit = Inventory((card(0), card(1, uuid="1-2")))
    spec = spec_document(digit, ContainerEdits(mounts=(Mount("/a", "/b", read_only=False),)))
    assert spec["cdiVersion"] == "0.5.0"  # the lowest that allows such a name
    assert spec["containerEdits"]["mounts"][0]["options"] == ["rw", "nosuid", "nodev", "rbind"]
    schema().validate(spec)
    assert spec_document(digit, ContainerEdits())["containerEdits"] == {}


def test_a_node_that_the_host_has_elsewhere_has_its_path_there() -> None:
    """A driver in a container has the device nodes in its own ``/dev``."""
    found = {"/dev/nvidia1": "/run/nvidia/driver/dev/nvidia1"}
    spec = spec_document(TWO, COMMON, lambda path: found.get(path, path))
    assert spec["cdiVersion"] == "0.5.0"  # the lowest that knows hostPath
    assert [each["containerEdits"]["deviceNodes"] for each in spec["devices"]] == [
        [{"path": "/dev/nvidia0", "permissions": "rw"}],
        [{"path": "/dev/nvidia1", "permissions": "rw", "hostPath": found["/dev/nvidia1"]}],
    ]
    schema().validate(spec)
    control = {"/dev/nvidiactl": "/run/nvidia/driver/dev/nvidiactl"}
    spec = spec_document(TWO, COMMON, lambda path: control.get(path, path))
    assert spec["cdiVersion"] == "0.5.0"
    assert spec["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidiactl", "permissions": "rw", "hostPath": control["/dev/nvidiactl"]}
    ]


@settings(patient, max_examples=share(20))
@given(inventories(most=3))
def test_our_spec_keeps_to_the_schema_and_the_naming_rules_and_reads_back(
    inventory: Inventory,
) -> None:
    document = json.loads(json.dumps(spec_document(inventory, COMMON)))
    schema().validate(document)
    assert parse_spec(document) == Spec(
        OWN_KIND,
        {each.uuid: frozenset(each.device_nodes) for each in inventory.cards},
        frozenset({"/dev/nvidiactl"}),
    )
    assert own_names(inventory) == {
        each.uuid: f"{OWN_KIND}={each.uuid}" for each in inventory.cards
    }


# --- the host's -----------------------------------------------------------------------------


def recorded(name: str) -> Spec:
    """Return a spec that nvidia-ctk wrote; but for one, of :data:`H100S`."""
    return parse_spec(decode_yaml((DATA / name).read_text()))


def test_a_spec_of_nvidias_tool_is_read() -> None:
    spec = recorded("nvidia.yaml")
    assert spec.kind == "nvidia.com/gpu"
    assert list(spec.devices) == ["0", "GPU-0", "1", "GPU-1", "all"]
    assert spec.devices["GPU-0"] == {"/dev/nvidia0", "/dev/dri/card1"}
    assert "/dev/nvidiactl" in spec.nodes


def found_names(inventory: Inventory, folders: list[list[Spec]]) -> HostNames:
    """Read specs from files ``/0/0.yaml``: the number of the folder, and that of the file."""
    return names_on_host(
        inventory,
        [
            [SpecFile(f"/{folder}/{at}.yaml", spec) for at, spec in enumerate(specs)]
            for folder, specs in enumerate(folders)
        ],
    )


H100S = Inventory(
    tuple(card(index, uuid=f"GPU-01000100-0000-0000-0000-00000000000{index}") for index in range(8))
)
"""The cards of NVIDIA's mock of NVML."""


def test_a_spec_of_nvidia_ctk_for_a_driver_in_a_container_names_our_cards() -> None:
    assert found_names(H100S, [[recorded("driver-container.yaml")]]) == HostNames(
        {each.uuid: f"nvidia.com/gpu={each.uuid}" for each in H100S.cards}
    )


def test_the_gpu_operators_spec_for_its_own_containers_is_not_used() -> None:
    spec = recorded("management.yaml")
    assert (spec.kind, list(spec.devices)) == ("management.nvidia.com/gpu", ["all"])
    assert found_names(H100S, [[spec]]).problem == (
        "no spec of kind nvidia.com/gpu; /0/0.yaml: its kind is management.nvidia.com/gpu"
    )


_CAPS = [f"/dev/nvidia-caps/nvidia-cap{number}" for number in (6, 7, 66, 67)]
INSTANCES = Inventory(
    (
        card(1),
        replace(card(uuid="MIG-0"), index=1000, capabilities=tuple(_CAPS[:2])),
        replace(card(uuid="MIG-7"), index=1007, capabilities=tuple(_CAPS[2:])),
    )
)


def instances_spec(*names: str, swapped: bool = False) -> Spec:
    """What nvidia-ctk writes of these cards, with names of the two instances."""
    nodes = [frozenset({"/dev/nvidia0", *_CAPS[:2]}), frozenset({"/dev/nvidia0", *_CAPS[2:]})]
    found = dict(zip(names, reversed(nodes) if swapped else nodes, strict=True))
    whole = {name: frozenset({"/dev/nvidia1"}) for name in ("1", "GPU-1")}
    return Spec(HOST_KIND, whole | found, frozenset({"/dev/nvidiactl"}))


def test_mig_instances_are_named_by_uuid_in_the_hosts_spec_or_in_ours() -> None:
    assert found_names(INSTANCES, [[instances_spec("MIG-0", "MIG-7")]]) == HostNames(
        {uuid: f"nvidia.com/gpu={uuid}" for uuid in ("GPU-1", "MIG-0", "MIG-7")}
    )
    assert found_names(INSTANCES, [[instances_spec("0:0", "0:1")]]).problem == (
        "/0/0.yaml: no device for card 1000 (MIG-0); /0/0.yaml: no device for card 1007 (MIG-7)"
    )
    assert found_names(
        INSTANCES, [[instances_spec("MIG-0", "MIG-7", swapped=True)]]
    ).problem.startswith(
        f"/0/0.yaml: device MIG-0 has {_CAPS[2]} and {_CAPS[3]} and /dev/nvidia0, and "
        f"card 1000 (MIG-0) is /dev/nvidia0 and {_CAPS[0]} and {_CAPS[1]}"
    )
    spec = spec_document(INSTANCES, COMMON)
    assert [
        [node["path"] for node in each["containerEdits"]["deviceNodes"]] for each in spec["devices"]
    ] == [["/dev/nvidia1"], ["/dev/nvidia0", *_CAPS[:2]], ["/dev/nvidia0", *_CAPS[2:]]]
    schema().validate(spec)


def spec_of(nodes: frozenset[str] = frozenset(), /, **devices: str) -> Spec:
    """Devices by name (``_`` for ``-``), each with its nodes of ``/dev``, space-separated."""
    made = {
        name.strip("i").replace("_", "-"): frozenset(f"/dev/{each}" for each in paths.split())
        for name, paths in devices.items()
    }
    return Spec("nvidia.com/gpu", made, nodes)


BY_UUID = {"GPU-0": "nvidia.com/gpu=GPU-0", "GPU-1": "nvidia.com/gpu=GPU-1"}
BY_INDEX = {"GPU-0": "nvidia.com/gpu=0", "GPU-1": "nvidia.com/gpu=1"}
JUST = spec_of(i0="nvidia0", i1="nvidia1")
STALE = spec_of(i0="nvidia1", i1="nvidia0")  # made when what is card 1 now was card 0
AGAIN = spec_of(i1="nvidia1")
BY_TYPE = {"GPU-0": "nvidia.com/gpu=gpu0", "GPU-1": "nvidia.com/gpu=gpu1"}
ONE_TWICE = "/0/0.yaml and /0/1.yaml both have device 1, so that runtimes use neither"
ON_HOST: dict[str, tuple[list[list[Spec]], dict[str, str] | str]] = {
    "all by UUID": ([[recorded("nvidia.yaml")]], BY_UUID),
    "UUIDs in another case": (
        [[spec_of(gpu_0="nvidia0", Gpu_1="nvidia1")]],
        {"GPU-0": "nvidia.com/gpu=gpu-0", "GPU-1": "nvidia.com/gpu=Gpu-1"},
    ),
    "all by type and index": ([[spec_of(gpu0="nvidia0", gpu1="nvidia1")]], BY_TYPE),
    "a UUID is missing": ([[spec_of(GPU_0="nvidia0", i0="nvidia0", i1="nvidia1")]], BY_INDEX),
    "an empty directory": ([[]], "no spec of kind nvidia.com/gpu"),
    "a card is missing": ([[spec_of(i0="nvidia0")]], "/0/0.yaml: no device for card 1 (GPU-1)"),
    "another kind": (
        [[replace(JUST, kind="management.nvidia.com/gpu")]],
        "no spec of kind nvidia.com/gpu; /0/0.yaml: its kind is management.nvidia.com/gpu",
    ),
    "another card by UUID": (
        [[spec_of(GPU_0="nvidia1", GPU_1="nvidia0")]],
        (
            "/0/0.yaml: device GPU-0 has /dev/nvidia1, and card 0 (GPU-0) is /dev/nvidia0; "
            "/0/0.yaml: device GPU-1 has /dev/nvidia0, and card 1 (GPU-1) is /dev/nvidia1"
        ),
    ),
    "two cards under a name": (
        [[spec_of(i0="nvidia0 nvidia1", i1="nvidia1")]],
        "/0/0.yaml: device 0 has /dev/nvidia0 and /dev/nvidia1, and card 0 (GPU-0) is /dev/nvidia0",
    ),
    "no card under a name": (
        [[spec_of(i0="nvidia0", i1="")]],
        "/0/0.yaml: device 1 has no device node of a card, and card 1 (GPU-1) is /dev/nvidia1",
    ),
    "a card for all containers": (
        [[replace(JUST, nodes=frozenset({"/dev/nvidia1"}))]],
        "/0/0.yaml: device 0 has /dev/nvidia0 and /dev/nvidia1, and card 0 (GPU-0) is /dev/nvidia0",
    ),
    "names of another kind": (
        [[spec_of(first="nvidia0", second="nvidia1")]],
        "/0/0.yaml: no device has the UUID or index of a card",
    ),
    "stale UUIDs, just indices": (
        [[spec_of(GPU_0="nvidia1", GPU_1="nvidia1", i0="nvidia0", i1="nvidia1")]],
        BY_INDEX,
    ),
    "a later directory replaces": ([[STALE], [JUST]], BY_INDEX),
    "a later directory replaces it wrongly": (
        [[JUST], [STALE]],
        (
            "/1/0.yaml: device 0 has /dev/nvidia1, and card 0 (GPU-0) is /dev/nvidia0; "
            "/1/0.yaml: device 1 has /dev/nvidia0, and card 1 (GPU-1) is /dev/nvidia1"
        ),
    ),
    "a name twice in one directory, which the runtime refuses": ([[JUST, AGAIN]], ONE_TWICE),
    "also if a later directory has it again": ([[JUST, AGAIN], [AGAIN]], ONE_TWICE),
    "all names twice": (
        [[recorded("nvidia.yaml")] * 2],
        (
            "/0/0.yaml and /0/1.yaml both have device GPU-0, so that runtimes use neither; "
            "/0/0.yaml and /0/1.yaml both have device GPU-1, so that runtimes use neither"
        ),
    ),
    "below a driver's own root": (
        [[spec_of(i0="root/dev/nvidia0", i1="root/dev/nvidia1")]],
        BY_INDEX,
    ),
}


@pytest.mark.parametrize(("specs", "names"), ON_HOST.values(), ids=ON_HOST)
def test_the_hosts_names_are_used_if_they_name_exactly_our_cards(
    specs: list[list[Spec]], names: dict[str, str] | str
) -> None:
    expected = HostNames({}, names) if isinstance(names, str) else HostNames(names)
    assert found_names(TWO, specs) == expected


def test_a_long_list_of_cards_without_a_device_is_cut() -> None:
    found = found_names(H100S, [[spec_of(i0="nvidia0")]])
    assert found.problem.count("no device for card") == 3
    assert found.problem.endswith("; 4 more of this kind")


GOOD: dict[str, Any] = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"containerEdits": None},
        {"containerEdits": {"deviceNodes": None}},
        {"devices": [{"name": "0"}]},
        {"devices": [{"name": "a-_.:9"}]},
        {"containerEdits": {"deviceNodes": [{"path": "/a", "hostPath": "/dev/nvidia7"}]}},
    ],
)
def test_valid_specs_are_read(change: dict[str, Any]) -> None:
    spec = parse_spec({**GOOD, **change})
    assert spec.kind == "nvidia.com/gpu"
    assert spec.nodes <= {"/dev/nvidia7"}  # where it is on the host


DEVICES = "devices: must be a list of 1 to 4096 devices"
NAME = "must be letters, digits, '-', '_', '.' and ':'"
NODES = "containerEdits.deviceNodes: must be a list of at most 256 nodes"
ONE_NODE = "containerEdits.deviceNodes[0]: must be a mapping with a path"
TWO_NODES = {"path": "/dev/a", "hostPath": 1}


def edits(**changes: object) -> dict[str, object]:
    return {"containerEdits": changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            (
                {"cdiVersion": version},
                f"cdiVersion: Invalid value: {shown}: must be a version such as 0.5.0",
            )
            for version, shown in ((0.6, "0.6"), ("latest", '"latest"'))
        ),
        *(
            ({"kind": kind}, f"kind: Invalid value: {json.dumps(kind)}: must be <vendor>/<class>")
            for kind in ("gpu", "a/b/c", "a/b\n", "1/b", "a/b:")
        ),
        ({"devices": []}, DEVICES),
        ({"devices": [GOOD["devices"][0]] * 4097}, DEVICES),
        ({"devices": ["0"]}, "devices[0]: must be a mapping"),
        *(
            (
                {"devices": [{"name": name}]},
                f"devices[0].name: Invalid value: {json.dumps(name)}: {NAME}",
            )
            for name in ("", "../x", "a:", "a\n", "*")
        ),
        (
            {"devices": GOOD["devices"] * 2},
            "devices: Duplicate value: two devices have the same name",
        ),
        (
            {"devices": [{"name": "0", "containerEdits": []}]},
            "devices[0].containerEdits: must be a mapping",
        ),
        ({"containerEdits": "x"}, "containerEdits: must be a mapping"),
        (edits(deviceNodes=[{"path": "/dev/a"}] * 257), NODES),
        (edits(deviceNodes=["/dev/a"]), ONE_NODE),
        (edits(deviceNodes=[{"path": 1}]), ONE_NODE),
        (edits(deviceNodes=[TWO_NODES]), ONE_NODE),
    ],
)
def test_invalid_specs_are_refused_with_field_and_reason(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_spec({**GOOD, **change})
    assert str(refused.value).startswith(message)
    for document in (None, [GOOD]):
        with pytest.raises(SettingsError, match=r"\Aa CDI spec must be a mapping\Z"):
            parse_spec(document)
