"""New pods and Bindings that policies allow or deny; e2e sends them to a real API server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.deploy.manifests import Json
from tests.deploy.policies import Update
from tests.deploy.policy_examples import NAMES, OTHER_USER, OURS, SCHEDULER


@dataclass(frozen=True)
class Creation:
    """A new pod as it is going to be stored, after all mutating webhooks.

    *containers* and *init* are requests of cores and memory, empty for none; a third entry makes a
    sidecar. *denied* has a part of each message.
    """

    title: str
    containers: Sequence[tuple[str, str]] = (("50", "8"),)
    init: Sequence[tuple[str, ...]] = ()
    annotations: Mapping[str, str] = field(default_factory=lambda: OURS)
    denied: Sequence[str] = ()
    namespace: str = "default"

    def pod(self) -> Json:
        spec: Json = {
            "containers": [_container(f"c{i}", *e) for i, e in enumerate(self.containers)]
        }
        if self.init:
            spec["initContainers"] = [_container(f"i{i}", *e) for i, e in enumerate(self.init)]
        metadata: Json = {"name": "p", "annotations": dict(self.annotations)}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def request(self) -> Update:
        return Update(OTHER_USER, {}, self.pod(), operation="CREATE", namespace=self.namespace)


def _container(name: str, cores: str, memory: str, *sidecar: str) -> Json:
    limits = {NAMES.core: cores, NAMES.memory: memory}
    requested = {resource: count for resource, count in limits.items() if count}
    made: Json = {"name": name, "image": "none"}
    if requested:
        made["resources"] = {"limits": requested, "requests": requested}
    return made | ({"restartPolicy": "Always"} if sidecar else {})


PLAIN = (("", ""),)
_CORES = f"resources.limits[{NAMES.core}]"
_BLOCKS = f"resources.limits[{NAMES.memory}]"
_UNSTAMPED = (
    f"metadata.annotations[{NAMES.admission_order}]: Required value: the pod requests GPUs but "
    "does not have the stamps of the webhook of gpu-turnstile"
)
_PARTS = "spec.initContainers: Invalid value: one requests more than a whole card"
_RANGE = "must be a whole number, 0 to 2147483647"
_BLOCKS_RANGE = "must be a whole number of blocks, 0 to 16777216"
_RECORDS = {
    NAMES.gpu_allocation: "{}",
    NAMES.bind_order: "1",
    NAMES.predicate_node: "n1",
    NAMES.predicate_gpu_idx(0): "1",
}
_CARDS = {**OURS, NAMES.gpu_cards_of("c0"): "2"}
_EVENLY = "cores and memory in limits must divide evenly over so many cards, with 1 to 99 cores of"

_ALL_AT_ONCE = (
    f'container i0: {_CORES}: Invalid value: "1050": more than one card must be a multiple of 100 '
    f'(100 is one whole card); container c2: {_CORES}: Invalid value: "250": more than one card '
    f"must be a multiple of 100 (100 is one whole card); container c0: {_BLOCKS}: Required value: "
    "a share of a card needs memory: request at least 1 memory block; "
    f"container c1: {_CORES}: Required value: memory without cores: add 1 to 99 cores for a share "
    f"of one card, or a multiple of 100 for whole cards; {_PARTS}"
)

CREATIONS = [
    Creation("a stamped share"),
    Creation("whole cards, and a container without a request", [("200", ""), ("", "")]),
    Creation("a thousand whole cards", [("100k", "")]),
    Creation("an init container and a sidecar", PLAIN, [("10", "1"), ("5", "1", "Always")]),
    Creation("a plain pod", PLAIN, annotations={}),
    Creation("a plain pod with wishes", PLAIN, annotations=dict.fromkeys(NAMES.wishes, "x")),
    Creation(
        "a copy of a plain pod that ran",
        PLAIN,
        annotations={NAMES.predicate_time: "1", NAMES.bind_order: "1", NAMES.predicate_node: "n1"},
    ),
    Creation(
        "a plain pod with what others annotate",
        PLAIN,
        annotations={"example.com/gpu-assigned": "true", f"{NAMES.domain}/other": "1"},
    ),
    Creation("a request without the webhook's stamps", annotations={}, denied=[_UNSTAMPED]),
    Creation(
        "an init container without the webhook's stamps",
        PLAIN,
        [("10", "1")],
        annotations={},
        denied=[_UNSTAMPED],
    ),
    *(
        Creation(
            f"{title}, {key} {value!r}",
            annotations={**OURS, key: value},
            denied=[_UNSTAMPED, *more],
        )
        for title, key, value, more in (
            ("a stamp that is none", NAMES.admission_order, "me first", ()),
            ("a stamp that is none", NAMES.predicate_time, "-1", ()),
            (
                "a new pod that claims to have a GPU",
                NAMES.gpu_assigned,
                "true",
                ['[tencent.com/gpu-assigned]: Invalid value: "true": a new pod has no GPU yet'],
            ),
        )
    ),
    *(
        Creation(
            f"a GPU pod that comes with {key}",
            annotations={**OURS, key: value},
            denied=[
                f"metadata.annotations: Forbidden: {key}: only gpu-turnstile or a scheduler may"
            ],
        )
        for key, value in _RECORDS.items()
    ),
    *(
        Creation(
            f"a plain pod that comes with {key}",
            PLAIN,
            annotations={key: "true"},
            denied=[f"metadata.annotations: Forbidden: {key}: only pods that request GPUs have"],
        )
        for key in (
            NAMES.gpu_allocation,
            NAMES.gpu_assigned,
            NAMES.admission_order,
            NAMES.predicate_gpu_idx(0),
        )
    ),
    Creation(
        "all that can be forged",
        [("150", "")],
        annotations=_RECORDS | {NAMES.gpu_assigned: "true"},
        denied=[
            _UNSTAMPED,
            f"Forbidden: {', '.join(_RECORDS)}: ",
            "a new pod has no GPU yet",
            "more than one card must be",
        ],
    ),
    Creation("zeros, which request nothing", [("0", "0"), ("0", "")], annotations={}),
    Creation("zeros beside a share and a card", [("50", "8"), ("0", ""), ("100", "0")]),
    Creation("too many cores", [("2147483648", "")], denied=[_RANGE]),
    Creation("more than CEL can count", [("8Ei", ""), ("50", "9E")], denied=[_RANGE]),
    Creation("memory in bytes", [("50", "8Gi")], denied=[_BLOCKS_RANGE]),
    Creation("a lot of memory", [("100", "16777216")]),
    Creation(
        "all that can be wrong with counts, at once",
        [("50", ""), ("", "1"), ("250", "")],
        [("1050", "")],
        denied=[_ALL_AT_ONCE],
    ),
    Creation("halves of two cards, and of one", [("100", "8"), ("50", "4")], annotations=_CARDS),
    Creation(
        "an empty number of cards is none",
        [("150", "8")],
        annotations={**OURS, NAMES.gpu_cards_of("c0"): ""},
        denied=["more than one card must be"],
    ),
    Creation(
        "a share of several cards needs memory",
        [("150", "")],
        annotations=_CARDS,
        denied=["a share of a card needs memory"],
    ),
    *(
        Creation(f"{cores} cores over {value}", [(cores, blocks)], annotations=notes, denied=[part])
        for cores, blocks, value, part in (
            ("100", "8", "17", '[tencent.com/gpu-cards-c0]: Invalid value: "17": must be a whole'),
            ("100", "8", "half", 'Invalid value: "half": must be a whole number from 1 to 16'),
            ("101", "8", "2", _EVENLY),
            ("100", "7", "2", _EVENLY),
            ("200", "8", "2", _EVENLY),
        )
        for notes in [{**OURS, NAMES.gpu_cards_of("c0"): value}]
    ),
    Creation(
        "a number of cards for no container",
        annotations={**OURS, NAMES.gpu_cards_of("c1"): "2"},
        denied=['[tencent.com/gpu-cards-c1]: Invalid value: "2": the pod has no container of this'],
    ),
    Creation(
        "a number of cards in a plain pod", PLAIN, annotations={NAMES.gpu_cards_of("c0"): "many"}
    ),
    Creation("a container takes reusable cards", [("200", ""), ("50", "1")], [("200", "")]),
    Creation(
        "a container that would split reusable cards",
        [("100", "")],
        [("200", "")],
        denied=[_PARTS],
    ),
    Creation(
        "an init container that would", [("300", "")], [("200", ""), ("50", "1")], denied=[_PARTS]
    ),
    Creation(
        "no room beside reusable cards: only the webhook checks it",
        [("60", "1"), ("60", "1")],
        [("100", "")],
    ),
    Creation("a sidecar takes reusable cards", [("50", "1")], [("200", ""), ("200", "", "Always")]),
    *(
        Creation(
            f"anything in {namespace}", [("150", "")], annotations=_RECORDS, namespace=namespace
        )
        for namespace in ("kube-system", "gpu-turnstile", "gpu-turnstile-node")
    ),
]
"""The last ones are in namespaces that the webhook does not review either."""


@dataclass(frozen=True)
class Bound:
    """A Binding; *denied* is a part of the message."""

    title: str
    user: str
    annotations: Mapping[str, str]
    denied: str = ""

    def binding(self) -> Json:
        metadata: Json = {"name": "p"} | (
            {"annotations": dict(self.annotations)} if self.annotations else {}
        )
        target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
        return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}

    def request(self) -> Update:
        return Update(self.user, {}, self.binding(), "binding", operation="CREATE")


_BY_WEBHOOK = {
    NAMES.predicate_time: "1700000000000000000",
    NAMES.bind_order: "01700000000000000000-w1-00000000",
    NAMES.predicate_node: "n1",
}
_CHOICE = {NAMES.predicate_gpu_idx(0): "0"}

BINDINGS = [
    Bound("a plain one", SCHEDULER, {}),
    Bound("a stamped one", SCHEDULER, _BY_WEBHOOK),
    Bound("a stamped one of another user", OTHER_USER, _BY_WEBHOOK),
    Bound("a scheduler sets its cards", SCHEDULER, _BY_WEBHOOK | _CHOICE),
    Bound(
        "another user sets a card", OTHER_USER, _BY_WEBHOOK | _CHOICE, "only a scheduler's Binding"
    ),
    Bound(
        "another node than it names",
        SCHEDULER,
        _BY_WEBHOOK | {NAMES.predicate_node: "n2"},
        "must be the node",
    ),
    *(
        Bound(f"{key} comes no such way", SCHEDULER, {key: "x"}, "a Binding cannot set")
        for key in (NAMES.gpu_assigned, NAMES.gpu_allocation, NAMES.admission_order)
    ),
]
