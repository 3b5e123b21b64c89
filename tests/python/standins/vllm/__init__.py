# SPDX-License-Identifier: Apache-2.0
"""A stand-in for vLLM: the names that caid.vllm uses, with the parameters that they have in vLLM 0.32, which
`./dev engines` looks at, and one small model. It also runs with real PyTorch, on a GPU."""

import contextlib
import dataclasses
import logging
import sys
import types

import torch

__version__ = "0.32.0"


def _module(name, **members):
    module = types.ModuleType(f"vllm.{name}")
    vars(module).update(members)
    sys.modules[module.__name__] = module
    parent, _, leaf = name.rpartition(".")
    setattr(sys.modules[f"vllm.{parent}" if parent else "vllm"], leaf, module)
    module.__path__ = [f"{__path__[0]}/{name.replace('.', '/')}"]
    return module


class QuantizeMethodBase:
    supports_pre_processed_weights = True


class UnquantizedLinearMethod(QuantizeMethodBase):
    def process_weights_after_loading(self, layer):
        assert not layer.weight.is_meta
        layer.cpu_linear = torch.nn.functional.linear
        if torch.device(layer.weight.device).type == "cpu" and not getattr(layer, "_cpu_skip_gemm_dispatch", False):
            layer.cpu_linear = "packed"
            layer.weight = None


class UnquantizedEmbeddingMethod(QuantizeMethodBase):
    def process_weights_after_loading(self, layer):
        layer.cpu_linear = "packed"


class OddMethod(QuantizeMethodBase):
    supports_pre_processed_weights = False

    def process_weights_after_loading(self, layer):
        pass


_processed = [False]


@contextlib.contextmanager
def weights_already_processed():
    _processed.append(True)
    yield
    _processed.pop()


@contextlib.contextmanager
def set_default_torch_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


class CuMemBackend:
    done = ()

    def suspend(self, level=1):
        self.done += (("suspend", level),)

    def resume(self, tags=None):
        self.done += (("resume", tags),)


class SleepModeBackendFactory:
    known: dict = {}

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        cls.known[name] = module_path, class_name


class WeightTransferEngine:
    def __class_getitem__(cls, of):
        return cls

    def __init__(self, config, vllm_config, device, model):
        self.vllm_config, self.model_config, self.model = vllm_config, vllm_config.model_config, model


class TrainerWeightTransferEngine(WeightTransferEngine):
    def __init__(self, *, client, source=None, is_sender=True):
        self.client, self.source, self.is_sender = client, source, is_sender


@dataclasses.dataclass
class TrainerInitInfo:
    rank: int = dataclasses.field(kw_only=True)

    @property
    def is_sender(self):
        return self.rank == 0


class EngineCore:
    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        self.asked.append(method)
        if method == self.fails:
            raise RuntimeError("a rank fails")
        return [*args]

    def _reset_caches(self, reset_running_requests=True, reset_connector=True):
        self.resets += 1


def get_tp_group():
    return types.SimpleNamespace(rank_in_group=0, world_size=1)


def init_logger(name):
    return logging.getLogger(name)


_module("logger", init_logger=init_logger)
_module("envs", compile_factors=lambda: {})
_module("distributed")
_module(
    "distributed.parallel_state",
    get_tp_group=get_tp_group, get_pp_group=get_tp_group, get_dp_group=get_tp_group, get_pcp_group=get_tp_group,
)
_module("distributed.weight_transfer")
_module(
    "distributed.weight_transfer.base",
    TrainerInitInfo=TrainerInitInfo, TrainerWeightTransferEngine=TrainerWeightTransferEngine,
    WeightTransferEngine=WeightTransferEngine, WeightTransferInitInfo=object, WeightTransferUpdateInfo=object,
)
_module("device_allocator")
_module(
    "device_allocator.sleep_mode_backend", CuMemBackend=CuMemBackend, SleepModeBackendFactory=SleepModeBackendFactory
)
_module("utils")
_module("utils.torch_utils", set_default_torch_dtype=set_default_torch_dtype)
_module("model_executor")
_module("model_executor.utils", weights_already_processed=weights_already_processed)
_module("model_executor.layers")
_module("model_executor.layers.linear", UnquantizedLinearMethod=UnquantizedLinearMethod)
_module("model_executor.layers.rotary_embedding", _ROPE_DICT={})
_module("model_executor.layers.quantization")
_module("model_executor.layers.quantization.base_config", QuantizeMethodBase=QuantizeMethodBase)
_module("model_executor.layers.vocab_parallel_embedding", UnquantizedEmbeddingMethod=UnquantizedEmbeddingMethod)
_module("v1")
_module("v1.engine")
_module("v1.engine.core", EngineCore=EngineCore)
