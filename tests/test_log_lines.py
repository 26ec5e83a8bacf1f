"""docs/operate.md tells admins which lines to look for: the programs write them, with these fields.

The agent runs as it is installed, on a simulated node, the webhook with its gunicorn, ``certs
rotate`` in this process, on a simulated API server. What goes wrong is brought about.
"""

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.enforcement.vcuda.api import vcuda_pb2 as vcuda
from agent.enforcement.vcuda.api import vcuda_pb2_grpc as rpc
from certs.__main__ import main as certs
from certs.objects import LABEL, Kind
from common.logs import FIELDS, TRACE
from contract.names import Names
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.burst import container, pod
from simulator.cards import cards_file
from simulator.client import ApiClient
from simulator.cluster import NODE, Cluster, read_lines
from tests.certs.fakes import CA, TLS, configuration

Json = dict[str, Any]
NAMES = Names()
AGENT, KUBELET = f"agent-{NODE}", f"kubelet-{NODE}"
ROOT = Path(__file__).parents[1]
OPERATE = (ROOT / "docs/operate.md").read_text(encoding="utf-8")
SECTION = OPERATE.partition("\n## The log\n")[2].partition("\n## ")[0]
REFUSED_CERTIFICATE = "certificate refused, the one before serves on"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Row:
    """A line that the page tells of."""

    program: str
    message: str
    level: str
    fields: frozenset[str]
    may_be_missing: bool  # it is written at some time only: "agent, later"


def _rows() -> list[Row]:
    found = re.findall(
        r"^\| (agent|webhook|certs)(, [\w ]+)? \| `([^`]+)` \| (\w+) \| ([^|]*)\|",
        SECTION,
        flags=re.MULTILINE,
    )
    return [
        Row(program, message, level, frozenset(re.findall(r"`(\w+)`", fields)), bool(sometimes))
        for program, sometimes, message, level, fields in found
    ]


ROWS = _rows()


def _differences(program: str, lines: Sequence[Json]) -> list[str]:
    """Compare the table with what *program* wrote, in both directions."""
    found: dict[str, list[Json]] = {}
    for line in lines:
        found.setdefault(line["message"], []).append(line)
    rows = [each for each in ROWS if each.program == program]
    told = [
        f"{each.message}: not written"
        for each in rows
        if each.message not in found and not each.may_be_missing
    ]
    for row in rows:
        for line in found.get(row.message, ()):
            fields = frozenset(line) - {*FIELDS, TRACE}
            if (line["level"], fields) != (row.level, row.fields):
                told.append(f"{row.message}: {line['level']} {sorted(fields)}")
    listed = {each.message for each in rows}
    told += [
        f"{line['message']}: not on the page"
        for line in lines
        if line["logger"].partition(".")[0] == program
        and line["level"] != "info"
        and line["message"] not in listed
    ]
    return sorted(set(told))


def _check_the_fields_of_every_line(lines: Sequence[Json]) -> None:
    assert lines
    for line in lines:
        assert tuple(line)[: len(FIELDS)] == FIELDS
        assert datetime.fromisoformat(line["time"]).utcoffset() == timedelta()
        assert isinstance(line["pid"], int)


def test_the_page_tells_of_the_fields_that_every_line_has() -> None:
    assert {each.program for each in ROWS} == {"agent", "webhook", "certs"}
    table = re.findall(r"^\| `(\w+)` \|", SECTION, flags=re.MULTILINE)
    assert set(table) >= {*FIELDS, TRACE}
    rest = set(table) - {*FIELDS, TRACE}
    assert rest <= {field for each in ROWS for field in each.fields}


def test_what_the_pages_tell_to_look_for_is_in_the_table() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    quoted = {
        message
        for page in pages
        for message in re.findall(r'"message": ?"([^"]+)"', page.read_text(encoding="utf-8"))
        if ": " not in message  # an answer of the webhook, which has a message too
    }
    assert {"registered", "no witness", "allocation waits"} <= quoted
    assert quoted <= {each.message for each in ROWS}


