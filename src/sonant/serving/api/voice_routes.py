"""Uploaded voices and the consents they rest on, in the shape of OpenAI's SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Request, UploadFile
from starlette.concurrency import run_in_threadpool

from sonant.audio.clip import read_clip
from sonant.errors import BadAudio, UnknownConsent, UnknownVoice, Unsupported
from sonant.serving.api.json_body import JsonRoute
from sonant.serving.api.schemas import ConsentUpdate
from sonant.serving.refused import Refused
from sonant.serving.service import SpeechService
from sonant.serving.voices.consents import ConsentRecord
from sonant.serving.voices.voice_store import VoiceRecord, VoiceStore

Name = Annotated[str, Form(max_length=256)]
_CHECK_HZ = 16_000  # for a recording that is only checked: for being readable sound, and for its length


def voice_routes(service: SpeechService, store: VoiceStore) -> APIRouter:
    """A voice is marked with the model that encoded it, since only that model can speak with it."""
    router = APIRouter(prefix="/v1/audio", route_class=JsonRoute)

    @router.post("/voices")
    async def add_voice(
        name: Name,
        audio_sample: Annotated[UploadFile, File()],
        consent: Name,
        ref_text: Annotated[str | None, Form(max_length=4096)] = None,
        type: Name = "audio_sample",
        model: Annotated[str | None, Form(max_length=256)] = None,
        *,
        request: Request,
    ) -> dict[str, Any]:
        chosen = service.of(model)
        async with chosen.upload(request.state.client):
            clip, engine = await audio_sample.read(), chosen.link.engine
            if not engine.spec.clones:
                raise Unsupported("this model cannot clone; load one that can, as `sonant voices` tells")
            with _of_field("audio_sample"):
                voice = await chosen.clips.upload(engine, clip, ref_text or None, name)
            asserted = store.options.consent == "asserted" and not consent.startswith("cons_")
            statement, consent_id = (consent, None) if asserted else (None, consent)
            mark = chosen.names.model or ""
            keep = partial(store.add, voice, name, consent_id, model=mark, consent_statement=statement, clip=clip)
            return _voice(await run_in_threadpool(keep))

    @router.delete("/voices/{voice_id}")
    async def delete_voice(voice_id: str) -> dict[str, Any]:
        try:
            await run_in_threadpool(store.delete, voice_id)
        except UnknownVoice as e:
            raise Refused(404, "voice_not_found", str(e), param="voice_id") from None
        return {"id": voice_id, "deleted": True, "object": "audio.voice.deleted"}

    _add_consents(router, service, store)
    return router


def _add_consents(router: APIRouter, service: SpeechService, store: VoiceStore) -> None:
    @router.post("/voice_consents")
    async def add_consent(
        name: Name, language: Name, recording: Annotated[UploadFile, File()], request: Request
    ) -> dict[str, Any]:
        async with service.upload(request.state.client):
            data, c = await recording.read(), service.link.engine.config
            read = partial(read_clip, data, sample_rate=_CHECK_HZ, min_s=c.clip_min_s, max_s=c.clip_max_s)
            with _of_field("recording"):
                await service.clips.check(read)
            return _consent(await run_in_threadpool(store.consents.add, data, language, name))

    @router.get("/voice_consents")
    async def list_consents() -> dict[str, Any]:
        records = await run_in_threadpool(store.consents.list)
        return {"object": "list", "data": [_consent(r) for r in records], "has_more": False}

    @router.get("/voice_consents/{consent_id}")
    async def get_consent(consent_id: str) -> dict[str, Any]:
        return _consent(await _found(store.consents.get, consent_id))

    @router.post("/voice_consents/{consent_id}")
    async def update_consent(consent_id: str, body: ConsentUpdate) -> dict[str, Any]:
        return _consent(await _found(partial(store.consents.rename, name=body.name), consent_id))

    @router.delete("/voice_consents/{consent_id}")
    async def delete_consent(consent_id: str) -> dict[str, Any]:
        await _found(store.consents.delete, consent_id)
        return {"id": consent_id, "deleted": True, "object": "audio.voice_consent.deleted"}


@contextmanager
def _of_field(name: str) -> Iterator[None]:
    """Report a bad clip as an error of the form field that it came in."""
    try:
        yield
    except BadAudio as e:
        raise Refused(400, "invalid_audio", str(e), param=name) from None


async def _found(look: Any, consent_id: str) -> Any:
    try:
        return await run_in_threadpool(look, consent_id)
    except UnknownConsent as e:
        raise Refused(404, "consent_not_found", str(e), param="consent_id") from None


def _voice(r: VoiceRecord) -> dict[str, Any]:
    shape = {"id": r.id, "object": "audio.voice", "name": r.name, "created_at": r.created_at, "type": "audio_sample"}
    return {**shape, "consent": r.consent_id, "language": r.language}


def _consent(r: ConsentRecord) -> dict[str, Any]:
    shape = {"id": r.id, "object": "audio.voice_consent", "name": r.name}
    return {**shape, "language": r.language, "created_at": r.created_at}
