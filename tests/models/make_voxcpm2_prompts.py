"""Makes voxcpm2_prompts.json: the language models' inputs that the official package makes of requests of each kind.

    python tests/models/make_voxcpm2_prompts.py

with voxcpm 2.0.3, torch 2.13 and transformers 5.17 (tests/parity/README.md tells of a stub for torchaudio, which is not
called). No weights are needed: everything from the text to the first patch is the package's own code, but its networks
return their inputs, and a clip's latents are chosen ones.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402
from transformers import LlamaTokenizerFast  # noqa: E402
from voxcpm.cli import build_final_text  # noqa: E402
from voxcpm.core import VoxCPM  # noqa: E402
from voxcpm.model.utils import mask_multichar_chinese_tokens  # noqa: E402
from voxcpm.model.voxcpm2 import VoxCPM2Model  # noqa: E402

from voxcpm2_inputs import FEAT_DIM, PATCH_SIZE, WHOLE_WORD, latents_of, write_tokenizer  # noqa: E402

TEXTS = (
    "the inn on the hill", " the", "  the", "▁the", "the  the ", "a", " ", "▁", ".", "( w (w", "{HH AH0}",
    "你好世界", " 你好", "a 你好 b", "你好 世界", "人工智能今天天气不错", " 世界", "▁世界", "龙凤", "a 龙凤 龙",
    "你好the世界，好！", "龘龙", "〇一丁", "é ß 😀👋🏽", "नमस्ते ไทย", "\n\t\u3000", "\x00", "<0x41>", "< s > <s",
    f"a {WHOLE_WORD} b", f"a{WHOLE_WORD}b",
)  # fmt: skip
Clip = tuple[int, int]  # seed, frames
# Name → text, description, reference clip, prompt clip, prompt's words.
CASES: dict[str, tuple[str, str | None, Clip | None, Clip | None, str | None]] = {
    "text alone": ("the inn on the hill.", None, None, None, None),
    "text with odd blanks": ("\n the \t inn\r\n\u3000on \n", None, None, None, None),
    "Chinese": ("你好世界，今天天气不错！", None, None, None, None),
    "Chinese after a blank": (" 你好", None, None, None, None),
    "mixed": ("the 世界 in 你好, 人工智能! 😀", None, None, None, None),
    "one character": ("a", None, None, None, None),
    "description": ("the inn", "warm, \n young", None, None, None),
    "description before a blank": (" 你好", "世界", None, None, None),
    "blank description": ("the inn", "  \n", None, None, None),
    "reference": ("the inn", None, (1, 4), None, None),
    "reference of one patch": ("你好世界", None, (2, 1), None, None),
    "reference and description": ("你好", "slow", (1, 2), None, None),
    "continuation": ("on the hill.", None, None, (3, 5), "the inn "),
    "continuation over a Chinese word": ("好世界", None, None, (3, 3), "今天 你"),
    "continuation before a blank": (" 你好", None, None, (3, 2), "the inn."),
    "continuation of one patch": ("the", None, None, (4, 1), "a"),
    "both": ("on the hill.", None, (5, 5), (5, 5), "the inn."),
    "both, Chinese": ("界", None, (6, 2), (6, 2), "你好世"),
    "both, one patch each": ("a", None, (7, 1), (7, 1), "b"),
    "both, of unequal clips": ("a", None, (8, 3), (9, 1), "b"),
}


class Passes:
    """A language model that returns its inputs."""

    kv_cache = SimpleNamespace(fill_caches=lambda _: None, step=lambda: 0)

    def embed_tokens(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*ids.shape, 1)

    def forward_step(self, embedding: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return embedding

    def __call__(self, inputs_embeds: torch.Tensor, is_causal: bool) -> tuple[torch.Tensor, None]:
        return inputs_embeds, None


class Official(VoxCPM2Model):
    def __init__(self, folder: Path) -> None:
        torch.nn.Module.__init__(self)
        self.text_tokenizer = mask_multichar_chinese_tokens(LlamaTokenizerFast.from_pretrained(str(folder)))
        self.config = SimpleNamespace(dtype="float32", lm_config=SimpleNamespace(use_mup=False))
        self.device, self.patch_size, self.feat_dim = "cpu", PATCH_SIZE, FEAT_DIM
        self._decode_chunk_size = 1
        self.audio_start_token, self.audio_end_token = 101, 102
        self.ref_audio_start_token, self.ref_audio_end_token = 103, 104
        self.base_lm, self.residual_lm = Passes(), Passes()
        self.enc_to_lm_proj = self.fsq_layer = self.lm_to_dit_proj = self.res_to_dit_proj = lambda given: given
        self.stop_actn = self.stop_proj = lambda given: given
        self.fusion_concat_proj = lambda given: given[..., :1]
        self.feat_encoder = lambda patches: torch.zeros(*patches.shape[:2], 1)
        self.feat_decoder = lambda **_: torch.zeros(1, FEAT_DIM, PATCH_SIZE)
        self.stop_head = lambda given: torch.tensor([[1.0, 0.0]])
        self.audio_vae = SimpleNamespace(latent_dim=FEAT_DIM, decode=self.decode)
        self.seen: dict[str, Any] = {}

    def _encode_wav(self, wav_path: str, padding_mode: str = "right", trim_silence_vad: bool = False) -> torch.Tensor:
        seed, frames = map(int, Path(wav_path).stem.split("-"))
        return torch.from_numpy(latents_of(seed, frames, padding_mode))

    def _inference(
        self, text: torch.Tensor, text_mask: torch.Tensor, feat: torch.Tensor, feat_mask: torch.Tensor, **given: Any
    ) -> Iterator[Any]:
        audio = feat_mask[0].bool()
        assert (text_mask[0].bool() ^ audio).all() and not feat[0][~audio].any() and not text[0][audio].any()
        spoken, rest = divmod(given["max_len"] - 10, 6)
        assert rest == 0
        self.seen = {"ids": text[0].tolist(), "audio": audio.int().tolist(), "spoken": spoken}
        self.seen["patches"] = feat[0][audio].int().flatten(1).tolist()
        yield from super()._inference(text, text_mask, feat, feat_mask, **{**given, "max_len": 1})

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Record the primer from latents [1, FEAT_DIM, latents], the last of which belong to the one new patch."""
        patches = latents[0].T.reshape(-1, PATCH_SIZE, FEAT_DIM)[:-1]
        self.seen["primer"] = patches.int().flatten(1).tolist()
        return torch.zeros(1, 1, latents.shape[-1])


