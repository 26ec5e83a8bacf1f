"""CDI specs as data; ours against the schema of those who specify CDI."""

import contextlib
import functools
import json
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from referencing import Registry
from referencing.jsonschema import DRAFT7

from agent.allocator.model.answer import Answer, Mount
from agent.cards.cards_file import decode_yaml
from agent.errors import SettingsError
from agent.injection.cdi import (
    OWN_KIND,
    Spec,
    SpecDevice,
    is_kind,
    is_name,
    names_on_host,
    own_names,
    parse_spec,
    spec_document,
)
from agent.injection.inject import DriverFiles, shared_by_all
from placement.cards import Inventory
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


def test_our_spec_says_what_the_answer_says_otherwise() -> None:
    assert spec_document(TWO, COMMON) == {
        "cdiVersion": "0.3.0",
        "kind": "gpu-turnstile.io/gpu",
        "devices": [
            {
                "name": "GPU-0",
                "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "permissions": "rw"}]},
            },
            {
                "name": "GPU-1",
                "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1", "permissions": "rw"}]},
            },
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


def test_a_mount_that_may_be_written_says_so() -> None:
    spec = spec_document(TWO, Answer(mounts=(Mount("/a", "/b", read_only=False),)))
    assert spec["containerEdits"]["mounts"][0]["options"] == ["rw", "nosuid", "nodev", "rbind"]
    schema().validate(spec)


def test_what_is_not_shared_is_left_out() -> None:
    spec = spec_document(TWO, Answer())
    assert spec["containerEdits"] == {}
    schema().validate(spec)


def test_the_lowest_version_that_knows_a_name_is_asked_for() -> None:
    assert spec_document(TWO, COMMON)["cdiVersion"] == "0.3.0"
    digit = Inventory((card(0), card(1, uuid="1-2")))
    assert spec_document(digit, COMMON)["cdiVersion"] == "0.5.0"


@settings(patient, max_examples=share(20))
@given(inventories(most=3))
def test_our_spec_keeps_to_the_schema_and_the_naming_rules_and_reads_back(
    inventory: Inventory,
) -> None:
    document = json.loads(json.dumps(spec_document(inventory, COMMON)))
    schema().validate(document)
    assert parse_spec(document) == Spec(
        OWN_KIND,
        tuple(SpecDevice(each.uuid, frozenset({each.device})) for each in inventory.cards),
        frozenset({"/dev/nvidiactl"}),
    )
    names = own_names(inventory)
    assert list(names) == [each.uuid for each in inventory.cards]
    for name in names.values():
        kind, _, device = name.partition("=")
        assert kind == OWN_KIND
        assert follows_the_rules(device, also=":")


# --- names ----------------------------------------------------------------------------------


def follows_the_rules(text: str, *, also: str = "", letter: bool = False) -> bool:
    """The rules of the specification, letter by letter."""
    ends = string.ascii_letters if letter else string.ascii_letters + string.digits
    if not text or text[0] not in ends:
        return False
    inner = set(string.ascii_letters + string.digits + "-_." + also)
    alphanumeric = set(string.ascii_letters + string.digits)
    return set(text) <= inner and text[-1] in alphanumeric


TEXTS = st.text(st.sampled_from("aZ09-_.:/=*é\n "), max_size=6) | st.text(max_size=6)


@patient
@given(TEXTS)
def test_a_name_is_what_the_specification_says(text: str) -> None:
    assert is_name(text) == follows_the_rules(text, also=":")


@patient
@given(TEXTS, TEXTS)
def test_a_kind_is_a_vendor_and_a_class(vendor: str, name: str) -> None:
    expected = follows_the_rules(vendor, letter=True) and follows_the_rules(name, letter=True)
    assert is_kind(f"{vendor}/{name}") == expected


@pytest.mark.parametrize("text", ["", "a", "a/b/c", "a/b=c", "a/b\n"])
def test_what_is_no_kind(text: str) -> None:
    assert not is_kind(text)


