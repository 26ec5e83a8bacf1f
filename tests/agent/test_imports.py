"""The parts of libraries that a running agent does not import, because it does not use them.

They would be a quarter of its memory on every node.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from simulator.kubelet.node import Kubelet
from tests.agent.fakes import eventually, write_cards

pytestmark = pytest.mark.slow

# The agent's own command line in a pod, with a service account. Once it serves, it prints the
# modules that have run, which a deferred module has not.
_PROGRAM = """
import functools, json, pathlib, sys
import agent.__main__ as program
from agent.app import agent, refresher
from common.deferred import _Deferred
from common.apiserver import access

access.SERVICE_ACCOUNT = pathlib.Path(sys.argv[1])

def serves(self):
    ran = [name for name, module in sys.modules.items() if type(module) is not _Deferred]
    print(json.dumps(sorted(ran)), flush=True)

refresher.Refresher.run = serves
pace = agent.AgentPace(refresh=refresher.RefreshPace(sync=1.0))  # no API server responds
program.Agent = functools.partial(program.Agent, pace=pace)
program.main(sys.argv[2:])
"""


ABSENT = {
    # All of the Kubernetes API's types, and what builds them.
    "kubernetes.client": ("models", "api_client", "api.core_v1_api"),
    # Parts of the client that the agent never uses.
    "kubernetes": ("dynamic", "informer", "leaderelection", "stream", "watch"),
    # Kubeconfigs alone need these, or the API's types do.
    "kubernetes.config": ("kube_config",),
    "common.apiserver": ("kubeconfig", "exec_plugin"),
    **dict.fromkeys(("oauthlib", "requests", "requests_oauthlib", "pydantic"), ("",)),
}


def test_only_the_request_modules_of_the_kubernetes_client_are_imported(
    tmp_path: Path, folder: Path, kubelet: Kubelet
) -> None:
    (tmp_path / "token").write_text("token")
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    kubelet.start()
    command = [
        *(sys.executable, "-c", _PROGRAM, str(tmp_path), "--node-name", "n1"),
        *("--cards", str(write_cards(tmp_path / "cards.yaml"))),
        *("--kubelet-dir", str(folder / "plugins"), "--plugin-dir", str(folder / "plugins")),
        *("--pod-resources-socket", str(folder / "pr.sock")),
        *("--http-host", "127.0.0.1", "--http-port", "0"),
    ]
    api = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    printed = tmp_path / "out"
    with (
        printed.open("wb") as out,
        subprocess.Popen(
            command, cwd=Path(__file__).parents[2], env=os.environ | api, stdout=out
        ) as process,
    ):
        try:
            eventually(
                lambda: printed.read_bytes().endswith(b"\n") or process.poll(), "the agent serves"
            )
        finally:
            process.kill()
    imported = {*json.loads(printed.read_text())}
    absent = {f"{package}.{name}".strip(".") for package in ABSENT for name in ABSENT[package]}
    assert len(absent) == 15
    assert not imported & absent
    # Otherwise the names above would be absent for another reason.
    assert {"kubernetes.client.rest", "common.apiserver.access"} <= imported
