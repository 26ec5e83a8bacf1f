"""The page in a process of its own, and Chromium."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.chrome.webdriver import WebDriver

from simulator.api.server import kubeconfig_for
from tests.agent.fakes import eventually

ROOT = Path(__file__).parents[3]
DEADLINE = 120


@dataclass
class PageProcess:
    """A running ``python -m view serve``, on a port of its choice."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/"

    def request(self, path: str = "/", method: str = "GET") -> tuple[int, str]:
        """Send a request; return status and body of the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        with contextlib.closing(connection):
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def is_listening(self) -> bool:
        """Return whether it has logged that it listens; note on which port."""
        assert self.process.poll() is None, self.log.read_text()
        complete, _, _ = self.log.read_text().rpartition("\n")
        lines = [line for line in complete.splitlines() if '"listening"' in line]
        if lines:
            (address,) = json.loads(lines[0])["addresses"]
            self.port = int(address.rpartition(":")[2])
        return bool(lines)

    def is_ready(self) -> bool:
        """Return whether it has a page of the cluster."""
        assert self.process.poll() is None, self.log.read_text()
        return self.request("/readyz")[0] == 200


@contextlib.contextmanager
def page_process(api: str, folder: Path, *options: str) -> Iterator[PageProcess]:
    """Serve the page of the cluster at *api*."""
    kubeconfig, log = folder / "view.kubeconfig", folder / "view.log"
    kubeconfig.write_text(kubeconfig_for(api))
    arguments = [
        *(sys.executable, "-m", "tests.view.web.program", "serve"),
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
        page = PageProcess(process, log)
        try:
            eventually(page.is_listening, "the page listens")
            eventually(page.is_ready, "the page is ready")
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


def resize(driver: WebDriver, *, width: int, height: int, dark: bool = False) -> None:
    """Give the browser a size and a color scheme."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def open_page(driver: WebDriver, url: str) -> None:
    """Open a page and wait until it receives updates."""
    driver.get(url)
    is_live = "return document.getElementById('live').textContent === 'Live'"
    eventually(lambda: driver.execute_script(is_live), "the page is live")


def console(driver: WebDriver) -> list[str]:
    """Return the console messages since the last call.

    Messages about network interfaces that appear or disappear are left out.
    """
    entries: list[dict[str, str]] = driver.get_log("browser")  # type: ignore[no-untyped-call]  # is not typed
    messages = [each["message"] for each in entries]
    return [each for each in messages if "ERR_NETWORK_CHANGED" not in each]
