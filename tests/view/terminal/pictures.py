"""Pictures of ``kubectl gpu`` for the documentation: ``python -m tests.view.terminal.pictures``."""

import re
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from rich.text import Text

from tests.view.model.test_state import scene
from tests.view.terminal.test_pages import NOW, Terminal
from view.terminal.nodes import show_nodes
from view.terminal.screen import Screen

IMAGES = Path(__file__).parents[3] / "docs/images"
WIDTH = 128
THEMES = {"dark": SVG_EXPORT_THEME, "light": DEFAULT_TERMINAL_THEME}


def draw(theme: str) -> str:
    """Return the scene's page as SVG, which refers to nothing outside of it."""
    page = show_nodes(scene().report(), NOW)
    text = Screen(Terminal(), width=WIDTH).draw(page)
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title="kubectl gpu", theme=THEMES[theme], unique_id=f"gpu-{theme}")
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")


if __name__ == "__main__":
    for name in THEMES:
        (IMAGES / f"terminal-{name}.svg").write_text(draw(name), encoding="utf-8")
