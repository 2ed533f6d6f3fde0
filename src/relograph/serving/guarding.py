"""What holds for every request, whatever it asks for: who it is for, where it comes from, what its answer may carry."""

import logging
import re
import secrets
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relograph.serving.config import LOOPBACK_HOSTS, ServeConfig
from relograph.serving.errors import ServiceError
from relograph.serving.messages import Error, ErrorBody
from relograph.serving.metrics import Metrics

LOGGER = logging.getLogger("relograph.serving")
HEADER_BYTES = 32 * 1024
"""Of a request's first lines, all together."""
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
OTHER_ROUTE = "other"
KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "font-src 'self'; media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), geolocation=(), microphone=()",
}


class Guard:
    """Around the whole application."""

    def __init__(self, app: ASGIApp, config: ServeConfig, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics
        self._allowed_hosts = allowed_hosts(config)
        self._cors_origins = frozenset(config.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, headers = perf_counter(), Headers(scope=scope)
        given_id = headers.get("x-request-id", "")
        request_id = given_id if REQUEST_ID.fullmatch(given_id) else new_request_id()
        scope.setdefault("state", {})["began"] = began
        status = 0

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answer_headers = MutableHeaders(scope=message)
                add_headers(answer_headers, request_id)
                if headers.get("origin") in self._cors_origins:
                    answer_headers["Cross-Origin-Resource-Policy"] = "cross-origin"
            await send(message)

        try:
            refused = self._refusal(scope, headers)
            app = self._app if refused is None else error_response(refused)
            await app(scope, receive, send_guarded)
        except Exception:
            LOGGER.exception("Request %s failed: %s %r", request_id, scope["method"], scope["path"][:200])
            if status:  # too late for another answer: the connection ends, and the client sees that
                raise
            await error_response(unexpected(request_id))(scope, receive, send_guarded)
        finally:
            self._count(scope, status, perf_counter() - began)

    def _refusal(self, scope: Scope, headers: Headers) -> ServiceError | None:
        lines = (part for header in scope["headers"] for part in header)
        num_bytes = sum(map(len, (scope["raw_path"], scope["query_string"], *lines)))
        if num_bytes > HEADER_BYTES:  # uvicorn stops what has not come in whole by then, but not what has
            return headers_too_large()
        host = headers.get("host", "")
        if self._allowed_hosts is not None and without_port(host) not in self._allowed_hosts:
            return ServiceError(
                421,
                "wrong_host",
                "Expected a request to a name of this service, found another in Host. Start the service with "
                "--allowed-host and that name, if it is one.",
            )
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return None
        # A web page of somebody else can send forms here, also where no key is asked for: its browser says who it is.
        origin = headers.get("origin")
        is_same = origin is None or origin == f"{scope['scheme']}://{host}" or _host_of(origin) == host
        if not is_same and origin not in self._cors_origins:
            return ServiceError(
                403,
                "cross_origin",
                "Expected a request from this service's own page or from a program, found one from another web page. "
                "Start the service with --cors-origin and that page's origin, if it is to ask.",
            )
        return None

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", OTHER_ROUTE)
        method = scope["method"] if scope["method"] in KNOWN_METHODS else "other"
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)


def allowed_hosts(config: ServeConfig) -> frozenset[str] | None:
    """Names that a request may be addressed to; None where all will do.

    Without keys only this machine may ask: a web page whose name leads here (DNS rebinding) says that name.
    """
    if config.keys is not None and not config.allowed_hosts:
        return None
    return frozenset({*LOOPBACK_HOSTS, config.host.lower(), *(host.lower() for host in config.allowed_hosts)})


def without_port(host: str) -> str:
    """The name in a Host header.

    Example:
        >>> without_port("Localhost:8000"), without_port("[::1]:8000"), without_port("[::1]")
        ('localhost', '[::1]', '[::1]')
    """
    return re.sub(r":\d{1,5}$", "", host).lower()


def _host_of(origin: str) -> str:
    return origin.partition("://")[2]


def new_request_id() -> str:
    return secrets.token_hex(8)


def add_headers(headers: MutableHeaders, request_id: str) -> None:
    """What every answer carries, unless it says otherwise."""
    headers["X-Request-ID"] = request_id
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("Cache-Control", "no-store")


def headers_too_large() -> ServiceError:
    return ServiceError(
        431,
        "headers_too_large",
        f"Expected at most {HEADER_BYTES} bytes before the body, found more. Send less there.",
    )


def no_http() -> ServiceError:
    return ServiceError(
        400,
        "bad_request",
        "Expected a request by HTTP/1.1, found something else. Let your HTTP library send it.",
    )


def unexpected(request_id: str) -> ServiceError:
    """What a client hears of a bug: a number by which the operator finds it in the log."""
    return ServiceError(
        500, "internal", f"Something unexpected happened. Tell the operator the number of this request: {request_id}."
    )


def error_response(error: ServiceError) -> Response:
    """The error as every client expects it."""
    body = Error(error=ErrorBody(code=error.code, message=str(error)))
    headers: Mapping[str, Any] = error.headers
    return Response(body.model_dump_json(), error.status, headers, "application/json")
