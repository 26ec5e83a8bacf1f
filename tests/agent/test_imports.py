"""What the agent imports before it is registered: nothing that it does not need for that.

An agent that was killed leaves its node without a plugin until its successor has registered,
and every GPU pod that is admitted meanwhile fails for good (fact K19). Half of that time
went into imports once.
"""

import json
import subprocess
import sys

import pytest

_LIST = "import json, sys\nimport agent.__main__\nprint(json.dumps(sorted(sys.modules)))"


@pytest.fixture(scope="module")
def imported() -> frozenset[str]:
    """The modules that are there when the agent's own code begins to run."""
    done = subprocess.run([sys.executable, "-c", _LIST], capture_output=True, check=True, text=True)
    return frozenset(json.loads(done.stdout))


@pytest.mark.parametrize(
    "module",
    [
        # All of the Kubernetes API's types, and what builds them.
        "kubernetes.client.models",
        "kubernetes.client.api_client",
        "kubernetes.client.api.core_v1_api",
        "pydantic",
        # Kubeconfigs alone need these.
        "kubernetes.config.kube_config",
        "oauthlib",
        "requests",
        "requests_oauthlib",
        # Parts of the client that the agent never uses.
        "kubernetes.dynamic",
        "kubernetes.informer",
        "kubernetes.leaderelection",
        "kubernetes.stream",
        "kubernetes.watch",
    ],
)
def test_the_agent_does_not_import_at_its_start(module: str, imported: frozenset[str]) -> None:
    assert module not in imported


def test_what_it_needs_of_the_official_client_is_there(imported: frozenset[str]) -> None:
    """Else the names above would be absent for another reason."""
    assert {"kubernetes.client.rest", "kubernetes.config.incluster_config"} <= imported
