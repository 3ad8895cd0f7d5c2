"""Exceptions of this package."""

from __future__ import annotations

from typing import Any


class AdditiveError(Exception):
    """Base of all others."""


class ConnectionFailed(AdditiveError):
    """The service cannot be reached, or the connection was lost or timed out."""


class APIError(AdditiveError):
    """An error that the service reports; `status` is 0 for one in the middle of a stream."""

    def __init__(self, status: int, error: dict[str, Any], request_id: str | None = None) -> None:
        self.status = status
        self.message = str(error.get("message", ""))
        self.type: str | None = error.get("type")
        self.code: str | None = error.get("code")
        self.param: str | None = error.get("param")
        self.request_id = request_id
        where = f" ({self.param})" if self.param else ""
        super().__init__(f"{status or 'stream'} {self.code}: {self.message}{where}")
