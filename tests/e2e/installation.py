"""gpu-turnstile as it is installed: an overlay applied with an image of one's own."""

import base64
import json
import os
import re
import shlex
import ssl
from pathlib import Path

import yaml

from tests.deploy.manifests import DEPLOY, base, pod_specs
from tests.e2e.cluster import Json
from tests.e2e.ground import wait
from tests.e2e.kubectl import Kubectl, KubectlError

OVERLAY = DEPLOY / "overlays" / "try-out"
NAMESPACE, AGENTS = "gpu-turnstile", "gpu-turnstile-node"
WEBHOOK, AGENT = "deployment/gpu-turnstile-webhook", "daemonset/gpu-turnstile-agent"
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")

OURS = "app.kubernetes.io/part-of=gpu-turnstile"
_WEBHOOKS = "--selector=app.kubernetes.io/name=gpu-turnstile-webhook"
_READY_SECONDS = 120.0
_GONE_SECONDS = 180.0
_RENEWED_SECONDS = 150.0


class Installation:
    """One installation, from applying to deleting it.

    Args:
        kubectl: as an administrator.
        folder: for the kustomization that puts *image* in place of the published one.
        image: of our programs; the cluster has it, or can pull it.
    """

    def __init__(self, kubectl: Kubectl, folder: Path, image: str) -> None:
        self._kubectl = kubectl
        self._folder = folder
        (self._first_job,) = (each["metadata"]["name"] for each in base() if each["kind"] == "Job")
        (published,) = {
            each["image"] for spec in pod_specs(base()).values() for each in spec["containers"]
        }
        written = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(OVERLAY, folder.resolve())],
            "images": [{"name": published.rpartition(":")[0], **image_parts(image)}],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")

    # --- start and end ---------------------------------------------------------------

    def apply(self) -> None:
        """Apply it, for the first time or again."""
        self._kubectl.run("apply", f"--kustomize={self._folder}")

    def compare(self) -> None:
        """Compare what there is with what was applied.

        Raises:
            KubectlError: to apply it again would change something.
        """
        self._kubectl.run("diff", f"--kustomize={self._folder}")

    def wait_until_ready(self) -> None:
        """Wait for the first certificate, both webhooks and the agent."""
        self._kubectl.run(
            *("--namespace", NAMESPACE, "wait", f"job/{self._first_job}"),
            *("--for=condition=Complete", f"--timeout={_READY_SECONDS:g}s"),
            within=_READY_SECONDS + 10,
        )
        self.rolled_out(NAMESPACE, WEBHOOK)
        self.rolled_out(AGENTS, AGENT)

    def remove(self) -> None:
        """Delete it and wait until it is gone; what is gone already is no error."""
        self._kubectl.run(
            *("delete", f"--kustomize={self._folder}", "--ignore-not-found", "--wait"),
            f"--timeout={_GONE_SECONDS:g}s",
            within=_GONE_SECONDS + 10,
        )

    def left(self) -> list[str]:
        """Name what is still there of all that was applied, and whatever has our label."""
        applied = self._kubectl.run("kustomize", str(self._folder)).out
        found = self._kubectl.run(
            *("get", "--filename=-", "--ignore-not-found", "--output=name"), given=applied
        ).out.split()
        kinds = sorted({each["kind"] for each in yaml.safe_load_all(applied)})
        labelled = self._kubectl.run(
            *("get", ",".join(kinds), "--all-namespaces"),
            *("--selector", OURS, "--ignore-not-found", "--output=name"),
        ).out.split()
        return sorted({*found, *labelled})

    # --- changing --------------------------------------------------------------------

    def rolled_out(self, namespace: str, workload: str) -> None:
        """Wait until all pods of a workload are of its newest version, and ready."""
        self._kubectl.run(
            *("--namespace", namespace, "rollout", "status", workload),
            f"--timeout={_READY_SECONDS:g}s",
            within=_READY_SECONDS + 10,
        )

    def roll(self, namespace: str, workload: str) -> None:
        """Replace all pods of a workload, as a new version would."""
        self._kubectl.run("--namespace", namespace, "rollout", "restart", workload)
        self.rolled_out(namespace, workload)

    def scale_webhook(self, replicas: int) -> None:
        """Change how many there are, and wait until there are so many."""
        self._kubectl.run("--namespace", NAMESPACE, "scale", WEBHOOK, f"--replicas={replicas}")
        if replicas:
            self.rolled_out(NAMESPACE, WEBHOOK)
        wait("so many webhooks", lambda: len(self.webhooks()) == replicas)

    def open_gate(self) -> None:
        """Let GPU pods in that no webhook has seen, in the words of docs/operate.md."""
        page = (DEPLOY.parent / "docs" / "operate.md").read_text(encoding="utf-8")
        _, _, section = page.partition("open the gate")
        block = re.search(r"```console\n(.*?)```", section, re.DOTALL)
        assert block, "operate.md does not say how to open the gate"
        lines = block[1].replace("\\\n", " ").splitlines()
        for line in lines:
            program, *arguments = shlex.split(line.removeprefix("$ "), comments=True)
            assert program == "kubectl", line
            self._kubectl.run(*arguments)

    def delete_webhook(self, name: str) -> None:
        """Delete one replica and wait until it is gone and another is ready."""
        self._kubectl.run("--namespace", NAMESPACE, "delete", "pod", name)
        self.rolled_out(NAMESPACE, WEBHOOK)

    def begin_renewal(self, *, settle: int, grace: int) -> None:
        """Let authority and certificate be replaced, and wait until the new one is stored.

        The daily CronJob's own job does it, with other pauses. An authority whose Secret is
        gone is made anew.
        """
        before = self.secret("tls")["tls.crt"]
        self._in("delete", "secret", "gpu-turnstile-webhook-ca")
        self._in("create", "--filename=-", given=self._renewal(settle, grace))
        wait("the new certificate", lambda: self.secret("tls")["tls.crt"] != before)

    def look_at_secrets(self) -> None:
        """Let kubelets hand the webhooks what their Secret holds.

        A kubelet looks when it looks at a pod: once a minute, or when the pod changes.
        """
        self._in("annotate", "pods", _WEBHOOKS, "--overwrite", "e2e/look=now")

    def end_renewal(self) -> str:
        """Wait until nothing is left to do, and give what the job said."""
        try:
            self._in(
                *("wait", "job/renewal", "--for=condition=Complete"),
                f"--timeout={_RENEWED_SECONDS:g}s",
                within=_RENEWED_SECONDS + 10,
            )
        except KubectlError as error:
            raise AssertionError(f"{error}: {self._in('logs', 'job/renewal')}") from error
        return self._in("logs", "job/renewal")

    def _renewal(self, settle: int, grace: int) -> str:
        made = json.loads(
            self._in(
                *("create", "job", "renewal", "--from=cronjob/gpu-turnstile-certs"),
                *("--dry-run=client", "--output=json"),
            )
        )
        (container,) = made["spec"]["template"]["spec"]["containers"]
        container["env"] += [
            {"name": "GPU_TURNSTILE_CERTS_SETTLE", "value": str(settle)},
            {"name": "GPU_TURNSTILE_CERTS_GRACE", "value": str(grace)},
        ]
        return json.dumps(made)

    # --- looking ---------------------------------------------------------------------

    def webhooks(self) -> dict[str, str]:
        """Give the address of each replica, those too that are ending."""
        found = self._kubectl.items("pods", f"--namespace={NAMESPACE}", _WEBHOOKS)
        return {each["metadata"]["name"]: each["status"].get("podIP", "") for each in found}

    def agents(self) -> dict[str, str]:
        """Give the node of each agent."""
        found = self._kubectl.items(
            *("pods", f"--namespace={AGENTS}"),
            "--selector=app.kubernetes.io/name=gpu-turnstile-agent",
        )
        return {each["metadata"]["name"]: each["spec"]["nodeName"] for each in found}

    def trusted(self) -> set[str]:
        """Give the different bundles that API servers trust webhooks by."""
        return {
            base64.b64decode(hook["clientConfig"].get("caBundle", "")).decode("ascii").strip()
            for kind in CONFIGURATIONS
            for hook in self._kubectl.json("get", kind, "gpu-turnstile")["webhooks"]
        }

    def secret(self, which: str) -> dict[str, str]:
        """Read one of the two Secrets."""
        found = self._kubectl.json(
            *("get", "secret", f"gpu-turnstile-webhook-{which}", f"--namespace={NAMESPACE}")
        )
        return {
            name: base64.b64decode(data).decode("ascii").strip()
            for name, data in found["data"].items()
        }

    def served(self) -> set[str]:
        """Give the different certificates that the replicas serve."""
        return {
            ssl.get_server_certificate((address, 8443), timeout=10).strip()
            for address in self.webhooks().values()
        }

    def policy_warnings(self) -> Json:
        """Give what the API server has against the expressions of our policies."""
        return {
            each["metadata"]["name"]: each["status"]["typeChecking"]
            for each in self._kubectl.items("validatingadmissionpolicies", f"--selector={OURS}")
            if each.get("status", {}).get("typeChecking")
        }

    def _in(self, *arguments: str, given: str = "", within: float = 60.0) -> str:
        return self._kubectl.run(
            "--namespace", NAMESPACE, *arguments, given=given, within=within
        ).out


def image_parts(image: str) -> dict[str, str]:
    """Say an image as kustomize wants to be told."""
    name, at, digest = image.partition("@")
    if at:
        return {"newName": name, "digest": digest}
    matched = re.fullmatch(r"(.+):([^/:]+)", image)
    return {"newName": matched[1], "newTag": matched[2]} if matched else {"newName": image}
