"""A client stops reading a long text: the server stops speaking it, and continues there when it is read again."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from serving.conftest import Serve, Served, wait_for
from serving.test_connection import request, to_the_end

PARTS, FRAMES, MAX_UNREAD_S = 10, 50, 4.0
TEXT = " ".join(f"Sentence number {n:02} is about the world." for n in range(PARTS))
BODY = {"input": TEXT, "voice": "alloy", "seed": 5, "response_format": "pcm"}
SAMPLES = PARTS * FRAMES * 1920


def start(serve: Serve) -> Served:
    each = {"budget_s": FRAMES * 0.04, "budget_s_per_token": 1e-12}  # so many frames for each part
    return serve("endless toy", engine={"segment_chars": 40, **each}, max_unread_sound_s=MAX_UNREAD_S)


@contextmanager
def stopped_reader(served: Served) -> Iterator[socket.socket]:
    """A client that asked for more than all buffers on the way hold, and reads nothing of it."""
    steps = -1

    def still() -> bool:
        nonlocal steps
        before, steps = steps, served.supervisor.engine.stats().steps
        return before == steps > 2 * FRAMES and not served.supervisor.engine.stats().running

    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(20)
        sock.connect(served.address)
        sock.sendall(request(BODY).replace(b"Host: x", b"Host: x\r\nConnection: close"))
        wait_for(lambda: served.server.service.in_flight.running == 1)
        wait_for(still, 20, every_s=0.1)
        assert steps < 0.8 * PARTS * FRAMES, "all of it was spoken"
        yield sock


def samples_of(said: bytes) -> int:
    """Count the samples of a chunked body, which must have ended."""
    _, _, rest = said.partition(b"\r\n\r\n")
    count = 0
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size, 16):
            return count // 2
        count += int(size, 16)
        rest = rest[int(size, 16) + 2 :]


def test_it_is_spoken_no_further_and_goes_on_when_it_is_read_even_in_a_drain(serve: Serve) -> None:
    served = start(serve)
    with stopped_reader(served) as sock:
        assert served.post(**{**BODY, "input": "hello"}).status_code == 200
        served.server.handle_exit(signal.SIGTERM, None)
        wait_for(lambda: not served.link.ready)
        assert samples_of(to_the_end(sock)) == SAMPLES
    wait_for(lambda: served.server.should_exit)


def test_hanging_up_while_held_back_leaves_nothing(serve: Serve) -> None:
    served = start(serve)
    with stopped_reader(served):
        pass
    wait_for(lambda: served.server.service.in_flight.running == 0, 2)
    wait_for(lambda: not served.admission.active, 2)
    wait_for(lambda: served.supervisor.engine.stats().running == 0, 2)  # an abort takes a step
    steps = served.supervisor.engine.stats().steps
    time.sleep(0.2)
    assert served.supervisor.engine.stats().steps == steps
