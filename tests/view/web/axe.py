"""Checks of accessibility by axe-core, which npm fetches into ``node_modules``."""

import fcntl
import json
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

from selenium.webdriver.chrome.webdriver import WebDriver

VERSION = "4.14.1"
FOLDER = Path(__file__).parents[3] / "node_modules"
FETCH = ("npm", "install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--silent")
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa", "best-practice")


@lru_cache(maxsize=1)
def script() -> str:
    """Return axe-core.

    Raises:
        LookupError: it is not in ``node_modules`` and cannot be fetched.
    """
    file = FOLDER / "axe-core" / "axe.min.js"
    command = [*FETCH, "--prefix", str(FOLDER.parent), f"axe-core@{VERSION}"]
    with Path(__file__).open() as lock:  # tests run side by side, and one of them fetches it
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if not file.exists():
                subprocess.run(command, check=True, capture_output=True, timeout=120)
        except (OSError, subprocess.SubprocessError) as error:
            raise LookupError(f"npm cannot fetch axe-core: {error}") from error
    return file.read_text()


def violations(driver: WebDriver, *, only: str = "") -> list[str]:
    """Return the violations on the open page, a line for each rule; *only* names a single rule."""
    if not driver.execute_script("return Boolean(window.axe)"):
        driver.execute_script(script())
    rules = {"type": "rule", "values": [only]} if only else {"type": "tag", "values": RULES}
    options = json.dumps({"runOnly": rules, "resultTypes": ["violations"], "preload": False})
    found: Any = driver.execute_async_script(
        f"""
        const done = arguments[0];
        axe.run(document, {options}).then(
          (found) => done(found.violations.map((each) =>
            `${{each.id}}: ${{each.help}}: ` + each.nodes.slice(0, 5).map((node) =>
              `${{node.target}} ${{node.any.concat(node.all).map((why) => why.message)[0] || ""}}`
            ).join(" | "))),
          (error) => done([String(error)]));
        """
    )
    return [str(each) for each in found]
