"""Exit codes that several commands share; those for CI, such as a regression, are with their command."""

from __future__ import annotations

EXIT_ERROR = 2  # what argparse uses too
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE
