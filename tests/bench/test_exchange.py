"""One request: times to the millisecond, and every way an answer can be wrong has its name."""

from __future__ import annotations

import asyncio
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from bench.scripted import PCM_100_MS, Call, Script, scripted
from sonant.audio.pcm import growing_wav_header, wav_header
from sonant.bench.client.exchange import speak
from sonant.bench.client.prompts import Prompt
from sonant.bench.client.sample import Failure, Sample
from sonant.bench.client.target import Target
from sonant.serving.encode import open_encoder

MS = 0.001
PROMPT = Prompt("p", "Hello.")


def ask(script: Script, timeout_s: float = 5.0, **target: Any) -> tuple[Sample, Call]:
    async def run() -> tuple[Sample, Call]:
        async with scripted(script) as server:
            aim = Target(server.url, **target)
            ended = await speak(
                aim, aim.request(PROMPT), PROMPT, host="127.0.0.1", timeout_s=timeout_s, keep_sound=True
            )
            return ended.sample(), server.calls[0]

    return asyncio.run(run())


def test_times_and_gaps_are_right_to_the_millisecond() -> None:
    sample, call = ask(lambda c: c.paced([0.05, 0.05, 0.25, 0.02, 0.2]))
    sent = call.sent_s
    assert sample.ok and sample.status == 200
    assert sample.ttfp_s >= 0.05
    assert sample.started_s + sample.ttfp_s == pytest.approx(sent[0], abs=MS)
    assert sample.started_s + sample.end_s == pytest.approx(sent[-1], abs=MS)
    assert sample.audio_s == pytest.approx(0.5)
    assert sample.rtf == pytest.approx(sample.end_s / 0.5)
    assert sample.chunk_gaps_s == pytest.approx([b - a for a, b in pairwise(sent)], abs=MS)
    # Chunks hold 100 ms, so sound runs out before the third, which comes 300 ms after the first, and before the fifth.
    first_gap = (sent[2] - sent[0]) - 0.2
    second_gap = (sent[4] - sent[2]) - 0.2
    assert first_gap > 0.09 and second_gap > 0.01
    assert sample.heard is not None
    assert sample.heard.gaps == 2
    assert sample.heard.gap_s == pytest.approx(first_gap + second_gap, abs=MS)
    assert sample.heard.prebuffer_s == pytest.approx(first_gap + second_gap, abs=MS)


def test_a_server_ahead_of_its_listener_leaves_no_gap() -> None:
    sample, _ = ask(lambda c: c.paced([0.03, 0.05, 0.05, 0.05]))
    assert sample.heard is not None and sample.heard.gaps == 0 and sample.heard.gap_s == 0


def test_connecting_counts_unless_it_is_done_first() -> None:
    async def run(connect_first: bool) -> Sample:
        async with scripted(lambda c: c.paced([0.0])) as server:
            aim = Target(server.url, connect_first=connect_first)
            return (await speak(aim, aim.request(PROMPT), PROMPT, host="127.0.0.1", timeout_s=5)).sample()

    began = time.perf_counter()
    counted, apart = asyncio.run(run(False)), asyncio.run(run(True))
    assert counted.connect_s > 0 and apart.connect_s > 0
    assert counted.ttfp_s > counted.connect_s
    assert apart.started_s - apart.connect_s > began  # its clock began once the connection was made


def test_a_wav_header_is_no_sound() -> None:
    async def script(call: Call) -> None:
        call.stream_head("audio/wav")
        call.chunk(growing_wav_header(16000)[:20])
        await asyncio.sleep(0.05)
        call.chunk(growing_wav_header(16000)[20:])
        await asyncio.sleep(0.05)
        call.chunk(bytes(32000))
        call.end()

    sample, call = ask(script, response_format="wav")
    assert sample.started_s + (sample.first_byte_s or 0) == pytest.approx(call.sent_s[0], abs=MS)
    assert sample.started_s + sample.ttfp_s == pytest.approx(call.sent_s[2], abs=MS)
    assert (sample.audio_s, sample.sample_rate) == (1.0, 16000)


def test_samples_cut_in_two_and_the_servers_own_rate() -> None:
    async def script(call: Call) -> None:
        call.stream_head(x_sample_rate="8000", x_channels="2")
        for piece in (bytes(3), bytes(1), bytes(31996)):
            call.chunk(piece)
            await asyncio.sleep(0.02)
        call.end()

    sample, call = ask(script)
    assert sample.audio_s == 1.0 and sample.sample_rate == 8000
    assert sample.started_s + sample.ttfp_s == pytest.approx(call.sent_s[1], abs=MS)  # the first whole sample is in


