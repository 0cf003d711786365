"""Every format streams: all that was sent is playable at every moment, and the whole is the sound that went in."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from peak_memory import run_python
from serving.encoded_sound import RATE, decode, encode, ogg_checksum, packets, snr_db, voice
from sonant.audio.pcm import pcm16
from sonant.errors import BadRequest, EngineError
from sonant.serving.encode import CODECS, FORMATS, open_encoder

FRAME = 1920  # samples of a codec frame, 80 ms
LOSSLESS = ["flac", "wav", "pcm"]
LOSSY = ["mp3", "opus", "aac"]
CHUNKINGS = {"frames": [FRAME] * 100, "one frame, then more": [FRAME, 5000, 1, 9000], "odd": [1, 7, 333, 0, 61] * 40}
# The least signal-to-noise ratio of this voice after coding, about 3 dB less than was measured.
LEAST_SNR_DB = {"mp3": 30, "opus": 22, "aac": 30}
# Neither mp3 nor ADTS can say how much of its start is the codec's delay; opus can.
FRAME_SAMPLES = {"mp3": 576, "aac": 1024, "opus": 480}
LEAD_SAMPLES = {"mp3": 1105, "aac": 1024 + CODECS["aac"].lead_samples[RATE], "opus": 0}


@pytest.mark.parametrize("chunking", CHUNKINGS)
@pytest.mark.parametrize("format", LOSSLESS)
def test_lossless_formats_give_back_each_sample(format: str, chunking: str) -> None:
    samples = voice()
    decoded = decode(format, b"".join(encode(format, samples, CHUNKINGS[chunking])))
    np.testing.assert_array_equal(decoded * 32768, pcm16(samples))


@pytest.mark.parametrize("chunking", CHUNKINGS)
@pytest.mark.parametrize("format", LOSSY)
def test_lossy_formats_give_back_the_sound(format: str, chunking: str) -> None:
    samples, lead = voice(), LEAD_SAMPLES[format]
    decoded = decode(format, b"".join(encode(format, samples, CHUNKINGS[chunking])))
    assert 0 <= len(decoded) - lead - len(samples) < FRAME_SAMPLES[format]
    assert snr_db(samples, decoded[lead : lead + len(samples)]) > LEAST_SNR_DB[format]


@pytest.mark.parametrize("rate", [8000, 16000, 48000])
@pytest.mark.parametrize("format", FORMATS)
def test_other_sample_rates_are_kept(format: str, rate: int) -> None:
    samples = voice(rate=rate)
    decoded = decode(format, b"".join(encode(format, samples, [rate // 100] * 300, rate)), rate)
    lead = {"mp3": 1105, "aac": 1024}.get(format, 0)
    assert 0 <= len(decoded) - lead - len(samples) < 1152
    assert snr_db(samples, decoded[lead : lead + len(samples)]) > 18


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg here")
@pytest.mark.parametrize("format", FORMATS)
def test_ffmpeg_reads_the_stream_from_a_pipe(format: str) -> None:
    data = b"".join(encode(format, voice(), CHUNKINGS["frames"]))
    raw = ["-f", "s16le", "-ar", str(RATE), "-ac", "1"]
    given = raw if format == "pcm" else []
    command = ["ffmpeg", "-v", "error", *given, "-i", "pipe:0", *raw, "pipe:1"]
    ffmpeg = subprocess.run(command, input=data, capture_output=True, timeout=60, check=True)
    assert not ffmpeg.stderr
    heard, ours = np.frombuffer(ffmpeg.stdout, "<i2"), 32768 * decode(format, data)
    assert len(heard) == len(ours)
    # ffmpeg rounds and resamples lossy formats differently.
    assert np.array_equal(heard, ours) if format in LOSSLESS else snr_db(ours, heard) > 30


@pytest.mark.parametrize("format", FORMATS)
def test_all_that_has_left_can_be_played(format: str) -> None:
    pushes = encode(format, voice(1.0), [FRAME] * 12)
    whole, before = decode(format, b"".join(pushes)), 0
    assert pushes[0]
    for end in range(1, len(pushes)):
        part = decode(format, b"".join(pushes[:end]))
        assert len(part) >= before
        # Resampling changes the cut end (opus is always at 48 kHz).
        np.testing.assert_allclose(part[:-500], whole[: len(part)][:-500], atol=1e-5)
        before = len(part)
    # Held back: the codec's delay, a packet that is not full yet, and a packet that Ogg keeps.
    waiting_s = {"mp3": 0.09, "opus": 0.03, "aac": 0.12}.get(format, 0.0)
    assert before >= (1.0 - waiting_s) * RATE + LEAD_SAMPLES.get(format, 0) - 1


@pytest.mark.parametrize("format", LOSSY)
def test_each_push_gives_whole_packets(format: str) -> None:
    pushes = [packets(format, data) for data in encode(format, voice(), [FRAME, 333, 1, 4000, 7777])]
    # The first frame has 3.3 packets of mp3, 2 headers and 4 packets of opus, or 1.9 packets of aac.
    assert len(pushes[0]) >= {"mp3": 2, "opus": 2 + 3, "aac": 1}[format]


def test_opus_pages_are_in_order_and_sound() -> None:
    samples = voice()
    pages = packets("opus", b"".join(encode("opus", samples, CHUNKINGS["frames"])))
    assert pages[0][28:36] == b"OpusHead" and pages[1][28:36] == b"OpusTags"
    assert [p[5] for p in pages] == [2, *[0] * (len(pages) - 2), 4]  # the first begins, the last ends
    assert [struct.unpack("<I", p[18:22])[0] for p in pages] == list(range(len(pages)))
    assert all(struct.unpack("<I", p[22:26])[0] == ogg_checksum(p) for p in pages)
    ends = [struct.unpack("<q", p[6:14])[0] for p in pages[2:]]
    assert set(np.diff(ends)[:-1]) == {960}  # 20 ms each
    preskip = struct.unpack("<H", pages[0][38:40])[0]
    assert ends[-1] - preskip == 2 * len(samples)


@pytest.mark.parametrize("format", [f for f in FORMATS if f != "opus"])  # each opus stream has its own serial number
def test_bytes_do_not_depend_on_the_chunks(format: str) -> None:
    samples = voice()
    assert len({b"".join(encode(format, samples, chunks)) for chunks in CHUNKINGS.values()}) == 1


@pytest.mark.parametrize("format", FORMATS)
def test_without_sound_the_stream_is_still_valid(format: str) -> None:
    decoded = decode(format, b"".join(encode(format, np.zeros(0, np.float32), [])))
    assert len(decoded) <= LEAD_SAMPLES.get(format, 0) + 2 * FRAME_SAMPLES.get(format, 0)
    assert not np.any(np.abs(decoded) > 1e-4)


@pytest.mark.parametrize(("format", "head"), [("opus", b"OggS"), ("flac", b"fLaC"), ("wav", b"RIFF")])
def test_the_head_is_there_before_the_sound(format: str, head: bytes) -> None:
    encoder = open_encoder(format, RATE)
    assert encoder.push(np.zeros(0, np.float32)).startswith(head)
    assert not encoder.push(np.zeros(0, np.float32))


@pytest.mark.parametrize("format", FORMATS)
def test_the_end_is_an_end(format: str) -> None:
    encoder = open_encoder(format, RATE)
    encoder.push(voice(0.2))
    encoder.finish()
    assert encoder.finish() == b""
    with pytest.raises(ValueError, match="finished"):
        encoder.push(voice(0.2))


@pytest.mark.parametrize("format", FORMATS)
def test_encoders_in_threads_do_not_disturb_each_other(format: str) -> None:
    voices = [voice(0.5, seed=seed) for seed in range(4)]
    alone = [decode(format, b"".join(encode(format, samples, [FRAME] * 6))) for samples in voices]
    encoders = [open_encoder(format, RATE) for _ in voices]
    heard = [b""] * len(voices)
    with ThreadPoolExecutor(4) as pool:
        for begin in range(0, 12000, 500):
            pieces = [samples[begin : begin + 500] for samples in voices]
            pushed = pool.map(lambda encoder, piece: encoder.push(piece), encoders, pieces)
            heard = [so_far + data for so_far, data in zip(heard, pushed, strict=True)]
    for encoder, so_far, expected in zip(encoders, heard, alone, strict=True):
        np.testing.assert_array_equal(decode(format, so_far + encoder.finish()), expected)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
@pytest.mark.parametrize("format", FORMATS)
def test_a_stream_costs_no_threads_and_leaves_its_caller_free(format: str) -> None:
    before, allowed = len(os.listdir("/proc/self/task")), os.sched_getaffinity(0)
    encoders = [open_encoder(format, RATE) for _ in range(5)]
    for encoder in encoders:
        encoder.push(voice(0.2))
    assert len(os.listdir("/proc/self/task")) <= before
    assert os.sched_getaffinity(0) == allowed


@pytest.fixture(scope="module")
def kept_mib() -> dict[str, tuple[list[float], list[float]]]:
    """By format: resident MiB over six minutes of one stream, and over streams that were begun and left."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("memory is read from /proc")
    measured = run_python("import runpy; runpy.run_module('serving.encoder_memory', run_name='__main__')")
    kept = json.loads(measured.stdout)
    return {form: (minutes, left) for form, (minutes, left) in kept.items()}


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_six_minutes_take_no_more_memory_than_one(format: str, kept_mib: dict[str, tuple[list[float], ...]]) -> None:
    after_mib = kept_mib[format][0]
    assert after_mib[-1] - after_mib[0] < 2


