"""Label and annotations by which a pod asks for injection and is told what came of it."""

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

INJECTED: Final = "promptprefix.dev/injected"
"""Annotation that the webhook writes: an `InjectionResult`."""

INJECTION_MESSAGE: Final = "promptprefix.dev/injection-message"
"""Annotation that the webhook writes: what is missing, why, and the fix."""


class InjectionResult(StrEnum):
    """What the webhook could do for a pod."""

    HARD = "hard"
    """Sidecar and engine plugin: its prefixes can be pinned."""
    SOFT = "soft"
    """The sidecar alone: its prefixes are kept recent."""
    NONE = "none"
    """Nothing was added."""
