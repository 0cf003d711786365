"""Files in deploy/ name paths, ports, options and settings that exist, and pass their linters if they are there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from sonant.cli.main import build_parser
from sonant.cli.serve import OWNERS, read_options
from sonant.cli.settings import settings_of
from sonant.kernels.cuda.compiler import cache_folder
from sonant.kernels.tuning import user_path
from sonant.serving.cluster.ray_settings import DRAIN_NOTICE_S, ray_environment
from sonant.serving.options import ServeOptions
from sonant.serving.ray_app import options_from

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VARIABLES = {setting.variable for setting in settings_of(*OWNERS.values())}
DEFAULTS = ServeOptions()


def read(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def load(name: str) -> Any:
    return yaml.safe_load(read(name))


def tool(name: str) -> str:
    """Return the path of a tool in this environment or on the machine; skip the test if there is none."""
    own = Path(sys.executable).with_name(name)
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def lint(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_linters_have_nothing_to_say() -> None:
    lint(tool("yamllint"), "--strict", "-c", "deploy/.yamllint", "deploy")
    lint(tool("hadolint"), "deploy/Dockerfile")
    lint(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", "deploy/compose.yaml")


# The image


def test_an_image_is_made_of_files_that_are_there_and_runs_as_nobody_special() -> None:
    lines = re.sub(r"\\\n", " ", read("Dockerfile")).splitlines()
    stages = [line.split()[-1] for line in lines if line.startswith("FROM")]
    assert stages == ["wheel", "base", "cpu", "cuda"]
    for line in lines:
        if line.startswith("COPY"):
            for name in line.split()[1:-1]:
                assert (ROOT / name).exists(), name
                assert f"!{name}" in read("Dockerfile.dockerignore").splitlines(), name
    for stage in ("cpu", "cuda"):
        last = "\n".join(lines).split(f" AS {stage}\n")[1].split("\nFROM")[0]
        assert re.search(r"^USER (\d+)$", last, re.M)[1] != "0"  # type: ignore[index]
    assert f"EXPOSE {DEFAULTS.port}" in lines
    assert any(line.startswith("HEALTHCHECK") and f":{DEFAULTS.port}/health" in line for line in lines)
    assert set(re.findall(r"SONANT_\w+", read("Dockerfile"))) <= VARIABLES
    extras = set(re.search(r"\[([\w,]+)\]\"", read("Dockerfile"))[1].split(","))  # type: ignore[index]
    known = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M))
    assert extras <= known


def test_versions_leave_triton_to_the_torch_that_has_cuda() -> None:
    """Each such torch requires its own Triton: given a version here, neither the image nor `make` could install it."""
    named = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    assert "torch" in named and "triton" not in named


# Compose


def test_composed_services_find_each_other_and_their_files() -> None:
    services = load("compose.yaml")["services"]
    ours = services["sonant"]
    assert ours["build"]["dockerfile"] == "deploy/Dockerfile" and (DEPLOY / ours["build"]["context"]).resolve() == ROOT
    assert set(ours["environment"]) <= VARIABLES
    assert float(ours["stop_grace_period"].rstrip("s")) > float(ours["environment"]["SONANT_DRAIN_S"])
    assert ours["ports"][0].endswith(f":{DEFAULTS.port}")
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            known = (DEPLOY / source).exists() if source.startswith(".") else source in load("compose.yaml")["volumes"]
            assert known, volume
    (scrape,) = load("prometheus.yaml")["scrape_configs"]
    host, _, port = scrape["static_configs"][0]["targets"][0].partition(":")
    assert host in services and int(port) == DEFAULTS.port and scrape["metrics_path"] == "/metrics"
    url = load("grafana/datasource.yaml")["datasources"][0]["url"]
    assert url.removeprefix("http://").partition(":")[0] in services
    boards = load("grafana/dashboards.yaml")["providers"][0]["options"]["path"]
    mounted = [v.split(":") for v in services["grafana"]["volumes"] if v.split(":")[1] == boards]
    assert (DEPLOY / mounted[0][0] / "sonant.json").exists()


# Ray


def check_application(config: dict[str, Any]) -> None:
    (app,) = config["applications"]
    module, _, name = app["import_path"].partition(":")
    assert callable(getattr(import_module(module), name))
    _, serving, _, cluster = options_from(app["args"])
    assert cluster.wanted and serving.has_keys, "whoever reaches the port could use it"
    assert config["http_options"]["port"] == DEFAULTS.port


def test_the_serve_config_builds_an_application() -> None:
    check_application(load("serve_config.yaml"))


def test_ray_is_told_everywhere_what_we_tell_it() -> None:
    wanted = ray_environment(DEFAULTS)
    sourced = ["env", "-i", "sh", "-c", f"set -a; . {DEPLOY / 'ray.env'}; exec env -0"]
    told = subprocess.run(sourced, capture_output=True, text=True, check=True).stdout.split("\0")
    assert wanted.items() <= dict(line.split("=", 1) for line in told if line).items()
    assert set(re.findall(r"^RAY\w+", read("ray.env"), re.M)) == wanted.keys()
    for container in containers():
        told = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert {name: told.get(name) for name in wanted} == wanted


def containers() -> list[dict[str, Any]]:
    cluster = load("kuberay.yaml")["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [container for group in groups for container in group["template"]["spec"]["containers"]]


def test_the_kubernetes_manifest_serves_the_same_application() -> None:
    spec = load("kuberay.yaml")["spec"]
    config = yaml.safe_load(spec["serveConfigV2"])
    check_application(config)
    assert config == load("serve_config.yaml")
    args = config["applications"][0]["args"]
    (workers,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    assert (workers["minReplicas"], workers["maxReplicas"]) == (args["replicas"], args["max_replicas"])
    pod = workers["template"]["spec"]
    drain_s = options_from(args)[1].drain_s
    assert pod["terminationGracePeriodSeconds"] > drain_s + DRAIN_NOTICE_S
    assert pod["securityContext"]["runAsNonRoot"]
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1" and float(limits["cpu"]) >= args["replica_cpus"]
    for container in containers():
        places = [mount["mountPath"] for mount in container["volumeMounts"]]
        for name in ("model", "voices_folder", "api_key_file"):
            assert any(args[name].startswith(place) for place in places), name
        assert container["ports"][0]["containerPort"] == DEFAULTS.port
    requirement = re.search(r"ray\[serve\]>=(\d+\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert requirement is not None and spec["rayClusterConfig"]["rayVersion"].startswith(requirement[1])


def test_the_image_has_what_kubernetes_is_told_to_run_in_it() -> None:
    """KubeRay's probes are `wget … | grep success`: in an image without it no pod is ever ready."""
    base = read("Dockerfile").split(" AS base\n")[1].split("\nFROM")[0]
    assert re.search(r"apt-get install \S+ \S+ [^&]*\bwget\b", base)


