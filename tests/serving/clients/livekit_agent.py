"""LiveKit's stock `openai.TTS`, aimed at us: `python livekit_agent.py URL` → what it got, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.metadata import version
from typing import Any

from livekit.plugins import openai


async def heard(url: str, **options: Any) -> dict[str, Any]:
    tts = openai.TTS(base_url=f"{url}/v1", api_key="the key", **options)
    stream = tts.synthesize("hello the world")
    frames = [event.frame async for event in stream]
    await stream.aclose()
    await tts.aclose()
    samples = sum(frame.samples_per_channel for frame in frames)
    return {"seconds": samples / frames[0].sample_rate, "rate": frames[0].sample_rate, "frames": len(frames)}


async def main() -> None:
    url = sys.argv[1]
    got: dict[str, Any] = {"default": await heard(url)}  # mp3 in server-sent events
    got["tts-1"] = await heard(url, model="tts-1")  # plain mp3
    for form in ("opus", "aac", "flac", "wav", "pcm"):
        got[form] = await heard(url, response_format=form)
    print(json.dumps({"version": version("livekit-plugins-openai"), **got}))


if __name__ == "__main__":
    asyncio.run(main())
