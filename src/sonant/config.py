"""Engine options: frozen, checked once, passed down. Unknown names are errors."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from sonant.byte_size import parse_size
from sonant.errors import ConfigError

_CPU_ROWS = 8
_GPU_CODEC_BATCH_S = 81.92
_CPU_CODEC_S_PER_ROW = 0.16  # twice what a step decodes, so that the codec keeps up; more would only take memory
_POSITIONS_OF_A_ROW = 256  # of cache required for each row: most prompts, and ten to twenty seconds of speech


def option(default: Any, help: str, *, flag: str | None = None) -> Any:
    """A field that users can set, with its help text; `flag` is its name on a command line, if not the field's."""
    return field(default=default, metadata={"help": help, "flag": flag})


Quantization = Literal["fp8"]


@dataclass(frozen=True)
class FrameSizes:
    """The config's durations in whole frames of one model."""

    chunks: tuple[int, ...]  # frames that the codec may take from a row at once, rising from 1
    codec_batch: int  # most frames that the codec takes in one step, over all rows
    ring: int  # frames that a row can hold until the codec takes them


@dataclass(frozen=True)
class Room:
    """What a GPU has for rows and their cache, and how much each of them takes."""

    batch: int  # rows for which the GPU makes a frame in well under the frame's duration
    memory_bytes: int  # free beside the weights
    row_bytes: int
    kv_token_bytes: int

    def rows(self, share: float) -> int:
        """Twice as many as fit into a batch, since rows with sound buffered can wait, or as many as memory allows. A
        power of two, so that a little more or less memory does not mean a different engine with other kernels."""
        each = self.row_bytes + _POSITIONS_OF_A_ROW * self.kv_token_bytes
        return power_of_two(min(2 * self.batch, int(self.memory_bytes * share) // each))


def power_of_two(most: int) -> int:
    """The largest power of two that is not over `most`, and at least 1."""
    return 1 << max(0, most.bit_length() - 1)


KVCacheType = Literal["fp8"]
CodecStreamChoice = Literal["shared", "own"]
_FROM_ZERO = ("steps_ahead", "max_parked", "compile_workers")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """All that can be tuned. None: chosen for the device, see `resolved`, or by the model."""

    max_rows: int | None = option(None, "requests that speak at once, a row each; by default chosen for the device")
    max_batch: int | None = option(
        None, "rows served by one frame step; the others have sound buffered and wait; by default chosen for the device"
    )
    max_waiting: int = option(1024, "requests that may queue for a row")
    max_parked: int | None = option(
        None, "requests that may be set aside while others use their rows; 0: none; by default as many as rows"
    )
    block_tokens: int = option(16, "positions in a KV block, the unit of prefix reuse")
    max_positions: int = option(4096, "positions of one request, for its prompt and its frames")
    kv_tokens: int | None = option(None, "size of the KV cache in positions; by default what free memory allows")
    kv_memory_fraction: float = option(0.85, "share of the GPU memory left after loading that the KV cache takes")
    kv_cache_dtype: KVCacheType | None = option(
        None, "keep keys and values in eight bits (e4m3): room for twice the positions; by default in the weights' type"
    )
    gpu_share: float = option(
        1.0, "share of the GPU's memory that this engine may take; a server of several models divides it among them"
    )
    gpu_weights: str | None = option(
        None,
        "GPU memory for weights, such as 3GiB; the rest stays in pinned host memory and is fetched when it is needed. "
        "auto: what the configured KV cache leaves. By default all weights stay on the GPU",
    )
    quantize: Quantization | None = option(
        None,
        "convert the weights of the language models' and the flow's layers to eight bits at load: half the bytes; on "
        "Hopper also those of a codec's widest convolutions, if its family can; by default all are as --dtype says",
    )
    prefill_tokens: int = option(
        512,
        "prompt positions in one step, few enough that running streams do not wait; up to four times as many while all "
        "streams have sound buffered",
    )
    chunk_s: tuple[float, ...] = option(
        (0.08, 0.16, 0.32, 0.64, 1.28),
        "seconds of sound that the codec may make for a row at once, rounded to whole frames; a stream's first chunk "
        "is one frame, or more on a CPU",
    )
    codec_batch_s: float | None = option(
        None,
        "seconds of sound that the codec may make in one step, over all rows; by default "
        f"{_GPU_CODEC_BATCH_S:g} on a GPU, and {_CPU_CODEC_S_PER_ROW:g} for each row of a batch on a CPU, where more "
        "sound at once takes more memory",
    )
    codec_stream: CodecStreamChoice = option(
        "own",
        "CUDA stream of the codec. own: its own, beside the next step's frames, with separate memory for its graphs; "
        "shared: that of the frames, after each step's, as always if weights are fetched from host memory",
    )
    steps_ahead: int | None = option(
        None, "steps launched before the previous one's result is read: 0 or 1; by default 1 on a GPU, 0 on a CPU"
    )
    warm_rows: int | None = option(
        None,
        "largest batch with a CUDA graph before the engine answers; graphs of larger ones follow between steps; by "
        "default all graphs come first",
    )
    compile_workers: int | None = option(
        None,
        "processes that compile a GPU's kernels before they are needed; 0: off; by default one for each core but one, "
        "up to 24",
    )
    codec: str | None = option(None, "folder or file of the codec's weights, if they are not in the model's folder")
    max_text_chars: int = option(20_000, "longest text, in characters")
    segment_chars: int = option(
        300, "characters above which a text is split, at sentence ends; a model may set a lower limit"
    )
    budget_s: float | None = option(
        None,
        "limit on runaway speech, in seconds: a text may take this long, and --budget-s-per-token for each of its "
        "tokens; by default what the model's family allows",
    )
    budget_s_per_token: float | None = option(
        None, "seconds of speech added to --budget-s for each token; by default what the model's family allows"
    )
    clip_max_s: float = option(60.0, "longest reference clip, in seconds")
    clip_min_s: float = option(0.5, "shortest reference clip, in seconds")

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            least = 0 if f.name in _FROM_ZERO else 1
            if isinstance(value, bool) or (isinstance(value, int) and value < least):
                raise ConfigError(f"{f.name} must be at least {least}, not {value!r}")
            if isinstance(value, float) and not 0 < value < float("inf"):
                raise ConfigError(f"{f.name} must be over 0 and finite, not {value!r}")
        if self.gpu_weights is not None and self.gpu_weights != "auto":
            parse_size(self.gpu_weights, "gpu_weights")
        if self.kv_cache_dtype not in (None, *get_args(KVCacheType)):
            known = " or ".join(get_args(KVCacheType))
            raise ConfigError(f"kv_cache_dtype must be {known}, or left out, not {self.kv_cache_dtype!r}")
        if self.quantize not in (None, *get_args(Quantization)):
            raise ConfigError(f"quantize must be {' or '.join(get_args(Quantization))}, not {self.quantize!r}")
        if self.codec_stream not in get_args(CodecStreamChoice):
            known = " or ".join(get_args(CodecStreamChoice))
            raise ConfigError(f"codec_stream must be {known}, not {self.codec_stream!r}")
        if self.codec is not None and not self.codec.strip():
            raise ConfigError("codec must be a folder or file; leave it out if the model's folder has the codec")
        if not self.gpu_share <= 1:
            raise ConfigError(f"gpu_share must be at most 1, not {self.gpu_share!r}")
        if not self.kv_memory_fraction <= 1:
            raise ConfigError(f"kv_memory_fraction must be at most 1, not {self.kv_memory_fraction!r}")
        if not self.chunk_s or not all(0 < seconds < float("inf") for seconds in self.chunk_s):
            raise ConfigError(f"chunk_s must be numbers of seconds over 0, not {self.chunk_s!r}")
        if self.codec_batch_s is not None and self.codec_batch_s < max(self.chunk_s):
            raise ConfigError(f"codec_batch_s must be at least the largest of chunk_s, {max(self.chunk_s):g}")
        if (self.steps_ahead or 0) > 1:
            raise ConfigError("steps_ahead must be 0 or 1: a row's next step needs its last one launched, no more")

    def resolved(self, room: Room | None) -> EngineConfig:
        """A copy in which limits that are None have values that suit the device. `room` is None without a GPU: a CPU
        speaks for a few."""
        rows = self.max_rows or (_CPU_ROWS if room is None else room.rows(self.kv_memory_fraction))
        batch = min(self.max_batch or (rows if room is None else room.batch), rows)
        codec_batch_s = _GPU_CODEC_BATCH_S if room is not None else max(*self.chunk_s, _CPU_CODEC_S_PER_ROW * batch)
        return replace(
            self,
            max_rows=rows,
            max_batch=batch,
            max_parked=rows if self.max_parked is None else self.max_parked,
            codec_batch_s=codec_batch_s if self.codec_batch_s is None else self.codec_batch_s,
            steps_ahead=int(room is not None) if self.steps_ahead is None else self.steps_ahead,
            warm_rows=batch if self.warm_rows is None else self.warm_rows,
        )

    def frame_sizes(self, frame_s: float, lookahead: int = 0) -> FrameSizes:
        """For frames of `frame_s` seconds; the codec reads `lookahead` frames past those that it makes sound of.

        A row's ring has room for the largest chunk, the frames decoded while that chunk waits, and the look-ahead.
        """
        chunks = tuple(sorted({1} | {max(1, round(seconds / frame_s)) for seconds in self.chunk_s}))
        batch = max(chunks[-1], round((self.codec_batch_s or _GPU_CODEC_BATCH_S) / frame_s))
        return FrameSizes(chunks, batch, 2 * chunks[-1] + lookahead)
