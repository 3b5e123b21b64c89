# SPDX-License-Identifier: Apache-2.0
"""vLLM's engines with one copy of their weights: ``vllm serve MODEL --load-format caid`` (docs/VLLM.md).

vLLM finds this by itself, where caid is installed beside it. Nothing is imported, and no daemon asked, until an engine
is told to use "caid".
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import logging
import sys
from typing import Any, Callable

VLLM = "0.32"  # the version whose private names are used here; another one may have others

_logger = logging.getLogger("vllm.caid")  # vLLM shows what comes from below its own name


def register() -> None:
    """The entry point of ``vllm.general_plugins``, which vLLM calls in each of its processes, also twice. Never
    raises."""
    for module, enter in _DOORS.items():
        try:
            _when_imported(module, enter)
        except Exception:
            _logger.exception("caid has not made itself known to %s", module)


def _enter_loader(loaders):
    if "caid" in loaders._LOAD_FORMAT_TO_MODEL_LOADER:
        return

    class Loader(loaders.BaseModelLoader):
        """The loader of load format "caid", which is imported when it is asked for."""

        def __new__(cls, load_config):
            try:
                from ._loader import CaidModelLoader
            except (ImportError, AttributeError) as e:
                import vllm

                raise ImportError(f"caid.vllm is made for vLLM {VLLM}, and does not fit {vllm.__version__}: {e}") from e
            return CaidModelLoader(load_config)

    loaders.register_model_loader("caid")(Loader)


_DOORS: dict[str, Callable[[Any], None]] = {  # by the module of vLLM's that it is in
    "vllm.model_executor.model_loader": _enter_loader,
}


def _when_imported(module, enter):
    """Calls enter(module) now, or as soon as the module has been imported."""
    if module in sys.modules:
        enter(sys.modules[module])
    elif not any(isinstance(finder, _Waiting) and finder.name == module for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting(module, enter))


class _Waiting(importlib.abc.MetaPathFinder):
    """Waits for one module."""

    def __init__(self, name, enter):
        self.name, self._enter = name, enter

    def find_spec(self, name, path=None, target=None):
        if name != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            try:
                self._enter(module)
            except Exception:
                _logger.exception("caid has not made itself known to %s", name)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