@pytest.mark.parametrize("format", FORMATS)
def test_streams_that_clients_leave_are_freed(format: str, kept_mib: dict[str, tuple[list[float], ...]]) -> None:
    after_mib = kept_mib[format][1]
    assert after_mib[-1] - max(after_mib[:3]) < 1


def test_a_whole_wav_tells_its_length() -> None:
    samples, encoder = voice(), open_encoder("wav", RATE, streaming=False)
    data = encoder.push(samples[:1000]) + encoder.push(samples[1000:]) + encoder.finish()
    assert struct.unpack("<I", data[4:8])[0] == len(data) - 8
    assert struct.unpack("<I", data[40:44])[0] == len(data) - 44 == 2 * len(samples)
    np.testing.assert_array_equal(decode("wav", data) * 32768, pcm16(samples))


@pytest.mark.parametrize("format", FORMATS)
def test_whole_files_have_the_length_of_the_sound(format: str) -> None:
    """All but ADTS, which cannot say what to leave out."""
    samples, encoder = voice(), open_encoder(format, RATE, streaming=False)
    data = encoder.push(samples) + encoder.finish()
    extra = len(decode(format, data)) - len(samples)
    assert 0 <= extra < 2048 if format == "aac" else extra == 0
    if format == "flac":
        assert int.from_bytes(data[21:26], "big") & (1 << 36) - 1 == len(samples)


