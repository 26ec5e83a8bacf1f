"""Modules that run at their first use, not when they are imported.

A large library's ``__init__`` often imports all of the library. A program that needs two small
modules of it pays for the rest, with a slower start and more memory. After :func:`defer` of the
package, ``import package.module`` imports only that module; every other use of the package works
as usual, but runs its ``__init__`` first.

Some packages cannot be deferred: if one of their modules has ``from . import another``, that uses
the package, and its ``__init__`` would import a module that is only half imported.

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
        """Run the module, then look the name up again; called for names that it does not have."""
        with _lock:
            namespace = self.__dict__
            if type(self) is not _Deferred:  # another thread has run it in the meantime
                return getattr(self, name)
            loader = self.__spec__.loader if self.__spec__ is not None else None
            if _RUNNING in namespace or loader is None:
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            namespace[_RUNNING] = True
            try:
                loader.exec_module(self)
            finally:
                del namespace[_RUNNING]
            self.__class__ = ModuleType  # type: ignore[assignment]  # from now on a usual module
        return getattr(self, name)


def defer(*modules: str) -> None:
    """Defer *modules*; a package must be named before its own modules.

    Modules that are imported already or not installed are skipped. No package is imported to find
    its modules.
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
    """Find a module as an import does, but without importing its parent packages."""
    parent = name.rpartition(".")[0]
    if not parent:
        return importlib.util.find_spec(name)
    package = _find(parent)
    if package is None or package.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(name, package.submodule_search_locations)
