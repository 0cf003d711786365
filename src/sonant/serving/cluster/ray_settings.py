"""Ray Serve as we need it. It reads these from the environment of all its processes, when they start.

Where Sonant starts Ray itself they are set by `sonant serve`; on a cluster of somebody else's they belong into the
environment of `ray start` on every machine (`deploy/` has them, and a test holds both to this list).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sonant.serving.cluster.cluster_options import Route
from sonant.serving.options import ServeOptions

DRAIN_NOTICE_S = 5  # in which proxies learn that a replica takes nobody new
_SLOWEST_BYTES_PER_S = 1000  # at which somebody may read: a ninth of opus as it plays
_ROOM = 125  # percent of the mean number of requests that a replica may have before a voice goes to another
# Ray writes this behind HAProxy's `balance`, in the section that all others inherit. What is hashed is the name or id
# of the voice, found in the JSON as it came; of a body without one it is the body.
_BY_VOICE = rf"""hash 'req.body,regsub("^.*\"voice\"[^\"]*(\"id\"[^\"]*)?\"([^\"]*)\".*$","\2")'
    hash-type consistent
    hash-balance-factor {_ROOM}
    option http-buffer-request"""


def _log_target(unread_s: float) -> str:
    """Ray writes this in HAProxy's section `global`, behind `log` and before `local0 info`, which we make a comment.

    HAProxy learns that a client has read something only when a third of the kernel's buffer is free. By itself that
    grows to 4 MB, so a third is 85 s of mp3: who reads it as it plays would be taken for one who reads nothing.
    """
    unsent_bytes = round(unread_s * _SLOWEST_BYTES_PER_S)
    return f"127.0.0.1:514 local0 info\n    tune.sndbuf.client {unsent_bytes} #"


def ray_environment(options: ServeOptions, route: Route = "load") -> Mapping[str, str]:
    return {
        # By load it is the one with the fewest connections, which are streams. By voice, whoever has its prompt at hand
        # is preferred while it has no more than its share of requests, and a quarter.
        "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM": "leastconn" if route == "load" else _BY_VOICE,
        # HAProxy, straight into the replica's own port. Ray's proxy in Python takes milliseconds of a core for each
        # request, and copies each chunk of sound through three processes.
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        # Ray's workers, and with them HAProxy and engines, would give way to all else on the machine (15 by default):
        # first sounds and steps have their deadlines, with Ray as without.
        "RAY_worker_niceness": "0",
        # The app runs on the event loop that reads and writes its sockets; else each chunk crosses two threads.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "sonant.serving.cluster.replica_edge:middlewares",
        # Nothing was spoken yet where a replica answers 503 (its engine is being loaded again), or dies before it has
        # answered at all: another is asked. Only what fits into a buffer of HAProxy's is asked twice, so no upload is.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response 503",
        # Who reads nothing for so long is cut off, as without Ray, and who reads slowly is not.
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": str(math.ceil(options.unread_s)),
        "RAY_SERVE_HAPROXY_LOG_TARGET": _log_target(options.unread_s),
        # At each change of replicas a new HAProxy takes over, and the old one ends with its last connection. What it
        # carries is cut off only after this time.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(DRAIN_NOTICE_S),
        # A replica that was killed is noticed by the first connection that fails, and by these.
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
        # One that is not there three times running is started again: nobody is reached meanwhile.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    }
