"""Requests generated from our own OpenAPI document, valid and invalid: never a 500, never an answer that the document
does not promise.

`pytest -m long tests/serving/test_fuzz.py` tries many more.
"""

from __future__ import annotations

import random

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serving.conftest import Serve, Served, wait_for

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# Speech is short, whatever is asked for.
ENGINE = {"max_positions": 256, "budget_s": 0.16, "budget_s_per_token": 0.008, "max_text_chars": 500}


@pytest.fixture(scope="module", params=["custom", "base"])
def served(serve_once: Serve, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    store = tmp_path_factory.mktemp("fuzz") / "store"
    return serve_once(request.param, engine=ENGINE, voices_folder=store, consent="asserted")


def fuzz(served: Served, mode: GenerationMode, examples: int, seed_of_run: int) -> int:
    """Try up to `examples` requests of every operation → how many were sent."""
    sent = 0
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # any text may be an id, so none is invalid

        @seed(seed_of_run)
        @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(mode))
        def try_one(case: Case) -> None:
            nonlocal sent
            sent += 1
            answer = case.call(timeout=30)
            typed = case.media_type == "application/json"  # in a form all is text, so no type is wrong
            wrong = [negative_data_rejection] if mode is GenerationMode.NEGATIVE and typed else []
            case.validate_response(answer, checks=[*CHECKS, *wrong])
            assert answer.headers["x-request-id"]

        try_one()
    return sent


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
def test_nothing_that_is_made_up_breaks_a_promise(served: Served, mode: GenerationMode) -> None:
    assert fuzz(served, mode, 8, 1) > 30
    left_as_found(served)


@pytest.mark.long
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
def test_nothing_that_is_made_up_at_length_breaks_a_promise(served: Served, mode: GenerationMode) -> None:
    seed_of_run = random.SystemRandom().randrange(10**6)
    print(f"seed {seed_of_run}: {fuzz(served, mode, 300, seed_of_run)} requests")
    left_as_found(served)


def left_as_found(served: Served) -> None:
    service = served.server.service
    wait_for(lambda: service.in_flight.running == 0, 30)
    wait_for(lambda: not served.admission.active)
    assert served.supervisor.engine.stats().running == 0 and not served.supervisor.restarts
