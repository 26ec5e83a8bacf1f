"""``python -m tests.view.pictures``: takes the pictures of docs/images again, with Chromium."""

import re
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from rich.text import Text

from simulator.api.server import ApiServer
from tests.view.conftest import populate
from tests.view.model.test_state import scene
from tests.view.terminal.test_pages import NOW, Terminal
from tests.view.web.browsing import ROOT, chromium, open_page, page_process, resize
from tests.view.web.sample import cluster
from view.terminal.nodes import show_nodes
from view.terminal.screen import Screen

FOLDER = ROOT / "docs" / "images"
PAGES = {"page": ("", 820), "pod": ("pods/llm/pretrain-13b", 720)}
"""Paths, and heights of the pictures."""
WIDTH = 128
THEMES = {"dark": SVG_EXPORT_THEME, "light": DEFAULT_TERMINAL_THEME}


def draw(theme: str) -> str:
    """Return the terminal's page as SVG, which refers to nothing outside of it."""
    page = show_nodes(scene().report(), NOW)
    text = Screen(Terminal(), width=WIDTH).draw(page)
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title="kubectl gpu", theme=THEMES[theme], unique_id=f"gpu-{theme}")
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")


def photograph() -> None:
    """Take pictures of the web pages."""
    with tempfile.TemporaryDirectory() as folder, ApiServer() as api, chromium() as driver:
        populate(api, cluster())
        with page_process(api.url, Path(folder)) as page:
            for name, (path, height) in PAGES.items():
                for theme in THEMES:
                    resize(driver, width=1280, height=height, dark=theme == "dark")
                    open_page(driver, page.url + path)
                    driver.save_screenshot(str(FOLDER / f"{name}-{theme}.png"))


if __name__ == "__main__":
    for each in THEMES:
        (FOLDER / f"terminal-{each}.svg").write_text(draw(each), encoding="utf-8")
    photograph()
