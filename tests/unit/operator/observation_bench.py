"""A namespace to read: its collections and Secrets, and a clock."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from promptprefix.reasons import Reason
from promptprefix_operator.api_server import ApiError, Listing
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.observation import SECRET_SECONDS, Observer
from promptprefix_operator.pace import Pace
from promptprefix_operator.pools import Pools
from promptprefix_operator.sources import Source, SourceKind

PREFIXES = "/apis/promptprefix.dev/v1alpha1/namespaces/ml/promptprefixes"
PODS = "/api/v1/namespaces/ml/pods"
CONFIG_MAPS = "/api/v1/namespaces/ml/configmaps"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/ml/inferencepools"
SECRETS = "/api/v1/namespaces/ml/secrets/"
TEXTS = Source(SourceKind.CONFIG_MAP, "ml", "texts")
HIDDEN = Source(SourceKind.SECRET, "ml", "hidden")


def resource(name: str, generation: int = 1, **content: str) -> dict[str, Any]:
    inline = {"inline": {"systemInstructions": "x"}}
    references = {key: {"name": value} for key, value in content.items()}
    return {
        "metadata": {
            "uid": f"u-{name}",
            "namespace": "ml",
            "name": name,
            "generation": generation,
        },
        "spec": {
            "model": "m",
            "pods": {"selector": {"matchLabels": {"app": "v"}}},
            "content": references or inline,
        },
    }


def named(name: str, namespace: str = "ml", **fields: Any) -> dict[str, Any]:
    return {"metadata": {"uid": f"u-{name}", "namespace": namespace, "name": name}, **fields}


def secret(text: str, version: int) -> dict[str, Any]:
    data = {"systemInstructions": base64.b64encode(text.encode()).decode()}
    return {"metadata": {"name": "hidden", "resourceVersion": str(version)}, "data": data}


class Api:
    """Collections by path, Secrets by name; ``errors`` are raised first."""

    def __init__(self) -> None:
        self.lists: dict[str, list[dict[str, Any]]] = {PREFIXES: [], PODS: [], CONFIG_MAPS: []}
        self.secrets: dict[str, dict[str, Any] | ApiError] = {}
        self.pools: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.version = ""
        self.served = True

    async def list_all(self, path: str) -> Listing:
        return Listing(list(self.lists[path]), self.version)

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        if path == "/apis":
            return {"groups": [{"name": "promptprefix.dev"}] if self.served else []}
        if path == "/apis/promptprefix.dev/v1alpha1":
            return {"resources": [{"name": "promptprefixes"}]}
        if path.startswith(SECRETS):
            self.asked.append(path.removeprefix(SECRETS))
            found = self.secrets.get(path.removeprefix(SECRETS), ApiError(404, "no"))
            if isinstance(found, ApiError):
                raise found
            return found
        if path == POOLS:
            return {"items": self.pools}
        assert path == CONFIG_MAPS
        assert query is not None
        self.asked.append(query["fieldSelector"])
        return {"items": self.lists[CONFIG_MAPS]}


class OverError(Exception):
    """The time of a test is over."""


class Bench:
    """One namespace. ``now`` is the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.until = 0.0
        self.api = Api()
        self.cluster = Cluster(lambda: None)
        self.observer = Observer(
            api=self.api,  # type: ignore[arg-type]
            cluster=self.cluster,
            namespace="ml",
            slots=asyncio.Semaphore(2),
            pace=Pace(lambda: self.now, SECRET_SECONDS, self._sleep),
            pools=Pools(
                api=self.api,  # type: ignore[arg-type]
                cluster=self.cluster,
                namespace="ml",
                follow=self._never,
                reread_seconds=30,
                clock=lambda: self.now,
            ),
            reread_seconds=30,
            clock=lambda: self.now,
            sleep=self._sleep,
        )

    async def _never(self, stop: Callable[[], None]) -> None:
        raise AssertionError

    async def _sleep(self, seconds: float) -> None:
        """Let time pass; the rest of the test is over when it is ``until``."""
        self.now += seconds
        if self.now >= self.until:
            raise OverError

    async def fresh(self, seconds: float) -> None:
        """Read Secrets again for so long."""
        self.until = self.now + seconds
        with pytest.raises(OverError):
            await self.observer.keep_fresh()

    def payload(self, source: Source) -> str:
        text = self.cluster.text(source)
        assert text is not None
        assert text.payload is not None
        return text.payload.systemInstructions

    def reason(self, source: Source) -> Reason | None:
        text = self.cluster.text(source)
        assert text is not None
        return text.reason