# --- the host's -----------------------------------------------------------------------------


def nvidia() -> Spec:
    return parse_spec(decode_yaml((DATA / "nvidia.yaml").read_text()))


def test_what_nvidias_tool_writes_is_read() -> None:
    spec = nvidia()
    assert spec.kind == "nvidia.com/gpu"
    assert [device.name for device in spec.devices] == ["0", "GPU-0", "1", "GPU-1", "all"]
    assert spec.devices[1].nodes == {"/dev/nvidia0", "/dev/dri/card1"}
    assert "/dev/nvidiactl" in spec.nodes
    schema().validate(decode_yaml((DATA / "nvidia.yaml").read_text()))


def without(spec: Spec, *names: str) -> Spec:
    return replace(spec, devices=tuple(each for each in spec.devices if each.name not in names))


def spec_of(nodes: frozenset[str] = frozenset(), /, **devices: str) -> Spec:
    """Devices by name (``_`` for ``-``), each with its nodes of ``/dev``, space-separated."""
    made = (
        SpecDevice(
            name.strip("i").replace("_", "-"), frozenset(f"/dev/{each}" for each in paths.split())
        )
        for name, paths in devices.items()
    )
    return Spec("nvidia.com/gpu", tuple(made), nodes)


BY_UUID = {"GPU-0": "nvidia.com/gpu=GPU-0", "GPU-1": "nvidia.com/gpu=GPU-1"}
BY_INDEX = {"GPU-0": "nvidia.com/gpu=0", "GPU-1": "nvidia.com/gpu=1"}
JUST = spec_of(i0="nvidia0", i1="nvidia1")
STALE = spec_of(i0="nvidia1", i1="nvidia0")  # made when what is card 1 now was card 0
AGAIN = spec_of(i1="nvidia1")
ON_HOST: dict[str, tuple[list[list[Spec]], dict[str, str] | None]] = {
    "all by UUID": ([[nvidia()]], BY_UUID),
    "a UUID is missing": ([[without(nvidia(), "GPU-1")]], BY_INDEX),
    "no directory": ([], None),
    "an empty directory": ([[]], None),
    "a card is missing": ([[without(nvidia(), "GPU-1", "1")]], None),
    "another kind": ([[replace(nvidia(), kind="management.nvidia.com/gpu")]], None),
    "another card by index": ([[STALE]], None),
    "another card by UUID": ([[spec_of(GPU_0="nvidia1", GPU_1="nvidia0")]], None),
    "two cards under a name": ([[spec_of(i0="nvidia0 nvidia1", i1="nvidia1")]], None),
    "no card under a name": ([[spec_of(i0="nvidia0", i1="")]], None),
    "a name that begins alike": ([[spec_of(i0="nvidia10", i1="nvidia1")]], None),
    "a card for everybody": ([[replace(JUST, nodes=frozenset({"/dev/nvidia1"}))]], None),
    "stale UUIDs, just indices": (
        [[spec_of(GPU_0="nvidia1", GPU_1="nvidia1", i0="nvidia0", i1="nvidia1")]],
        BY_INDEX,
    ),
    "a later directory replaces": ([[STALE], [JUST]], BY_INDEX),
    "a later directory spoils": ([[JUST], [STALE]], None),
    "a name twice in one directory, which the runtime refuses": ([[JUST, AGAIN]], None),
    "and one directory later": ([[JUST, AGAIN], [AGAIN]], BY_INDEX),
}


@pytest.mark.parametrize(("specs", "names"), ON_HOST.values(), ids=ON_HOST)
def test_the_hosts_names_are_used_where_they_name_just_our_cards(
    specs: list[list[Spec]], names: dict[str, str] | None
) -> None:
    assert names_on_host(TWO, specs) == names


def test_a_drivers_own_root_may_stand_before_the_device_nodes() -> None:
    root = "/run/nvidia/driver/dev"
    devices = tuple(SpecDevice(str(n), frozenset({f"{root}/nvidia{n}"})) for n in range(2))
    assert names_on_host(TWO, [[Spec("nvidia.com/gpu", devices, frozenset())]]) == BY_INDEX


