"""What a program written for OpenAI's SDK does, 2.x or 3.x: `python openai_sdk.py URL` → what it got, as JSON.

A script, so that it can run under an interpreter that has another version of the SDK than the tests have.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import openai

SPEECH: dict[str, Any] = {
    "model": "tts-1",
    "voice": "nova",
    "input": "hello the world",
    "response_format": "pcm",
    "extra_body": {"seed": 5, "max_frames": 6},
}


def client_error(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def events(lines: list[str]) -> dict[str, Any]:
    found = [json.loads(line[len("data: ") :]) for line in lines if line.startswith("data: ")]
    sound = b"".join(base64.b64decode(e["audio"]) for e in found if e["type"] == "speech.audio.delta")
    return {**client_error(sound), "last": found[-1]}


def sync(client: openai.OpenAI) -> dict[str, Any]:
    speech = client.audio.speech
    got: dict[str, Any] = {"create": client_error(speech.create(**SPEECH).content)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "speech.pcm"
        with speech.with_streaming_response.create(**SPEECH) as response:
            got["content_type"] = response.headers["content-type"]
            response.stream_to_file(file)
        got["stream_to_file"] = client_error(file.read_bytes())
    with speech.with_streaming_response.create(**SPEECH) as response:
        pieces = list(response.iter_bytes(1024))
    got["iter_bytes"] = {**client_error(b"".join(pieces)), "largest": max(map(len, pieces))}
    with speech.with_streaming_response.create(**SPEECH, stream_format="sse") as response:
        got["sse"] = events(list(response.iter_lines()))
    got["models"] = [model.id for model in client.models.list().data]
    try:
        speech.create(**{**SPEECH, "voice": "nobody"})
    except openai.BadRequestError as e:
        got["bad_voice"] = {"code": e.code, "param": e.param, "id": e.request_id, "message": str(e)}
    try:
        client.with_options(api_key="wrong").models.list()
    except openai.AuthenticationError as e:
        got["bad_key"] = {"code": e.code, "id": e.request_id}
    return got


async def asynchronous(client: openai.AsyncOpenAI) -> dict[str, Any]:
    speech = client.audio.speech
    got: dict[str, Any] = {"async_create": client_error((await speech.create(**SPEECH)).content)}
    async with speech.with_streaming_response.create(**SPEECH) as response:
        got["async_iter_bytes"] = client_error(b"".join([piece async for piece in response.iter_bytes()]))
    async with speech.with_streaming_response.create(**SPEECH, stream_format="sse") as response:
        got["async_sse"] = events([line async for line in response.iter_lines()])
    many = await asyncio.gather(*(speech.create(**SPEECH) for _ in range(8)))
    got["async_at_once"] = [len(response.content) for response in many]
    await client.close()
    return got


def main() -> None:
    options: dict[str, Any] = {"base_url": f"{sys.argv[1]}/v1", "api_key": "the key", "max_retries": 0}
    with openai.OpenAI(**options) as client:
        got = sync(client)
    got |= asyncio.run(asynchronous(openai.AsyncOpenAI(**options)))
    print(json.dumps({"version": openai.__version__, **got}))


if __name__ == "__main__":
    main()