def test_content_types_and_headers() -> None:
    opened = {format: open_encoder(format, RATE) for format in FORMATS}
    assert {format: encoder.content_type for format, encoder in opened.items()} == {
        "mp3": "audio/mpeg",
        "opus": "audio/ogg",
        "aac": "audio/aac",
        "flac": "audio/flac",
        "wav": "audio/wav",
        "pcm": "audio/pcm",
    }
    assert opened["pcm"].headers == {"X-Sample-Rate": "24000", "X-Channels": "1", "X-Bit-Depth": "16"}


@pytest.mark.parametrize(
    ("format", "rate", "choice"), [("opus", 44100, 48000), ("mp3", 96000, 44100), ("aac", 5, 8000)]
)
def test_a_rate_that_a_format_lacks_is_refused_with_the_choices(format: str, rate: int, choice: int) -> None:
    with pytest.raises(BadRequest, match=rf"{format} .*{rate}.*\b{choice}\b"):
        open_encoder(format, rate)


@pytest.mark.parametrize("format", ["opus", "mp3", "aac"])
def test_every_rate_on_the_list_works(format: str) -> None:
    for rate in CODECS[format].rates_hz:
        assert len(decode(format, b"".join(encode(format, voice(0.5, rate), [], rate)), rate)) >= rate // 2


@pytest.mark.parametrize("format", LOSSLESS)
@pytest.mark.parametrize("rate", [0, -1, 7999, 192_001])
def test_an_absurd_rate_is_refused(format: str, rate: int) -> None:
    with pytest.raises(BadRequest, match="from 8000 to 192000"):
        open_encoder(format, rate)


def test_an_unknown_format_is_refused_with_the_choices() -> None:
    with pytest.raises(BadRequest, match="mp3, opus, aac, flac, wav, pcm, not 'wma'"):
        open_encoder("wma", RATE)


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_no_number_ends_the_stream_with_an_error(format: str) -> None:
    with pytest.raises(EngineError, match="NaN"):
        open_encoder(format, RATE).push(np.full(10, np.nan, np.float32))


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_too_loud_is_clipped(format: str) -> None:
    decoded = decode(format, b"".join(encode(format, 10 * voice(), [FRAME] * 20)))
    assert np.abs(decoded).max() <= (1.0 if format in LOSSLESS else 1.3)  # a clipped wave overshoots after coding
