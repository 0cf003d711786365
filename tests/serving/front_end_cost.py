"""What a request costs a front end in core time, and each chunk of sound after its first.

    python tests/serving/front_end_cost.py FOLDER [--requests 2000] [--at-once 16] [--profile 25]

A process that answers at once with made-up sound takes the engine's place, so that all the time of the front end's
process is its own: it is read from that process's CPU clock, and is no wall time.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import os
import pstats
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

CHUNK = b"\0\1" * 1920
BODY = {"input": "Hello there, how are you today?", "voice": "alloy", "response_format": "pcm", "seed": 1}


def stand_in(path: str, config_json: bytes, chunks: int) -> None:
    """Serve an engine's end of the channel, which grants everything and gives everybody the same sound."""
    from sonant.serving.channel import messages as m
    from sonant.serving.channel.connection import Connection

    def peer() -> Connection:
        def take(message: Any) -> None:
            if isinstance(message, m.Hello):
                connection.send(m.Welcome(config_json, 4096, "none", 0, "int16"))
            elif isinstance(message, m.Admit):
                connection.send(m.Done(message.id))
            elif isinstance(message, m.Speak):
                for n in range(chunks):
                    ends = [m.End(message.id, "stop")] if n == chunks - 1 else []
                    connection.send(m.StepDone([m.Sound(message.id, CHUNK, 1, None, 0.08 * n)], ends))

        connection = Connection(m.FromFrontEnd, take, lambda _: None)
        return connection

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_unix_server(peer, path)
        await server.serve_forever()

    asyncio.run(serve())


def load(port: int, requests: int, at_once: int) -> None:
    """Run clients that send one request after the other, on connections that they keep."""
    body = json.dumps(BODY).encode()
    lines = ("POST /v1/audio/speech HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json")
    request = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body

    def client(count: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            for _ in range(count):
                sock.sendall(request)
                answer = b""
                while not answer.endswith(b"0\r\n\r\n"):
                    answer += sock.recv(1 << 16)
                assert answer.startswith(b"HTTP/1.1 200"), answer[:300]

    threads = [threading.Thread(target=client, args=(requests // at_once,)) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def front_end(folder: Path, channel: str, told: Any, profile: int) -> None:
    """Serve until told to stop, and tell its CPU time when asked."""
    from sonant import EngineConfig
    from sonant.models.registry import describe, load_prompter
    from sonant.serving.app import create_app
    from sonant.serving.channel.engine_link import EngineLink
    from sonant.serving.options import ServeOptions
    from sonant.serving.server import server_for

    config = EngineConfig()
    options = ServeOptions(port=0, log_level="warning", max_streams_per_client=10_000)
    link = EngineLink(Path(channel), load_prompter(folder, config))
    server = server_for(create_app(link, options, describe(folder), "x"), options)
    profiler = cProfile.Profile() if profile else None

    def talk() -> None:
        while not (server.started and link.ready):
            time.sleep(0.01)
        told.send(server.servers[0].sockets[0].getsockname()[1])
        while told.recv() == "time":
            told.send(time.process_time())
        server.should_exit = True

    threading.Thread(target=talk, daemon=True).start()
    if profiler is not None:
        profiler.enable()
    server.run()
    if profiler is not None:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(profile)


def measured(folder: Path, requests: int, at_once: int, chunks: int, profile: int = 0) -> float:
    """Return the seconds of CPU that one request costs the front end."""
    import msgspec

    from sonant import EngineConfig

    with tempfile.TemporaryDirectory() as scratch:
        channel = f"{scratch}/engine"
        config = msgspec.json.encode(EngineConfig(max_rows=256, max_batch=256, steps_ahead=1))
        engine = multiprocessing.Process(target=stand_in, args=(channel, config, chunks), daemon=True)
        engine.start()
        ours, theirs = multiprocessing.Pipe()
        server = multiprocessing.Process(target=front_end, args=(folder, channel, theirs, profile))
        server.start()
        port = ours.recv()

        def cpu_s() -> float:
            ours.send("time")
            return float(ours.recv())

        load(port, 10 * at_once, at_once)
        before = cpu_s()
        load(port, requests, at_once)
        took = cpu_s() - before
        ours.send("stop")
        server.join()
        engine.terminate()
        return took / (requests // at_once * at_once)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--profile", type=int, default=0, metavar="LINES", help="show where the time of one chunk goes")
    args = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    if args.profile:
        measured(args.folder, args.requests, args.at_once, 1, args.profile)
        return
    one = measured(args.folder, args.requests, args.at_once, 1)
    many = measured(args.folder, args.requests, args.at_once, 21)
    print(f"a request with one chunk: {1e3 * one:.3f} ms of a core; each chunk more: {1e3 * (many - one) / 20:.3f} ms")
    print(f"python {sys.version.split()[0]}, {os.cpu_count()} cores, {args.requests} requests, {args.at_once} at once")


if __name__ == "__main__":
    main()
