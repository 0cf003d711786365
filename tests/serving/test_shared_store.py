"""One folder of voices, several servers: what one has acknowledged all of them have, even if it is killed.

The store itself is killed at every moment in test_voice_durability.py; here whole servers are.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from serving.conftest import Serve, Served
from serving.process import server_processes
from serving.same_sound import same_sound
from serving.test_voice_routes import upload, wav

KILLS = 8
BODY = {"input": "hello", "seed": 1, "max_frames": 2, "response_format": "pcm"}


def voices(url: str) -> dict[str, str]:
    return {v["id"]: v["name"] for v in httpx.get(f"{url}/v1/audio/voices", timeout=30).json()["voices"]}


@pytest.fixture(scope="module")
def pair(serve_once: Serve, tmp_path_factory: pytest.TempPathFactory) -> tuple[Served, Served]:
    """Two servers over one folder."""
    store = tmp_path_factory.mktemp("store")
    return tuple(serve_once("base", voices_folder=store, consent="asserted") for _ in range(2))  # type: ignore[return-value]


def test_two_servers_see_each_others_voices_at_once(pair: tuple[Served, Served]) -> None:
    here, there = pair
    made = upload(here.url, wav(), name="Anna", consent="she agreed").json()
    assert voices(there.url) == {made["id"]: "Anna"}
    heard = there.post(**BODY, voice="anna")
    assert heard.status_code == 200 and same_sound(heard.content, here.post(**BODY, voice=made["id"]).content)
    assert upload(there.url, wav(), name="ANNA", consent="she agreed").status_code == 409
    assert httpx.delete(f"{there.url}/v1/audio/voices/{made['id']}").status_code == 200
    assert voices(here.url) == {} and here.post(**BODY, voice="anna").status_code == 400
    assert httpx.delete(f"{here.url}/v1/audio/voices/{made['id']}").status_code == 404


def test_two_servers_never_give_one_name_twice(pair: tuple[Served, Served]) -> None:
    urls = [served.url for served in pair]
    statuses: list[int] = []

    def race(url: str) -> None:
        for n in range(8):
            statuses.append(upload(url, wav(), name=f"Voice {n}", consent="she agreed").status_code)

    threads = [threading.Thread(target=race, args=(url,)) for url in urls * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(statuses) == [200] * 8 + [409] * 24
    assert sorted(voices(urls[0]).values()) == [f"Voice {n}" for n in range(8)] and voices(urls[0]) == voices(urls[1])


class Uploaders:
    """Clients that upload and delete until their server is gone, and know what it acknowledged."""

    def __init__(self, url: str, seed: int, clients: int) -> None:
        self.url = url
        self.there: set[str] = set()
        self.gone: set[str] = set()
        self.unsure: set[str] = set()  # to be deleted, but no answer came
        self.threads = [threading.Thread(target=self._work, args=(seed, n)) for n in range(clients)]
        for thread in self.threads:
            thread.start()

    def _work(self, seed: int, number: int) -> None:
        rng, clip = random.Random(f"{seed} {number}"), wav()
        try:
            for n in range(1000):
                name = f"v {seed} {number} {n}"
                mine = upload(self.url, clip, name=name, consent="she agreed").json()["id"]
                self.there.add(mine)
                if rng.random() < 0.4:
                    self.there.remove(mine)
                    self.unsure.add(mine)
                    assert httpx.delete(f"{self.url}/v1/audio/voices/{mine}").status_code == 200
                    self.unsure.remove(mine)
                    self.gone.add(mine)
        except httpx.TransportError:
            return

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60)


@pytest.mark.long
def test_kill_9_while_voices_are_uploaded_loses_none_that_was_acknowledged(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    """Start, upload, kill -9, start again over the same folder: all acknowledged voices are there, and speak."""
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    model, options = tiny_checkpoints["base"], ("--voices", str(tmp_path / "store"), "--consent", "asserted")
    there: set[str] = set()
    gone: set[str] = set()
    with server_processes() as run:
        process, url = run(model, *options)
        for n in range(KILLS):
            clients = Uploaders(url, seed + n, 3)
            time.sleep(rng.uniform(0.2, 2.0))
            process.send_signal(signal.SIGKILL)
            process.wait(10)
            clients.join()
            there |= clients.there
            gone |= clients.gone
            process, url = run(model, *options)
            listed = voices(url).keys()
            assert there <= listed, f"acknowledged and lost, seed {seed}"
            assert not gone & listed, f"deleted and back, seed {seed}"
            for voice in rng.sample(sorted(listed), min(5, len(listed))):
                answer = httpx.post(f"{url}/v1/audio/speech", json={**BODY, "voice": {"id": voice}}, timeout=60)
                assert answer.status_code == 200 and len(answer.content) == 2 * 2 * 1920, f"seed {seed}"
            there = set(listed)
    print(f"seed {seed}: {KILLS} kills, {len(there)} voices kept, {len(gone)} deleted")
    assert there and gone
