"""Objects of the suite: cards that need no GPU, pods that print their cards, webhooks."""

import base64
import gzip
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

from agent.enforcement.vcuda.config import CONFIG_NAME, MOUNT_PATH, VcudaConfig, decode
from contract.names import Names
from tests.deploy.kustomize import build_components
from tests.deploy.manifests import base, find
from tests.e2e.cluster import Json

CARDS = 12
BLOCKS = 96
"""Memory blocks of 256 MiB on each card."""

_MUTATING = "MutatingWebhookConfiguration"
_CARDS_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
_LIMITS = f"{MOUNT_PATH}/{CONFIG_NAME}"
# A few hundred bytes, of which nearly all are zero, on one line of the log.
_PRINT_LIMITS_AND_CARDS = (
    f'echo "{_LIMITS}=$(gzip -c {_LIMITS} 2>/dev/null | base64 | tr -d "\\n")"; '
    f'echo "{_CARDS_VARIABLE}=${_CARDS_VARIABLE}"; exec '
)


def cards_file() -> Json:
    """Make an inventory whose device nodes are there on every host."""
    return {
        "cards": [
            {
                "uuid": f"GPU-{index:08d}-e2e0-e2e0-e2e0-e2e0e2e0e2e0",
                "index": index,
                "model": "none",
                "memory": f"{BLOCKS * 256}Mi",
                "numa": index % 2,
                "device": "/dev/null",
            }
            for index in range(CARDS)
        ]
    }


def visible(log: str) -> tuple[str, ...] | None:
    lines = [line for line in log.splitlines() if line.startswith(f"{_CARDS_VARIABLE}=")]
    return tuple(lines[-1].partition("=")[2].split(",")) if lines else None


def limits(log: str) -> VcudaConfig | None:
    """Read from a container's log the limits of its last start; ``None`` without readable ones."""
    lines = [line for line in log.splitlines() if line.startswith(f"{_LIMITS}=")]
    try:
        return decode(gzip.decompress(base64.b64decode(lines[-1].partition("=")[2])))
    except (IndexError, ValueError, OSError, EOFError):
        return None


class Maker:
    """Makes pods that run *image*."""

    def __init__(self, *, node: str, image: str, names: Names) -> None:
        self._node = node
        self._image = image
        self._names = names

    def plain(self, name: str) -> Json:
        return self.pod(name, [self.idle("main")])

    def single(self, name: str, cores: object, memory: object = None) -> Json:
        return self.pod(name, [self.container("main", cores, memory)])

    def short(self, name: str) -> Json:
        return self.pod(name, [self.container("main", 1, 1, run="sleep 1")], restartPolicy="Never")

    def container(
        self,
        name: str,
        cores: object,
        memory: object = None,
        *,
        run: str = "sleep 3600",
        **more: Any,
    ) -> Json:
        limits = {self._names.core: cores, self._names.memory: memory}
        requested = {key: str(value) for key, value in limits.items() if value is not None}
        return self.idle(name, run=run, resources={"limits": requested}, **more)

    def pod(self, name: str, containers: Sequence[Json], **spec: Any) -> Json:
        only = {"key": "metadata.name", "operator": "In", "values": [self._node]}
        terms = {"nodeSelectorTerms": [{"matchFields": [only]}]}
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "affinity": {"nodeAffinity": affinity},
                "tolerations": [{"operator": "Exists"}],
                "containers": list(containers),
                **spec,
            },
        }

    def burst(self, count: int, *, seed: int) -> list[Json]:
        """Draw pods of one to three containers, many equal in cores and not in memory."""
        random = Random(seed)
        return [self._draw(f"burst-{number}", random) for number in range(count)]

    def _draw(self, name: str, random: Random) -> Json:
        cores, memory = (5, 10), (4, 8)
        containers = [
            self.container(f"c{each}", random.choice(cores), random.choice(memory))
            for each in range(random.choice((1, 1, 2, 3)))
        ]
        init = []
        if random.random() < 1 / 7:
            init.append(self.container("init", random.choice(cores), 4, run="true"))
        if random.random() < 1 / 7:
            init.append(self.container("sidecar", 5, 4, restartPolicy="Always"))
        return self.pod(name, containers, initContainers=init)

    def idle(self, name: str, *, run: str = "sleep 3600", **more: Any) -> Json:
        return {
            "name": name,
            "image": self._image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", _PRINT_LIMITS_AND_CARDS + run],
            **more,
        }


def webhooks(name: str) -> Json:
    """Make a webhook configuration that reaches no further than the namespace *name*."""
    return _of_namespace(find(base(), _MUTATING, "gpu-turnstile"), name)


def dialect_webhooks(name: str) -> Json:
    """Make a configuration with the entry of the component ``dialects`` for one namespace."""
    made = deepcopy(find(build_components("dialects"), _MUTATING, "gpu-turnstile"))
    made["webhooks"] = [each for each in made["webhooks"] if each["name"].startswith("dialects.")]
    return _of_namespace(made, name) | {"metadata": {"name": f"{name}-dialects"}}


def _of_namespace(made: Json, name: str) -> Json:
    made["metadata"]["name"] = name
    for each in made["webhooks"]:
        each["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    return made
