# SPDX-License-Identifier: Apache-2.0
"""The key of a set: all that changes the bytes of what vLLM makes of a model's files. Engines with equal keys share.

A key is a dict of facts, which goes into the manifest; the name of a set has a digest of it. vLLM's own hash of its
settings, which it keeps compiled graphs by, stands for all that chooses a kernel, and so a layout of the weights. It
also counts settings that change no byte: engines that differ in these load apart.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from typing import Any

from ._manifest import UnfitError

_ENDINGS = ("safetensors", "bin", "pt", "pth", "gguf", "json", "py")  # of a model's files: weights, settings, code


def facts(vllm_config: Any, model_config: Any, prefix: str, files: list[tuple], ranks: dict[str, Any], device: dict) -> dict:
    """The facts of one model of an engine: `files` by files_of(), `ranks` and `device` as the loader finds them."""
    import torch
    import vllm
    from vllm import envs

    config = model_config.hf_config
    spec = vllm_config.speculative_config
    return {
        "files": _digest(files),
        "model": model_config.compute_hash(),
        "config": _digest(config.to_dict() if hasattr(config, "to_dict") else config),
        "architectures": getattr(config, "architectures", None),
        "dtype": str(model_config.dtype),
        "quantization": model_config.quantization,
        "revision": model_config.revision,
        "settings": vllm_config.compute_hash(),
        "environment": _digest(envs.compile_factors()),
        "vllm": vllm.__version__,
        "torch": f"{torch.__version__} {torch.version.cuda}",
        "draft": spec is not None and model_config is getattr(spec, "draft_model_config", None),
        "prefix": prefix,
        "ranks": ranks,
        "device": device,
    }


def files_of(folder: str, weights: list[str]) -> list[tuple]:
    """What tells each file of a model from others, and from itself when it has been written anew. Names are not
    enough: two models of one architecture have equal headers."""
    paths = {os.path.normpath(path) for path in weights}
    for ending in _ENDINGS:
        paths.update(glob.glob(os.path.join(glob.escape(os.path.normpath(folder)), f"*.{ending}")))
    if not paths:
        raise UnfitError(f"{folder}: no files of weights")
    found = []
    for path in sorted(paths):
        stat = os.stat(path)
        found.append((os.path.relpath(path, folder), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return found


def set_name(name: str, key: dict) -> str:
    """The name under which caid.weights.open() finds the set."""
    return f"{name}.{_digest(key)}"


def _digest(thing):
    text = json.dumps(thing, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
