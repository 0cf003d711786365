"""pipecat's stock `OpenAITTSService` in a pipeline: `python pipecat_agent.py URL` → what it got, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.metadata import version

from loguru import logger

logger.remove()

from pipecat.frames.frames import EndFrame, ErrorFrame, Frame, TTSAudioRawFrame, TTSSpeakFrame  # noqa: E402
from pipecat.pipeline.pipeline import Pipeline  # noqa: E402
from pipecat.pipeline.runner import PipelineRunner  # noqa: E402
from pipecat.pipeline.task import PipelineParams, PipelineTask  # noqa: E402
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor  # noqa: E402
from pipecat.services.openai.tts import OpenAITTSService  # noqa: E402


class Listener(FrameProcessor):
    def __init__(self) -> None:
        super().__init__()
        self.sound = b""
        self.rates: set[int] = set()
        self.errors: list[str] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.sound += frame.audio
            self.rates.add(frame.sample_rate)
        await self.push_frame(frame, direction)


async def heard(url: str, voice: str) -> Listener:
    settings = OpenAITTSService.Settings(voice=voice)
    service = OpenAITTSService(api_key="the key", base_url=f"{url}/v1", settings=settings)
    listener = Listener()
    task = PipelineTask(Pipeline([service, listener]), params=PipelineParams(audio_out_sample_rate=24000))

    @task.event_handler("on_pipeline_error")
    async def on_error(_: PipelineTask, frame: ErrorFrame) -> None:
        listener.errors.append(frame.error)

    await task.queue_frames([TTSSpeakFrame("hello the world"), EndFrame()])
    await PipelineRunner(handle_sigint=False).run(task)
    return listener


async def main() -> None:
    got = {}
    for voice in ("alloy", "cedar"):
        listener = await heard(sys.argv[1], voice)
        got[voice] = {"bytes": len(listener.sound), "rates": sorted(listener.rates), "errors": listener.errors}
    print(json.dumps({"version": version("pipecat-ai"), **got}))


if __name__ == "__main__":
    asyncio.run(main())
