"""Runs an operator whose shapes torch computes in Python, without torch's compiler, and then imports the compiler: run
by test_compile_ahead.py in a process of its own."""

from __future__ import annotations

import importlib
import inspect
import json
import sys

import torch

from sonant.engine.compile_process import do_without_torchs_compiler

if __name__ == "__main__":
    do_without_torchs_compiler()
    shape = list((torch.ones(3, 1, device="meta") / torch.ones(5, device="meta")).shape)
    inspect.getmodule(json.loads)  # looks through all modules
    report = {"shape": shape, "imported": "torch._dynamo.eval_frame" in sys.modules}
    report["module"] = importlib.import_module("torch._dynamo.config").__name__
    report["real"] = callable(importlib.import_module("torch._dynamo").optimize) and callable(torch.compile)
    print(json.dumps(report))
