"""A peak window of the ``PromptPrefix`` resource, as a model."""

from __future__ import annotations

from pydantic import Field

from promptprefix.durations import Duration, duration_rules
from promptprefix.schedule import CRON_PATTERN
from promptprefix.schema import Strict, cel, rules


class Window(Strict):
    """A peak window: it opens at each time of the schedule and lasts for the duration."""

    name: str = Field(
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="Name of the window, unique in the resource.",
    )
    schedule: str = Field(
        min_length=9,
        max_length=128,
        description="When it opens: a cron expression of five fields (minute, hour, day of month, "
        "month, day of week).",
        json_schema_extra=rules(
            cel(
                r"self.matches('^\\S+( +\\S+){4}$')",
                "schedule must be a cron expression of five fields: minute hour day-of-month month "
                "day-of-week",
            ),
            cel(
                f"!self.matches('^\\\\S+( +\\\\S+){{4}}$') || self.matches('{CRON_PATTERN}')",
                "schedule must have minutes 0-59, hours 0-23, days of the month 1-31, months 1-12 "
                "or JAN-DEC and days of the week 0-7 or SUN-SAT, each *, a value, a range, a list "
                "or with a step",
            ),
        ),
    )
    duration: Duration = Field(
        description="How long it stays open.", json_schema_extra=duration_rules("duration")
    )
    timeZone: str = Field(  # noqa: N815
        default="UTC",
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z][A-Za-z0-9_+/-]*$",
        description="IANA time zone of the schedule, such as Europe/Berlin.",
        json_schema_extra=rules(
            cel(
                "self != 'Local' && timestamp('2026-01-01T00:00:00Z').getHours(self) >= 0",
                "timeZone must be an IANA time zone that the API server knows, such as "
                "Europe/Berlin",
            )
        ),
    )
    leadTime: Duration | None = Field(  # noqa: N815
        default=None,
        description="How long before it opens warming begins.",
        json_schema_extra=duration_rules("leadTime"),
    )
