"""The component ``dialects``: which pods of other systems reach the webhook, and from where."""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from contract.other_systems import REQUESTS, RESOURCES, SYSTEMS, WISHES, Dialect
from simulator.api.selectors import labels_match, parse_label_selector
from tests.deploy.cel import condition_holds
from tests.deploy.kustomize import build_components
from tests.deploy.manifests import DEPLOY, Json, containers, environment, find, pod_specs, read_yaml
from tests.deploy.test_conditions import MISSPELT, PODS, STEPS, wrap
from tests.foreign_pods import FOREIGN
from webhook.admission import dialects
from webhook.admission.dialects.registry import READERS, read_dialects

ENTRY = "dialects.gpu-turnstile.io"
LABEL = {"gpu-turnstile.io/dialects": "true"}
MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
_QUALIFIED = re.compile(r"([a-z]+\.)*[a-z]+/[-.a-z]+|gpu-[a-z]+")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (each for key in value for each in _texts(key))
    elif isinstance(value, tuple | frozenset):
        yield from (text for each in value for text in _texts(each))


def _names() -> list[str]:
    """Return all names of resources and annotations that any reader knows."""
    modules = [
        importlib.import_module(f"{dialects.__name__}.{each.name}")
        for each in pkgutil.iter_modules(dialects.__path__)
    ]
    found = {
        text for module in modules for value in vars(module).values() for text in _texts(value)
    }
    return sorted(
        {
            f"{name}1g.10gb" if name.endswith("-") else name
            for name in found
            if _QUALIFIED.fullmatch(name)
        }
        | {
            *RESOURCES,
            *REQUESTS,
            *(f"{each.claims}claim" for each in SYSTEMS.values() if each.claims),
        }
    )


NAMES = _names()
"""What any reader or the table knows."""


def _entries(kind: str, *components: str) -> dict[str, Json]:
    objects = build_components(*(components or ("dialects",)))
    return {each["name"]: each for each in find(objects, kind, "gpu-turnstile")["webhooks"]}


def _reaches(entry: Json, obj: Json, accepted: str) -> bool:
    expressions = [each["expression"] for each in entry.get("matchConditions", ())]
    chosen = [re.sub("'hami,[-a-z,]+'", f"'{accepted}'", each) for each in expressions]
    return all(condition_holds(each, obj) for each in chosen)


def _pod(
    limits: Json | None = None,
    *,
    requests: Json | None = None,
    init: Json | None = None,
    annotations: Json | None = None,
) -> Json:
    resources = {"limits": limits or {}, **({"requests": requests} if requests else {})}
    return {
        "metadata": {"name": "p", "annotations": annotations or {}},
        "spec": {
            "containers": [{"name": "plain"}, {"name": "main", "resources": resources}],
            **({"initContainers": [{"name": "i", "resources": {"limits": init}}]} if init else {}),
        },
    }


READER = "webhook/admission/dialects/registry.py: READERS"
TABLE = "contract/other_systems.py: SYSTEMS"
CONDITION = "deploy/components/dialects/pods.yaml: is-accepted"
SETTINGS = "deploy/components/dialects/settings.yaml: accept"
PAGE = "docs/migrate.md"
BURSTS = "tests/foreign_pods.py: FOREIGN"


def test_each_system_has_names_and_a_reader() -> None:
    places = {TABLE: SYSTEMS.keys(), READER: READERS.keys()}
    lacks = {place: {*Dialect} - there for place, there in places.items()}
    texts = [f"{place} lacks {each}" for place, found in lacks.items() for each in found]
    assert not texts, "\n".join(texts)


@pytest.mark.parametrize("dialect", Dialect)
def test_exactly_the_names_that_are_read_are_in_the_table_and_reach_the_webhook(
    dialect: Dialect,
) -> None:
    entry, table = _entries(MUTATING)[ENTRY], SYSTEMS[dialect]
    instances = {f"{table.prefix}1g.10gb"} if table.prefix else set()
    resources = sorted({*table.resources} | instances)
    annotations = sorted({*table.requests} | ({f"{table.claims}claim"} if table.claims else set()))
    makers: list[tuple[list[str], Callable[[str], Json]]] = [
        (resources, lambda name: _pod({name: "1"})),
        (annotations, lambda name: _pod(annotations={name: "1"})),
    ]
    for names, make in makers:
        for name in NAMES:
            is_read = bool(read_dialects(make(name), {dialect}, path=""))
            what = f"{dialect}: {name}, which its reader {'reads' if is_read else 'does not read'}"
            assert is_read == (name in names), f"{TABLE} {'lacks' if is_read else 'has'} {what}"
            reaches = not is_read or _reaches(entry, make(name), dialect)
            assert reaches, f"{CONDITION} lacks {dialect}: {name}"
    for name in resources[:1]:
        assert _reaches(entry, _pod(requests={name: "1"}), dialect)
        assert _reaches(entry, _pod(init={name: "1"}), dialect)
    zero = dict.fromkeys(resources, "0")
    others = {name: "1" for name in [*NAMES, "cpu", "example.com/gpu"] if name not in resources}
    notes = {name: "1" for name in NAMES if name not in annotations}
    unread = _pod(zero | others, requests=zero, annotations=notes)
    assert not _reaches(entry, unread, dialect), f"{CONDITION} has more of {dialect} than {TABLE}"
    assert resources or annotations, f"{TABLE} has no name of {dialect}"


