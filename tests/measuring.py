"""When branch coverage is measured: while the modules are imported, and while their tests run.

Measuring makes everything slower, twice as slow where it counts. So it is off while pytest
imports and collects the tests, and while tests run of which nothing is to be measured.
"""

import pkgutil
from collections.abc import Container, Generator, Sequence
from importlib import import_module
from typing import Any

import pytest

_Wrapper = Generator[None, object, object]


class Measuring:
    """Switches the measuring of coverage on and off; a pytest plugin.

    Args:
        unmeasured: the tests that are left out.
    """

    def __init__(self, unmeasured: Container[pytest.Item]) -> None:
        self._unmeasured = unmeasured
        self._coverage: Any = None
        self._on = True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> _Wrapper:
        """Import all modules in one process, measured; then nothing is until a test is."""
        result = yield  # here pytest-cov begins, and xdist starts its workers
        plugin = session.config.pluginmanager.getplugin("_cov")
        if controller := getattr(plugin, "cov_controller", None):
            self._coverage = controller.cov
            if not hasattr(session.config, "workerinput"):
                source = self._coverage.get_option("run:source") or ()
                import_all([each for each in source if "/" not in each and each != "."])
            self._switch(on=False)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> _Wrapper:
        """Measure, or not."""
        self._switch(on=item not in self._unmeasured)
        return (yield)

    def _switch(self, *, on: bool) -> None:
        if self._coverage is not None and on != self._on:
            self._on = on
            if on:
                self._coverage.start()
            else:
                self._coverage.stop()


def import_all(packages: Sequence[str]) -> None:
    """Import every module of the packages: what stands at their top is run then only."""
    for package in packages:
        found = import_module(package)
        for module in pkgutil.walk_packages(getattr(found, "__path__", ()), f"{package}."):
            import_module(module.name)
