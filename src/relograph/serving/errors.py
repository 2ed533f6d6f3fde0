"""How the service says no: a status, a code for programs, and a sentence for people."""

from collections.abc import Mapping

from relograph.errors import RelographError


class ServiceError(RelographError):
    """An answer that is not what was asked for."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, dict(headers or {})


CLOSING = {"Connection": "close"}
"""Where the rest of a body is not worth reading."""


def unauthorized() -> ServiceError:
    return ServiceError(
        401,
        "unauthorized",
        "Expected a valid API key as 'Authorization: Bearer KEY', found none. Ask the operator for one.",
        {"WWW-Authenticate": "Bearer"},
    )


def forbidden(scope: str) -> ServiceError:
    return ServiceError(
        403, "forbidden", f"Expected a key of the scope {scope}, found one without it. Ask for such a key."
    )


def read_only() -> ServiceError:
    return ServiceError(
        403,
        "read_only",
        "Expected a service that lets requests change maps, found one that was started without --allow-writes. Ask its "
        "operator.",
    )


def not_found() -> ServiceError:
    """The same words for what is not there and for what a key may not see."""
    return ServiceError(404, "not_found", "Expected a map or photo that is there, found none. See GET /v1/maps.")


CLIENT_GONE = 499
"""What is counted where nobody is left to hear it."""


def client_gone() -> ServiceError:
    return ServiceError(
        CLIENT_GONE, "client_gone", "Expected the rest of the request, found its sender gone. Send it again."
    )


def invalid(message: str) -> ServiceError:
    return ServiceError(422, "invalid_request", message)


def bad_image(message: str) -> ServiceError:
    return ServiceError(422, "bad_image", message)


def wrong_type(message: str) -> ServiceError:
    return ServiceError(415, "unsupported_type", message)


def too_large(message: str, *, close: bool = False) -> ServiceError:
    return ServiceError(413, "too_large", message, CLOSING if close else None)


def busy(code: str, message: str, retry_after_s: int) -> ServiceError:
    return ServiceError(429, code, f"{message} Try again in {retry_after_s} s.", {"Retry-After": str(retry_after_s)})


def stopping() -> ServiceError:
    return _not_now("stopping", "Expected to have time for the request, found the service about to end.")


def map_locked(name: str) -> ServiceError:
    """Where a map can be read but not be changed: another writer is at work, or its disk is full."""
    return _not_now("map_locked", f"Expected to change the map {name}, found that it cannot be changed just now.")


def map_away(name: str) -> ServiceError:
    """Where a map's folder or database cannot be read: it is asked for again by itself."""
    return _not_now("map_unavailable", f"Expected to read the map {name}, found that it cannot be read just now.")


def _not_now(code: str, message: str) -> ServiceError:
    return ServiceError(503, code, f"{message} Try again in a moment.", {"Retry-After": "2"})
