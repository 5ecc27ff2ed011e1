"""Makes "surprise-zero-shot" known to `transformers.pipeline` and `evaluate.evaluator`, without importing them.

Neither has entry points for tasks, and importing them costs seconds. So `import surprise_hf` registers at once where
their modules are loaded already; otherwise it leaves a finder on `sys.meta_path` that waits for each to be imported by
whoever needs it, registers after it has run, and is gone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# module of theirs -> module of ours that registers itself with it
HOSTS = {"transformers.pipelines": "surprise_hf.pipeline", "evaluate.evaluator": "surprise_hf.evaluator"}


def register(host: str) -> None:
    """Import what belongs to a host and registers itself.

    A failure is a warning, since this runs inside a foreign import. Where the pipeline's own import of transformers led
    here, it is half imported, and registers when it is done.
    """
    try:
        importlib.import_module(HOSTS[host])
    except Exception as error:  # noqa: BLE001 (whatever it is, the import that we ride on must go on)
        warnings.warn(
            f"surprise_hf could not register its pipeline with {host} ({type(error).__name__}: {error});"
            " surprise_hf.SurpriseZeroShotPipeline(model) works without it",
            RuntimeWarning,
            stacklevel=2,
        )


class _RegisteringLoader(Loader):
    """The module's own loader, followed by `register`."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:  # get_source, get_data, ...: whoever only looks sees the real loader
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        register(self._finder.host)


class _Finder(MetaPathFinder):
    def __init__(self, host: str) -> None:
        self.host = host
        self._looking = False

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.host or self._looking:
            return None
        self._looking = True  # find_spec asks every finder again, this one among them
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader, self)
        return spec


def register_when_imported() -> None:
    """Register now or as soon as a host is imported. Calling it again changes nothing."""
    waiting = {finder.host for finder in sys.meta_path if isinstance(finder, _Finder)}
    for host in HOSTS:
        if host in sys.modules:
            register(host)
        elif host not in waiting:
            sys.meta_path.insert(0, _Finder(host))
