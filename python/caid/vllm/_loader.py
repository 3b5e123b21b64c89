# SPDX-License-Identifier: Apache-2.0
"""Load format "caid" of vLLM: one process loads a model by vLLM's own loader and publishes what vLLM made of it, the
others map that.

Who loads is settled by a turn (caid.weights._turn): where the one that loads dies, the next one's turn comes. Whatever
keeps an engine from sharing, it says once, and loads from the files as without caid.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import re
import time
from typing import Any
from weakref import WeakSet

import numpy
import torch
import vllm
from vllm.distributed import parallel_state
from vllm.logger import init_logger
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.model_executor.utils import weights_already_processed
from vllm.utils.torch_utils import set_default_torch_dtype

import caid

from .. import weights
from .._base import _metadata
from .._base._errors import Error, NotFoundError
from .._interfaces import _torch_types
from ..weights import _plan
from ..weights._turn import turn
from . import VLLM, _key, _manifest, _model
from ._manifest import UnfitError

logger = init_logger("vllm.caid")

_TIMEOUT_S = 300.0

alive: WeakSet[Shared] = WeakSet()  # of models of this process


class Options:
    """What ``--model-loader-extra-config`` says to caid; the rest is for vLLM's loader."""

    def __init__(self, extra: dict[str, Any]):
        self.name: str | None = extra.pop("name", None)
        self.pool: str | None = extra.pop("pool", None)
        self.timeout: float = extra.pop("timeout", _TIMEOUT_S)
        self.fallback: bool = extra.pop("fallback", True)
        for key, kind in (("name", str), ("pool", str), ("timeout", (int, float)), ("fallback", bool)):
            value = getattr(self, key)
            if value is not None and not isinstance(value, kind):
                raise ValueError(f"model_loader_extra_config: {key}: {value!r}")
        if not self.timeout >= 0:
            raise ValueError(f"model_loader_extra_config: timeout: {self.timeout!r}: seconds, 0 or more")


