"""Labels and annotations: how pods ask for injection, and what people on call set on a resource."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

INJECT: Final = "promptprefix.dev/inject"
"""Label of pods that ask to be injected (``"true"``).

As an annotation with the value ``"false"`` it declines, whatever the label says.
"""

CONTAINER: Final = "promptprefix.dev/container"
"""Annotation: name of the container that runs vLLM."""

PYTHONPATH: Final = "promptprefix.dev/pythonpath"
"""Annotation: the PYTHONPATH that the image sets itself; it is kept behind ours."""

KV_EVENTS: Final = "promptprefix.dev/kv-events"
"""Annotation: ``"true"`` has the engine publish its KV events to the sidecar alone."""

INJECTED: Final = "promptprefix.dev/injected"
"""Annotation that the webhook writes: an `InjectionResult`."""

INJECTION_MESSAGE: Final = "promptprefix.dev/injection-message"
"""Annotation that the webhook writes: what is missing, why, and the fix."""

WARM_NOW: Final = "promptprefix.dev/warm-now"
"""Annotation of a PromptPrefix: held whatever its windows and idle time say, for a person on call.

The value is ``"true"`` or the instant at which it ends (RFC 3339); `UNPIN` is stronger.
"""

UNPIN: Final = "promptprefix.dev/unpin"
"""Annotation of a PromptPrefix: its pins are given up, for a person on call.

The value is as that of `WARM_NOW`.
"""

ROLE_LABELS: Final = ("promptprefix.dev/role", "llm-d.ai/role")
"""Labels that say a pod's part where prefill and decode are apart; the first present counts."""

DECODE_ROLE: Final = "decode"
"""Role of pods that get KV from prefill pods: prefixes are held on those, never here."""

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
"""Label of a pod's zone; Kubernetes 1.35 and newer copy it from the node."""


class InjectionResult(StrEnum):
    """What the webhook could do for a pod."""

    HARD = "hard"
    """Sidecar and engine plugin: its prefixes can be pinned."""
    SOFT = "soft"
    """The sidecar alone: its prefixes are kept recent."""
    NONE = "none"
    """Nothing was added."""