def test_the_pods_are_what_kubernetes_takes() -> None:
    """Needs `pip install kubernetes-validate`, whose schemas have 100 MB; they do not cover KubeRay's own part."""
    validate = pytest.importorskip("kubernetes_validate").validate
    cluster = load("kuberay.yaml")["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sonant"}, "spec": group["template"]["spec"]}
        validate(pod, "1.31", strict=True)


# One machine


def unit() -> dict[str, str]:
    return dict(line.split("=", 1) for line in read("sonant.service").splitlines() if re.match(r"\w+=", line))


def test_the_unit_starts_a_command_that_exists_and_waits_for_its_drain() -> None:
    command = shlex.split(unit()["ExecStart"])
    assert command[0].endswith("/bin/sonant")
    _, options, _ = read_options(build_parser().parse_args(command[1:]))
    assert float(unit()["TimeoutStopSec"]) > options.drain_s and options.host == "127.0.0.1"
    assert options.voices_folder is not None
    assert str(options.voices_folder).startswith(f"/var/lib/{unit()['StateDirectory']}/")
    assert set(re.findall(r"SONANT_\w+", read("sonant.service"))) <= VARIABLES


def test_the_unit_keeps_compiled_kernels_where_it_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The home of its user is hidden by ProtectHome, and ProtectSystem=strict leaves two folders to write to."""
    told, kept = unit(), Path("/var/cache") / unit()["CacheDirectory"]
    environment = dict(word.split("=", 1) for word in shlex.split(told["Environment"]))
    assert told["ProtectHome"] == "true" and told["ProtectSystem"] == "strict"
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for folder in (Path(environment["TRITON_CACHE_DIR"]), cache_folder(), user_path("NVIDIA H200")):
        assert folder.is_relative_to(kept), folder


def test_systemd_understands_the_unit() -> None:
    """It may complain only that the command is not installed here."""
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", str(DEPLOY / "sonant.service")], capture_output=True, text=True
    )
    said = [line for line in done.stderr.splitlines() if "sonant.service" in line]
    assert all(line.endswith("is not executable: No such file or directory") for line in said), done.stderr


def test_the_reverse_proxy_lets_sound_and_websockets_through() -> None:
    text = read("nginx.conf")
    assert f"server 127.0.0.1:{DEFAULTS.port};" in text and "proxy_buffering off;" in text
    assert "proxy_set_header Upgrade $http_upgrade;" in text and "proxy_http_version 1.1;" in text
    assert "proxy_set_header X-Forwarded-For $remote_addr;" in text  # not $proxy_add_…: clients may send one
    megabytes = int(re.search(r"client_max_body_size (\d+)m;", text)[1])  # type: ignore[index]
    assert megabytes << 20 >= DEFAULTS.max_body_bytes
    assert int(re.search(r"proxy_read_timeout (\d+)s;", text)[1]) > max(DEFAULTS.ws_idle_s, DEFAULTS.max_first_audio_s)  # type: ignore[index]
    assert int(re.search(r"\bsend_timeout (\d+)s;", text)[1]) == DEFAULTS.unread_s  # type: ignore[index]
    kept_bytes = int(re.search(r"listen .*\bsndbuf=(\d+)k;", text)[1]) << 10  # type: ignore[index]
    assert kept_bytes * 2 / 3 / DEFAULTS.unread_s < 1000, "who listens to opus would be taken for one who reads nothing"
    assert text.count("{") == text.count("}")