def clip_file(folder: Path, clip: Clip | None) -> str | None:
    if clip is None:
        return None
    path = folder / f"{clip[0]}-{clip[1]}.wav"
    path.touch()
    return str(path)


def lines(name: str, items: list[Any]) -> str:
    shown = ",\n".join(json.dumps(item, ensure_ascii=False, separators=(",", ":")) for item in items)
    return f'"{name}": [\n{shown}\n]'


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokenizer(folder)
        model = Official(folder)
        pipeline = VoxCPM.__new__(VoxCPM)
        pipeline.tts_model, pipeline.text_normalizer, pipeline.denoiser = model, None, None
        texts = [[text, model.text_tokenizer(text)] for text in TEXTS]
        prompts = []
        for case, (text, description, reference, prompt, words) in CASES.items():
            pipeline.generate(
                build_final_text(text, description),
                prompt_wav_path=clip_file(folder, prompt),
                prompt_text=words,
                reference_wav_path=clip_file(folder, reference),
            )
            asked = {"text": text, "instruct": description, "reference": reference, "prompt": prompt, "words": words}
            prompts.append({"name": case, **asked, "official": model.seen})
            print(case, model.text_tokenizer.tokenizer.convert_ids_to_tokens(model.seen["ids"]))
    made = f"{{\n{lines('texts', texts)},\n{lines('prompts', prompts)}\n}}\n"
    (HERE / "voxcpm2_prompts.json").write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
