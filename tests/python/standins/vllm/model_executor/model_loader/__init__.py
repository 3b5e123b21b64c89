# SPDX-License-Identifier: Apache-2.0
"""Loaders, and the one that vLLM has by default: of a folder with one file."""

import dataclasses
import os
import time

import numpy
import torch
import vllm

_LOAD_FORMAT_TO_MODEL_LOADER = {}


def register_model_loader(load_format):
    def register(cls):
        assert issubclass(cls, BaseModelLoader)
        _LOAD_FORMAT_TO_MODEL_LOADER[load_format] = cls
        return cls

    return register


@dataclasses.dataclass
class LoadConfig:
    load_format: str = "auto"
    model_loader_extra_config: dict = dataclasses.field(default_factory=dict)
    device: "str | None" = None


class Layer(torch.nn.Module):
    def __init__(self, shape, method):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(shape), requires_grad=False)
        self.weight.weight_loader = "of this process"
        self.quant_method = method


class Rope(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cos_sin", torch.empty((64, 32)), persistent=False)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.empty((1,)))
        self.rope = vllm.model_executor.layers.rotary_embedding._ROPE_DICT.setdefault("plain", Rope())
        self.register_parameter("sinks", None)


class Model(torch.nn.Module):
    """Three matrices, of which two are one, a buffer that vLLM fills in place, and a large one."""

    def __init__(self, config):
        super().__init__()
        method = vllm.OddMethod() if config.odd else vllm.UnquantizedLinearMethod()
        self.embed = Layer((config.rows, 32), vllm.UnquantizedEmbeddingMethod())
        self.head = Layer((1, 32), vllm.UnquantizedEmbeddingMethod())
        self.head.weight = self.embed.weight
        self.layer = Layer((32, 32), method)
        self.attention = Attention()

    def load_weights(self, weights):
        for name, values in weights:
            *path, leaf = name.split(".")
            module = self
            for part in path:
                module = getattr(module, part)
            getattr(module, leaf).copy_(values if isinstance(values, torch.Tensor) else torch.from_numpy(values))


def initialize_model(vllm_config, *, prefix="", model_class=None, model_config=None):
    layers = vllm_config.compilation_config.static_forward_context
    if f"{prefix}attention" in layers:
        raise ValueError(f"Duplicate layer name: {prefix}attention")
    model = Model(model_config)
    layers[f"{prefix}attention"] = model.attention
    return model


def process_weights_after_loading(model, model_config, target_device):
    for module in model.modules():
        if hasattr(module, "quant_method"):
            if vllm._processed[-1] and not module.quant_method.supports_pre_processed_weights:
                raise RuntimeError("no pre-processed weights")
            module.quant_method.process_weights_after_loading(module)
    model.attention.scale.fill_(1)


class BaseModelLoader:
    def __init__(self, load_config):
        self.load_config = load_config

    def get_external_weight_memory(self, vllm_config):
        return 0

    def create_model(self, vllm_config, model_config, prefix=""):
        return initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)

    def load_model(self, vllm_config, model_config, prefix=""):
        device = torch.device(vllm_config.device_config.device)
        with vllm.set_default_torch_dtype(model_config.dtype), device:
            model = self.create_model(vllm_config, model_config, prefix)
        self.load_weights(model, model_config)
        process_weights_after_loading(model, model_config, device)
        return model.eval()


class DefaultModelLoader(BaseModelLoader):
    """With `stop` in the folder, it stops in the midst of a load."""

    def __init__(self, load_config):
        super().__init__(load_config)
        if load_config.model_loader_extra_config:
            raise ValueError(f"Unexpected extra config keys {load_config.model_loader_extra_config}")

    def _prepare_weights(self, model_name_or_path, subfolder, revision, fall_back_to_pt, allow_patterns_overrides):
        return model_name_or_path, [f"{model_name_or_path}/model.bin"], True, ""

    def get_all_weights(self, model_config, model):
        values = numpy.fromfile(f"{model_config.model}/model.bin", "f4").reshape(-1, 32)
        print("loads", flush=True)
        while os.path.exists(f"{model_config.model}/stop"):
            time.sleep(0.01)
        yield "embed.weight", values[:-96]
        yield "layer.weight", values[-96:-64]
        yield "attention.rope.cos_sin", values[-64:]

    def load_weights(self, model, model_config):
        model.load_weights(self.get_all_weights(model_config, model))


vllm._module("model_executor.model_loader.default_loader", DefaultModelLoader=DefaultModelLoader)
vllm._module(
    "model_executor.model_loader.utils",
    initialize_model=initialize_model, process_weights_after_loading=process_weights_after_loading,
)