def test_a_node_without_cards_names_none_and_another_kind_can_be_looked_for() -> None:
    assert names_on_host(Inventory(()), [[nvidia()]]) is None
    spec = replace(spec_of(GPU_0="nvidia0"), kind="acme.com/gpu")
    one = Inventory((card(0),))
    assert names_on_host(one, [[spec]], kind="acme.com/gpu") == {"GPU-0": "acme.com/gpu=GPU-0"}


GOOD: dict[str, Any] = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"cdiVersion": "v0.6.0"},
        {"containerEdits": None},
        {"containerEdits": {}},
        {"containerEdits": {"deviceNodes": None}},
        {"devices": [{"name": "0"}]},
        {"annotations": {"a": "b"}},
    ],
)
def test_specs_that_can_be_read(change: dict[str, Any]) -> None:
    assert parse_spec({**GOOD, **change}).kind == "nvidia.com/gpu"


def test_a_node_is_known_by_its_place_on_the_host() -> None:
    nodes = [{"path": "/dev/nvidia0", "hostPath": "/dev/nvidia7"}]
    spec = parse_spec({**GOOD, "containerEdits": {"deviceNodes": nodes}})
    assert spec.nodes == {"/dev/nvidia7"}


NOT_A_SPEC = "a CDI spec must be a mapping"
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
        ({"cdiVersion": 0.6}, "cdiVersion: Invalid value: 0.6: must be a version such as 0.5.0"),
        (
            {"cdiVersion": "latest"},
            'cdiVersion: Invalid value: "latest": must be a version such as 0.5.0',
        ),
        ({"kind": None}, "kind: Invalid value: null: must be <vendor>/<class>"),
        ({"kind": "gpu"}, 'kind: Invalid value: "gpu": must be <vendor>/<class>'),
        ({"devices": None}, DEVICES),
        ({"devices": []}, DEVICES),
        ({"devices": [GOOD["devices"][0]] * 4097}, DEVICES),
        ({"devices": ["0"]}, "devices[0]: must be a mapping"),
        ({"devices": [{"name": 0}]}, f"devices[0].name: Invalid value: 0: {NAME}"),
        ({"devices": [{"name": "../x"}]}, f'devices[0].name: Invalid value: "../x": {NAME}'),
        ({"devices": GOOD["devices"] * 2}, "devices: a name stands twice"),
        (
            {"devices": [{"name": "0", "containerEdits": []}]},
            "devices[0].containerEdits: must be a mapping",
        ),
        ({"containerEdits": "x"}, "containerEdits: must be a mapping"),
        (edits(deviceNodes={}), NODES),
        (edits(deviceNodes=[{"path": "/dev/a"}] * 257), NODES),
        (edits(deviceNodes=["/dev/a"]), ONE_NODE),
        (edits(deviceNodes=[{}]), ONE_NODE),
        (edits(deviceNodes=[{"path": 1}]), ONE_NODE),
        (edits(deviceNodes=[TWO_NODES]), ONE_NODE),
    ],
)
def test_specs_that_cannot_be_read_say_where_and_why(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_spec({**GOOD, **change})
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("document", [None, [GOOD]])
def test_a_spec_is_a_mapping(document: object) -> None:
    with pytest.raises(SettingsError, match=f"^{NOT_A_SPEC}$"):
        parse_spec(document)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["cdiVersion", "kind", "devices", "name", "containerEdits", "deviceNodes", "path"]
            ),
            inner | st.just("0.5.0") | st.just("nvidia.com/gpu"),
            max_size=5,
        )
    ),
)


@patient
@given(JSON)
def test_whatever_stands_in_a_spec_is_read_or_refused(document: object) -> None:
    with contextlib.suppress(SettingsError):
        assert names_on_host(TWO, [[parse_spec(document)]]) is None
