"""``kubectl gpu doctor`` as it is installed, with an administrator's kubeconfig."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.cluster import Json
from tests.e2e.settings import Settings


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """The doctor's exit code and findings.

    Attributes:
        code: its exit code.
        items: its findings.
    """

    code: int
    items: list[Json]

    @property
    def wrong(self) -> set[tuple[str, str]]:
        """Check and level of all that is not ok."""
        return {(each["check"], each["level"]) for each in self.items if each["level"] != "ok"}

    def one(self, check: str, level: str) -> Json:
        """Return the only finding of a check with this level."""
        (found,) = (e for e in self.items if (e["check"], e["level"]) == (check, level))
        return found


def run_doctor(settings: Settings, *options: str) -> DoctorResult:
    """Run the doctor."""
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
