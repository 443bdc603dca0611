"""The declared texts that the picker has read, ready to be compared with requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from promptprefix.fingerprint import Frame, system_bytes
from promptprefix.payload import Payload
from promptprefix.wire import RoutePrefix
from promptprefix_router.matching.heads import DeclaredHead, HeadIndex, opening


@dataclass(frozen=True, slots=True)
class Text:
    """A declared text as requests for ``model`` mean it; a secret, so it never shows."""

    payload: Payload = field(repr=False)
    model: str
    frame: bytes = field(repr=False)
    """Digest of its `Frame`."""
    begun: bytes = field(repr=False)
    """The `opening` of its system text."""
    fingerprint: str
    frame_bytes: int

    @classmethod
    def of(cls, model: str, payload: Payload) -> Text:
        """Return the text of ``payload``; raise `ValueError` for one that can't work."""
        frame = Frame.of(model, payload.tools, payload.options)
        system = system_bytes(payload.system)
        return cls(
            payload, model, frame.digest, opening(system), frame.fingerprint(system), frame.size
        )


@dataclass(frozen=True, slots=True)
class KnownPrefix:
    """A version of the route table, and its text."""

    prefix: RoutePrefix
    text: Text

    @property
    def head(self) -> DeclaredHead | None:
        """The head that requests of its owner may begin with; None for an empty text."""
        text = self.text
        return DeclaredHead.of(text.frame, self.prefix.owner, text.begun, text.fingerprint)


class Texts:
    """The versions whose text is known; never changed, only replaced.

    ``whole``: no other version is declared.
    """

    def __init__(
        self,
        known: Iterable[KnownPrefix] = (),
        heads: HeadIndex | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self.known = tuple(known)
        self.heads = heads or HeadIndex()
        self.whole = whole
        self._by_fingerprint: dict[str, list[KnownPrefix]] = {}
        for each in self.known:
            self._by_fingerprint.setdefault(each.text.fingerprint, []).append(each)

    def __len__(self) -> int:
        return len(self.known)

    @property
    def largest_frame(self) -> float:
        """Bytes of the largest declared `Frame`; infinite as long as that is not known."""
        sizes = (each.text.frame_bytes for each in self.known)
        return max(sizes, default=0) if self.whole else math.inf

    def partly(self) -> Texts:
        """Return the same, with other versions declared beside them."""
        return Texts(self.known, self.heads) if self.whole else self

    def known_as(self, fingerprint: str) -> Sequence[KnownPrefix]:
        """Return the prefixes with that fingerprint whose text is known."""
        return self._by_fingerprint.get(fingerprint, ())
