"""One voice store for all replicas: what one has acknowledged every other speaks at once, whatever is killed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from serving.cluster_processes import alone, cluster
from serving.test_voice_routes import upload, wav
from sonant.config import EngineConfig
from sonant.serving.cluster.replica import ReplicaSetup
from sonant.serving.options import ModelOptions, ServeOptions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="sonant[ray] is not installed"),
]
BODY = {"input": "hello", "seed": 1, "max_frames": 2, "response_format": "pcm"}


def test_an_upload_is_spoken_by_all_and_outlives_them(checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    serving = ServeOptions(port=8772, log_level="warning", voices_folder=tmp_path / "store", consent="asserted")
    setup = ReplicaSetup(
        folder=checkpoints["base"], model=ModelOptions(device="cpu"), serving=serving, engine=EngineConfig()
    )
    with alone(), cluster(setup, 2) as c:
        here, there = (f"http://127.0.0.1:{port}" for port in c.ports())
        made: list[str] = []
        for n in range(4):
            made.append(upload(here, wav(), name=f"Voice {n}", consent="she agreed").json()["id"])
            answer = httpx.post(f"{there}/v1/audio/speech", json={**BODY, "voice": {"id": made[-1]}}, timeout=60)
            assert answer.status_code == 200 and len(answer.content) == 2 * 2 * 1920
            here, there = there, here
        gone = made.pop()
        assert httpx.delete(f"{here}/v1/audio/voices/{gone}").status_code == 200
        for url in (here, there):
            answer = httpx.post(f"{url}/v1/audio/speech", json={**BODY, "voice": {"id": gone}}, timeout=60)
            assert answer.status_code == 400
        victims = {c.kill("replica"), c.pids("replica")[0]}
        while victims & set(c.pids("replica")):
            c.kill("replica")
        c.wait_whole()
        listed = {voice["id"] for voice in httpx.get(f"{c.url}/v1/audio/voices", timeout=30).json()["voices"]}
        assert listed == set(made)
