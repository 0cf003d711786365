"""Starts replicas on a Ray of their own, and looks into them: processes by kind, servers, metrics."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from serving.core_time import parent_of
from sonant.serving.cluster.cluster_options import ClusterOptions
from sonant.serving.cluster.ray_settings import ray_environment
from sonant.serving.cluster.replica import ReplicaSetup

# What `ps` shows of each kind, as Ray names its processes.
TITLES = {
    "replica": "ray::ServeReplica:sonant:SpeechReplica",
    "engine": "-m sonant.serving.processes.engine_process",
    "controller": "ray::ServeController",
    "proxy": "/haproxy -db",
    "proxy manager": "ray::HAProxyManager",
    "proxy actor": "ray::ProxyActor",
}
TINY = {"tiny": "custom_voice", "tiny base": "base"}
_PROXY_FILES = "/tmp/haproxy-serve"


@dataclass
class Cluster:
    url: str
    replicas: int
    deploy: Callable[[ReplicaSetup], None]
    folder: Path = field(default=Path(_PROXY_FILES))

    def pids(self, kind: str) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    if TITLES[kind] in (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                        found.append(int(entry.name))
        if kind == "engine":  # Other people may run servers on this machine.
            replicas = self.pids("replica")
            found = [pid for pid in found if parent_of(pid) in replicas]
        return sorted(found)

    def kill(self, kind: str) -> int:
        victim = self.pids(kind)[-1]
        os.kill(victim, signal.SIGKILL)
        return victim

    def ports(self) -> list[int]:
        """The ports on which replicas listen, as the proxy was last told."""
        written = max(self.folder.glob("*/haproxy.cfg"), key=lambda file: file.stat().st_mtime).read_text()
        return [int(port) for port in re.findall(r"^ *server SERVE_REPLICA\S+ [\d.]+:(\d+) check", written, re.M)]

    def ready(self) -> int:
        """How many replicas take requests now, asked one by one."""
        return sum(fetch(f"http://127.0.0.1:{port}/ready") is not None for port in self.ports())

    def whole(self) -> bool:
        return self.ready() == self.replicas and fetch(f"{self.url}/ready") is not None

    def counted(self, *names: str) -> list[float]:
        """For each name the sum, over replicas, of the samples of `/metrics` whose line has all words of the name."""
        page = (fetch(f"{self.url}/metrics") or b"").decode()
        lines = [line for line in page.splitlines() if not line.startswith("#")]
        return [
            sum(float(line.rpartition(" ")[2]) for line in lines if all(word in line for word in name.split()))
            for name in names
        ]

    def wait_whole(self, timeout_s: float = 120.0) -> float:
        began_s = time.monotonic()
        while not self.whole():
            assert time.monotonic() - began_s < timeout_s, f"after {timeout_s:g} s {self.ready()} replicas are ready"
            time.sleep(0.1)
        return time.monotonic() - began_s


@contextmanager
def alone() -> Iterator[None]:
    """Allow one cluster at a time on this machine, since Ray's proxy has the same ports for everybody."""
    with (Path(tempfile.gettempdir()) / "sonant-test-cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bytes(response.read())
    except OSError:
        return None


@contextmanager
def folder_of(named: str | None) -> Iterator[Path | None]:
    """A checkpoint's folder. `tiny`, and `tiny base`, which clones, are written here and never stop by themselves."""
    if named not in TINY:
        yield None if named is None else Path(named).absolute()
        return
    from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "checkpoint"
        write_checkpoint(written, kind=TINY[named], eos_gain=0.0, code_groups=4)
        yield written


@contextmanager
def cluster(setup: ReplicaSetup, replicas: int, **environment: str) -> Iterator[Cluster]:
    """Run replicas, which answer at `setup.serving.port`, until the block ends."""
    changed = {**ray_environment(setup.serving), "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", **environment}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    import ray
    from ray import serve

    from sonant.serving.ray_app import application

    options = ClusterOptions(replicas=replicas, replica_cpus=0.1)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": setup.serving.port})

        def deploy(setup: ReplicaSetup) -> None:
            serve.run(application(setup, options), name="sonant")

        deploy(setup)
        made = Cluster(f"http://127.0.0.1:{setup.serving.port}", replicas, deploy)
        made.wait_whole()
        yield made
    finally:
        proxies = Cluster("", 0, lambda _: None).pids("proxy")
        ray.shutdown()
        for pid in proxies:  # Its manager ends before it can stop it.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
