"""A page in a process of own, and Chromium to look at it."""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.chrome.webdriver import WebDriver

from simulator.api.server import kubeconfig_for

ROOT = Path(__file__).parents[3]
DEADLINE = 60


@dataclass
class Page:
    """A running ``python -m view serve``."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/"

    def ask(self, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, str]:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        ) as connection:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def wait(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not holds():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()[-4000:]
            time.sleep(0.05)

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.ask("/readyz")[0] == 200
        return False


@contextlib.contextmanager
def serving(api: str, folder: Path, *options: str) -> Iterator[Page]:
    """Serve the page of the cluster at *api*."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kubeconfig, log = folder / "view.kubeconfig", folder / "view.log"
    kubeconfig.write_text(kubeconfig_for(api))
    arguments = [
        *(sys.executable, "-m", "view", "serve", "--port", str(port)),
        *("--kubeconfig", str(kubeconfig), *options),
    ]
    environment = {**os.environ, "PYTHONWARNINGS": "error", "HOME": "/proc/none"}
    environment.pop("XDG_RUNTIME_DIR", None)
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            arguments, stderr=stderr, env=environment, cwd=ROOT, start_new_session=True
        ) as process,
    ):
        page = Page(process, port, log)
        try:
            page.wait(page.is_ready)
            yield page
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(DEADLINE)


@contextlib.contextmanager
def chromium() -> Iterator[WebDriver]:
    """A browser without a window, whose console can be read.

    Raises:
        LookupError: Chromium or its driver is not installed.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        raise LookupError("no chromium with chromedriver: apt-get install chromium chromium-driver")
    options = Options()
    options.binary_location = browser
    # As root, in a container, it has no sandbox; what it loads is ours.
    for each in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(each)
    options.add_argument("--disable-lcd-text")  # colored edges of letters double a picture's size
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(driver, log_output=subprocess.DEVNULL)
    running = webdriver.Chrome(options=options, service=service)
    try:
        yield running
    finally:
        running.quit()


def look(driver: WebDriver, *, width: int, height: int, dark: bool = False) -> None:
    """Give the browser a size and a color scheme."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def console(driver: WebDriver) -> list[str]:
    """Return the console messages since the last call.

    Messages about network interfaces that appear or disappear are left out.
    """
    entries: list[dict[str, str]] = driver.get_log("browser")  # type: ignore[no-untyped-call]  # is not typed
    messages = [each["message"] for each in entries]
    return [each for each in messages if "ERR_NETWORK_CHANGED" not in each]
