"""`sonant say`: one text, spoken into a file or a pipe."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from sonant.cli import speakers
from sonant.cli.model_folder import given_codec, model_folder
from sonant.cli.options import DTYPES, add_codec, add_gpu_weights, add_model, add_quantize, whole_number
from sonant.cli.progress import Progress
from sonant.cli.sound_file import FORMATS, STDOUT, OutputError, SoundOutput, open_output
from sonant.cli.text_source import read_text
from sonant.cli.torch_import import import_torch
from sonant.config import EngineConfig
from sonant.cores import MOST_THREADS
from sonant.errors import ConfigError
from sonant.models.registry import all_knobs
from sonant.sampling import Sampling
from sonant.text.sentences import check_text
from sonant.types import Speech, SpeechRequest
from sonant.voice import Voice

if TYPE_CHECKING:
    from sonant.engine.engine import Engine

# One text needs few rows, and on a GPU the cache then takes only what they can use, not all memory. A long
# text is spoken four parts at a time.
ROWS = 4

EXAMPLES = """
sonant say "Hello." --model model -o hello.wav
sonant say "Hello." --model model --voice ryan --language english --seed 7
echo "Text from a pipe." | sonant say - --model model -o piped.flac
sonant say "Hello." --model base --clone ref.wav --ref-text "What ref.wav says." --save-voice me.voice
sonant say "Hello again." --model base --voice-file me.voice
sonant say "[SPEAKER0] Hello. [SPEAKER1] Hi." --model dialogues --speaker "text=a low voice" --speaker voice=me.voice
sonant say "Hello." --model model -o - --format pcm | aplay -f S16_LE -r 24000
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text", metavar="TEXT", nargs="?",
        help="text to speak; - reads it from stdin, as UTF-8 (default: - if something is piped in)",
    )  # fmt: skip
    add_model(parser)
    add_codec(parser)
    add_gpu_weights(parser)
    add_quantize(parser)
    _add_output(parser)
    _add_voice(parser)
    _add_sampling(parser)
    _add_machine(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o", "--out", metavar="FILE", default="out.wav",
        help="file for the sound, 16-bit mono; - streams it to stdout (default: out.wav)",
    )  # fmt: skip
    group.add_argument(
        "--format", choices=FORMATS,
        help="wav, flac, or pcm: raw little-endian samples (default: by the suffix of FILE; wav on stdout)",
    )  # fmt: skip
    group.add_argument("--quiet", action="store_true", help="print only warnings and errors (default: also a summary)")


def _add_voice(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("voice")
    one = group.add_mutually_exclusive_group()
    one.add_argument(
        "--voice", metavar="NAME", help="one of the model's own voices (default: the first, if it has any)"
    )
    one.add_argument("--clone", metavar="CLIP", help="audio file to clone the voice from, if the model can")
    one.add_argument("--voice-file", metavar="FILE", help="voice saved by --save-voice")
    one.add_argument("--speaker", metavar="WHO", action="append", help=speakers.HELP)
    group.add_argument(
        "--ref-text", metavar="TEXT", help="the words of CLIP, for a closer clone (default: only its timbre)"
    )
    group.add_argument("--save-voice", metavar="FILE", help="save the cloned voice (default: not saved)")
    group.add_argument("--instruct", metavar="TEXT", help="how to speak, in words (default: no instructions)")
    group.add_argument(
        "--language", metavar="NAME", default="auto", help="language of the text, see `sonant voices` (default: auto)"
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "sampling", "defaults are the model's own, from its generation_config.json if it has one, except for the seed"
    )
    group.add_argument(
        "--seed", metavar="N", type=int, help="from 0 to 2^64-1; the same seed gives the same sound (default: random)"
    )
    for name, knobs in all_knobs().items():
        flag, kind = f"--{name.replace('_', '-')}", knobs[0].kind
        # One name may mean different things to different models.
        told = " / ".join(dict.fromkeys(k.help if kind is bool else f"{k.help}; {k.accepts}" for k in knobs))
        if name == "greedy":
            group.add_argument(flag, action="store_const", const=True, help=f"{told} (default: off)")
        elif kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, help=told)
        else:
            group.add_argument(flag, metavar="N" if kind is int else "X", type=kind, help=told)
    group.add_argument(
        "--max-frames", metavar="N", type=int,
        help="stop after N frames, over all of a long text; `sonant voices` shows how many make a second "
        "(default: limited by the text's length)",
    )  # fmt: skip
    group.add_argument(
        "--streaming-text", action=argparse.BooleanOptionalAction,
        help="feed the text to the model while it speaks (default: as the model does)",
    )  # fmt: skip


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine")
    group.add_argument(
        "--device", default="auto", help="where to run: cpu, cuda, cuda:1 … (default: auto, a GPU if any)"
    )
    auto = "(default: auto, bfloat16 on a GPU and float32 on the CPU)"
    group.add_argument("--dtype", choices=DTYPES, default="auto", help=f"data type of the model {auto}")
    group.add_argument("--codec-dtype", choices=DTYPES, default="auto", help=f"data type of the codec {auto}")
    group.add_argument(
        "--threads",
        metavar="N",
        type=whole_number(1, MOST_THREADS),
        help="number of CPU threads (default: as torch chooses)",
    )


