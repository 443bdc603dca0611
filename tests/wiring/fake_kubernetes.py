"""A mock of the API server: kmock, with versions, generations, JSON patches and token reviews."""

from __future__ import annotations

import copy
from typing import Any

import aiohttp.web
import attrs
import jsonpatch
from kmock import KubernetesEmulator

from promptprefix.crd import root_schema
from promptprefix.resource import GROUP, KIND, VERSION
from promptprefix.wire import AUDIENCE

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
OPENAPI_PATH = f"/openapi/v3/apis/{GROUP}/{VERSION}"


@attrs.define(kw_only=True)
class ApiServer(KubernetesEmulator):
    """Every token ``<namespace>/<account>/<pod>`` is valid. ``forbidden`` is a path."""

    version: int = 100
    forbidden: str = ""

    async def _handle(self, request: Any) -> aiohttp.web.StreamResponse:
        if request.url.path == TOKEN_REVIEWS:
            return aiohttp.web.json_response(_reviewed(request.data))
        if request.url.path == self.forbidden:
            return aiohttp.web.json_response({"kind": "Status", "code": 403}, status=403)
        if request.url.path == OPENAPI_PATH:
            return aiohttp.web.json_response(_openapi())
        if request.method.value.upper() == "PUT" and self._conflicts(request):
            return aiohttp.web.json_response({"kind": "Status", "code": 409}, status=409)
        if request.method.value.upper() in ("POST", "PUT", "PATCH") and request.resource:
            self.version += 1
            try:
                object.__setattr__(request, "data", self._settled(request))
            except jsonpatch.JsonPatchTestFailed:
                return aiohttp.web.json_response({"kind": "Status", "code": 422}, status=422)
        if request.method.value.upper() == "PUT":  # what is replaced is watched by nobody
            stored = self._objects[request.resource, request.namespace, request.name]
            stored.patch(request.data)
            return aiohttp.web.json_response(stored.raw)
        return await super()._handle(request)

    def _conflicts(self, request: Any) -> bool:
        """Whether somebody wrote since the version that the replacement was made from."""
        stored = self._objects[request.resource, request.namespace, request.name]
        known = dict(stored.raw).get("metadata", {}).get("resourceVersion")
        return bool(request.data["metadata"].get("resourceVersion") != known)

    def _settled(self, request: Any) -> Any:
        """Return the change as a merge patch that also moves version and generation."""
        key = (request.resource, request.namespace, request.name)
        known = self._objects[key] if key in self._objects else None  # noqa: SIM401 - no mapping
        old = copy.deepcopy(dict(known.raw)) if known is not None and not known.deleted else {}
        data = request.data
        if isinstance(data, list):
            data = jsonpatch.apply_patch(old, data)
        data = copy.deepcopy(data)
        metadata = data.setdefault("metadata", {})
        metadata["resourceVersion"] = str(self.version)
        if "generateName" in metadata:
            metadata["name"] = f"{metadata['generateName']}{self.version}"
        if "spec" in data:
            metadata["generation"] = int(old.get("metadata", {}).get("generation", 0)) + 1
        return data


def _reviewed(review: Any) -> dict[str, Any]:
    namespace, account, pod = [*review["spec"]["token"].split("/"), "", ""][:3]
    extra = {"pod-name": [pod], "pod-uid": [f"uid-{pod}"]} if pod else {}
    user = {
        "username": f"system:serviceaccount:{namespace}:{account}",
        "extra": {f"authentication.kubernetes.io/{k}": v for k, v in extra.items()},
    }
    return {"status": {"authenticated": bool(account), "audiences": [AUDIENCE], "user": user}}


def _openapi() -> dict[str, Any]:
    kinds = [{"group": GROUP, "kind": KIND, "version": VERSION}]
    schema = {**root_schema(), "x-kubernetes-group-version-kind": kinds}
    return {"components": {"schemas": {"prefix": schema}}}
