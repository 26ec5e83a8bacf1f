"""Pods of a burst that others deny what they need, that never fit, or that are deleted by force."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from contract.names import Names
from contract.requests import read_pod_demand
from tests.e2e.cluster import Json
from tests.e2e.manifests import BLOCKS, Maker

_AGENT = "desc = gpu-turnstile: "


@dataclass(frozen=True, slots=True)
class Adverse:
    """One pod of the burst.

    Attributes:
        manifest: the pod.
        refused: a pattern of the refusal that it must get; ``None`` for a pod that fits.
        deleted: the test deletes it by force while the burst is under way.
    """

    manifest: Json
    refused: str | None = None
    deleted: bool = False

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


def adverse_burst(make: Maker, names: Names, count: int, *, seed: int) -> list[Adverse]:
    """Draw a burst: of eight pods, one fits no card, one wishes for a card that is not there,
    one is refused by the kubelet after the device plugin's response, and five fit.

    Three of four pods have a container without a GPU, before or after the others, and some
    an init container without one. Of those that fit, two of five are to be deleted by force.
    All that fit have room at the same time, whichever cards the others hold for a moment.
    """
    random = Random(seed)
    return [_draw(make, names, number, random) for number in range(count)]


def _draw(make: Maker, names: Names, number: int, random: Random) -> Adverse:
    containers = [
        make.container(f"c{each}", random.choice((5, 10)), random.choice((4, 8)))
        for each in range(random.choice((1, 1, 2)))
    ]
    kind = number % 8
    if kind == 1:  # the agent plans the pod as a whole, and refuses its first call
        containers.append(make.container("large", 10, BLOCKS + 1))
    if number % 32 == 3:
        containers = [make.container("whole", 100)]
    if random.random() < 3 / 4:
        containers.insert(random.choice((0, len(containers))), make.idle("plain"))
    init = []
    if random.random() < 1 / 4:
        init.append(make.idle("plain-init", run="true"))
    if random.random() < 1 / 7:
        init.append(make.container("init", 5, 4, run="true"))
    pod = make.pod(f"adverse-{number}", containers, initContainers=init)
    if kind == 1:
        # A pod that is only guessed to be the one is not refused for a container that comes later.
        large = f"10 cores and {BLOCKS + 1} memory blocks( of container large)?"
        return Adverse(pod, f"{_AGENT}no card fits {large}[,:]")
    if kind == 2:
        pod["metadata"]["annotations"] = {names.use_gpu_uuid: "GPU-of-another-node"}
        return Adverse(pod, f"{_AGENT}no card fits .*use-gpu-uuid")
    if kind == 3:  # past the scheduler: the kubelet looks at selectors after the device plugin
        affinity = pod["spec"]["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        pod["spec"]["nodeName"] = terms[0]["matchFields"][0]["values"][0]
        pod["spec"]["nodeSelector"] = {"e2e/never": "true"}
        return Adverse(pod, "Predicate NodeAffinity failed")
    return Adverse(pod, deleted=kind in (4, 6))


def unexplained(
    burst: list[Adverse], messages: Mapping[str, str], *, disturbed: bool = False
) -> dict[str, str]:
    """Return the refusals that should not have been, and the pods that ran and should not.

    Args:
        burst: the pods.
        messages: the refusal of each pod that was refused.
        disturbed: agent or kubelet was down for a moment. The kubelet may then reject pods with
            messages of its own; the agent must refuse none.
    """
    wrong = {}
    for each in burst:
        message = messages.get(each.name)
        if message is None:
            if each.refused is not None and not each.deleted:
                wrong[each.name] = "runs"
        elif each.refused is not None and re.search(each.refused, message):
            continue
        elif _AGENT in message or not disturbed:
            wrong[each.name] = message
    return wrong


def named_without_gpus(burst: list[Adverse], named: set[tuple[str, str]], names: Names) -> set[str]:
    """Return the containers of *named*, (pod, container), that do not request a GPU."""
    requesting = {
        (each.name, container.name)
        for each in burst
        for container in read_pod_demand(each.manifest, names)[0].containers
    }
    return {f"{pod} {container}" for pod, container in named - requesting}
