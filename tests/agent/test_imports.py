"""What the agent has imported when it registers: nothing that it does not need for that.

An agent that was killed leaves its node without a plugin until its successor has registered,
and every GPU pod that is admitted meanwhile fails for good (fact K19). Half of that time
went into imports once.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from tests.agent.fakes import FakeKubelet, eventually, short_dir, write_cards

pytestmark = pytest.mark.slow

# The agent's own command line in a pod, with a service account; it tells what has run, a
# deferred module has not, at the moment at which the kubelet knows both resources, and which
# modules were deferred before it began.
_PROGRAM = """
import json, sys
import agent.__main__ as program
from common.deferred import _Deferred
from agent.allocator.allocator import Allocator
from kubernetes.config import incluster_config

waiting = [name for name, module in sys.modules.items() if type(module) is _Deferred]
incluster_config.SERVICE_TOKEN_FILENAME, incluster_config.SERVICE_CERT_FILENAME = sys.argv[1:3]

def registered(self):
    ran = [name for name, module in sys.modules.items() if type(module) is not _Deferred]
    print(json.dumps([sorted(ran), waiting]), flush=True)

Allocator.registered = registered
program.main(sys.argv[3:])
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The modules that have run when a real agent has registered, and those that waited first."""
    made = tmp_path_factory.mktemp("pod")
    (made / "token").write_text("token")
    trustme.CA().cert_pem.write_to_path(made / "ca.crt")
    cards = write_cards(made / "cards.yaml")
    with short_dir() as folder, FakeKubelet(folder) as kubelet:
        kubelet.start()
        command = [
            *(sys.executable, "-c", _PROGRAM, str(made / "token"), str(made / "ca.crt")),
            *("--node-name", "n1", "--cards", str(cards)),
            *("--plugin-dir", str(kubelet.plugin_dir)),
            *("--pod-resources-socket", str(kubelet.pod_resources)),
            *("--http-host", "127.0.0.1", "--http-port", "0"),
        ]
        # Nobody is there: the API server is not needed to register.
        away = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
        with (
            (made / "out").open("wb") as out,
            subprocess.Popen(
                command, cwd=Path(__file__).parents[2], env=os.environ | away, stdout=out
            ) as process,
        ):
            try:
                eventually(
                    lambda: (made / "out").read_bytes().endswith(b"\n") or process.poll(),
                    "the agent registers",
                    within=60,
                )
            finally:
                process.kill()
    found: list[list[str]] = json.loads((made / "out").read_text())
    return found


@pytest.fixture
def imported(told: list[list[str]]) -> frozenset[str]:
    return frozenset(told[0])


ABSENT = {
    # All of the Kubernetes API's types, and what builds them.
    "kubernetes.client": ("models", "api_client", "api.core_v1_api"),
    # Parts of the client that the agent never uses.
    "kubernetes": ("dynamic", "informer", "leaderelection", "stream", "watch"),
    # Kubeconfigs alone need these, or the API's types do, or other programs.
    "kubernetes.config": ("kube_config",),
    "oauthlib": ("",),
    "requests": ("",),
    "requests_oauthlib": ("",),
    "pydantic": ("",),
    **dict.fromkeys(("cryptography", "flask", "gunicorn", "rich"), ("",)),
    # The half of gRPC that the agent never uses.
    "asyncio": ("", "base_events"),
    "grpc.aio": ("", "_channel"),
    # For after the first registration.
    "watchfiles": ("", "main"),
    "anyio": ("",),
    # For an enforcer that is not the one chosen.
    "agent.runtime": ("cgroups", "cri", "api.runtime_pb2"),
    "agent.enforcement": ("hami", "vcuda.backend", "vcuda.manager", "vcuda.api.vcuda_pb2"),
}


def test_the_agent_registers_without_having_imported_more(imported: frozenset[str]) -> None:
    absent = {f"{package}.{name}".strip(".") for package in ABSENT for name in ABSENT[package]}
    assert len(absent) == 31
    assert not imported & absent


def test_what_it_needs_is_there(imported: frozenset[str]) -> None:
    """Else the names above would be absent for another reason."""
    assert {
        "agent.app.supervisor",
        "grpc",
        "kubernetes.client.rest",
        "kubernetes.config.incluster_config",
        "pynvml",
        "yaml",  # reads the cards file here
    } <= imported


def test_without_a_cards_file_no_yaml_would_have_been_read(told: list[list[str]]) -> None:
    assert "yaml" in told[1]
