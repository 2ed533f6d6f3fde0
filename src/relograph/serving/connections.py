"""Connections that say nothing, or too slowly, or do not listen, are closed: uvicorn alone would wait for ever."""

import asyncio
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from relograph.serving.errors import CLOSING
from relograph.serving.guarding import add_headers, error_response, headers_too_large, new_request_id, no_http


class PatientProtocol(H11Protocol):
    """A connection with a limit for the time of a request's first lines, for that of an answer that is not fetched,
    and for the number of connections. The time of a body is for whoever reads it.
    """

    def __init__(
        self, *args: Any, header_timeout_s: float, answer_timeout_s: float, max_connections: int, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._header_timeout_s, self._answer_timeout_s = header_timeout_s, answer_timeout_s
        self._max_connections = max_connections
        self._giving_up: asyncio.TimerHandle | None = None
        self._not_fetched: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            transport.abort()
        else:
            self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # A request whose first lines are not all there, or the rest of a body whose answer was given without it.
        is_waiting = self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE
        if not is_waiting:
            self._stop_waiting()
        elif self._giving_up is None:
            self._wait_for_headers()

    def send_400_response(self, msg: str) -> None:
        """To what is no HTTP after all, such as a body in broken chunks: where no answer has begun it is given here.

        It has the one form of errors, which uvicorn does not know.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            hint = getattr(sys.exc_info()[1], "error_status_hint", 400)
            is_before_a_body = self.conn.our_state is h11.IDLE
            response = error_response(headers_too_large() if hint == 431 and is_before_a_body else no_http())
            response.headers.update(CLOSING)
            add_headers(response.headers, new_request_id())
            status = response.status_code
            for event in (
                h11.Response(status_code=status, headers=response.raw_headers, reason=STATUS_PHRASES[status]),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._not_fetched = self.loop.call_later(self._answer_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._not_fetched is not None:
            self._not_fetched.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._not_fetched is not None:
            self._not_fetched.cancel()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        self._giving_up = self.loop.call_later(self._header_timeout_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
