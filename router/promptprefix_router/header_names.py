"""Headers that clients, gateways and the router exchange."""

DESTINATION_HEADER = "x-gateway-destination-endpoint"
"""Where a request goes: ``ip:port``, then the next best ones behind commas."""

PREFIX_HEADER = "x-promptprefix"
"""A client's word for the prefix that its request has."""

REWRITE_HEADER = "x-promptprefix-rewrite"
"""Within Envoy: the body is to be changed."""

DECISION_HEADER = "x-promptprefix-decision"
"""Told with a response: why that endpoint."""
