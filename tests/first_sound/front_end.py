"""A front end's process that takes notes."""

from __future__ import annotations

import sys

from first_sound.marks import Marks
from sonant.engine.intake import Intake
from sonant.serving.api.speech_response import SpeechResponse
from sonant.serving.channel import connection as channel
from sonant.serving.channel.remote_steps import RemoteSteps
from sonant.serving.limits.connection import Connection, HeadWithBody
from sonant.serving.limits.middleware import RequestMiddleware
from sonant.serving.processes import front_end_process


def main() -> int:
    marks = Marks("front")
    marks.around(Connection, "connection_made", "connected", None)
    marks.around(Connection, "data_received", "request", None)
    marks.around(RequestMiddleware, "__call__", "asgi", None)
    marks.around(SpeechResponse, "__init__", "parsed", None)
    marks.around(Intake, "submit", "submit", None)
    marks.around(RemoteSteps, "post", "prompt", None)
    marks.around(channel.Connection, "_flush", "asked", None)
    marks.around(RemoteSteps, "_hear", "sound", None)
    marks.around(SpeechResponse, "_send", "answer", None)
    marks.around(HeadWithBody, "write", None, "written")
    return front_end_process.main()


if __name__ == "__main__":
    sys.exit(main())
