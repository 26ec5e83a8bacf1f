"""A soak: phases of load, and a quiet moment after each leg of them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.kubelet.checkpoint import CheckpointParser
from common.kubelet_api import CHECKPOINT_FILE
from contract.resource import Resource
from tests.e2e.cluster import ApiError, Json
from tests.e2e.ground import is_ready, wait
from tests.e2e.installation import (
    AGENTS,
    KUBE_SCHEDULER,
    NAMESPACE,
    Deployed,
    processes_running,
)
from tests.e2e.manifests import BLOCKS, CARDS
from tests.e2e.soak import readings
from tests.e2e.soak.disturbances import AGENT, HOOKS, PROXIES, Disturber
from tests.e2e.soak.load import Load, Staying
from tests.e2e.soak.logs import NodeLogs
from tests.e2e.soak.readings import Reading, Values
from tests.e2e.soak.report import FIGURES_HEAD, Report, figures

_STATE = Path("/var/lib/gpu-turnstile")
_CONTAINERS = _STATE / "tickets"
_PLUGIN_DIR = Path("/run/gpu-turnstile/device-plugins")
_CDI = Path("/var/run/cdi")
_STAYING = 12
_LEG_SECONDS = 240.0
_JUDGE_SECONDS = 5.0
_QUIET_SECONDS = 10.0
_AGREE_SECONDS = 180.0
"""So long a busy node may take until it has cleaned up."""
_PRUNED_SECONDS = 90.0
"""The agent removes the directories of ended containers once a minute."""
_ACT_SECONDS = 40.0
"""Seconds from one disturbance to the next, unless the node is not ready yet."""

PROGRAMS = {
    "agent": AGENT,
    "agent.supervisor": AGENT,
    "proxy": PROXIES,
    "webhook": HOOKS,
    "certs": "gpu-turnstile-certs",
    "scheduler": KUBE_SCHEDULER,
}
_EXPORTING = ("agent", "proxy", "webhook", "scheduler")
_AMOUNTS = {
    Resource.CORE: ("gpu_turnstile_agent_card_cores_free", CARDS * 100, 1),
    Resource.MEMORY: ("gpu_turnstile_agent_card_memory_free_bytes", CARDS * BLOCKS, 256 << 20),
}


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the time; without *kills* no process is ended, so that growth in one shows."""

    name: str
    share: float
    kills: bool


PHASES = (
    Phase("disturbed", 0.3, kills=True),
    Phase("calm", 0.5, kills=False),
    Phase("disturbed again", 0.2, kills=True),
)


