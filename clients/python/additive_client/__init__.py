"""Client of the Additive service. `additive_client.torch` is imported by itself."""

from ._async import AsyncClient, AsyncExplanation, AsyncSession
from ._sync import Client, Explanation, Session
from .errors import AdditiveError, APIError, ConnectionFailed

__all__ = ["APIError", "AdditiveError", "AsyncClient", "AsyncExplanation", "AsyncSession", "Client", "ConnectionFailed", "Explanation", "Session"]
