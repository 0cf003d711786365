"""What attackers send: bodies, forms, clips, names, addresses, paths; and what an answer must look like."""

from __future__ import annotations

import base64
import gzip
import io
import json
import struct
from typing import Any

import httpx
import numpy as np
import soundfile

from clips import reference_clip

SPEECH, BATCH, VOICES, CONSENTS = (
    "/v1/audio/speech",
    "/v1/audio/speech/batch",
    "/v1/audio/voices",
    "/v1/audio/voice_consents",
)
JSON = {"content-type": "application/json"}
FORM = {"content-type": "multipart/form-data; boundary=x"}


def refused(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    assert answer.status_code in (statuses or (400,)), answer.text[:300]
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["message"] and error["code"]
    assert answer.headers["x-request-id"]
    assert len(answer.content) < 5000, "what was sent is not sent back"
    return error


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def clip() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, *reference_clip(), format="WAV")
    return file.getvalue()


def bomb(form: str, subtype: str, minutes: int) -> bytes:
    """A clip of silence: hours of it in some kilobytes."""
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", 48000, 1, format=form, subtype=subtype) as out:
        for _ in range(minutes):
            out.write(np.zeros(60 * 48000, np.float32)) if form == "FLAC" else _in_seconds(out)
    return file.getvalue()


def _in_seconds(out: soundfile.SoundFile) -> None:
    for _ in range(60):  # libsndfile's Vorbis writer overflows its stack on longer pieces
        out.write(np.zeros(48000, np.float32))


def wav_that_lies(*, channels: int = 1, rate: int = 24000, bits: int = 16, size: int = 0xFFFFFFF0) -> bytes:
    block = channels * bits // 8
    shape = struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * block & 0xFFFFFFFF, block & 0xFFFF, bits)
    return (
        b"RIFF" + struct.pack("<I", 0xFFFFFFFF) + b"WAVEfmt " + shape + b"data" + struct.pack("<I", size) + bytes(999)
    )


BODIES = {
    "nested lists": b"[" * 200_000,
    "nested objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a nested field": b'{"input":"hi","x":' + b"[" * 900 + b"]" * 900 + b"}",
    "a million fields": b"{" + b",".join(b'"%d":1' % n for n in range(10**6)) + b"}",
    "many fields": b"{" + b",".join(b'"%d":1' % n for n in range(90_000)) + b"}",
    "a million fields in a field": b'{"input":"hi","voice":{' + b'"a":1,' * 10**6 + b'"id":"x"}}',
    "a million numbers": b'{"input":"hi","speaker_embedding":[' + b"1," * 10**6 + b"1]}",
    "numbers that are none": b'{"input":"hi","speaker_embedding":["a"]}',
    "numbers too large": b'{"input":"hi","speaker_embedding":[1e999,-1e999]}',
    "a long number": b'{"input":"hi","seed":' + b"9" * 5000 + b"}",
    "a large number": b'{"input":"hi","top_k":' + b"9" * 4000 + b"}",
    "not a number": b'{"input":"hi","speed":NaN}',
    "half a character": b'{"input":"a\\ud800b"}',
    "half a key": b'{"input":"hi","\\ud800":1}',
    "no UTF-8": b'{"input":"\xff\xfe"}',
    "zero bytes": b'{"input":"hi","voice":"a\\u0000b"}',
    "compressed": gzip.compress(b'{"input":"hi"}'),
    "megabytes of text": json.dumps({"input": "x" * 8_000_000}).encode(),
    "megabytes of voice": json.dumps({"input": "hi", "voice": "x" * 8_000_000}).encode(),
    "megabytes of key": json.dumps({"input": "hi", "x" * 8_000_000: 1}).encode(),
    "a key twice": b'{"input":"hi","input":5}',
    "a list": b"[1]",
    "null": b"null",
    "nothing": b"",
    "true for a number": b'{"input":"hi","seed":true}',
    "text for a number": b'{"input":"hi","speed":"1"}',
    "a voice of both kinds": b'{"input":"hi","voice":{"id":"a","name":"b"}}',
}


