"""kubectl as a person uses it, against the suite's cluster."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.cluster import Json

_SECONDS = 60.0


class KubectlError(Exception):
    """kubectl failed; the message is what it printed."""


@dataclass(frozen=True, slots=True)
class KubectlOutput:
    """What one call printed.

    Attributes:
        out: the wanted output.
        err: remarks, such as the API server's warnings.
    """

    out: str
    err: str


class Kubectl:
    """``kubectl``, with its credentials.

    Args:
        program: the executable.
        kubeconfig: cluster and credentials.
    """

    def __init__(self, program: str, kubeconfig: Path) -> None:
        self._program = program
        self._kubeconfig = kubeconfig

    def run(self, *arguments: str, stdin: str = "", within: float = _SECONDS) -> KubectlOutput:
        """Run it.

        Args:
            arguments: the command line.
            stdin: its input.
            within: seconds after which it is ended.

        Raises:
            KubectlError: it failed.
        """
        done = subprocess.run(
            [self._program, f"--kubeconfig={self._kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )
        if done.returncode:
            message = done.stderr.strip() or done.stdout.strip()
            raise KubectlError(f"kubectl {' '.join(arguments)}: {message}")
        return KubectlOutput(done.stdout, done.stderr)

    def json(self, *arguments: str) -> Json:
        """Run it and read what it prints."""
        decoded: Json = json.loads(self.run(*arguments, "--output=json").out)
        return decoded

    def items(self, *arguments: str) -> list[Json]:
        """List objects."""
        found: list[Json] = self.json("get", *arguments)["items"]
        return found

    def with_token(self, token: str, folder: Path) -> "Kubectl":
        """Return one with only a token; its kubeconfig is written to *folder*."""
        config = self.json("config", "view", "--raw", "--minify", "--flatten")
        (context,) = config["contexts"]
        config["users"] = [{"name": context["context"]["user"], "user": {"token": token}}]
        path = folder / "token.kubeconfig"
        path.write_text(json.dumps(config), encoding="utf-8")
        return Kubectl(self._program, path)
