"""``python -m tests.view.web.pictures``: takes the pictures of docs/images again.

Needs Chromium and its driver.
"""

import tempfile
from pathlib import Path

from simulator.api.server import ApiServer
from tests.view.conftest import populate
from tests.view.web.browsing import ROOT, chromium, open_page, page_process, resize
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
        with page_process(api.url, Path(temporary)) as page:
            for name, path, width, height in PICTURES:
                for dark in (False, True):
                    resize(driver, width=width, height=height, dark=dark)
                    open_page(driver, page.url + path)
                    made.append(folder / f"{name}-{'dark' if dark else 'light'}.png")
                    driver.save_screenshot(str(made[-1]))
    return made


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in take(FOLDER):
        print(f"{each.relative_to(ROOT)}: {each.stat().st_size // 1024} KiB")  # noqa: T201
