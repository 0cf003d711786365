"""The error for a checkpoint that cannot be fetched."""

from __future__ import annotations

from sonant.errors import SonantError


class HubError(SonantError):
    """The checkpoint cannot be fetched; the message says why, and what to do about it."""
