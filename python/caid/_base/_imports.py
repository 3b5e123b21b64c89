# SPDX-License-Identifier: Apache-2.0
"""Hooks that run when another module is imported."""

from __future__ import annotations

import importlib.machinery
import sys
from typing import Any, Callable


class _WhenImported:
    """A finder of sys.meta_path that finds one module, and calls a function after it was imported."""

    def __init__(self, name, register):
        self.name, self.register = name, register

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module):
                del spec.loader.exec_module  # zipimport has one loader for many
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                self.register(module)

            spec.loader.exec_module = run_and_register
        return spec


def when_imported(name: str, register: Callable[[Any], None]) -> None:
    """Calls `register` with the module of that name: at once where it was imported already, else after its
    import."""
    if name in sys.modules:
        register(sys.modules[name])
    else:
        sys.meta_path.insert(0, _WhenImported(name, register))
