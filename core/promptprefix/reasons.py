"""Types and reasons of conditions; the same words stand in Events, logs and metrics."""

from __future__ import annotations

from enum import StrEnum


class ConditionType(StrEnum):
    """Condition types of a PromptPrefix."""

    READY = "Ready"
    ACTIVE = "Active"
    WARM = "Warm"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class Reason(StrEnum):
    """Reasons of conditions and problems."""

    WARM = "Warm"
    WARMING = "Warming"
    SOFT_PINNED = "SoftPinned"
    SUSPENDED = "Suspended"
    HELD = "Held"
    IN_WINDOW = "InWindow"
    LEAD_TIME = "LeadTime"
    IN_USE = "InUse"
    WARM_NOW = "WarmNow"
    OUTSIDE_WINDOWS = "OutsideWindows"
    IDLE = "Idle"
    UNPINNED = "Unpinned"
    RELEASING = "Releasing"
    RELEASED = "Released"
    RECONCILED = "Reconciled"
    RECONCILING = "Reconciling"
    NOT_STALLED = "NotStalled"
    INSUFFICIENT_PODS = "InsufficientPods"
    NO_MATCHING_PODS = "NoMatchingPods"
    MODEL_NOT_SERVED = "ModelNotServed"
    SIDECAR_NOT_CONNECTED = "SidecarNotConnected"
    ENGINE_NOT_HEALTHY = "EngineNotHealthy"
    CONTENT_NOT_FOUND = "ContentNotFound"
    CONTENT_FORBIDDEN = "ContentForbidden"
    POOL_NOT_FOUND = "PoolNotFound"
    POOL_FORBIDDEN = "PoolForbidden"
    INVALID_POOL = "InvalidPool"
    INVALID_CONTENT = "InvalidContent"
    INVALID_TOOLS = "InvalidTools"
    INVALID_SPEC = "InvalidSpec"
    NO_STATIC_HEAD = "NoStaticHead"
    INVALID_WINDOW = "InvalidWindow"
    INVALID_SALT = "InvalidSalt"
    NO_OFFLOAD_TIER = "NoOffloadTier"
    NOT_EVICTABLE = "NotEvictable"
    ADAPTER_CHANGED = "AdapterChanged"
    ENGINE_ASLEEP = "EngineAsleep"
    DECODE_POD = "DecodePod"
    BUDGET_EXCEEDED = "BudgetExceeded"
    LINT_FAILED = "LintFailed"
    WARM_FAILED = "WarmFailed"
