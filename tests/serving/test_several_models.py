"""Several models behind one port: each answers to its name, has its own voices, and fails alone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.conftest import _checkpoint, _stop, break_engine, wait_for
from serving.process import server_processes
from serving.session_client import CONFIG, events, session, sound
from serving.test_voice_routes import upload, wav
from sonant.cli.serve import check_names, shared
from sonant.config import EngineConfig
from sonant.errors import ConfigError
from sonant.serving.app import ServedModel, create_app
from sonant.serving.channel.engine_link import EngineLink
from sonant.serving.engine_supervisor import EngineSupervisor
from sonant.serving.limits.admission import Admission
from sonant.serving.options import ServeOptions
from sonant.serving.processes.scratch import scratch_folder
from sonant.serving.server import DrainingServer, server_for

RATES = {"small": 24_000, "toy": 48_000}  # of the two models, by which they are told apart
BODY = {"input": "hello the world", "seed": 5, "max_frames": 3, "response_format": "wav"}


@dataclass(frozen=True)
class Both:
    url: str
    server: DrainingServer
    supervisors: Mapping[str, EngineSupervisor]

    def rate_of(self, **body: object) -> int:
        answer = httpx.post(f"{self.url}/v1/audio/speech", json={**BODY, **body}, timeout=60)
        assert answer.status_code == 200, answer.text
        return int.from_bytes(answer.content[24:28], "little")

    @property
    def ready(self) -> bool:
        return httpx.get(f"{self.url}/ready").status_code == 200


@pytest.fixture(scope="module")
def both(checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    config = EngineConfig()
    options = ServeOptions(
        port=0, log_level="warning", voices_folder=tmp_path_factory.mktemp("voices"), consent="asserted"
    )
    with scratch_folder() as scratch, ExitStack() as running:
        served, supervisors = [], {}
        for name, checkpoint in (("small", "base"), ("toy", "toy")):
            load, prompter, described = _checkpoint(checkpoint, checkpoints, config)
            supervisors[name] = EngineSupervisor(load, scratch / name, Admission(options), lambda _: None)
            served.append(ServedModel(EngineLink(scratch / name, prompter), described, name))
            supervisors[name].start()
            running.callback(supervisors[name].close)
        first, *others = served
        server = server_for(create_app(first.link, options, first.description, first.name, others), options)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        running.callback(_stop, server, thread)
        deadline_s = time.monotonic() + 30
        while not (server.started and server.service.ready):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Both(f"http://127.0.0.1:{port}", server, supervisors)


def test_a_model_is_asked_for_by_its_name(both: Both) -> None:
    voice = _voice(both, "toy")
    assert both.rate_of(model="toy", voice=voice) == RATES["toy"]
    mine = _voice(both, "small")
    for name in ("small", "tts-1", None):  # the first model answers to the names that stock clients send
        assert both.rate_of(**({} if name is None else {"model": name}), voice=mine) == RATES["small"]


def _voice(both: Both, model: str) -> str:
    answer = upload(both.url, wav(), name=f"{model} {time.monotonic_ns()}", consent="it is mine", model=model)
    assert answer.status_code == 200, answer.text
    made: str = answer.json()["id"]
    return made


def test_an_unknown_model_is_refused_with_those_there_are(both: Both) -> None:
    answer = httpx.post(f"{both.url}/v1/audio/speech", json={**BODY, "model": "nobody"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "small, toy" in error["message"]
    for path in ("/v1/engine", "/v1/engine/stats", "/v1/audio/voices"):
        assert httpx.get(f"{both.url}{path}", params={"model": "nobody"}).status_code == 404


def test_listings_know_all_models(both: Both) -> None:
    ids = [m["id"] for m in httpx.get(f"{both.url}/v1/models").json()["data"]]
    assert ids[:2] == ["small", "toy"] and "tts-1" in ids
    assert [m["id"] for m in httpx.get(f"{both.url}/v1/audio/models").json()["models"]] == ["small", "toy"]
    for name, rate in RATES.items():
        facts = httpx.get(f"{both.url}/v1/engine", params={"model": name}).json()
        assert (facts["model"], facts["sample_rate"]) == (name, rate)
        assert httpx.get(f"{both.url}/v1/engine/stats", params={"model": name}).json()["ready"]


def test_a_voice_is_its_own_models(both: Both) -> None:
    voice = _voice(both, "toy")
    mine, others = (httpx.get(f"{both.url}/v1/audio/voices", params={"model": name}).text for name in ("toy", "small"))
    assert voice in mine and voice not in others
    refused = httpx.post(f"{both.url}/v1/audio/speech", json={**BODY, "model": "small", "voice": voice})
    assert refused.status_code == 400


def test_a_batch_is_one_models(both: Both) -> None:
    items = [{"input": "a", "model": name} for name in RATES]
    answer = httpx.post(f"{both.url}/v1/audio/speech/batch", json={"items": items})
    assert answer.status_code == 400 and "one model" in answer.json()["error"]["message"]


def test_a_session_speaks_with_the_model_of_its_config(both: Both) -> None:
    with session(both) as client:  # type: ignore[arg-type]
        client.say("session.config", **CONFIG, model="toy", max_frames=2)
        client.say("input.text", text="hello")
        client.say("input.done")
        assert len(sound(client.until("session.done"))) == 2 * 2 * 1920
        client.say("session.config", **CONFIG, model="nobody")
        told = client.hear()
        assert isinstance(told, dict) and told["type"] == "error" and "small, toy" in told["message"]


def test_a_sessions_segments_are_as_long_as_its_own_model_takes_them(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not as the first model does, from which others may differ."""
    first = both.server.service.link.engine
    monkeypatch.setattr(first, "config", replace(first.config, segment_chars=40))
    text = "A sentence of more words than the first model takes at once, "
    with session(both) as client:  # type: ignore[arg-type]
        client.say("session.config", **CONFIG, model="toy", max_frames=2, split_granularity="sentence")
        client.say("input.text", text=f"{text}which the toy takes whole.")
        client.say("input.done")
        begun = [m for m in events(client.until("session.done")) if m["type"] == "audio.start"]
    assert [m["sentence_text"] for m in begun] == [f"{text}which the toy takes whole."]