def test_events_carry_sound_and_may_be_cut_anywhere() -> None:
    async def script(call: Call) -> None:
        call.stream_head("text/event-stream; charset=utf-8")
        call.delta(PCM_100_MS)
        await asyncio.sleep(0.03)
        call.chunk(b'event: speech.audio.delta\ndata: {"type": "speech.audio.delta", "aud')
        await asyncio.sleep(0.03)
        call.chunk(b'io": "AAAAAA=="}\n\n')
        call.event(type="speech.audio.done", usage={})
        call.end()

    sample, call = ask(script, sse=True)
    assert sample.ok and sample.audio_s == pytest.approx(0.1 + 2 / 24000)
    assert [sample.started_s + t for t in sample.arrivals_s] == pytest.approx([call.sent_s[0], call.sent_s[2]], abs=MS)


def test_a_body_that_ends_with_the_connection_is_whole() -> None:
    async def script(call: Call) -> None:
        call.head()
        call.writer.write(PCM_100_MS)

    assert ask(script)[0].audio_s == pytest.approx(0.1)


def test_what_was_not_streamed_has_no_continuity() -> None:
    async def script(call: Call) -> None:
        call.whole(200, wav_header(24000, 2400) + PCM_100_MS, "audio/wav")

    sample, call = ask(script, response_format="wav", stream=False)
    assert sample.ok and sample.heard is None
    assert call.body["stream"] is False and "stream_format" not in call.body


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac"])
def test_compressed_sound_is_measured_by_its_packets(form: str) -> None:
    tone = (0.5 * np.sin(np.arange(24000) * 0.05)).astype(np.float32)
    with ThreadPoolExecutor(1):
        encoder = open_encoder(form, 24000, streaming=True)
        pieces = [encoder.push(part) for part in np.split(tone, 4)] + [encoder.finish()]

    async def script(call: Call) -> None:
        call.stream_head({"mp3": "audio/mpeg", "opus": "audio/ogg"}.get(form, f"audio/{form}"))
        for piece, pause_s in zip([p for p in pieces if p], (0.0, 0.0, 0.9, 0.0, 0.0), strict=False):
            await asyncio.sleep(pause_s)
            call.chunk(piece)
        call.end()

    sample, _ = ask(script, response_format=form)
    assert sample.ok, sample.detail
    assert sample.audio_s == pytest.approx(1.0, abs=0.15)  # encoders add silence at both ends
    assert sample.heard is not None
    assert 0.2 < sample.heard.gap_s < 0.8  # 0.9 s of pause, less 0.5 s buffered, of which the codec kept some back


async def cut_chunked(call: Call) -> None:
    call.stream_head()
    call.chunk(PCM_100_MS)


async def cut_length(call: Call) -> None:
    call.head(content_length="9600")
    call.writer.write(PCM_100_MS)


async def cut_wav(call: Call) -> None:
    call.whole(200, wav_header(24000, 4800) + PCM_100_MS, "audio/wav")


async def hung_up(call: Call) -> None:
    pass


async def unfinished_events(call: Call) -> None:
    call.stream_head("text/event-stream")
    call.delta(PCM_100_MS)
    call.end()


async def error_event(call: Call) -> None:
    call.stream_head("text/event-stream")
    call.delta(PCM_100_MS)
    call.event(type="speech.audio.error", error={"message": "the engine died"})
    call.end()


async def hostile_error(call: Call) -> None:
    call.stream_head("text/event-stream")
    call.chunk(b'data: {"error": {"message": "no\\n\\u001b[2Jvoice \\ud83d!"}}\n\n')
    call.end()


async def bad_event(call: Call) -> None:
    call.stream_head("text/event-stream")
    call.chunk(b"data: {not json}\n\n")
    call.end()


async def nested_sound(call: Call) -> None:
    call.stream_head("text/event-stream")
    call.event(audio={"data": "AAAA"})
    call.end()


async def nameless(call: Call) -> None:
    call.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n\0\0")


async def empty(call: Call) -> None:
    call.stream_head()
    call.end()


async def header_only(call: Call) -> None:
    call.stream_head("audio/wav")
    call.chunk(growing_wav_header(24000))
    call.end()


async def json_body(call: Call) -> None:
    call.whole(200, b'{"audio": "AAAA"}')


