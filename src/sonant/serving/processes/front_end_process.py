"""A process that answers HTTP. It has no engine and no torch; many of them share a port, and one engine."""

from __future__ import annotations

import sys

from sonant.collector import freeze_what_is_alive
from sonant.serving.observability.shared_counters import share_counters
from sonant.serving.processes.setup import Setup, run_child
from sonant.serving.processes.shared_port import bound

_BACKLOG = 2048


def main() -> int:
    return run_child(_serve, when_orphaned=lambda _: None)


def _serve(setup: Setup) -> int:
    share_counters(setup.metrics)
    from sonant.models.registry import describe, load_prompter
    from sonant.serving.app import ServedModel, create_app
    from sonant.serving.channel.engine_link import EngineLink
    from sonant.serving.server import server_for

    first, *others = [
        ServedModel(EngineLink(s.channel, load_prompter(s.folder, s.engine)), describe(s.folder), s.folder.name)
        for s in setup.each
    ]
    app = create_app(first.link, setup.serving, first.description, first.name, others)
    server = server_for(app, setup.serving)
    freeze_what_is_alive()
    with bound(setup.host, setup.port) as listener:
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        server.run(sockets=[listener])
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
