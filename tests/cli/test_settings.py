"""One list of options, four places to set them, and a clear message when one of them is wrong."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import pytest

from sonant.cli.main import build_parser, main
from sonant.cli.serve import read_options
from sonant.cli.settings import settings_of
from sonant.config import EngineConfig
from sonant.errors import ConfigError
from sonant.serving.options import ModelOptions, ServeOptions

SETTINGS = settings_of(ModelOptions, ServeOptions, EngineConfig)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [s.variable for s in SETTINGS] + ["SONANT_CONFIG"]:
        monkeypatch.delenv(variable, raising=False)


def parsed(*argv: str) -> tuple[ModelOptions, ServeOptions, EngineConfig]:
    args: argparse.Namespace = build_parser().parse_args(["serve", *argv])
    return read_options(args)


def test_nothing_set_means_the_defaults() -> None:
    assert parsed() == (ModelOptions(), ServeOptions(), EngineConfig())


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sonant.toml"
    file.write_text('port = 1\nmax_rows = 1\ndrain_s = 1\nmodel = "from-file"\napi_keys = ["a", "b"]\nws_idle_s = 5')
    monkeypatch.setenv("SONANT_PORT", "2")
    monkeypatch.setenv("SONANT_MAX_ROWS", "2")
    monkeypatch.setenv("SONANT_MODEL", "from-environment")
    model, serve, engine = parsed("--config", str(file), "--port", "3", "from-command-line")
    assert (serve.port, engine.max_rows, serve.drain_s, serve.ws_idle_s) == (3, 2, 1.0, 5.0)
    assert (model.model, serve.api_keys) == ("from-command-line", ("a", "b"))
    monkeypatch.setenv("SONANT_CONFIG", str(file))
    assert parsed()[1].drain_s == 1.0


def test_the_codecs_place_is_an_option_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sonant.toml"
    file.write_text('codec = "from-file"')
    assert parsed()[2].codec is None and parsed("--config", str(file))[2].codec == "from-file"
    monkeypatch.setenv("SONANT_CODEC", "from-environment")
    assert parsed("--config", str(file))[2].codec == "from-environment"
    assert parsed("--codec", "given")[2].codec == "given"


def test_weights_are_quantised_by_an_option_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sonant.toml"
    file.write_text('quantize = "fp8"')
    assert parsed()[2].quantize is None and parsed("--quantize", "fp8")[2].quantize == "fp8"
    assert parsed("--config", str(file))[2].quantize == "fp8"
    monkeypatch.setenv("SONANT_QUANTIZE", "fp4")
    with pytest.raises(ConfigError, match="SONANT_QUANTIZE must be one of fp8, not 'fp4'"):
        parsed()


def test_lists_are_given_again_or_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed("--api-key", "a", "--api-key", "b,c")[1].api_keys == ("a", "b,c")  # a key may hold a comma
    monkeypatch.setenv("SONANT_API_KEYS", "a, b")
    monkeypatch.setenv("SONANT_CHUNK_S", "0.1,0.4,0.8")
    _, serve, engine = parsed()
    assert serve.api_keys == ("a", "b") and engine.chunk_s == (0.1, 0.4, 0.8)


def test_the_model_by_position_or_by_name_but_once() -> None:
    assert parsed("here")[0].model == parsed("--model", "here")[0].model == "here"
    with pytest.raises(ConfigError, match="twice"):
        parsed("here", "--model", "there")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prot = 8000", "no option is called 'prot'; did you mean port"),
        ("[serve]\nport = 1", "no option is called 'serve'"),
        ("port = '8000'", "port must be a whole number"),
        ("port = true", "port must be a whole number"),
        ("port = 70000", "port must be from 0 to 65535"),
        ("drain_s = 'long'", "drain_s must be a number"),
        ("drain_s = nan", "drain_s must be a number"),
        ("api_keys = 'a'", "api_keys must be a list"),
        ("api_keys = [1]", "api_keys must be text"),
        ("consent = 'none'", "consent must be one of required, asserted"),
        ("max_rows = 0", "max_rows must be at least 1"),
        ("quantize = 'int4'", "quantize must be one of fp8"),
        ("port = ", "not valid TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_told(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "sonant.toml"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        parsed("--config", str(file))
    assert message in str(caught.value)


def test_what_is_wrong_elsewhere_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--port must be a whole number, not 'x'"):
        parsed("--port", "x")
    monkeypatch.setenv("SONANT_DRAIN_S", "soon")
    with pytest.raises(ConfigError, match="SONANT_DRAIN_S must be a number"):
        parsed()
    with pytest.raises(ConfigError, match="cannot be read"):
        parsed("--config", "/nowhere/at/all.toml")


def test_a_misspelt_variable_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("SONANT_PROT", "1")
    monkeypatch.setenv("SONANT_CONFIG", "")
    parsed()
    assert [r.getMessage() for r in caplog.records] == ["SONANT_PROT is not an option; did you mean SONANT_PORT?"]


def test_help_names_every_option_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    for setting in SETTINGS:
        assert f"--{setting.flag} " in words and setting.variable in words, setting.name
    names = [f.name for owner in (ModelOptions, ServeOptions, EngineConfig) for f in fields(owner)]
    assert len(names) == len(set(names)) == len(SETTINGS)
    assert len({s.flag for s in SETTINGS}) == len(SETTINGS)


def test_an_open_door_to_any_page_needs_a_key() -> None:
    with pytest.raises(ConfigError, match="cors_origins"):
        parsed("--cors-origin", "*")
    assert parsed("--cors-origin", "*", "--api-key", "k")[1].cors_origins == ("*",)
