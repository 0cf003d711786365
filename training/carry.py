"""Packs the teachers and their sentences for a GPU machine without network, and unpacks them there.

    python -m training.carry pack --sentences … --kokoro … --voices … --out carry     (at home; needs both packages)
    python -m training.carry unpack carry/voice1 /tmp/teachers                        (there, once for each part)

A transfer holds 64 MiB, including this repository and its checkpoint, so the parts are made to fit: the big
matrices of Kokoro's decoder as bytes with a scale for each row, the rest in half precision, all of it deflated.
Against the full weights that is a mean difference of 0.3 dB in the mel spectrum, and the same MOS. Phonemes are made
here: no text front end has to travel.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.util
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from sonant.text.normalize import normalize_english
from training import settings
from training.corpus import CorpusSettings
from training.teachers.hibari import DURATIONS

PARTS = 4
_BYTES = ("decoder.decode", "decoder.encode", "decoder.generator.")  # two thirds of all weights, and robust
_HIBARI_FILES = (
    "__init__.py",
    "tts.py",
    "dsp.py",
    "voices.py",
    "assets/voices.json",
    "assets/normalize.json",
)
_KOKORO_FILES = ("istftnet.py", "modules.py")


def voice_for(text: str, weights: Mapping[str, int]) -> str:
    """The Kokoro voice that reads this sentence: drawn by hash, so that it stays when others come or go."""
    names = [name for name, count in weights.items() for _ in range(count)]
    return names[int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) % len(names)]


def compact(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    if name.startswith(_BYTES) and value.ndim > 1 and value.shape[0] > 1:
        scale = value.abs().flatten(1).amax(1).clamp(min=1e-8).view(-1, *[1] * (value.ndim - 1)) / 127
        yield name, (value / scale).round().to(torch.int8)
        yield f"{name}@scale", scale.float()
    else:
        yield name, value.half()


def folded(state: Mapping[str, Tensor | Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Plain weights, whether the file is flat or as published: nested by part, with weight norm."""
    flat: dict[str, Tensor] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            flat[name] = value
        else:
            flat |= {f"{name}.{inner.removeprefix('module.')}": v for inner, v in value.items()}
    for name in [n for n in flat if n.endswith(".weight_v")]:
        v, g = flat.pop(name), flat.pop(name.removesuffix("_v") + "_g")
        flat[name.removesuffix("_v")] = torch._weight_norm(v, g, 0)
    return {n: v for n, v in flat.items() if v.is_floating_point()}


def split_evenly(tensors: Mapping[str, Tensor], parts: int) -> list[dict[str, Tensor]]:
    """Put each tensor, the largest first, into the emptiest part."""
    result: list[dict[str, Tensor]] = [{} for _ in range(parts)]
    sizes = [0] * parts
    for name, value in sorted(tensors.items(), key=lambda item: -item[1].nbytes):
        at = sizes.index(min(sizes))
        result[at][name] = value.contiguous()
        sizes[at] += value.nbytes
    return result


def phonemized(sentences: list[dict[str, str]], weights: Mapping[str, int]) -> Iterator[dict[str, str]]:
    from hibari import Hibari
    from hibari.g2p import G2P

    accents = {"a": Hibari(), "b": Hibari(g2p=G2P(british=True))}
    for sentence in sentences:
        voice = voice_for(sentence["text"], weights)
        # Read what the engine's front end makes of the text, so that "1,200" is read as the talker will be told.
        phonemes = " ".join(accents[voice[0]].phonemize(normalize_english(sentence["text"])))
        if phonemes:
            yield sentence | {"voice": voice, "phonemes": phonemes}


def with_durations(model: Path, out: Path) -> None:
    """hibari's model with the phoneme durations as one more output."""
    import onnx

    graph = onnx.load(str(model))
    graph.graph.output.append(onnx.helper.make_tensor_value_info(DURATIONS, onnx.TensorProto.FLOAT, None))
    onnx.save(graph, str(out))


