"""Modules that run when something in them is asked for, not when they are imported.

A large library's ``__init__`` often imports all of the library. A program that needs two
small modules of it pays for the rest, in time at its start and in memory for its life. Once
:func:`defer` has named the package, ``import package.module`` imports that module
alone; every other use of the package works as it always does, only later.

Not every package bears it: where one of its modules says ``from . import another``, that asks
the package for something, and its ``__init__`` would import a module that is half imported.

``importlib.util.LazyLoader`` does the same for modules. It cannot do it for packages: an
import of a submodule reads the package's ``__path__``, which already loads it.
"""

import importlib.util
import sys
import threading
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_RUNNING = "_deferred_is_running"
_lock = threading.RLock()


class _Deferred(ModuleType):
    """A module or package that has not run yet."""

    def __getattr__(self, name: str) -> Any:
        """Run the module, then look again; called for what it does not have yet."""
        with _lock:
            namespace = self.__dict__
            if type(self) is not _Deferred:  # another thread has run it meanwhile
                return getattr(self, name)
            loader = self.__spec__.loader if self.__spec__ is not None else None
            if _RUNNING in namespace or loader is None:
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            namespace[_RUNNING] = True
            try:
                loader.exec_module(self)
            finally:
                del namespace[_RUNNING]
            self.__class__ = ModuleType  # type: ignore[assignment]  # from here on as usual
        return getattr(self, name)


def defer(*modules: str) -> None:
    """Let *modules* wait; name a package before those inside it.

    Modules that are imported already, or not installed, are left as they are. No package is
    imported to find what is inside it.
    """
    for name in modules:
        if name in sys.modules:
            continue
        spec = _find(name)
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _Deferred
        sys.modules[name] = module
        parent = sys.modules.get(name.rpartition(".")[0])
        if parent is not None:
            setattr(parent, name.rpartition(".")[2], module)


def _find(name: str) -> ModuleSpec | None:
    """Find a module as an import would, without importing the packages around it."""
    parent = name.rpartition(".")[0]
    if not parent:
        return importlib.util.find_spec(name)
    package = _find(parent)
    if package is None or package.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(name, package.submodule_search_locations)