class Soak:
    """One soak of one installation."""

    def __init__(self, deployed: Deployed, *, seconds: float, every: float, report: Path) -> None:
        self._deployed = deployed
        self._ground = deployed.ground
        self._checkpoint = CheckpointParser(deployed.ground.names.resources)
        self._checkpoint_file = deployed.ground.settings.plugin_dir / CHECKPOINT_FILE
        self._seconds = seconds
        self._path = report
        self._logs = NodeLogs(NAMESPACE, AGENTS)
        self._disturber = Disturber(deployed, before=self._logs.read)
        self._load = Load(
            deployed.ground, seed=1, every=every, disturbances=lambda: self._disturber.done
        )
        self._staying = Staying(deployed.ground, self._load, _STAYING)
        self._readings: list[Reading] = []
        self._phases: dict[str, tuple[float, float]] = {}
        self._findings: list[str] = []
        self._under_load = 0.0
        self._pruned: list[float] = []
        self._began = time.monotonic()
        self._path.with_suffix(".jsonl").write_text("", encoding="utf-8")

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    @property
    def _created(self) -> int:
        return self._load.created.total()

    def run(self) -> list[str]:
        """Return all findings."""
        self._staying.create()
        for each in PHASES:
            began = self._now
            until = began + each.share * self._seconds
            while self._now < until - _LEG_SECONDS / 3:
                self._leg(each, min(_LEG_SECONDS, until - self._now))
                self._phases[each.name] = began, self._now
                self._save()
        self._phases["all"] = 0.0, self._now
        self._end()
        self._save()
        return self._all_findings()

    def _leg(self, of: Phase, seconds: float) -> None:
        began = self._now
        recorded = not of.kills
        try:
            with (
                self._load.leg(),
                self._disturber.disturbing(every=_ACT_SECONDS, kills=of.kills) as turns,
            ):
                while self._now < began + seconds or turns.busy.is_set():
                    if self._now >= began + seconds:
                        turns.over.set()
                    time.sleep(_JUDGE_SECONDS)
                    self._load.judge(init_recorded=recorded)
                    self._logs.read()
        except (AssertionError, ApiError) as error:  # pods that do not end
            self._note(f"{of.name}: {error}")
        self._under_load += self._now - began
        self._settle(recorded=recorded)

    def _settle(self, *, recorded: bool) -> None:
        """Wait until nothing but the staying pods is left; judge and read that."""
        staying: dict[str, Json] = {}

        def only_staying() -> bool:
            self._load.judge(init_recorded=recorded)
            return set(self._ground.cluster.pods()) == set(staying)

        with self._noting():
            staying = self._staying.check(init_recorded=recorded)
        with self._noting():
            wait("the end of all other pods", only_staying, within=_AGREE_SECONDS, pause=1)
        began = time.monotonic()
        with self._noting():
            wait(
                "the state folder equals the running pods",
                lambda: (
                    set(self._owners()) == {each["metadata"]["uid"] for each in staying.values()}
                ),
                within=_PRUNED_SECONDS,
            )
        self._pruned.append(time.monotonic() - began)
        with self._noting():
            self._wait_for_free(staying)
        time.sleep(_QUIET_SECONDS)
        self._logs.read()
        self._read()

    def _end(self) -> None:
        """Delete all pods; then everything must be free, and every card can be had whole."""
        with self._noting():
            self._ground.clear()
        with self._noting():
            wait(
                "an empty state folder",
                lambda: self._owners() == [],
                within=_AGREE_SECONDS,
                pause=1,
            )
        with self._noting():
            self._wait_for_free({})
        with self._noting():
            whole = [self._ground.make.single(f"whole-{each}", 100) for each in range(CARDS)]
            self._ground.check("every card whole", self._ground.run(*whole), init_recorded=False)
        with self._noting():
            self._ground.clear()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except (AssertionError, ApiError) as error:
            self._note(str(error))

    def _note(self, finding: str) -> None:
        self._findings.append(f"{time.strftime('%H:%M:%S')} {finding}")

    # --- what must agree ---------------------------------------------------------------

    def _owners(self) -> list[str]:
        return readings.read_owners(_CONTAINERS) if _CONTAINERS.is_dir() else []

    def _wait_for_free(self, pods: dict[str, Json]) -> None:
        try:
            wait(
                "free amounts",
                lambda: self._free() == self._expected_free(pods),
                within=_AGREE_SECONDS,
                pause=1,
            )
        except AssertionError as error:
            found, expected = self._free(), self._expected_free(pods)
            raise AssertionError(f"{error}: {found} are free, not {expected}") from error

    def _free(self) -> dict[Resource, float]:
        metrics = self._metrics("agent") or ""
        return {
            each: readings.total(metrics, name) / unit for each, (name, _, unit) in _AMOUNTS.items()
        }

    def _expected_free(self, pods: dict[str, Json]) -> dict[Resource, float]:
        """Return what the kubelet's checkpoint leaves: a pod keeps what its init containers had."""
        found = self._checkpoint.parse(self._checkpoint_file.read_bytes())
        held = [found.pods.get(each["metadata"]["uid"], {}).values() for each in pods.values()]
        return {
            resource: float(
                most
                - sum(
                    len(frozenset().union(*(each.get(resource, frozenset()) for each in of)))
                    for of in held
                )
            )
            for resource, (_, most, _) in _AMOUNTS.items()
        }

    # --- readings ----------------------------------------------------------------------

    def _read(self) -> None:
        for program, app in PROGRAMS.items():
            pods = [each for each in self._disturber.pods(app) if is_ready(each)]
            if pods:
                found = processes_running(program, pods[0]["metadata"]["uid"])
                if found:
                    self._add(program, *readings.read_processes(found))
        kubelet = readings.find_processes("kubelet")
        if kubelet:
            self._add("kubelet", *readings.read_processes(kubelet))
        for program in _EXPORTING:
            metrics = self._metrics(program)
            if metrics is not None:
                instance = self._last_instance(program)
                self._add(program, instance, {"series": readings.count_series(metrics)})
        folders = {
            "state folder": {"containers": float(len(self._owners())), **_folder(_STATE)},
            "agent's folder": _folder(_PLUGIN_DIR),
            "CDI specs": _folder(_CDI),
            "kubelet's checkpoint": readings.read_checkpoint(
                self._checkpoint_file, self._ground.names.domain
            ),
        }
        for subject, values in folders.items():
            self._add(subject, "", values)

    def _add(self, subject: str, instance: str, values: Values) -> None:
        made = [
            Reading(subject, figure, instance, round(self._now, 1), self._created, value)
            for figure, value in values.items()
        ]
        self._readings += made
        with self._path.with_suffix(".jsonl").open("a", encoding="utf-8") as file:
            file.writelines(f"{each.to_json()}\n" for each in made)

    def _last_instance(self, program: str) -> str:
        of = [each.instance for each in self._readings if each.subject == program]
        return of[-1] if of else ""

    def _metrics(self, program: str) -> str | None:
        pods = [each for each in self._disturber.pods(PROGRAMS[program]) if is_ready(each)]
        for pod in pods[:1]:
            every = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
            for port in (port for each in every for port in each.get("ports", ())):
                if port["name"] in ("http", "https"):
                    address = f"{pod['status']['podIP']}:{port['containerPort']}"
                    return readings.read_metrics(f"{port['name']}://{address}/metrics")
        return None

    # --- report ------------------------------------------------------------------------

    def _all_findings(self) -> list[str]:
        return [*self._findings, *self._load.findings, *self._disturber.findings]

    def _save(self) -> None:
        load, logs = self._load, self._logs
        status = self._ground.cluster.node(self._ground.node)["status"]["nodeInfo"]
        rate = self._created / self._under_load if self._under_load else 0.0
        report = Report(
            about={
                "versions": f"{status['kubeletVersion']}, {status['containerRuntimeVersion']}",
                "minutes": f"{self._now / 60:.0f}, {self._under_load / 60:.0f} of them with load",
                "pods": f"{self._created}, {rate:.2f} a second under load",
                "judged containers": ", ".join(f"{n} {k}" for k, n in load.judged.items()),
                "disturbances": str(len(self._disturber.done)),
                "state folder pruned": f"at most {max(self._pruned, default=0):.1f} s after",
            },
            findings=self._all_findings(),
            tables={
                "Figures": (FIGURES_HEAD, figures(self._readings, self._phases)),
                "Pods": (("kind", "pods"), list(load.created.most_common())),
                "Failed pods": (
                    ("explained by", "reason", "pods"),
                    [(*key, count) for key, count in load.failed.most_common()],
                ),
                "Not created": (("reason", "pods"), list(load.not_created.most_common())),
                "Disturbances": (
                    ("disturbance", "times", "recovered after (median), s", "longest"),
                    [(n, t, f"{m:.1f}", f"{w:.1f}") for n, t, m, w in self._disturber.summary()],
                ),
                "Warnings and errors": (
                    ("container", "level", "text", "lines"),
                    [(*key, count) for key, count in logs.counts.most_common()],
                ),
                "Their reasons": (
                    ("container", "text", "reason", "lines"),
                    [(*key, count) for key, count in logs.reasons.most_common(60)],
                ),
            },
            traces=logs.traces,
        )
        self._path.write_text(report.render(), encoding="utf-8")


def _folder(path: Path) -> Values:
    return readings.read_folder(path) if path.is_dir() else {"files": 0.0, "bytes": 0.0}
