"""One HTTP connection: uvicorn's protocol over httptools, with limits of size and time."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tokenloom_server.access_log import REFUSED_STATUS, AccessLog
from tokenloom_server.connections import Connections
from tokenloom_server.older_send import OlderSend

MAX_HEADERS = 100
MAX_PIPELINED = 16
"""Requests that may be read while an earlier one is being answered."""
FRAMING_BYTES = 8
"""What a byte of a chunked body may bring along: chunks of one byte pass, long extensions fail."""
LINGER_SECONDS = 2.0
"""How long what a refused client still sends is dropped: a reset could overtake the answer."""
FIRST_PROBE_SECONDS = 0.02
LAST_PROBE_SECONDS = 5.0
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
COMMENT_CHUNK = b"3\r\n:\n\n\r\n"
"""An empty server-sent event: all responses without a length are event streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one connection. Times are in seconds."""

    max_header_bytes: int
    """Request line, header lines, trailers, and the framing of chunks."""
    header_timeout: float
    """From the connection's start, or the first byte of a later request, to the header's end."""
    body_timeout: float
    """From the header's end to the body's end."""
    send_timeout: float
    """In which a client must take some of what waits to be sent."""


class Phase(Enum):
    """The part of a request that comes next."""

    NONE = auto()
    """The last request is whole, and no byte of another one has come."""
    HEADER = auto()
    BODY = auto()


class HttpProtocol(HttpToolsProtocol):
    """A connection that is closed when its client sends too much, too slowly, or reads nothing.

    A client that shuts down its sending side gets its answer. Since one that closes the connection
    looks the same, it is probed: what it ignores is written, and if it has gone, its system answers
    with a reset.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
        connections: Connections,
        access_log: AccessLog | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._open_connections = connections
        self._access_log = access_log
        self._phase = Phase.HEADER
        self._unanswered: deque[RequestResponseCycle] = deque()
        """The requests whose responses are not complete; the first one is being answered."""
        self._num_header_bytes = 0
        self._num_headers = 0
        self._num_framing_bytes = 0
        """Bytes of the present request that are no body, as far as they were received."""
        self._refusal: tuple[HTTPStatus, str] | None = None
        self._receive_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._start_receive_timer()
        self._open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application: uvicorn tells it of the last request alone."""
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        self._open_connections.remove(self)
        self._unset_keepalive_if_required()
        for timer in (self._receive_timer, self._send_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def disconnect(self) -> None:
        """Close at once, and drop what was not sent."""
        self.transport.abort()

    # What is received

    def data_received(self, data: bytes) -> None:
        """Parse what has come. Refuse a request that grows too large."""
        if self._refusal is not None:
            return
        self._unset_keepalive_if_required()
        if self._phase is Phase.NONE:
            self._phase = Phase.HEADER
        self._num_framing_bytes += len(data)
        assert self.parser is not None, "the connection is open"
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the request is answered as one of HTTP/1.1
        except httptools.HttpParserError:
            self._refuse_unparsed()
            return
        if self._num_framing_bytes > self._limits.max_header_bytes:
            self._refuse(*self._too_large())
        elif self._receive_timer is None and self._phase is not Phase.NONE:
            self._start_receive_timer()

    def on_message_begin(self) -> None:
        """Begin a request's header."""
        super().on_message_begin()
        self._phase = Phase.HEADER
        self._num_header_bytes = 0
        self._num_headers = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        super().on_url(url)
        self._num_header_bytes += len(url)
        if self._num_header_bytes > self._limits.max_header_bytes:
            self._stop_parsing(
                HTTPStatus.REQUEST_URI_TOO_LONG,
                f"The URL must have <= {self._limits.max_header_bytes} bytes (the server's "
                "--max-header-bytes)",
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header line. Those of a trailer are counted and dropped."""
        self._num_headers += 1
        self._num_header_bytes += len(name) + len(value) + len(": \r\n")
        if self._num_headers > MAX_HEADERS:
            self._stop_parsing(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"The request must have <= {MAX_HEADERS} header lines",
            )
        if self._num_header_bytes > self._limits.max_header_bytes:
            self._stop_parsing(*self._too_large())
        if self._phase is Phase.HEADER:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Let the application begin."""
        if len(self._unanswered) > MAX_PIPELINED:
            self._stop_parsing(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests at once")
        super().on_headers_complete()
        self._unanswered.append(self.cycle)
        self._phase = Phase.BODY
        self._stop_receive_timer()
        assert self.parser is not None, "it calls this method"
        if self.parser.get_http_version() < "1.1":
            # uvicorn knows only chunks and stated lengths. The cycle's task has not begun yet.
            self.cycle.send = OlderSend(self.cycle)  # type: ignore[method-assign]

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._num_framing_bytes = max(0, self._num_framing_bytes - FRAMING_BYTES * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        super().on_message_complete()
        self._phase = Phase.NONE
        self._num_framing_bytes = 0
        self._stop_receive_timer()
        if not self.cycle.response_complete:
            self._open_connections.mark_busy(self)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether to keep the connection, because there is a request to be answered."""
        if self._refusal is not None or not self._unanswered or self._phase is Phase.BODY:
            return False
        self.cycle.keep_alive = False
        self._probe(FIRST_PROBE_SECONDS)
        return True

    def _probe(self, seconds: float) -> None:
        """Write what a client ignores, now, after `seconds`, and at growing intervals.

        A client that has closed the connection answers the first with a reset, and the second
        fails, which ends the connection. Clients of HTTP/1.0 know nothing to ignore.
        """
        if not self._unanswered or self.transport.is_closing():
            return
        cycle = self._unanswered[0]
        if not self.flow.write_paused:
            if cycle.chunked_encoding:
                self.transport.write(COMMENT_CHUNK)
            elif not cycle.response_started and cycle.scope["http_version"] == "1.1":
                self.transport.write(CONTINUE)
        later = min(2 * seconds, LAST_PROBE_SECONDS)
        self._probe_timer = self.loop.call_later(seconds, self._probe, later)

    # Time limits

    def _start_receive_timer(self) -> None:
        limits = self._limits
        is_header = self._phase is Phase.HEADER
        seconds = limits.header_timeout if is_header else limits.body_timeout
        self._receive_timer = self.loop.call_later(seconds, self._on_receive_timeout)

    def _stop_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _on_receive_timeout(self) -> None:
        self._receive_timer = None
        if self._unanswered and (self._phase is Phase.HEADER or len(self._unanswered) > 1):
            self._start_receive_timer()  # reading may have paused for an earlier request
        elif self._phase is Phase.HEADER and not self._num_framing_bytes:
            self.transport.close()  # a client that opened it in advance would not expect an answer
        else:
            part = self._phase.name.lower()
            name = f"--{part}-timeout"
            self._refuse(
                HTTPStatus.REQUEST_TIMEOUT,
                f"The request's {part} was not complete in time (the server's {name})",
            )

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        self._unanswered.popleft()
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_sending()
        elif not self._unanswered:
            self._open_connections.mark_waiting(self)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection on which no further request comes."""
        super().timeout_keep_alive_handler()
        self._watch_sending()

    def pause_writing(self) -> None:
        """Wait for a client that reads more slowly than is written."""
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        """Write again."""
        super().resume_writing()
        if self._send_timer is not None and not self.transport.is_closing():
            self._send_timer.cancel()

    def _watch_sending(self) -> None:
        """Disconnect if no more is sent in time. To be called where nothing more is written."""
        if self._send_timer is not None:
            self._send_timer.cancel()
        num_unsent = self.transport.get_write_buffer_size()
        self._send_timer = self.loop.call_later(
            self._limits.send_timeout, self._on_send_timeout, num_unsent
        )

    def _on_send_timeout(self, num_unsent: int) -> None:
        if self.transport.get_write_buffer_size() < num_unsent:
            self._watch_sending()
        else:
            self.disconnect()

    # Refusals

    def _refuse_unparsed(self) -> None:
        if self._refusal is None:  # nothing of ours made the parser fail
            self._refusal = (HTTPStatus.BAD_REQUEST, "Invalid HTTP request")
        self._refuse(*self._refusal)

    @property
    def _is_answered_early(self) -> bool:
        """Whether a request has its response although it is not whole."""
        return self._phase is Phase.BODY and self.cycle.response_complete

    def _too_large(self) -> tuple[HTTPStatus, str]:
        most = self._limits.max_header_bytes
        return (
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"The request's header must have <= {most} bytes (the server's --max-header-bytes)",
        )

    def _stop_parsing(self, status: HTTPStatus, reason: str) -> None:
        """Let the parser fail, and `data_received` refuse the request."""
        self._refusal = (status, reason)
        raise ValueError(reason)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Answer with an error and close; only close if a response has begun."""
        self._refusal = (status, reason)
        self._stop_receive_timer()
        has_begun = any(cycle.response_started for cycle in self._unanswered)
        if has_begun or len(self._unanswered) > 1 or self._is_answered_early:
            self.disconnect()
            return
        for cycle in self._unanswered:
            cycle.scope.setdefault("state", {})[REFUSED_STATUS] = status.value
            cycle.disconnected = True
            cycle.message_event.set()
        if not self._unanswered and self._access_log is not None:
            self._access_log.refused(status.value)
        self._open_connections.mark_waiting(self)
        self.flow.resume_reading()
        content = reason.encode()
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "content-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(content)}\r\nconnection: close\r\n\r\n".encode()
            + content
        )
        self.transport.write_eof()
        self._receive_timer = self.loop.call_later(LINGER_SECONDS, self.disconnect)
