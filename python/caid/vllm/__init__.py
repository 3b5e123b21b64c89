# SPDX-License-Identifier: Apache-2.0
"""vLLM's engines with one copy of their weights: ``vllm serve MODEL --load-format caid`` (docs/VLLM.md).

vLLM finds this by itself, where caid is installed beside it. Nothing is imported, and no daemon asked, until an engine
is told to use "caid".
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import inspect
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


def _enter_transfer(factory):
    factory.WeightTransferEngineFactory.register_engine("caid", "caid.vllm._transfer", "CaidWeightTransferEngine")
    factory.WeightTransferTrainerFactory.register_engine(
        "caid", "caid.vllm._transfer", "CaidTrainerWeightTransferEngine"
    )


def _enter_sleep(backends):
    backends.SleepModeBackendFactory.register_backend("caid", "caid.vllm._sleep", "CaidBackend")


def _enter_core(core):
    """What is cached of a prompt is of the version that computed it: an engine forgets that with a new one."""
    ask = core.EngineCore.collective_rpc
    core.EngineCore._reset_caches  # a vLLM that lacks it is left as it is

    @functools.wraps(ask)
    def collective_rpc(self, method, *args, **kwargs):
        is_asked = method == "caid_newer"
        if is_asked:
            ask(self, "caid_ready", *args, **kwargs)
        is_new = is_asked or (method == "finish_weight_update" and _is_transfer(self))
        try:
            results = ask(self, method, *args, **kwargs)
            is_new = is_new and not (is_asked and all(result is None for result in results))
            return results
        finally:
            if is_new:
                self._reset_caches()

    core.EngineCore.collective_rpc = collective_rpc


def _is_transfer(thing):
    config = thing.vllm_config.weight_transfer_config
    return config is not None and config.backend == "caid"


def _enter_worker(worker):
    """An update that another engine, or rank, has kept from its end is given up when the next one begins. vLLM itself
    would refuse that one."""
    start = worker.Worker.start_weight_update

    @functools.wraps(start)
    def start_weight_update(self):
        if _is_transfer(self):
            self._weight_update_active = False
        start(self)

    worker.Worker.start_weight_update = start_weight_update


def _enter_layerwise(layerwise):
    layerwise.initialize_layerwise_reload = _owning(layerwise.initialize_layerwise_reload)


def _enter_inplace(inplace):
    inplace.reload_weights = _owning(inplace.reload_weights, is_checkpoint_format=False)  # else by the one above


def _owning(function, **only):
    """A function of vLLM's that writes into the tensors of its `model`. They are the model's own then."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def owning(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        if hasattr(given["model"], "caid") and all(given.get(key) == value for key, value in only.items()):
            from . import _model

            _model.own(given["model"])
        return function(*args, **kwargs)

    return owning


_DOORS: dict[str, Callable[[Any], None]] = {  # by the module of vLLM's that it is in
    "vllm.model_executor.model_loader": _enter_loader,
    "vllm.distributed.weight_transfer.factory": _enter_transfer,
    "vllm.device_allocator.sleep_mode_backend": _enter_sleep,
    "vllm.v1.engine.core": _enter_core,
    "vllm.v1.worker.gpu_worker": _enter_worker,
    "vllm.model_executor.model_loader.reload.layerwise": _enter_layerwise,
    "vllm.model_executor.model_loader.reload.inplace": _enter_inplace,
}


_entered: set[str] = set()


def __getattr__(name: str) -> Any:
    """Worker, and CaidTrainerInitInfo of the trainer's side, which import vLLM."""
    if name == "Worker":
        from ._worker import Worker

        return Worker
    if name == "CaidTrainerInitInfo":
        from ._transfer import CaidTrainerInitInfo

        return CaidTrainerInitInfo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _when_imported(module, enter):
    """Calls enter(module) now, or as soon as the module has been imported; once."""
    if module in _entered:
        return
    _entered.add(module)
    if module in sys.modules:
        enter(sys.modules[module])
    else:
        sys.meta_path.insert(0, _Waiting(module, enter))


class _Waiting(importlib.abc.MetaPathFinder):
    """Waits for one module."""

    def __init__(self, name, enter):
        self.name, self._enter, self._is_looking = name, enter, False

    def find_spec(self, name, path=None, target=None):
        """Also asked by who only looks whether the module is there."""
        if name != self.name or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            try:
                sys.meta_path.remove(self)
                self._enter(module)
            except Exception:
                _logger.exception("caid has not made itself known to %s", name)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
