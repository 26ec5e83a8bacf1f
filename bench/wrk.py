"""wrk, the load generator: one run of it, and what it measured."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
%s
local file = io.open("%s", "rb")
wrk.body = file:read("*a")
file:close()
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'RESULT {"requests":%%d,"us":%%d,"failed":%%d,"p50":%%d,"p99":%%d}\\n',
    summary.requests, summary.duration,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""


class WrkFailed(Exception):
    """wrk ended without a result; the message is what it printed."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run measured.

    Attributes:
        rate: answers a second.
        p50_ms, p99_ms: latency.
        failed: requests without an answer, or with another status than 2xx.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    failed: int


def is_installed() -> bool:
    """Return whether there is a wrk to run."""
    return shutil.which("wrk") is not None


def measure(url: str, body: Path, *, connections: int, seconds: int, keep_alive: bool) -> Measured:
    """Send *body* again and again, each connection one request at a time.

    Raises:
        WrkFailed: it did not come to a result.
    """
    close = "" if keep_alive else 'wrk.headers["Connection"] = "close"'
    script = body.with_suffix(".keep.lua" if keep_alive else ".close.lua")
    script.write_text(_SCRIPT % (close, body), encoding="utf-8")
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url]
    done = subprocess.run(  # noqa: S603 -- arguments of our own
        command, capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    return parse(done.stdout + done.stderr)


def parse(output: str) -> Measured:
    """Read what the script printed at the end.

    Raises:
        WrkFailed: it is not there.
    """
    for line in output.splitlines():
        if line.startswith("RESULT "):
            found = json.loads(line.removeprefix("RESULT "))
            return Measured(
                found["requests"] / (found["us"] / 1e6),
                found["p50"] / 1000,
                found["p99"] / 1000,
                found["failed"],
            )
    raise WrkFailed(f"wrk: {' '.join(output.split())[-500:] or 'printed nothing'}")
