"""The CA in the webhooks' configuration, by which the API server proves our webhook port."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import structlog

from promptprefix_operator.api_server import ApiError, ApiServer, Json

_NOT_FOUND = 404
_MOVED = (409, 422)
"""The object changed between reading and patching."""

log = structlog.get_logger(__name__)


class WebhookTrust:
    """Keeps ``caBundle`` of every webhook of the MutatingWebhookConfiguration ``name``.

    Its other fields are whoever made it's; a configuration without ``caBundle``, after an upgrade
    or a sync, is completed at the next call.
    """

    def __init__(self, api: ApiServer, name: str) -> None:
        self._api = api
        self._name = name
        self._path = (
            f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{quote(name)}"
        )

    async def publish(self, bundle: bytes) -> bool:
        """Write what differs; return whether all is right now."""
        try:
            changes = changes_of(await self._api.get(self._path), bundle)
            if changes:
                await self._api.patch(self._path, changes, "application/json-patch+json")
                log.info("CA published to the webhooks", configuration=self._name)
        except ApiError as error:
            if error.status in _MOVED:
                log.info("the webhooks moved meanwhile", error=str(error), configuration=self._name)
                return False
            hint = "helm upgrade makes it" if error.status == _NOT_FOUND else "see the error"
            log.error(
                "the CA can't be published to the webhooks, so pods are not injected: " + hint,
                configuration=self._name,
                error=str(error),
            )
            return False
        return True


def changes_of(configuration: Mapping[str, Any], bundle: bytes) -> list[Json]:
    """Return the JSON patch that gives every webhook the bundle; it holds for this version only."""
    wanted = base64.b64encode(bundle).decode()
    changes: list[Json] = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": wanted}
        for index, webhook in enumerate(configuration.get("webhooks") or ())
        if (webhook.get("clientConfig") or {}).get("caBundle") != wanted
    ]
    if not changes:
        return []
    version = configuration["metadata"]["resourceVersion"]
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *changes]
