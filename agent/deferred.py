"""Packages whose ``__init__`` runs when something in it is asked for, not before.

A large library's ``__init__`` often imports all of the library. A program that needs two
small modules of it pays for the rest, in time at its start and in memory for its life. Once
:func:`defer` has named the package, ``import package.module`` imports that module
alone; every other use of the package works as it always does, only later.

``importlib.util.LazyLoader`` does the same for modules. It cannot do it for packages: an
import of a submodule reads the package's ``__path__``, which already loads it.
"""

import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any

_RUNNING = "_deferred_init_is_running"
_lock = threading.RLock()


class _Deferred(ModuleType):
    """A package that has not run its ``__init__`` yet."""

    def __getattr__(self, name: str) -> Any:
        """Run ``__init__``, then look again; called for what the package does not have yet."""
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


def defer(*packages: str) -> None:
    """Let the ``__init__`` of *packages* wait; name a package before those inside it.

    Packages that are imported already, or not installed, are left as they are.
    """
    for name in packages:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None or spec.submodule_search_locations is None:
            continue
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _Deferred
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
