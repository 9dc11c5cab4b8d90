"""Errors that a client gets, in OpenAI's format; never with a status that the client library tries
again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from aiohttp import web

TOO_LONG = "context_length_exceeded"  # code of the error of a prompt
HEADERS = {"x-should-retry": "false"}


class Refusal(Exception):
    """A request that is refused.

    Attributes:
        status: 400, 401, 403, 404, 413 or 417; 503 for a failure of the engine.
        code: error code in OpenAI's words, such as `model_not_found`.
        param: field of the request that is at fault.
    """

    def __init__(
        self, message: str, status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param

    @property
    def body(self) -> Mapping[str, object]:
        """The error as JSON."""
        kind = {401: "authentication_error", 503: "server_error"}.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> web.Response:
        """Return the answer to the request."""
        return web.json_response(self.body, status=self.status, headers=HEADERS, dumps=json.dumps)
