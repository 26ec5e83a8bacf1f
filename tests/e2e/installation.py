"""gpu-turnstile as it is installed: an overlay applied with an image of one's own."""

import base64
import json
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.common.serving.in_process import Load
from tests.deploy.kustomize import copy_settings
from tests.deploy.manifests import DEPLOY, base, pod_specs
from tests.e2e.cluster import Json, Kubectl, KubectlError
from tests.e2e.ground import Ground, wait
from tests.e2e.manifests import CARDS
from tests.e2e.settings import Settings

NAMESPACE, AGENTS = "gpu-turnstile", "gpu-turnstile-node"
WEBHOOK, AGENT = "deployment/gpu-turnstile-webhook", "daemonset/gpu-turnstile-agent"
CERTS = "deployment/gpu-turnstile-certs"
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")

OURS = "app.kubernetes.io/part-of=gpu-turnstile"
_WEBHOOKS = "--selector=app.kubernetes.io/name=gpu-turnstile-webhook"
_CERTS = "--selector=app.kubernetes.io/name=gpu-turnstile-certs"
_READY_SECONDS = 120.0
_DELETED_SECONDS = 180.0
_RENEWED_SECONDS = 150.0


class Installation:
    """One installation, from applying to deleting it; *images* are by the names in manifests."""

    def __init__(
        self,
        kubectl: Kubectl,
        folder: Path,
        image: str,
        *,
        overlay: str = "try-out",
        components: Sequence[str] = (),
        images: Mapping[str, str] | None = None,
        more: Json | None = None,
    ) -> None:
        self._kubectl, self._inside = kubectl, kubectl.inside(NAMESPACE)
        self._folder = folder
        published = {
            each["image"].rpartition(":")[0]
            for spec in pod_specs(base()).values()
            for each in spec["containers"]
        }
        wanted = {**dict.fromkeys(sorted(published), image), **(images or {})}

        def relative(path: Path) -> str:
            return os.path.relpath(path, folder.resolve())

        written = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [
                relative(DEPLOY / "overlays" / overlay),
                *copy_settings(folder, components),
            ],
            "components": [relative(DEPLOY / "components" / each) for each in components],
            "images": [{"name": name, **image_parts(each)} for name, each in wanted.items()],
            **(more or {}),
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")

    def apply(self) -> list[str]:
        """Apply it, for the first time or again; return kubectl's line for each object."""
        return self._kubectl.run("apply", f"--kustomize={self._folder}").stdout.splitlines()

    def compare(self) -> None:
        """Fail if to apply it again would change something."""
        self._kubectl.run("diff", f"--kustomize={self._folder}")

    def wait_until_ready(self) -> None:
        self.rolled_out(NAMESPACE, WEBHOOK)
        self.rolled_out(AGENTS, AGENT)

    def remove(self) -> None:
        """Delete it and wait until nothing is left; missing objects are no error."""
        self._kubectl.run(
            *("delete", f"--kustomize={self._folder}", "--ignore-not-found", "--wait"),
            f"--timeout={_DELETED_SECONDS:g}s",
            within=_DELETED_SECONDS + 10,
        )

    def leftovers(self) -> list[str]:
        """Name what is still there of all that was applied, and whatever has our label."""
        applied = self._kubectl.run("kustomize", str(self._folder)).stdout
        found = self._kubectl.names("--filename=-", stdin=applied)
        kinds = sorted({each["kind"] for each in yaml.safe_load_all(applied)})
        labelled = self._kubectl.names(",".join(kinds), "--all-namespaces", "--selector", OURS)
        return sorted({*found, *labelled})

    def rolled_out(self, namespace: str, workload: str) -> None:
        self._kubectl.inside(namespace).run(
            *("rollout", "status", workload),
            f"--timeout={_READY_SECONDS:g}s",
            within=_READY_SECONDS + 10,
        )

    def roll(self, namespace: str, workload: str) -> None:
        self._kubectl.inside(namespace).run("rollout", "restart", workload)
        self.rolled_out(namespace, workload)

    def roll_agents(self) -> None:
        """Replace all agents, and wait until the old ones have ended."""
        before = self.agent_uids()
        self.roll(AGENTS, AGENT)

        def ended() -> bool:
            return not before & self.agent_uids()

        wait("the end of the old agents", ended, within=_DELETED_SECONDS)

    def scale_webhook(self, replicas: int) -> None:
        self._inside.run("scale", WEBHOOK, f"--replicas={replicas}")
        if replicas:
            self.rolled_out(NAMESPACE, WEBHOOK)
        wait("so many webhooks", lambda: len(self.webhooks()) == replicas)

    def permit_without_webhook(self) -> None:
        """Permit GPU pods without the webhook, by the commands of docs/operate.md."""
        page = (DEPLOY.parent / "docs" / "operate.md").read_text(encoding="utf-8")
        blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
        (block,) = (each for each in blocks if '"value": "Ignore"' in each)
        lines = block.replace("\\\n", " ").splitlines()
        for line in lines:
            program, *arguments = shlex.split(line.removeprefix("$ "), comments=True)
            assert program == "kubectl", line
            self._kubectl.run(*arguments)

    def begin_renewal(self, *, settle: int, grace: int) -> None:
        """Let a Job replace authority and certificate, with other pauses than the Deployment's."""
        self._inside.run("scale", CERTS, "--replicas=0")
        self._inside.run("wait", "pods", _CERTS, "--for=delete", f"--timeout={_READY_SECONDS:g}s")
        before = self.secret("tls")["tls.crt"]
        self._inside.run("delete", "secret", "gpu-turnstile-webhook-ca")
        self._inside.run("create", "--filename=-", stdin=self._renewal(settle, grace))
        wait("the new certificate", lambda: self.secret("tls")["tls.crt"] != before)

    def refresh_secrets(self) -> None:
        """Make kubelets update the mounted Secrets now, not when they next sync the pods."""
        self._inside.run("annotate", "pods", _WEBHOOKS, "--overwrite", "e2e/look=now")

    def end_renewal(self) -> str:
        def logs() -> str:
            return self._inside.run("logs", "job/renewal").stdout

        try:
            self._inside.run(
                *("wait", "job/renewal", "--for=condition=Complete"),
                f"--timeout={_RENEWED_SECONDS:g}s",
                within=_RENEWED_SECONDS + 10,
            )
        except KubectlError as error:
            raise AssertionError(f"{error}: {logs()}") from error
        self._inside.run("scale", CERTS, "--replicas=1")
        return logs()

    def _renewal(self, settle: int, grace: int) -> str:
        found = self._inside.json("get", CERTS)
        template: Json = found["spec"]["template"]
        template["spec"]["restartPolicy"] = "OnFailure"
        (container,) = template["spec"]["containers"]
        container["env"] = [
            *(each for each in container["env"] if each["name"] != "GPU_TURNSTILE_CERTS_EVERY"),
            {"name": "GPU_TURNSTILE_CERTS_SETTLE", "value": str(settle)},
            {"name": "GPU_TURNSTILE_CERTS_GRACE", "value": str(grace)},
        ]
        metadata = {"name": "renewal", "labels": {"app.kubernetes.io/part-of": "gpu-turnstile"}}
        return json.dumps(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": metadata,
                "spec": {"template": template},
            }
        )

    def lines(self, app: str, container: str = "") -> list[Json]:
        where = ("--container", container) if container else ()
        pods = f"--selector=app.kubernetes.io/name={app}"
        log = self._inside.run("logs", pods, "--tail=-1", *where)
        return [json.loads(line) for line in log.stdout.splitlines() if line.startswith("{")]

    def holder(self, lease: str) -> Json | None:
        held = self._inside.json("get", "lease", lease)
        pods = self._inside.items("pods")
        name, _, _ = (held["spec"].get("holderIdentity") or "").partition("_")
        return next((each for each in pods if each["metadata"]["name"] == name), None)

    def webhooks(self) -> dict[str, str]:
        """Return the address of each replica, also of those that are ending."""
        found = self._inside.items("pods", _WEBHOOKS)
        return {each["metadata"]["name"]: each["status"].get("podIP", "") for each in found}

    def agents(self) -> dict[str, str]:
        return {each["metadata"]["name"]: each["spec"]["nodeName"] for each in self._agents()}

    def agent_uids(self) -> set[str]:
        return {each["metadata"]["uid"] for each in self._agents()}

    def _agents(self) -> list[Json]:
        selector = "--selector=app.kubernetes.io/name=gpu-turnstile-agent"
        return self._kubectl.inside(AGENTS).items("pods", selector)

    def trusted(self) -> set[str]:
        return {
            base64.b64decode(hook["clientConfig"].get("caBundle", "")).decode("ascii").strip()
            for kind in CONFIGURATIONS
            for hook in self._kubectl.json("get", kind, "gpu-turnstile")["webhooks"]
        }

    def secret(self, which: str) -> dict[str, str]:
        found = self._inside.json("get", "secret", f"gpu-turnstile-webhook-{which}")
        return {
            name: base64.b64decode(data).decode("ascii").strip()
            for name, data in found["data"].items()
        }

    def served(self) -> set[str]:
        return {
            ssl.get_server_certificate((address, 8443), timeout=10).strip()
            for address in self.webhooks().values()
        }

    def policy_warnings(self) -> Json:
        return {
            each["metadata"]["name"]: each["status"]["typeChecking"]
            for each in self._kubectl.items("validatingadmissionpolicies", f"--selector={OURS}")
            if each.get("status", {}).get("typeChecking")
        }


