"""What it costs to send a request to an endpoint, and how busy one may be.

The cost, in tokens: those of the prompt that are not cached there, and for each request that is
active there as many as one is worth. An endpoint that has some of the prompt is left out when it
would have more active requests than the load factor times the mean, plus the slack.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CostKnobs:
    """The knobs; `RouterSettings` says what they mean."""

    tokens_per_active_request: int = 256
    load_factor: float = 1.25
    load_slack: int = 8

    @property
    def least_declared(self) -> int:
        """How many tokens a declared prefix counts for at least, however short it is.

        So a queue within the slack drives none of its requests away from where it is kept.
        """
        return self.load_slack * self.tokens_per_active_request

    def most_active(self, mean: float) -> float:
        """Return how many requests an endpoint that has some of the prompt may have."""
        return self.load_factor * mean + self.load_slack