async def other_format(call: Call) -> None:
    call.whole(200, b"ID3", "audio/mpeg")


async def not_wav(call: Call) -> None:
    call.whole(200, b"<html>" * 100, "audio/wav")


async def float_wav(call: Call) -> None:
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 3, 1, 24000, 96000, 4, 32)
    call.whole(200, b"RIFF\0\0\0\0WAVE" + fmt + struct.pack("<4sI", b"data", 4) + bytes(4), "audio/wav")


async def no_http(call: Call) -> None:
    call.writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")


async def bad_rate(call: Call) -> None:
    call.stream_head(x_sample_rate="0")
    call.end()


async def busy(call: Call) -> None:
    call.whole(429, b'{"error": {"message": "too many"}}')


async def stuck(call: Call) -> None:
    call.stream_head()
    call.chunk(PCM_100_MS)
    await asyncio.sleep(2)


async def silent(call: Call) -> None:
    await asyncio.sleep(2)


@pytest.mark.parametrize(
    ("script", "target", "failure", "detail"),
    [
        (cut_chunked, {}, Failure.CUT, "inside the body"),
        (cut_length, {}, Failure.CUT, "inside the body"),
        (cut_wav, {"response_format": "wav"}, Failure.CUT, "promises 9,600 bytes, 4,800 came"),
        (hung_up, {}, Failure.CUT, "before an answer"),
        (unfinished_events, {"sse": True}, Failure.CUT, "without the one that says so"),
        (error_event, {"sse": True}, Failure.SERVER, "the engine died"),
        (hostile_error, {"sse": True}, Failure.SERVER, "no [2Jvoice !"),
        (bad_event, {"sse": True}, Failure.PROTOCOL, "cannot be read"),
        (nested_sound, {"sse": True}, Failure.PROTOCOL, "cannot be read"),
        (json_body, {"sse": True}, Failure.PROTOCOL, "asked for events, got application/json"),
        (nameless, {"sse": True}, Failure.PROTOCOL, "asked for events, got an answer that does not say what it is"),
        (unfinished_events, {}, Failure.PROTOCOL, "asked for sound, got text/event-stream"),
        (empty, {}, Failure.EMPTY, "without any sound"),
        (header_only, {"response_format": "wav"}, Failure.EMPTY, "without any sound"),
        (json_body, {}, Failure.PROTOCOL, "asked for pcm, the answer is application/json"),
        (other_format, {}, Failure.PROTOCOL, "the answer is audio/mpeg"),
        (not_wav, {"response_format": "wav"}, Failure.PROTOCOL, "the body begins with b'<html>"),
        (float_wav, {"response_format": "wav"}, Failure.PROTOCOL, "only 16-bit PCM"),
        (other_format, {"response_format": "mp3"}, Failure.PROTOCOL, "cannot be decoded as mp3"),
        (no_http, {}, Failure.PROTOCOL, "not HTTP"),
        (bad_rate, {}, Failure.PROTOCOL, "sample rate '0'"),
        (busy, {}, Failure.STATUS, "too many"),
        (stuck, {}, Failure.TIMEOUT, "no end after 0.3 s"),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_every_wrong_answer_has_its_name(script: Script, target: dict[str, Any], failure: Failure, detail: str) -> None:
    sample, _ = ask(script, timeout_s=0.3, **target)
    assert sample.failure is failure
    assert detail in sample.detail


@pytest.mark.parametrize("script", [stuck, silent, hung_up, busy])
def test_a_failure_ends_when_it_failed(script: Script) -> None:
    async def run() -> Sample:
        async with scripted(script) as server:
            aim = Target(server.url)
            ended = await speak(aim, aim.request(PROMPT), PROMPT, host="127.0.0.1", timeout_s=0.2)
            await asyncio.sleep(0.5)  # during which other requests of the same load would go on
            return ended.sample()

    sample = asyncio.run(run())
    assert not sample.ok and sample.end_s < 0.4
    assert sample.failure is not Failure.TIMEOUT or sample.end_s >= 0.2


def test_a_status_is_counted_by_its_number() -> None:
    assert ask(busy)[0].kind == "status 429"


def test_nobody_there() -> None:
    async def run() -> Sample:
        aim = Target("http://127.0.0.1:9")
        return (await speak(aim, aim.request(PROMPT), PROMPT, host="127.0.0.1", timeout_s=5)).sample()

    assert asyncio.run(run()).failure is Failure.CONNECT