def processes_of(*uids: str) -> Iterator[Path]:
    """Yield the processes on this host of pods; cgroupfs and systemd name their groups."""
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            groups = (each / "cgroup").read_text(encoding="ascii")
            if any(uid in groups or uid.replace("-", "_") in groups for uid in uids):
                yield each


def processes_running(program: str, uid: str) -> list[Path]:
    """Return the processes that run a program in the pod with that UID."""
    return [each for each in processes_of(uid) if _runs(each, program)]


def kill(program: str, uid: str) -> None:
    """Kill a program of ours in the pod with that UID, and wait for its end."""
    processes = processes_running(program, uid)
    assert processes, f"no process of {program} in pod {uid}"
    for process in processes:
        with suppress(ProcessLookupError):  # a worker that ended with its master
            os.kill(int(process.name), signal.SIGKILL)
    wait(f"the end of {program}", lambda: not any(each.exists() for each in processes))


def _runs(process: Path, program: str) -> bool:
    try:
        words = (process / "cmdline").read_text(errors="replace").split("\0")
    except OSError:  # it has ended
        return False
    return words[1:3] == ["-m", program] or Path(words[0]).name == program


def image_parts(image: str) -> dict[str, str]:
    name, at, digest = image.partition("@")
    if at:
        return {"newName": name, "digest": digest}
    matched = re.fullmatch(r"(.+):([^/:]+)", image)
    return {"newName": matched[1], "newTag": matched[2]} if matched else {"newName": image}


