"""Makes golden/voxcpm2*.npz: what the official package computes from our random checkpoints. See README.md."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import warnings
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers loads

import numpy as np
import soundfile
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE.parent)]

from parity.official import stubs  # noqa: E402

stubs.install()

from voxcpm.model import voxcpm2 as official_module  # noqa: E402

from parity.voxcpm2_cases import CASES, CLIPS, MID_CASES, RATE, Clip, VoxCase  # noqa: E402
from sonant.models.voxcpm2.synthetic import write_checkpoint  # noqa: E402

KEPT_STEPS = 3  # steps whose inputs to the flow are kept
FLOW_CASE = "plain"  # every evaluation of its first patch is kept
VAE_LATENTS = 12
# Random bits do not compress, so digits far below any tolerance are rounded off.
WAV_STEP = 2.0**-18

Dump = dict[str, np.ndarray]


class Official:
    """The package's own model, loaded from one of our folders, and a record of what passes between its parts."""

    def __init__(self, folder: Path) -> None:
        self.model = official_module.VoxCPM2Model.from_local(str(folder), optimize=False, device="cpu")
        self.clips = folder / "clips"
        self.clips.mkdir()
        self.seen: dict[str, list[torch.Tensor]] = defaultdict(list)
        model = self.model
        model.feat_decoder.register_forward_hook(self._keep("latents"))
        model.feat_decoder.estimator.register_forward_hook(self._keep("flow"))
        model.stop_head.register_forward_hook(self._keep("stop_logits"))
        model.fsq_layer.in_proj.register_forward_hook(self._keep("quantized"))
        for name, part in (("lm_hidden", model.lm_to_dit_proj), ("residual_hidden", model.res_to_dit_proj)):
            part.register_forward_pre_hook(lambda _, inputs, name=name: self.seen[name].append(inputs[0]))
            part.register_forward_hook(self._keep(f"mu_{name}"))

    def _keep(self, name: str) -> Any:
        def hook(_: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            self.seen[name].append(output)
            if name == "flow":
                self.seen["flow_x"].append(inputs[0])
                self.seen["flow_t"].append(inputs[2])

        return hook

    def file(self, clip: Clip | None) -> str:
        """Write the clip to a file, as a user would give it, in float so that nothing is lost → its path."""
        if clip is None:
            return ""
        path = self.clips / f"{clip.name}.wav"
        soundfile.write(path, clip.samples(), RATE, subtype="FLOAT")
        return str(path)

    def speak(self, case: VoxCase) -> tuple[Dump, float, float]:
        """What tests compare, how near any value came to being rounded the other way, and a stop logit to the other."""
        self.seen.clear()
        model = self.model
        noise = case.noise(case.max_frames, model.patch_size, model.feat_dim)
        draws = iter(torch.from_numpy(noise).transpose(1, 2)[:, None])
        prompt: list[torch.Tensor] = []
        inference = model._inference

        def watched(*inputs: torch.Tensor, **options: Any) -> Any:
            prompt.extend(tensor[0] for tensor in inputs)
            return inference(*inputs, **options)

        with mock.patch("torch.randn", lambda *_, **__: next(draws)), mock.patch.object(model, "_inference", watched):
            wav = model.generate(
                target_text=case.spoken,
                prompt_text=case.prompt.words if case.prompt else "",
                prompt_wav_path=self.file(case.prompt),
                reference_wav_path=self.file(case.reference),
                max_len=case.max_frames,
                inference_timesteps=case.flow_steps,
                cfg_value=case.cfg,
            )[0]
        text, _, patches, audio = prompt
        logits = torch.cat(self.seen["stop_logits"])
        dump = {
            "text": text.numpy().astype(np.int32),
            "audio": audio.numpy().astype(bool),
            "patches": patches[audio.bool()].numpy(),
            "noise": noise[0],
            "latents": torch.cat(self.seen["latents"]).transpose(1, 2).numpy(),
            "stop_logits": logits.numpy(),
            "stop": logits.argmax(-1).numpy().astype(bool),
            **self._flow_inputs(),
        }
        if case.name == FLOW_CASE:
            dump |= self._first_flow(case)
        if case.heard:
            dump["wav"] = rounded(wav.numpy(), WAV_STEP)
        return dump, self._nearest_edge(audio), float((logits[:, 0] - logits[:, 1]).abs().min())

    def _flow_inputs(self) -> Dump:
        kept = {name: torch.cat(self.seen[name][:KEPT_STEPS]) for name in ("lm_hidden", "residual_hidden")}
        mu = [torch.cat(self.seen[f"mu_{name}"][:KEPT_STEPS]) for name in kept]
        return {"mu": torch.cat(mu, -1).numpy(), **{name: value.numpy() for name, value in kept.items()}}

    def _first_flow(self, case: VoxCase) -> Dump:
        evaluations = case.flow_steps - 1
        x, t, v = (torch.stack(self.seen[name][:evaluations]) for name in ("flow_x", "flow_t", "flow"))
        return {
            "flow_x": x[:, 0].transpose(1, 2).numpy(),
            "flow_t": t[:, 0].numpy(),
            "flow_v": v.transpose(2, 3).numpy(),
        }

    def _nearest_edge(self, audio: torch.Tensor) -> float:
        """The least distance of a quantised value from half-way between two integers, where it would be rounded the
        other way. Only sound is quantised."""
        prompt, *steps = self.seen["quantized"]
        values = torch.cat([prompt[0][audio.bool()], *steps]).tanh() * self.model.fsq_layer.scale
        return float(((values - values.floor()) - 0.5).abs().min())

    def encode(self, clip: Clip) -> Dump:
        """A clip's latents as a reference, padded at its end, and as a prompt, padded at its start."""
        return {
            f"{clip.name}/{mode}": self.model._encode_wav(self.file(clip), padding_mode=mode).numpy()
            for mode in ("right", "left")
        }

    def decode(self) -> Dump:
        shape = (1, VAE_LATENTS, self.model.feat_dim)
        latents = np.random.default_rng(5).standard_normal(shape, np.float32)
        wav = self.model.audio_vae.decode(torch.from_numpy(latents).transpose(1, 2))[0, 0].numpy()
        print(f"sound: deviation {wav.std():.3f}, peak {np.abs(wav).max():.3f}")
        return {"random/latents": latents[0], "random/wav": rounded(wav, WAV_STEP)}


def rounded(values: np.ndarray, step: float) -> np.ndarray:
    return (np.round(values / step) * step).astype(np.float32)


def record(official: Official, cases: tuple[VoxCase, ...]) -> Dump:
    dump: Dump = {}
    for case in cases:
        told, edge, lead = official.speak(case)
        dump |= {f"{case.name}/{name}": value for name, value in told.items()}
        stops = "".join("x" if stop else "." for stop in told["stop"])
        spread = told["latents"].std()
        print(f"{case.name:16s} {len(told['text'])} positions, {stops}, latents {spread:.2f}, "
              f"rounding {edge:.1e} and stopping {lead:.1e} from another result")  # fmt: skip
    return dump


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "golden")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # about weight norm's old form
    logging.disable()  # transformers warns about the tokenizer's class
    args.out.mkdir(parents=True, exist_ok=True)
    dumps: dict[str, Dump] = {}
    with tempfile.TemporaryDirectory() as root, mock.patch.object(official_module, "tqdm", iter):
        tiny, mid = Path(root, "tiny"), Path(root, "mid")
        write_checkpoint(tiny)
        official = Official(tiny)
        dumps["voxcpm2"] = record(official, CASES)
        dumps["voxcpm2_vae"] = official.decode()
        for clip in CLIPS:
            dumps["voxcpm2_vae"] |= official.encode(clip)
        write_checkpoint(mid, size="mid")
        dumps["voxcpm2_mid"] = record(Official(mid), MID_CASES)
    meta = np.array(json.dumps({name: version(name) for name in ("torch", "transformers", "voxcpm", "numpy")}))
    for name, dump in dumps.items():
        np.savez_compressed(args.out / f"{name}.npz", meta=meta, **dump)


if __name__ == "__main__":
    main()
