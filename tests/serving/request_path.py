"""A process that serves one POST /v1/audio/speech and prints which files of Sonant it passed through, in order.

The request is for streamed pcm, and traced from the accepted socket to the first byte of sound, after other requests
have warmed the server up.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import torch

import sonant
from sonant import EngineConfig
from sonant.models.registry import describe, load_prompter
from sonant.serving.options import ServeOptions
from sonant.serving.processes.one_process import one_process

ROOT = str(Path(sonant.__file__).parent) + "/"
BACKGROUND = ("serving/server.py", "serving/idle_memory.py")  # run by the server's clock, whatever is asked of it


class Tracer:
    def __init__(self) -> None:
        self.on, self.files = False, dict[str, None]()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(ROOT):
            self.files[frame.f_code.co_filename.removeprefix(ROOT)] = None


def ask(port: int, tracer: Tracer) -> None:
    fields = {"input": "hello the world", "voice": "alloy", "seed": 5, "max_frames": 20, "response_format": "pcm"}
    body = json.dumps(fields).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f"{head}\r\n\r\n".encode() + body)
        answer = b""
        while not answer.partition(b"\r\n\r\n")[2]:
            answer += client.recv(65536)
        tracer.on = False
        while not answer.endswith(b"0\r\n\r\n"):
            answer += client.recv(65536)


def main(folder: Path) -> None:
    tracer = Tracer()
    threading.setprofile(tracer)
    torch.set_num_threads(1)
    config, options = EngineConfig(), ServeOptions(port=0, log_level="warning")
    prompter, described = load_prompter(folder, config), describe(folder)
    started = one_process(lambda: sonant.load(folder, device="cpu"), prompter, options, described, "tiny")
    server, _ = started.__enter__()
    threading.Thread(target=server.run, daemon=True).start()
    while not (server.started and server.service.link.ready):
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    for _ in range(2):
        ask(port, tracer)
    time.sleep(0.3)  # until all that the other requests left to do is done
    tracer.on = True
    ask(port, tracer)
    print("\n".join(file for file in tracer.files if file not in BACKGROUND), flush=True)
    os._exit(0)  # a shutdown would be of no use here


if __name__ == "__main__":
    main(Path(sys.argv[1]))
