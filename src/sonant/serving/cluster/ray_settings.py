"""Settings that we need of Ray Serve. It reads them from the environment of all its processes, when they start.

Where Sonant starts Ray itself they are set by `sonant serve`; on a cluster that others started they belong in the
environment of `ray start` on every machine (`deploy/` has them, and a test checks both against this list).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sonant.serving.cluster.cluster_options import Route
from sonant.serving.options import ServeOptions

DRAIN_NOTICE_S = 5  # in which proxies learn that a replica takes no new requests
_SLOWEST_BYTES_PER_S = 1000  # at which a client may read: a ninth of the pace at which opus plays
_ROOM = 125  # percent of the mean number of requests that a replica may have before a voice goes to another
# Ray writes this behind HAProxy's `balance`, in the section that all others inherit. What is hashed is the name or id
# of the voice, found in the raw JSON; of a body without a voice it is the body.
_BY_VOICE = rf"""hash 'req.body,regsub("^.*\"voice\"[^\"]*(\"id\"[^\"]*)?\"([^\"]*)\".*$","\2")'
    hash-type consistent
    hash-balance-factor {_ROOM}
    option http-buffer-request"""


def _log_target(unread_s: float) -> str:
    """Ray writes this in HAProxy's section `global`, behind `log` and before `local0 info`, which we make a comment.

    HAProxy learns that a client has read something only when a third of the kernel's buffer is free. By default the
    buffer grows to 4 MB, so a third is 85 s of mp3: a client that reads as it plays would seem to read nothing.
    """
    unsent_bytes = round(unread_s * _SLOWEST_BYTES_PER_S)
    return f"127.0.0.1:514 local0 info\n    tune.sndbuf.client {unsent_bytes} #"


def ray_environment(options: ServeOptions, route: Route = "load") -> Mapping[str, str]:
    return {
        # By load the replica with the fewest connections is chosen, which are streams. By voice, the one that has the
        # voice's prompt at hand is preferred while it has no more than its share of requests and a quarter.
        "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM": "leastconn" if route == "load" else _BY_VOICE,
        # HAProxy, straight into the replica's own port. Ray's proxy in Python takes milliseconds of a core for each
        # request, and copies each chunk of sound through three processes.
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        # Ray's workers, and with them HAProxy and engines, would yield to all else on the machine (15 by default), but
        # first sounds and steps have their deadlines, with Ray as without.
        "RAY_worker_niceness": "0",
        # The app runs on the event loop that reads and writes its sockets; else each chunk crosses two threads.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "sonant.serving.cluster.replica_edge:middlewares",
        # If a replica answers 503 (its engine is being loaded again), or dies before it has answered at all, nothing
        # was spoken yet: another is tried. Only what fits into a buffer of HAProxy's is sent twice, so no upload is.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response 503",
        # A client that reads nothing for so long is cut off, as without Ray; one that reads slowly is not.
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": str(math.ceil(options.unread_s)),
        "RAY_SERVE_HAPROXY_LOG_TARGET": _log_target(options.unread_s),
        # At each change of replicas a new HAProxy takes over, and the old one ends with its last connection, or after
        # this time, when it cuts off the rest.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(DRAIN_NOTICE_S),
        # A replica that was killed is noticed by the first connection that fails, and by these checks.
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
        # A proxy that fails three checks in a row is started again: no replica is reached through it meanwhile.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    }
