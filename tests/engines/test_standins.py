# SPDX-License-Identifier: Apache-2.0
"""The stand-ins that CI has for vLLM (tests/python/standins) are as vLLM is: each function that they have, and each
method that caid.vllm calls, overrides or is called by, has the parameters of vLLM's own."""

import importlib
import inspect
import json
import pathlib
import subprocess
import sys

STANDINS = pathlib.Path(__file__).parents[1] / "python" / "standins"

SHOW = """
import inspect, json, sys
import vllm.model_executor.model_loader
shown = {}
for name, module in [*sys.modules.items()]:
    if name.startswith("vllm."):
        for key, thing in vars(module).items():
            if inspect.isclass(thing):
                shown.update({f"{name}:{key}.{k}": [*inspect.signature(f).parameters] for k, f in vars(thing).items() if inspect.isfunction(f)})
            elif inspect.isfunction(thing):
                shown[f"{name}:{key}"] = [*inspect.signature(thing).parameters]
print(json.dumps(shown))
"""
OWN = ("_module", "Layer.", "Rope.", "Attention.", "Model.", "LoadConfig.", "OddMethod.")  # of the stand-ins alone


def test_the_standins_have_the_parameters_of_vllms_own():
    done = subprocess.run([sys.executable, "-c", SHOW], env={"PYTHONPATH": str(STANDINS)}, capture_output=True, text=True)
    shown = json.loads(done.stdout)
    assert len(shown) > 15
    found, absent = set(), set()
    for where, parameters in shown.items():
        module, _, name = where.partition(":")
        if name.startswith(OWN):
            continue
        first, *rest = name.split(".")
        thing = getattr(importlib.import_module(module), first, None)
        if thing is None:  # the stand-ins have some in two modules
            absent.add(name)
            continue
        for part in rest:
            thing = getattr(thing, part)
        assert [*inspect.signature(thing).parameters] == parameters, where
        found.add(name)
    assert absent <= found and len(found) > 20
