"""What programs and folders of the node take at one moment, and how that grows."""

import json
import re
import ssl
import urllib.request
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from agent.enforcement.container_dirs import ContainerDirs
from tests.e2e.cluster import Json

_KILO = 1024


@dataclass(frozen=True, slots=True)
class Reading:
    """One figure at one moment of a soak.

    Attributes:
        subject: a program, or a folder.
        figure: what was measured, with its unit.
        instance: the process; figures of two instances are not one series.
        at: seconds since the beginning.
        pods: how many pods had been created.
    """

    subject: str
    figure: str
    instance: str
    at: float
    pods: int
    value: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Trend:
    """One series: three of its values, and its growth by least squares.

    Attributes:
        error: the standard error of *hourly*.
        by_pods: growth in 1,000 pods.
        minutes: the time from the first reading to the last.
    """

    first: float
    middle: float
    last: float
    hourly: float
    error: float
    by_pods: float
    minutes: float
    count: int


def trend(series: Sequence[Reading]) -> Trend | None:
    """Return how a series grows; ``None`` with fewer than three readings."""
    if len(series) < 3:
        return None
    values = [each.value for each in series]
    hourly, error = _slope([each.at / 3600 for each in series], values)
    by_pods, _ = _slope([each.pods / 1000 for each in series], values)
    return Trend(
        first=values[0],
        middle=values[len(values) // 2],
        last=values[-1],
        hourly=hourly,
        error=error,
        by_pods=by_pods,
        minutes=(series[-1].at - series[0].at) / 60,
        count=len(series),
    )


def _slope(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return the slope by least squares, and its standard error."""
    middle, mean = fmean(xs), fmean(ys)
    spread = sum((x - middle) ** 2 for x in xs)
    if not spread:
        return 0.0, 0.0
    slope = sum((x - middle) * (y - mean) for x, y in zip(xs, ys, strict=True)) / spread
    rest = sum((y - mean - slope * (x - middle)) ** 2 for x, y in zip(xs, ys, strict=True))
    return slope, (rest / (len(xs) - 2) / spread) ** 0.5


def longest_series(readings: Iterable[Reading]) -> list[Reading]:
    """Return the readings of the instance that was read most often, without its first one.

    A process takes memory while it warms up; at the first reading it may just have started.
    """
    by_instance: dict[str, list[Reading]] = {}
    for each in readings:
        by_instance.setdefault(each.instance, []).append(each)
    return max(by_instance.values(), key=len, default=[])[1:]


Values = dict[str, float]


def read_processes(processes: Sequence[Path]) -> tuple[str, Values]:
    """Return an instance's name and its figures, summed over all its processes."""
    values: Values = {}
    for each in processes:
        status = (each / "status").read_text(encoding="ascii", errors="replace")
        found = dict(re.findall(r"^(\w+):\s+(\d+)", status, re.MULTILINE))
        _add(values, "RSS, MiB", int(found["VmRSS"]) / _KILO)
        _add(values, "anonymous memory, MiB", int(found["RssAnon"]) / _KILO)
        _add(values, "threads", int(found["Threads"]))
        _add(values, "descriptors", sum(1 for _ in (each / "fd").iterdir()))
    return " ".join(f"{each.name}@{_started(each)}" for each in processes), values


def _add(values: Values, key: str, value: float) -> None:
    values[key] = values.get(key, 0.0) + value


def _started(process: Path) -> str:
    """Return when a process started, by the kernel's ticks: process IDs come back."""
    return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[19]


def find_processes(name: str) -> list[Path]:
    """Return the processes of this host whose program has this name."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            words = (each / "cmdline").read_text(errors="replace").split("\0")
            if Path(words[0]).name == name:
                found.append(each)
    return found


def read_folder(folder: Path) -> Values:
    files = [each for each in folder.rglob("*") if not each.is_dir()]
    sizes = 0
    for each in files:
        with suppress(OSError):  # it was replaced
            sizes += each.lstat().st_size
    return {"files": len(files), "bytes": sizes}


def read_owners(state: Path) -> list[str]:
    """Return the pod UID of each container with a directory in the agent's state folder."""
    return [each.owner.uid for each in ContainerDirs(state).all()]


def read_checkpoint(path: Path, domain: str) -> Values:
    content = path.read_bytes()
    entries: list[Json] = json.loads(content)["Data"]["PodDeviceEntries"] or []
    ours = [each for each in entries if each["ResourceName"].startswith(f"{domain}/")]
    return {"entries": len(ours), "bytes": len(content)}


def read_metrics(url: str) -> str | None:
    """Return what a program exports; ``None`` if it does not respond."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError), urllib.request.urlopen(url, timeout=10, context=context) as response:
        text: str = response.read().decode()
        return text
    return None


def count_series(metrics: str) -> int:
    return sum(1 for line in metrics.splitlines() if line and not line.startswith("#"))


def total(metrics: str, name: str) -> float:
    """Return the sum of a metric over its labels."""
    found = re.findall(rf"^{name}(?:\{{[^\n]*\}})? (\S+)$", metrics, re.MULTILINE)
    return sum(map(float, found))
