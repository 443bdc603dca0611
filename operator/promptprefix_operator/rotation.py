"""When one authority follows another, so that whoever trusts the published bundle always verifies.

Every authority is published for `OVERLAP` before it signs anything, and stays published until it
expires. What it signed never outlives it, and the serving certificate is signed anew as soon as
another authority is the current one.

    ├──────────── current ────────────┤ former ┤          one authority's life
                            ├ coming ─┼──────────── current …   the next one's
                            RENEWAL before the end; OVERLAP later, once published everywhere
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from promptprefix_operator.certificates import NOTHING, Pair, can_sign, new_authority, validity

RENEWAL = timedelta(days=120)
"""With this much of its life left an authority gets a successor; longer than `SERVING_LIFE`."""
OVERLAP = timedelta(days=7)
"""The successor signs nothing before it was published for this long."""
PATIENCE = timedelta(days=30)
"""With this little left it is followed also where a client could not be told."""


@dataclass(frozen=True)
class Authorities:
    """Who signs, who will (with its key), and whose certificate is still trusted (without)."""

    current: Pair = NOTHING
    coming: Pair = NOTHING
    former: bytes = b""

    @property
    def bundle(self) -> bytes:
        """Return the certificates that clients are to trust, PEM."""
        parts = (self.current.certificate, self.coming.certificate, self.former)
        return b"".join(part.rstrip(b"\n") + b"\n" for part in parts if part)


def rotate(found: Authorities, now: datetime, *, published: bool) -> Authorities:
    """Return what the authorities should be now.

    ``published``: every client was given the bundle of ``found``. Where the current authority can't
    sign (it is lost, broken or over) there is no overlap: clients fail until they have the new
    bundle.
    """
    former = found.former if _lasts(found.former, now) else b""
    coming = found.coming if _fit(found.coming, now) else NOTHING
    current = found.current
    if not _fit(current, now):
        successor = coming if coming != NOTHING else new_authority(now)
        lost = current.certificate if _lasts(current.certificate, now) else former
        return Authorities(successor, NOTHING, lost)
    left = _left(current.certificate, now)
    if left > RENEWAL:
        return Authorities(current, coming, former)
    if coming == NOTHING:
        return Authorities(current, new_authority(now), former)
    if _age(coming.certificate, now) >= OVERLAP and (published or left <= PATIENCE):
        return Authorities(coming, NOTHING, current.certificate)
    return Authorities(current, coming, former)


def _fit(pair: Pair, now: datetime) -> bool:
    return _lasts(pair.certificate, now) and can_sign(pair)


def _lasts(certificate: bytes, now: datetime) -> bool:
    return _left(certificate, now) > timedelta()


def _left(certificate: bytes, now: datetime) -> timedelta:
    """Return how long a certificate is still good; nothing if it is none."""
    found = validity(certificate)
    return timedelta() if found is None else found[1] - now


def _age(certificate: bytes, now: datetime) -> timedelta:
    found = validity(certificate)
    return timedelta() if found is None else now - found[0]