ADDRESSES = (
    "http://127.0.0.1/x.wav",
    "http://169.254.169.254/latest/meta-data",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://0/",
    "http://2130706433/",
    "http://localhost/",
    "HTTP://LOCALHOST/",
    "http://media.example.com@127.0.0.1/",
    "http://127.0.0.1#media.example.com",
    "http://127.0.0.1\\@media.example.com/",
    "http://media.example.com.evil.example/",
    "http://media.example.com:22/",
    "http://media.example.com\r\nx: y/",
    "https://[",
    "http://" + "a" * 100_000,
    "file:///etc/passwd",
    "ftp://media.example.com/",
    "gopher://127.0.0.1/",
    "/etc/passwd",
    "../../etc/passwd",
    "data:,",
    "data:audio/wav;base64",
    "data:audio/wav;base64,",
    "data:audio/wav;base64,!!",
)

CLIPS = {
    "a FLAC bomb": bomb("FLAC", "PCM_16", 60),
    "a Vorbis bomb": bomb("OGG", "VORBIS", 3),
    "a length that lies": wav_that_lies(),
    "channels that lie": wav_that_lies(channels=65535),
    "a rate that lies": wav_that_lies(rate=0xFFFFFFFF),
    "no rate": wav_that_lies(rate=0),
    "no bits": wav_that_lies(bits=0),
    "zip": gzip.compress(bytes(10**7)),
    "zeros": bytes(10**6),
    "one byte": b"R",
    "half a clip": clip()[: len(clip()) // 3],
    "a playlist": b"#EXTM3U\nhttp://127.0.0.1/x.wav\n",
    "a script": b"ffconcat version 1.0\nfile /etc/passwd\n",
}


NAMES = (
    "../../x",
    "/etc/x",
    "a/b",
    "..",
    "a\\b",
    "a\0b",
    "a\nb",
    " ",
    "\u200bx",
    "x" * 300,
    "a'; DROP TABLE voices",
    "$(id)",
    "<b>",
    "voice_" + "0" * 24,
    "CON_é\u202ex",
)

PATHS = (
    f"{VOICES}/",
    f"{VOICES}/../x",
    f"{VOICES}/%2e%2e%2fx",
    f"{VOICES}/%00",
    f"{VOICES}/%ff",
    f"{VOICES}/{'a' * 5000}",
    f"{CONSENTS}/%2fetc",
    f"{CONSENTS}/'--",
    "/%2e%2e/%2e%2e/x",
)

FORMS = {
    "no boundary": (b"abc", {"content-type": "multipart/form-data"}),
    "a boundary of 5 kB": (b"abc", {"content-type": f"multipart/form-data; boundary={'x' * 5000}"}),
    "no end": (b'--x\r\ncontent-disposition: form-data; name="name"\r\n\r\nAnna', FORM),
    "twenty thousand fields": (
        b'--x\r\ncontent-disposition: form-data; name="n"\r\n\r\n1\r\n' * 20_000 + b"--x--\r\n",
        FORM,
    ),
    "five thousand files": (
        b'--x\r\ncontent-disposition: form-data; name="n"; filename="f"\r\n\r\n1\r\n' * 5000 + b"--x--\r\n",
        FORM,
    ),
    "a huge header": (b"--x\r\nx: " + b"y" * 500_000 + b"\r\n\r\n1\r\n--x--\r\n", FORM),
    "a huge field": (
        b'--x\r\ncontent-disposition: form-data; name="name"\r\n\r\n' + b"y" * 3_000_000 + b"\r\n--x--\r\n",
        FORM,
    ),
    "a field that is no text": (
        b'--x\r\ncontent-disposition: form-data; name="name"\r\n\r\n\xff\r\n--x--\r\n',
        FORM,
    ),
    "JSON": (b'{"name": "Anna"}', JSON),
}