def test_agent_and_webhook_write_what_the_page_tells() -> None:
    """The agent's witness and the kubelet's folder are links: missing at first."""
    options = (
        *("--enforcement", "vcuda", "--driver-dir", "/opt/nvidia-driver"),
        *("--pod-resources-socket", "witness.sock"),
        *("--kubelet-dir", "checkpoint"),
    )
    with Cluster(lambda _node: cards_file(2), agent_options=options) as cluster:
        cluster.start_nodes(NODE)
        cluster.wait_for_nodes()
        stage = Stage(cluster)
        _pods_come_and_go(stage)
        _others_are_away(stage)
        _the_webhook_is_pestered(stage)
        for program in (AGENT, "webhook"):
            cluster.kill(program, number=signal.SIGTERM)
        for program in (AGENT, "webhook"):
            lines = stage.lines(program)
            _check_the_fields_of_every_line(lines)
            assert _differences(program.partition("-")[0], lines) == []
            for each in ROWS:
                if program.startswith(each.program) and not each.may_be_missing:
                    assert f'"message":"{each.message}"' in cluster.log(program).read_text()


def test_certs_write_what_the_page_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(line) for line in _certificates_rotate(tmp_path, capsys)]
    _check_the_fields_of_every_line(lines)
    assert _differences("certs", lines) == []


class Stage:
    """A cluster of processes to which everything happens that the page tells of."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.witness = cluster.root / "witness.sock"
        self.kubelet = cluster.root / "checkpoint"

    def lines(self, program: str) -> list[Json]:
        return read_lines(self.cluster.log(program))

    def wait(self, program: str, message: str, *, count: int = 1) -> None:
        self.cluster.wait(
            f"{program}: {message}",
            lambda: [each["message"] for each in self.lines(program)].count(message) >= count,
            within=120,
        )

    def create(self, name: str, cores: int = 10) -> None:
        self.cluster.create(pod(name, [container("main", cores, 1, NAMES)]))

    def admit(self, name: str, cores: int = 10) -> None:
        """Create pods until one is admitted: others fail while this node's watch is behind."""
        for number in range(20):
            self.create(f"{name}-{number}", cores)
            if self._ended_up(f"{name}-{number}") == "Running":
                return
        pytest.fail(f"{name}: no pod is admitted")

    def _ended_up(self, name: str) -> str:
        def phase() -> str:
            path = f"/api/v1/namespaces/default/pods/{name}"
            return str(self.cluster.api.get(path).get("status", {}).get("phase"))

        self.cluster.wait(name, lambda: phase() in {"Running", "Failed"}, within=120)
        return phase()

    def post(self, body: bytes) -> int:
        context = ssl.create_default_context(cafile=self.cluster.root / "certs" / "ca.crt")
        request = urllib.request.Request(
            f"{self.cluster.webhook_url}/mutate/pods", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def register(self) -> None:
        """Speak to a container's socket from outside of it."""
        (socket, *_) = (self.cluster.root / NODE / "state").rglob("vcuda.sock")
        with grpc.insecure_channel(f"unix:{socket}") as channel, pytest.raises(grpc.RpcError):
            rpc.VCUDAServiceStub(channel).RegisterVDevice(
                vcuda.VDeviceRequest(pod_uid="x", container_name="main"), timeout=30
            )


_IN_THE_WAY = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "in-the-way"},
    "webhooks": [
        {
            "name": "in-the-way.example.com",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["UPDATE"],
                    "resources": ["nodes", "pods"],
                }
            ],
        }
    ],
}