def run(args: argparse.Namespace) -> int:
    if args.clone is None and (args.ref_text is not None or args.save_voice is not None):
        raise ConfigError("--ref-text and --save-voice need --clone CLIP")
    asked = speakers.parse(args.speaker or ())
    given = {"codec": given_codec(args.codec), "gpu_weights": args.gpu_weights, "quantize": args.quantize}
    config = EngineConfig(max_rows=ROWS, **given)
    text = read_text(args.text)
    check_text(text, config.max_text_chars)  # the engine checks it again, but only after a long load
    folder = model_folder(args.model)
    progress = Progress(quiet=args.quiet)
    with open_output(args.out, args.format) as output:
        try:
            progress.note("loading …")
            with progress.following(logging.getLogger("sonant.engine.compile_ahead")):
                engine = _load(folder, config, args)
            with engine:
                speech = _speak(engine, _request(engine, text, asked, args, progress), output, progress)
        finally:
            progress.clear()
    progress.summary(output.name, speech)
    return 0


def _load(folder: Path, config: EngineConfig, args: argparse.Namespace) -> Engine:
    """Import torch, which takes a second or two, only after all that can be refused without it, and load the model."""
    import_torch()
    import torch

    from sonant import load

    if args.threads:
        torch.set_num_threads(args.threads)
    return load(folder, device=args.device, dtype=args.dtype, codec_dtype=args.codec_dtype, config=config)


def _request(
    engine: Engine, text: str, asked: Sequence[speakers.Asked], args: argparse.Namespace, progress: Progress
) -> SpeechRequest:
    if asked:
        engine.check_speakers(len(asked))
    if any(who.clip for who in asked):
        progress.note("encoding the voices …")
    return SpeechRequest(
        text=text,
        voice=_voice(engine, args, progress),
        speakers=tuple(who.found(engine) for who in asked),
        language=args.language,
        instruct=args.instruct,
        sampling=_sampling(args),
        seed=args.seed,
        max_frames=args.max_frames,
        streaming_text=args.streaming_text,
        live=args.out == STDOUT,  # somebody may be listening at the other end of a pipe
    )


def _speak(engine: Engine, request: SpeechRequest, output: SoundOutput, progress: Progress) -> Speech:
    """Write the sound as it comes. The result has the timings, but no samples any more."""
    progress.start()
    with engine.submit(request) as stream:
        output.begin(stream.sample_rate)
        for chunk in stream:
            output.write(chunk.samples)
            progress.add(len(chunk.samples) / chunk.sample_rate)
        return stream.result()


def _voice(engine: Engine, args: argparse.Namespace, progress: Progress) -> str | Voice | None:
    if args.voice_file is not None:
        return Voice.load(args.voice_file)
    if args.clone is None:
        return None if args.voice is None else str(args.voice)
    progress.note("encoding the voice …")
    voice = engine.clone(args.clone, args.ref_text)
    if args.save_voice is not None:
        try:
            voice.save(args.save_voice)
        except (OSError, SafetensorError) as e:
            raise OutputError(f"cannot write the voice to {args.save_voice}: {e}") from e
    return voice


def _sampling(args: argparse.Namespace) -> Sampling:
    return Sampling(**{name: getattr(args, name) for name in all_knobs()})
