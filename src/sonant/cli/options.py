"""Options that several commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeVar, get_args

from sonant.config import KVCacheType, Quantization
from sonant.errors import ConfigError
from sonant.models.registry import titles

N = TypeVar("N", int, float)

DTYPES = ("auto", "float32", "bfloat16", "float16")


def add_model(parser: argparse.ArgumentParser, *, has_default: bool = True) -> None:
    """`has_default`: without a model the command takes the built-in voice."""
    parser.add_argument(
        "--model", metavar="DIR",
        help=f"folder of a published checkpoint of {titles()}, or the name of one that `sonant download` has fetched "
        f"(default: the environment variable SONANT_MODEL{', else the built-in voice' if has_default else ''})",
    )  # fmt: skip


def add_codec(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--codec", metavar="PATH",
        help="folder or file of the codec's weights, for a model whose folder lacks them (default: the environment "
        "variable SONANT_CODEC, else the model's folder)",
    )  # fmt: skip


def add_gpu_weights(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--gpu-weights", metavar="SIZE",
        help="GPU memory for weights, such as 3GiB, or auto; the rest is fetched from host memory when it is needed "
        "(default: all weights stay on the GPU)",
    )  # fmt: skip


def add_kv_cache_dtype(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--kv-cache-dtype", choices=get_args(KVCacheType),
        help="type of cached keys and values: eight bits (e4m3) for twice the positions (default: the weights' type)",
    )  # fmt: skip


def add_quantize(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--quantize", choices=get_args(Quantization),
        help="convert the weights of the models' layers to eight bits while reading them (default: as the dtype says)",
    )  # fmt: skip


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs (default: off)")


def positive_numbers(text: str, option: str, kind: type[N]) -> list[N]:
    """Numbers separated by commas, such as the loads of a measurement."""
    try:
        numbers = [kind(n) for n in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{option} takes {'whole ' if kind is int else ''}numbers separated by commas, not {text!r}"
        ) from None
    if not all(n > 0 for n in numbers):
        raise ConfigError(f"{option} takes numbers {'of at least 1' if kind is int else 'above 0'}, not {text!r}")
    return numbers


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argparse type: a whole number of at least `least`, and at most `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {value}")
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"must be at most {most}, not {value}")
        return value

    return parse


def number(least: float, *, above: bool = False) -> Callable[[str], float]:
    """An argparse type: a finite number of at least `least`, or above it."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not (math.isfinite(value) and (value > least or (value == least and not above))):
            raise argparse.ArgumentTypeError(f"must be {'over' if above else 'at least'} {least:g}, not {text}")
        return value

    return parse