def _pods_come_and_go(stage: Stage) -> None:
    stage.admit("blind", 5)
    stage.witness.symlink_to(f"{NODE}/podres.sock")
    foreign = stage.cluster.root / "foreign"
    foreign.mkdir()
    entry = {
        "PodUID": "x",
        "ContainerName": "main",
        "ResourceName": NAMES.core,
        "DeviceIDs": {"-1": ["not ours"]},
    }
    (foreign / "kubelet_internal_checkpoint").write_text(
        json.dumps({"Data": {"PodDeviceEntries": [entry]}})
    )
    stage.kubelet.symlink_to(foreign)
    stage.admit("unproven", 5)
    stage.kubelet.unlink()
    stage.kubelet.symlink_to(f"{NODE}/plugins")
    stage.admit("seen")
    stage.register()
    for name in ("one", "other"):
        stage.admit(name, 70)
    stage.create("fits-by-count-and-on-no-card", 40)
    stage.wait(AGENT, "refused")


def _the_webhook_is_pestered(stage: Stage) -> None:
    assert stage.post(b"{") == 400
    certificate = stage.cluster.root / "certs" / "tls.crt"
    certificate.write_bytes(b"not a certificate")
    stage.wait("webhook", REFUSED_CERTIFICATE)
    subprocess.run(
        [*_CERTS, "issue", "--force", "--out", str(certificate.parent), "--ip", "127.0.0.1"],
        cwd=ROOT,
        env=_environment(),
        check=True,
        capture_output=True,
        timeout=60,
    )
    stage.wait("webhook", "certificate loaded")


_CERTS = (sys.executable, "-m", "certs")


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if "GPU_TURNSTILE" not in key}


def _others_are_away(stage: Stage) -> None:
    cluster = stage.cluster
    cluster.kill(KUBELET)  # leaves its socket behind
    cluster.kill(AGENT, number=signal.SIGTERM)
    cluster.start(AGENT)
    stage.wait(AGENT, "registration failed")
    cluster.start(KUBELET)
    # What the node offered before is in its status until then.
    stage.wait(AGENT, "registered", count=2)
    cluster.kill(KUBELET)
    cluster.start(KUBELET)
    stage.wait(AGENT, "the kubelet has restarted")
    stage.wait(AGENT, "registered", count=3)
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    cluster.api.create(path, _IN_THE_WAY)
    stage.create("unwritten")
    stage.wait(AGENT, "allocation waits")
    cluster.kill(AGENT, number=signal.SIGTERM)
    cluster.start(AGENT)  # writes its cards anew, whatever was written before
    stage.wait(AGENT, "inventory waits")
    cluster.kill("apiserver")
    stage.wait(AGENT, "no pods from the API server")


def _certificates_rotate(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    kubeconfig = folder / "kubeconfig"
    written: list[str] = []

    def rotate(*flags: str) -> int:
        ended = certs(["rotate", "--kubeconfig", str(kubeconfig), "--namespace", "gpu", *flags])
        said = capsys.readouterr()
        assert said.out == ""
        written.extend(said.err.splitlines())
        return ended

    with ApiServer() as server, ApiClient(server.url) as admin:
        kubeconfig.write_text(kubeconfig_for(server.url), encoding="utf-8")
        server.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu"}},
            *(configuration(kind) for kind in (Kind.MUTATING, Kind.VALIDATING)),
        )
        assert rotate() == 0
        further = ("--dns", "hook.example.com")
        assert rotate(*further, "--replicas", "127.0.0.1:1") == 0
        assert rotate(*further, "--settle", "1", "--wait", "--timeout", "30") == 0
        for name in (CA, TLS):
            path = f"/api/v1/namespaces/gpu/secrets/{name}"
            admin.patch(path, {"metadata": {"labels": {LABEL: None}}})
        assert rotate(*further) == 1
        assert rotate(*further, "--force") == 0
        admin.delete(f"/api/v1/namespaces/gpu/secrets/{CA}")
        assert rotate(*further, "--settle", "1", "--grace", "1", "--wait", "--timeout", "60") == 0
    return written
