"""Whether the cluster's CustomResourceDefinition has every field that this operator uses.

An older one prunes what it does not know: a prefix would be read without its new fields, and a
status written without them, and nobody would be told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import structlog

from promptprefix.crd import NAME, root_schema
from promptprefix.resource import GROUP, KIND, PLURAL, VERSION
from promptprefix.shortlist import shortlist
from promptprefix_operator.api_server import ApiError, ApiServer, Json
from promptprefix_operator.backoff import Backoff

OPENAPI_PATH = f"/openapi/v3/apis/{GROUP}/{VERSION}"
REMEDY = (
    "install the CRD of this release: set the chart's crds.enabled to true, or "
    "kubectl apply --server-side -f crds/"
)

_FORBIDDEN = 403
_NOT_FOUND = 404
_NAMED = 5

log = structlog.get_logger(__name__)


class CrdTooOldError(Exception):
    """The served schema lacks fields that this operator reads or writes."""


async def check_crd(api: ApiServer) -> None:
    """Return once the CRD is served with every field; wait while there is none.

    Raises `CrdTooOldError`.
    """
    backoff = Backoff()
    while True:
        try:
            served = _schema_in(await api.get(OPENAPI_PATH))
        except ApiError as error:
            if error.status == _FORBIDDEN:
                log.warning("the CRD's fields can't be checked", crd=NAME, error=str(error))
                return
            served, reason = None, str(error)
            absent = error.status == _NOT_FOUND
        else:
            absent, reason = served is None, f"{OPENAPI_PATH} has no kind {KIND}"
        if served is not None:
            _compare(served)
            return
        wait = backoff.next()
        message = f"the CRD {NAME} is not there: {REMEDY}" if absent else "the CRD can't be read"
        log.error(message, error=reason, retry_seconds=wait)
        await asyncio.sleep(wait)


async def is_served(
    api: ApiServer, group: str = GROUP, version: str = VERSION, plural: str = PLURAL
) -> bool:
    """Whether discovery lists the resource, as a watch needs it. Raises `ApiError`.

    A new CRD can be read a moment before discovery tells of it.
    """
    groups = (await api.get("/apis")).get("groups") or ()
    if not any(each.get("name") == group for each in groups):
        return False
    try:
        found = await api.get(f"/apis/{group}/{version}")
    except ApiError as error:
        if error.status == _NOT_FOUND:
            return False
        raise
    return any(each.get("name") == plural for each in found.get("resources") or ())


def missing_fields(needed: Mapping[str, Any], served: Mapping[str, Any]) -> list[str]:
    """Return the paths of the fields, and the enumerated values, that ``served`` does not have."""
    return list(_missing(needed, served, ""))


def _compare(served: Json) -> None:
    missing = missing_fields(root_schema(), served)
    if missing:
        raise CrdTooOldError(
            f"the CRD {NAME} in the cluster is older than this operator, it lacks "
            f"{shortlist(missing[:_NAMED], len(missing))}: {REMEDY}"
        )


def _schema_in(document: Json) -> Json | None:
    """Return our kind's schema of an OpenAPI v3 document."""
    ours = {"group": GROUP, "kind": KIND, "version": VERSION}
    for schema in ((document.get("components") or {}).get("schemas") or {}).values():
        if ours in (schema.get("x-kubernetes-group-version-kind") or ()):
            return dict(schema)
    return None


def _missing(needed: Mapping[str, Any], served: Mapping[str, Any], path: str) -> Iterator[str]:
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    known = served.get("properties") or {}
    for name, schema in (needed.get("properties") or {}).items():
        place = f"{path}.{name}" if path else name
        if name not in known:
            yield place
        else:
            yield from _missing(schema, known[name], place)
    if "items" in needed:
        yield from _missing(needed["items"], served.get("items") or {}, f"{path}[]")
    if "enum" in served:
        yield from (f"{path}={v}" for v in needed.get("enum") or () if v not in served["enum"])