def pack(options: argparse.Namespace) -> None:
    weights = settings.read(options.config, CorpusSettings).voices
    folders = [options.out / f"voice{i + 1}" for i in range(PARTS)]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "python").mkdir(parents=True)
    first = folders[0]

    hibari, kokoro = (_package(name) for name in ("hibari", "kokoro"))
    for package, files in ((hibari, _HIBARI_FILES), (kokoro, _KOKORO_FILES)):
        for file in files:
            target = first / "python" / package.name / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(package / file, target)
    shutil.copy(hibari / "assets/vocab.json", first / "vocabulary.json")
    shutil.copy(options.kokoro_config, first / "kokoro-config.json")
    with_durations(hibari / "assets/hibari.onnx", first / "hibari.onnx")
    save_file({v: _voice(options.voices, v).half() for v in weights}, first / "kokoro-voices.safetensors")

    with gzip.open(options.sentences, "rt", encoding="utf-8") as f:
        lines = phonemized([json.loads(line) for line in f], weights)
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (first / "sentences.jsonl").write_text(text, encoding="utf-8")

    state = folded(torch.load(options.kokoro, map_location="cpu", weights_only=True))
    tensors = dict(pair for name, value in state.items() for pair in compact(name, value))
    for i, (folder, part) in enumerate(zip(folders, _levelled(tensors, first), strict=True)):
        save_file(part, folder / f"kokoro-weights-{i}.safetensors")
    for folder in folders:
        for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size > 1 << 16):
            _deflate(file)
        size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        print(f"{folder}: {size / 2**20:.1f} MiB")


def _levelled(tensors: Mapping[str, Tensor], first: Path) -> list[dict[str, Tensor]]:
    """Like `split_evenly`, but the first part also holds everything else, so it gets fewer weights."""
    ballast = sum(p.stat().st_size for p in first.rglob("*") if p.is_file() and p.suffix != ".jsonl") + (7 << 20)
    parts = split_evenly({**tensors, "@ballast": torch.empty(ballast, dtype=torch.uint8)}, PARTS)
    parts.sort(key=lambda part: "@ballast" not in part)
    parts[0].pop("@ballast", None)
    return parts


def _package(name: str) -> Path:
    """Where a package is installed, without importing it: kokoro's import needs far more than its model code."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{name} is not installed: see training/README.md")
    return Path(spec.origin).parent


def _voice(folder: Path, name: str) -> Tensor:
    """A voice [lengths, 1, 256], from either of the two forms in which voices are published."""
    tensor_file = folder / f"{name}.pt"
    if tensor_file.exists():
        return torch.load(tensor_file, weights_only=True)
    return torch.from_numpy(np.fromfile(folder / f"{name}.bin", np.float32).reshape(-1, 1, 256))


def _deflate(file: Path) -> None:
    with file.open("rb") as source, gzip.GzipFile(f"{file}.gz", "wb", 6, mtime=0) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    file.unlink()


def unpack(part: Path, target: Path) -> None:
    for file in sorted(p for p in part.rglob("*") if p.is_file()):
        out = target / file.relative_to(part)
        out.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".gz":
            with gzip.open(file) as source, out.with_suffix("").open("wb") as unpacked:
                shutil.copyfileobj(source, unpacked, 1 << 20)
        else:
            shutil.copy(file, out)
    print(f"{part} → {target}: {sorted(p.name for p in target.iterdir())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("--config", type=Path, default=settings.CONFIGS / "corpus.toml")
    packing.add_argument("--sentences", type=Path, default=Path("carry/sentences.jsonl.gz"))
    packing.add_argument("--kokoro", type=Path, required=True, help="its weights, as published or flat (.pt, .pth)")
    packing.add_argument("--kokoro-config", type=Path, required=True, help="its config.json")
    packing.add_argument("--voices", type=Path, required=True, help="folder of its voices (.bin or .pt)")
    packing.add_argument("--out", type=Path, default=Path("carry"))
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("part", type=Path)
    unpacking.add_argument("target", type=Path)
    options = parser.parse_args()
    if options.command == "pack":
        pack(options)
    else:
        unpack(options.part, options.target)


if __name__ == "__main__":
    main()