@pytest.mark.parametrize("dialect", Dialect)
def test_the_wishes_in_the_table_are_those_that_are_read(dialect: Dialect) -> None:
    table = SYSTEMS[dialect]
    first, requests = next(iter(table.resources), ""), dict.fromkeys(table.requests, "0.5")
    for name in {*NAMES, *WISHES}:
        try:
            reading = READERS[dialect](
                _pod({first: "1"}, annotations={name: "1"} | requests), path=""
            )
        except KeyError as key:
            pytest.fail(f"{TABLE}, wishes: {dialect} lacks {key}, which its reader reads")
        is_read = reading is not None and name in reading.annotations
        found = f"{dialect}: {name}, which its reader {'reads' if is_read else 'does not read'}"
        assert name not in WISHES or is_read == (name in table.wishes), f"{TABLE}, wishes: {found}"


@pytest.mark.parametrize("dialect", Dialect)
def test_no_list_of_systems_forgets_one(dialect: Dialect) -> None:
    (config,) = read_yaml(DEPLOY / "components/dialects/settings.yaml")
    table, lacks = SYSTEMS[dialect], []
    # gpushare has one unit at a time; its own default is GiB.
    if dialect not in {*config["data"]["accept"].split(","), Dialect.GPUSHARE_MIB}:
        lacks.append(f"{SETTINGS} lacks {dialect}")
    # HAMi is read before NVIDIA's plugin.
    if dialect not in {*(each.system for each in FOREIGN), Dialect.GPUSHARE_MIB, Dialect.NVIDIA}:
        lacks.append(f"{BURSTS} lacks {dialect}")
    page = (DEPLOY.parent / PAGE).read_text(encoding="utf-8")
    section = page.partition(f"\n### {table.title}'s\n")[2].partition("\n#")[0]
    names = (*table.resources, *table.requests, *table.wishes)
    missing = [each for each in names if each.rpartition("/")[2] not in section]
    lacks += [f"{PAGE}, {table.title}'s, lacks {each}" for each in missing]
    assert not lacks, "\n".join(lacks)


def test_spaces_in_the_list_of_systems_are_ignored() -> None:
    accepted = "hami, kai"
    for pod in (_pod({"nvidia.com/gpu": "1"}), _pod(annotations={"gpu-memory": "1"})):
        assert _reaches(_entries(MUTATING)[ENTRY], pod, accepted)


def test_settings_reach_the_webhook() -> None:
    (config,) = read_yaml(DEPLOY / "components/dialects/settings.yaml")
    (webhook,) = containers(
        pod_specs(build_components("dialects"))["Deployment/gpu-turnstile-webhook"]
    )
    assert environment(webhook)["GPU_TURNSTILE_WEBHOOK_ACCEPT"] == config["data"]["accept"]


@pytest.mark.parametrize("base", [each for each in STEPS if each != PODS])
def test_a_workload_reaches_the_entry_of_its_names_and_no_other(base: str) -> None:
    entries = _entries(VALIDATING)
    for pod, system in (
        (_pod({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"}), "hami"),
        (_pod({"volcano.sh/vgpu-number": "1"}), "volcano"),
        (_pod(annotations={"gpu-fraction": "0.5"}), "kai"),
    ):
        workload = wrap(STEPS[base].removesuffix(".spec"), pod)
        assert _reaches(entries[ENTRY], workload, system)
        assert not _reaches(entries[base], workload, system)
        assert not _reaches(entries[ENTRY], workload, "gpushare")
        assert _reaches(entries[base], workload, "gpushare")


def test_names_of_systems_that_are_not_accepted_reach_the_warning() -> None:
    entry = _entries(MUTATING)[MISSPELT]
    pod = _pod({"volcano.sh/vgpu-number": "1"})
    assert _reaches(entry, pod, "hami")
    assert not _reaches(entry, pod, "volcano")


@pytest.mark.parametrize("components", [("dialects",), ("dialects", "dialects-all")])
def test_only_labelled_namespaces_are_selected_unless_all_are(
    components: tuple[str, ...],
) -> None:
    everywhere = len(components) > 1
    for kind in (MUTATING, VALIDATING):
        selector = parse_label_selector(_entries(kind, *components)[ENTRY]["namespaceSelector"])
        for name in ("default", "kube-system", "gpu-turnstile", "gpu-turnstile-node"):
            labels = {"kubernetes.io/metadata.name": name}
            assert labels_match(selector, labels) == (everywhere and name == "default")
            assert labels_match(selector, labels | LABEL) == (name == "default")


def test_a_pod_waits_for_its_translation_and_a_workload_for_nothing() -> None:
    pods, workloads = _entries(MUTATING)[ENTRY], _entries(VALIDATING)[ENTRY]
    assert (pods["failurePolicy"], workloads["failurePolicy"]) == ("Fail", "Ignore")
    # The last one: what it has translated has its stamps, and is not sent a second time.
    assert [*_entries(MUTATING)][-1] == ENTRY
    base = [each for each in _entries(VALIDATING).values() if each["name"] in STEPS]
    for each in base:
        for rule in each["rules"]:
            for plural in rule["resources"]:
                assert any(
                    set(mine["apiGroups"]) == set(rule["apiGroups"]) and plural in mine["resources"]
                    for mine in workloads["rules"]
                )


def test_nothing_else_of_the_configurations_is_changed() -> None:
    for kind in (MUTATING, VALIDATING):
        plain = {
            each["name"]: each
            for each in find(build_components(), kind, "gpu-turnstile")["webhooks"]
        }
        found = _entries(kind)
        assert found.keys() - plain.keys() == {ENTRY}
        for name, each in plain.items():
            more = [
                c for c in found[name].get("matchConditions", ()) if c["name"] == "is-not-accepted"
            ]
            kept = [c for c in found[name].get("matchConditions", ()) if c not in more]
            assert {**found[name], "matchConditions": kept} == {"matchConditions": [], **each}
            assert bool(more) == (name == MISSPELT or (kind == VALIDATING and name in STEPS))
