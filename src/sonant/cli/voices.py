"""`sonant voices`: a model's voices and languages, read from its config files alone."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from sonant.cli.model_folder import model_folder
from sonant.cli.options import add_json, add_model
from sonant.models.description import Description
from sonant.models.registry import describe

EXAMPLES = """
sonant voices --model model
sonant voices --model model --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    folder = model_folder(args.model)
    description = describe(folder)
    if args.json:
        print(json.dumps({"model": str(folder), **asdict(description)}, indent=2, ensure_ascii=False))
    else:
        print(table(str(folder), description))
    return 0


def table(folder: str, d: Description) -> str:
    ways = [("a clip: --clone CLIP", d.clones), ("words: --instruct TEXT", d.designs)]
    voices = ", ".join(d.voices) or "any, from " + ", or from ".join(way for way, there in ways if there)
    rows = {
        "model": f"{folder} ({d.family}, {d.kind}, {d.size})",
        "voices": voices,
        "languages": ", ".join(d.languages),
        "clones": "yes" if d.clones else "no",
        "designs": "yes" if d.designs else "no",
        "speakers": f"up to {d.most_speakers} in a text: --speaker" if d.most_speakers > 1 else "one in a text",
        "sound": f"{d.sample_rate} Hz, {d.frame_rate:g} frames a second",
    }
    return "\n".join(f"{name:<10} {value}" for name, value in rows.items())