def test_figures_tell_models_apart(both: Both) -> None:
    text = httpx.get(f"{both.url}/metrics").text
    families = {f.name: f for f in text_string_to_metric_families(text)}
    for name in ("sonant_ready", "sonant_rows", "sonant_engine_steps", "sonant_step_rows"):
        assert {s.labels["model"] for s in families[name].samples} == set(RATES), name
    assert not any("model" in s.labels for s in families["sonant_requests"].samples)


def test_who_fails_does_not_take_the_others_along(both: Both) -> None:
    voice = _voice(both, "small")
    victim = both.supervisors["toy"].engine
    break_engine(victim)
    httpx.post(f"{both.url}/v1/audio/speech", json={**BODY, "model": "toy", "voice": None})
    assert both.rate_of(model="small", voice=voice) == RATES["small"]
    toy = both.supervisors["toy"]
    wait_for(lambda: toy.ready and toy.engine is not victim and both.ready, 30)
    stats = httpx.get(f"{both.url}/v1/engine/stats", params={"model": "toy"}).json()
    assert stats["restarts"] == 1 and both.supervisors["small"].restarts == 0


def test_names_must_differ_and_memory_is_shared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two models are called 'x'"):
        check_names([tmp_path / "a" / "x", tmp_path / "b" / "x"])
    check_names([tmp_path / "a", tmp_path / "b"])
    all_awake = ServeOptions()
    assert shared(all_awake, EngineConfig(), 1) == (all_awake, EngineConfig())
    assert shared(all_awake, EngineConfig(gpu_share=0.8), 2)[1].gpu_share == 0.4
    options, config = shared(ServeOptions(awake_models=1), EngineConfig(), 3)
    assert (options.awake_models, config.gpu_share) == (1, 1.0)
    assert shared(ServeOptions(awake_models=9), EngineConfig(), 2)[0].awake_models is None
    with pytest.raises(ConfigError, match="gpu_share"):
        EngineConfig(gpu_share=1.5)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--awake-models", "1")], ids=["awake", "in turns"])
def test_a_server_of_two_models_in_processes(checkpoints: Mapping[str, Path], options: tuple[str, ...]) -> None:
    with server_processes(ready_s=120) as run:
        _, url = run(checkpoints["custom"], "--workers", "1", "--drain", "5", *options, beside=[checkpoints["endless"]])
        names = [m["id"] for m in httpx.get(f"{url}/v1/models").json()["data"][:2]]
        assert names == [checkpoints["custom"].name, checkpoints["endless"].name]
        for name in (*names, *names):
            body = {**BODY, "model": name, "voice": "alloy"}
            assert httpx.post(f"{url}/v1/audio/speech", json=body, timeout=60).status_code == 200
            stats = json.loads(httpx.get(f"{url}/v1/engine/stats", params={"model": name}).text)
            assert stats["steps"] > 0
