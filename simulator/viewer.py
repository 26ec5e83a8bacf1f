"""``kubectl gpu`` at the end of the demo, and the page of ``make page``."""

import functools
import math
import shlex
import subprocess
import sys
from pathlib import Path

from simulator.burst import container, pod
from simulator.cluster import NAMES, SimulatedCluster
from simulator.manifests import Json
from simulator.objects import node_of, why_unbound
from simulator.report import Report

_CORES, _BLOCKS, _MOST = 90, 96, 16
"""Cores and blocks of a pod, nearly a whole card; most pods to create, for up to 16 cards."""
_PROGRAM = "from view.kubectl import main; main()"
_SECONDS = 300.0


class ClusterViewer:
    """Shows a cluster of several nodes with ``kubectl gpu`` and the page."""

    def __init__(self, cluster: SimulatedCluster, report: Report) -> None:
        self.right = True
        self._cluster = cluster
        self._report = report
        self._last = ""

    def explain_pending(self) -> None:
        """Create pods until one is pending; show the cards, and why that pod is pending."""
        one = container("main", _CORES, _BLOCKS, NAMES)
        for number in range(1, _MOST + 1):
            self._last = name = f"wants-more-{number}"
            self._cluster.create(pod(name, [one]))
            self._cluster.wait(
                f"{name} to be bound or refused",
                functools.partial(self._is_decided, name),
            )
            if not node_of(self._find(name)):
                break
        self._report.detail.heading("$ kubectl gpu")
        self._show()
        self._report.heading(f"One more pod is pending: $ kubectl gpu explain {name}")
        summary = self._show("explain", name).partition("\n")[0]
        if not self._report.verbose:
            self._report.print_line(summary)

    def serve(self, port: int) -> None:
        """Serve the page until a signal ends the program.

        Raises:
            ProcessDied: a process did not become ready, or died.
        """
        url = f"http://127.0.0.1:{port}"
        self._cluster.start("view", f"--port={port}")
        self._cluster.wait("page", lambda: self._cluster.reaches(f"{url}/readyz"))
        self._report.print_line(
            f"\nPage of these nodes: {url}/ (Ctrl-C stops the page and the nodes)"
        )
        kubeconfig = shlex.quote(f"{self._cluster.root}/kubeconfig")
        program = shlex.quote(str(Path(sys.executable).with_name("kubectl-gpu")))
        self._report.print_line(
            f"In another terminal: KUBECONFIG={kubeconfig} {program} explain {self._last}"
        )
        self._cluster.wait("Ctrl-C", lambda: False, within=math.inf)

    def _is_decided(self, name: str) -> bool:
        found = self._find(name)
        return bool(node_of(found) or why_unbound(found))

    def _find(self, name: str) -> Json:
        return next(each for each in self._cluster.pods() if each["metadata"]["name"] == name)

    def _show(self, *command: str) -> str:
        """Run ``kubectl gpu``: on the terminal if verbose, else return its output."""
        sys.stdout.flush()
        done = subprocess.run(  # noqa: S603 -- our own program
            [sys.executable, "-c", _PROGRAM, *command, "--kubeconfig", "kubeconfig"],
            stdin=subprocess.DEVNULL,
            stdout=None if self._report.verbose else subprocess.PIPE,
            text=True,
            check=False,
            cwd=self._cluster.root,
            timeout=_SECONDS,
            env=self._cluster.environment(),
        )
        self.right = self.right and done.returncode == 0
        return done.stdout or ""