KUBE_SCHEDULER = "gpu-turnstile-kube-scheduler"


@dataclass(frozen=True, slots=True)
class Deployed:
    """An installation, and the ground it works on."""

    ground: Ground
    installation: Installation
    kubectl: Kubectl

    def load(self) -> Load:
        """Clients that create GPU pods; none is kept, each must have got its stamp."""

        def create(number: int) -> None:
            pod = self.ground.make.single(f"load-{number}", 5, 4)
            made = self.ground.cluster.create(pod, dry_run=True)
            assert self.ground.names.admission_order in made["metadata"]["annotations"]

        return Load(create)

    def wait_for_cards(self) -> None:
        wait("the node's cards", lambda: self.ground.offered() == CARDS * 100)


@contextmanager
def installing(
    settings: Settings, kubectl: Kubectl, folder: Path, **wanted: Any
) -> Iterator[Installation]:
    """What is to be installed, as *wanted*; removed in the end, whatever became of it."""
    if not settings.deploy_image:
        pytest.skip("GPU_TURNSTILE_E2E_DEPLOY_IMAGE names no image of ours to install")
    installation = Installation(kubectl, folder, settings.deploy_image, **wanted)
    found = installation.leftovers()
    assert found == [], f"gpu-turnstile is installed: {found}"
    try:
        yield installation
    finally:
        installation.remove()


Deploy = Callable[..., AbstractContextManager[Deployed]]


@contextmanager
def deploying_scheduler(deploy: Deploy, settings: Settings, *components: str) -> Iterator[Deployed]:
    """Install with our own kube-scheduler, too."""
    if not settings.scheduler_image:
        pytest.skip("GPU_TURNSTILE_E2E_SCHEDULER_IMAGE names no image of kube-scheduler")
    wanted = {
        "components": ("scheduler-own", *components),
        "images": {"registry.k8s.io/kube-scheduler": settings.scheduler_image},
    }
    with deploy(**wanted) as deployed:
        deployed.installation.rolled_out(NAMESPACE, f"deployment/{KUBE_SCHEDULER}")
        yield deployed


@contextmanager
def deploying(
    settings: Settings, kubectl: Kubectl, ground: Ground, folder: Path, **wanted: Any
) -> Iterator[Deployed]:
    """What is installed, ready, with the node's cards; removed in the end."""
    with installing(settings, kubectl, folder, **wanted) as installation:
        began = time.monotonic()
        installation.apply()
        installation.wait_until_ready()
        deployed = Deployed(ground, installation, kubectl)
        deployed.wait_for_cards()
        ground.report(f"installed and ready after {time.monotonic() - began:.1f} s")
        yield deployed


@dataclass(frozen=True, slots=True)
class DoctorResult:
    code: int
    items: list[Json]

    @property
    def wrong(self) -> set[tuple[str, str]]:
        return {(each["check"], each["level"]) for each in self.items if each["level"] != "ok"}

    def find(self, check: str, level: str, text: str = "") -> Json:
        """Return a finding of a check with this level and text; empty without one."""
        found = (e for e in self.items if (e["check"], e["level"]) == (check, level))
        return next((each for each in found if text in each["text"]), {})


def run_doctor(settings: Settings, *options: str) -> DoctorResult:
    program = Path(sys.executable).with_name("kubectl-gpu")
    done = subprocess.run(
        [program, "doctor", f"--kubeconfig={settings.kubeconfig}", "-o=json", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout, done.stderr
    return DoctorResult(done.returncode, json.loads(done.stdout)["items"])
