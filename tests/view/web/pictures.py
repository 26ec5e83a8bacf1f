"""``python -m tests.view.web.pictures``: takes the pictures of docs/images again.

Needs Chromium and its driver.
"""

import tempfile
import time
from pathlib import Path

from selenium.webdriver.chrome.webdriver import WebDriver

from simulator.api.server import ApiServer
from tests.view.conftest import populate
from tests.view.web.browsing import DEADLINE, ROOT, chromium, look, serving
from tests.view.web.sample import cluster

FOLDER = ROOT / "docs" / "images"
PICTURES = (
    ("page", "", 1280, 820),
    ("pod", "pods/llm/pretrain-13b", 1280, 720),
)


def take(folder: Path) -> list[Path]:
    """Take every picture in light and dark; return the files."""
    made: list[Path] = []
    with (
        tempfile.TemporaryDirectory() as temporary,
        ApiServer() as api,
        chromium() as driver,
    ):
        populate(api, cluster())
        with serving(api.url, Path(temporary)) as page:
            for name, path, width, height in PICTURES:
                for dark in (False, True):
                    look(driver, width=width, height=height, dark=dark)
                    driver.get(page.url + path)
                    _wait_until_live(driver)
                    made.append(folder / f"{name}-{'dark' if dark else 'light'}.png")
                    driver.save_screenshot(str(made[-1]))
    return made


def _wait_until_live(driver: WebDriver) -> None:
    deadline = time.monotonic() + DEADLINE
    while driver.execute_script("return document.getElementById('live').textContent") != "Live":
        if time.monotonic() > deadline:
            raise TimeoutError("the page does not become live")
        time.sleep(0.1)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in take(FOLDER):
        print(f"{each.relative_to(ROOT)}: {each.stat().st_size // 1024} KiB")  # noqa: T201