class Shared:
    """What an engine's model has of a set: ``model.caid``. It keeps the version that the model has."""

    def __init__(self, client: caid.Client, name: str, pool: str | None, facts: dict[str, Any]):
        self.client, self.name, self.pool, self.facts = client, name, pool, facts
        self.weights: weights.Weights | None = None  # the version whose tensors the model has
        self.owns_buffers = False  # vLLM writes into them as it wakes
        self.in_graphs = False  # graphs are captured over the addresses
        alive.add(self)

    def find(self, client: caid.Client | None = None) -> weights.Weights | None:
        """The current version, opened, by another client if one is given; None where there is none."""
        try:
            return weights.open(self.name, pool=self.pool, client=client or self.client)
        except NotFoundError:
            return None

    def read(self, opened: weights.Weights) -> tuple[_manifest.Manifest, dict[str, torch.Tensor]]:
        """The manifest and the tensors of a version, checked."""
        manifest = self._manifest(opened)
        differs = _manifest.differences(manifest, self.facts)
        if differs:
            raise UnfitError(f"{self.name} is of another model or engine: {', '.join(differs)}")
        tensors = opened.torch()
        del tensors[_manifest.MEMBER]
        return manifest, tensors

    def differences(self, opened: weights.Weights) -> list[str]:
        """The facts by which a version is another one than this is to be."""
        return _manifest.differences(self._manifest(opened), self.facts)

    def _manifest(self, opened):
        if _manifest.MEMBER not in opened:
            raise UnfitError(f"{self.name} has no manifest: no engine has published it")
        with opened[_manifest.MEMBER] as array:
            text = array.copy_to_host().tobytes()
        return _manifest.decode(text, opened._set._entries())

    def keep(self, model: torch.nn.Module, opened: weights.Weights, how: str, began: float) -> torch.nn.Module:
        """The model, which has a version from now on."""
        self.weights = opened
        model.caid = self
        seconds = time.perf_counter() - began
        logger.info("caid: %s %s@%d in %.3f s", how, self.name, opened.version, seconds)
        return model

    def publish(self, model: torch.nn.Module, in_one_block: bool = False, ttl: float = 0) -> int:
        """Publishes what a model has, and returns the version. On a GPU the model's tensors are made in caid's memory
        before (memory()), and nothing is copied; in one block, all is, and versions can take each other's place. The name
        of such a version can go after `ttl` seconds."""
        manifest = _model.described(model, self.facts)
        tensors = {name: tensor.data for name, (_, tensor) in _model.named(model)[0].items() if tensor.numel()}
        text = _manifest.encode(manifest)
        on_host = all(tensor.device.type == "cpu" for tensor in tensors.values())
        if on_host or in_one_block:
            return self._publish_copies(tensors, text, on_host, ttl)
        from ..weights import _torch

        with self.memory():
            device = torch.device("cuda", torch.cuda.current_device())
            told = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
            tensors = {name: _in_arena(tensor, device) for name, tensor in tensors.items()}
            return _torch.publish({**tensors, _manifest.MEMBER: told}, f"{self.name}/", None)

    @contextlib.contextmanager
    def memory(self):
        """A block in which tensors on a GPU are made in caid's memory."""
        import caid.torch

        try:
            pool = caid.torch.MemPool(pool=self.pool)
        except RuntimeError as e:  # this process has another set-up
            raise UnfitError(str(e)) from None
        caid.torch.last_error()
        try:
            with torch.cuda.use_mem_pool(pool):
                yield
        except torch.OutOfMemoryError as e:
            raise caid.torch.last_error() or e from None

    def _publish_copies(self, tensors, text, on_host, ttl):
        """Copies tensors into one block, in C order, and publishes them as its parts. On the host it is page-locked."""
        elements = _torch_types.elements(torch)
        places, members, end = {}, [], 0
        for name, tensor in (*tensors.items(), (_manifest.MEMBER, torch.frombuffer(bytearray(text), dtype=torch.uint8))):
            identity = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
            if identity not in places:
                places[identity] = end, tensor
                end = _plan.aligned(end + tensor.nbytes)
            element = elements[tensor.dtype]
            members.append((name, places[identity][0], element.type_name, element.descr, tuple(tensor.shape), None))
        where = {"memory": "pinned"} if on_host else {"device": f"GPU-{_device()['uuid']}"}
        with self.client.empty(end, "|u1", exclusive=True, pool=self.pool, **where) as whole:
            raw = torch.from_numpy(numpy.asarray(whole)) if on_host else torch.from_dlpack(whole)
            for at, tensor in places.values():
                raw[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
            if not on_host:
                torch.cuda.current_stream().synchronize()
            del raw
            with contextlib.closing(self.client._set_create(whole._memory, tuple(members))) as made:
                return made.publish(f"{self.name}/", _metadata.encode({"metadata": None}), 0, False, None, round(ttl * 1e9))


def _in_arena(tensor, device):
    """A tensor in caid's memory, which is called within Shared.memory(): itself, or a copy."""
    import caid.torch

    try:
        caid.torch._arena_with(tensor)
    except ValueError:
        return tensor.to(device, copy=True)
    return tensor


class CaidModelLoader(DefaultModelLoader):
    """The loader. Its load_weights(), download_model() and get_all_weights() are vLLM's own."""

    _prepare = DefaultModelLoader._prepare_weights  # of a vLLM that lacks it, none of this is imported

    def __init__(self, load_config: Any):
        extra = dict(load_config.model_loader_extra_config or {})
        self.options = Options(extra)
        self._is_shared = False  # during a load whose outcome is shared
        self._weights: dict[str, torch.Tensor] | None = None  # during one that is not from files
        super().__init__(dataclasses.replace(load_config, load_format="auto", model_loader_extra_config=extra))
        if vllm.__version__.split("+")[0].rpartition(".")[0] != VLLM:
            logger.warning("caid: caid.vllm is made for vLLM %s, and may not fit %s", VLLM, vllm.__version__)

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> torch.nn.Module:
        """A model whose weights are those of all engines with its key; or, where that cannot be, of its own."""
        registered = _Registered(vllm_config.compilation_config)
        sleeps = getattr(model_config, "enable_sleep_mode", False) and model_config.sleep_mode_backend == "caid"
        try:
            if sleeps and model_config.sleep_preserve_parameter_names:
                raise UnfitError("vLLM would write into shared weights: sleep_preserve_parameter_names")
            model = self._load(self.shared(vllm_config, model_config, prefix), vllm_config, model_config, prefix)
            if hasattr(model, "caid"):
                model.caid.in_graphs = torch.cuda.is_available() and not getattr(model_config, "enforce_eager", False)
                model.caid.owns_buffers = sleeps
                if sleeps:
                    _model.own(model, _model.BUFFERS)
            return model
        except (UnfitError, Error) as e:
            if not self.options.fallback:
                raise
            logger.warning("caid: this engine loads the model from its files, for itself: %s", e)
        registered.restore()
        return super().load_model(vllm_config, model_config, prefix)

    def get_external_weight_memory(self, vllm_config: Any) -> int:
        """Bytes of a set that this engine is going to map, which vLLM takes off what it may use for its caches."""
        if not torch.cuda.is_available():
            return 0
        try:
            shared = self.shared(vllm_config, vllm_config.model_config, "")
            with contextlib.closing(shared.client), contextlib.ExitStack() as stack:
                opened = shared.find()
                return 0 if opened is None else stack.enter_context(opened).nbytes
        except (UnfitError, Error) as e:
            logger.warning("caid: the weights of other engines are not counted: %s", e)
            return 0

    def get_all_weights(self, model_config: Any, model: torch.nn.Module):
        """As vLLM's, of the files, or of a version of a trainer's."""
        if self._weights is not None:
            self.counter_before_loading_weights = time.perf_counter()
            return iter(self._weights.items())
        if hasattr(model, "caid"):  # vLLM asks for them to write them into the tensors of the model
            _model.own(model)
        return super().get_all_weights(model_config, model)

    def shared(self, vllm_config: Any, model_config: Any, prefix: str) -> Shared:
        """The Shared of a model. It has no version yet."""
        folder, files, *_ = self._prepare(model_config.model, None, model_config.revision, True, None)
        key = _key.facts(vllm_config, model_config, prefix, _key.files_of(folder, files), _ranks(vllm_config), _device())
        name = self.options.name or re.sub(r"[^\w.-]", "_", os.path.basename(os.path.normpath(model_config.model)))
        return Shared(caid.connect(), _key.set_name(name, key), self.options.pool, key)

    # --- one loads, the others map ----------------------------------------------------------

    def _load(self, shared, vllm_config, model_config, prefix):
        began = time.perf_counter()
        opened = shared.find()
        if opened is None:
            with turn(shared.client, shared.name, pool=shared.pool, timeout=self.options.timeout):
                opened = shared.find()
                if opened is None:
                    return self._make(shared, vllm_config, model_config, prefix)
        return self._take(shared, opened, vllm_config, model_config, prefix, began)

    def _make(self, shared, vllm_config, model_config, prefix):
        """Loads and publishes. A model that cannot be published is this engine's own."""
        began = time.perf_counter()
        self._is_shared = True
        try:
            with shared.memory() if torch.cuda.is_available() else contextlib.nullcontext():
                model = super().load_model(vllm_config, model_config, prefix)
        finally:
            self._is_shared = False
        try:
            _check(model)
            _plain(model)
            shared.publish(model)
            opened = shared.find()
            if opened is None:
                raise UnfitError(f"{shared.name} has been taken away")
            with _closed_on_error(opened):
                _model.swap(model, *shared.read(opened))  # so that nobody writes to it here, either
        except (UnfitError, Error, TypeError, ValueError) as e:
            if not self.options.fallback:
                raise
            logger.warning("caid: this engine keeps the model to itself: %s", e)
            return model
        return shared.keep(model, opened, "published", began)

    def _take(self, shared, opened, vllm_config, model_config, prefix, began):
        """A model of the tensors of a version, which vLLM had processed before they were published."""
        target = torch.device(self.load_config.device or vllm_config.device_config.device)
        self._is_shared = True
        try:
            with _closed_on_error(opened), set_default_torch_dtype(model_config.dtype):
                manifest, tensors = shared.read(opened)
                with torch.device("meta"):
                    model = self.create_model(vllm_config, model_config, prefix)
                _check(model)
                _model.take(model, manifest, tensors)
                with weights_already_processed():
                    process_weights_after_loading(model, model_config, target)
                _plain(model)
                _model.settle(model, manifest)
        except (UnfitError, Error):
            raise
        except Exception as e:
            raise UnfitError(f"{shared.name}@{opened.version}: {type(e).__name__}: {e}") from e
        finally:
            self._is_shared = False
        return shared.keep(model.eval(), opened, "mapped", began)

    def convert(self, shared: Shared, vllm_config: Any, model_config: Any, given: dict[str, torch.Tensor]) -> None:
        """Publishes what vLLM makes of a checkpoint's tensors, in a model that is made for it."""
        registered = _Registered(vllm_config.compilation_config)
        registered.clear()
        self._is_shared, self._weights = True, given
        try:
            model = super().load_model(vllm_config, model_config)
            _check(model)
            _plain(model)
            shared.publish(model, in_one_block=True)
        except Exception as e:  # vLLM's ways to say that something does not fit are many
            raise UnfitError(f"{shared.name}: the version does not fit this model: {type(e).__name__}: {e}") from e
        finally:
            self._is_shared, self._weights = False, None
            registered.restore()

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        """As vLLM's, which does not miss what a trainer leaves out."""
        if self._weights is None:
            return super().load_weights(model, model_config)
        loaded = model.load_weights(self.get_all_weights(model_config, model))
        if loaded is not None and model_config.quantization is None:
            missing = [name for name, _ in model.named_parameters() if name not in loaded]
            if missing:
                raise UnfitError(f"nothing is given for {_manifest._some(missing)}")

    def create_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> torch.nn.Module:
        """As vLLM's. Of a model that is shared, a CPU computes with the weights as they are: vLLM would else pack
        them into memory of each process."""
        model = super().create_model(vllm_config, model_config, prefix)
        if self._is_shared and not torch.cuda.is_available():
            for module in model.modules():
                method = getattr(module, "quant_method", None)
                if isinstance(method, UnquantizedLinearMethod) and module.weight.ndim == 2:
                    module._cpu_skip_gemm_dispatch = True
        return model


@contextlib.contextmanager
def _closed_on_error(opened):
    try:
        yield
    except BaseException:
        opened.close()
        raise


class _Registered:
    """What vLLM's models make known as they are made: layers by name, each once, and modules that later models get, too,
    whose tensors may be on device "meta"."""

    def __init__(self, config):
        self._dicts = config.static_forward_context, _ROPE_DICT
        self._before = [dict(known) for known in self._dicts]
        self._list, self._listed = config.static_all_moe_layers, [*config.static_all_moe_layers]

    def clear(self):
        """For a model beside the one that is there."""
        for known in self._dicts:
            known.clear()
        self._list.clear()

    def restore(self):
        for known, before in zip(self._dicts, self._before):
            known.clear()
            known.update(before)
        self._list[:] = self._listed


def _check(model):
    """UnfitError: vLLM cannot use another process's tensors for this model."""
    if getattr(model, "secondary_weights", None):
        raise UnfitError("the model has weights beside its files")
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if not isinstance(method, QuantizeMethodBase):
            continue
        if not method.supports_pre_processed_weights:
            raise UnfitError(f"{name}: {type(method).__name__} takes no weights that have been processed")
        if torch.cuda.is_available():
            continue
        plain = isinstance(method, (UnquantizedLinearMethod, UnquantizedEmbeddingMethod))
        if not plain or module.weight.ndim != 2:
            raise UnfitError(f"{name}: on a CPU vLLM packs the weights of {type(method).__name__}")


def _plain(model):
    """On a CPU: computes with the weights as they are, and lets go of packed copies."""
    if not torch.cuda.is_available():
        for module in model.modules():
            if hasattr(module, "cpu_linear"):
                module.cpu_linear = torch.nn.functional.linear


def _ranks(vllm_config):
    """(rank, of how many), by what is divided among them."""
    groups = {kind: getattr(parallel_state, f"get_{kind}_group")() for kind in ("tp", "pp", "dp", "pcp")}
    ranks: dict[str, Any] = {kind: [group.rank_in_group, group.world_size] for kind, group in groups.items()}
    parallel = vllm_config.parallel_config
    return {**ranks, "ep": [bool(parallel.enable_expert_parallel), bool(parallel.enable_eplb)]}


def _device():
    """What the weights are laid out for, and on which device they are."""
    if not torch.cuda.is_available():
        return {"cpu": platform.machine()}
    told = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"gpu": told.name, "capability": [told.major, told.minor], "uuid": str(told.uuid)}
