"""What a gateway says of one HTTP exchange, and what it is told, apart from any wire format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias


class BodyMode(IntEnum):
    """How a gateway shows a body; numbers of ext_proc's ``BodySendMode``."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4


@dataclass(frozen=True, slots=True)
class BodyModes:
    """The modes of both directions."""

    request: BodyMode
    response: BodyMode


FULL_DUPLEX = BodyModes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)
"""What the endpoint-picker protocol supposes of a gateway that doesn't say its modes."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The headers of a request.

    ``subset`` holds what the gateway allows (``ip:port``, or ``ip`` for any port); None: all.
    ``forged`` are names of headers that are the picker's alone. ``modes`` is None if unsaid.
    """

    path: str = ""
    prefix_name: str | None = None
    tenant: str = ""
    sheddable: bool = False
    end_of_stream: bool = False
    modes: BodyModes | None = None
    subset: frozenset[str] | None = None
    forged: tuple[str, ...] = ()
    has_length: bool = False
    """Whether the length of the body is announced."""


@dataclass(frozen=True, slots=True)
class RequestBody:
    """The body of a request, or a piece of it."""

    body: bytes
    end_of_stream: bool = False


@dataclass(frozen=True, slots=True)
class RequestTrailers:
    """The request has trailers, and ends with them."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The headers of the response; ``served`` is the endpoint it came from, if that is told."""

    served: str | None = None


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """The body of the response, or a piece of it."""

    body: bytes
    end_of_stream: bool = False


@dataclass(frozen=True, slots=True)
class ResponseTrailers:
    """The response has trailers, and ends with them."""


Event: TypeAlias = (
    RequestHead | RequestBody | RequestTrailers | ResponseHead | ResponseBody | ResponseTrailers
)


@dataclass(frozen=True, slots=True)
class Steering:
    """Where the request goes (``ip:port``, fallbacks behind commas); ``forged`` headers go."""

    destination: str
    forged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestHeadAnswer:
    """Go on; ``modes`` are those that suit the rest of the exchange, None to keep them."""

    steering: Steering | None = None
    modes: BodyModes | None = None


@dataclass(frozen=True, slots=True)
class RequestBodyAnswer:
    """Go on with a body as it is, or with another; ``tells_length`` where one was announced."""

    steering: Steering | None = None
    body: bytes | None = None
    tells_length: bool = False


@dataclass(frozen=True, slots=True)
class RequestPiece:
    """A piece of a full-duplex body, given back."""

    body: bytes
    end_of_stream: bool = False


@dataclass(frozen=True, slots=True)
class RequestTrailersAnswer:
    """Go on."""


@dataclass(frozen=True, slots=True)
class ResponseHeadAnswer:
    """Go on; ``decision`` is told to the client."""

    decision: str | None = None


@dataclass(frozen=True, slots=True)
class ResponseBodyAnswer:
    """Go on with a body as it is."""


@dataclass(frozen=True, slots=True)
class ResponsePiece:
    """A piece of a full-duplex body, given back."""

    body: bytes
    end_of_stream: bool = False


@dataclass(frozen=True, slots=True)
class ResponseTrailersAnswer:
    """Go on."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The client gets this answer (JSON) instead of an engine's; the exchange ends."""

    status: int
    body: bytes
    decision: str
    headers: tuple[tuple[str, str], ...] = ()


Answer: TypeAlias = (
    RequestHeadAnswer
    | RequestBodyAnswer
    | RequestPiece
    | RequestTrailersAnswer
    | ResponseHeadAnswer
    | ResponseBodyAnswer
    | ResponsePiece
    | ResponseTrailersAnswer
    | Refused
)
