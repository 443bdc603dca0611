"""An administrator's client of a real API server: many objects at once, and a watch that counts."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx

PARALLEL = 16
PREFIXES = "/apis/promptprefix.dev/v1alpha1/namespaces/{}/promptprefixes"
WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
_LABEL = re.compile(r'([a-z_]+)="([^"]*)"')

Json = dict[str, Any]


class KubeAdmin:
    """Speaks as the kubeconfig's user."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:
            file.write(base64.b64decode(user["client-certificate-data"]))
            file.write(base64.b64decode(user["client-key-data"]))
            file.flush()
            context.load_cert_chain(file.name)
        self.http = httpx.AsyncClient(
            base_url=cluster["server"], verify=context, timeout=60, trust_env=False
        )

    async def send(
        self, method: str, path: str, body: Json, kind: str = "application/json"
    ) -> Json:
        """Return what the server answers; raise on an error, without quoting the body."""
        content = json.dumps(body).encode()
        answer = await self.http.request(
            method, path, content=content, headers={"content-type": kind}
        )
        if answer.is_error:
            raise RuntimeError(f"{method} {path}: HTTP {answer.status_code} {answer.text[:300]}")
        found: Json = answer.json()
        return found

    async def send_all(self, requests: Iterable[tuple[str, str, Json, str]]) -> list[Json]:
        """Send many requests, `PARALLEL` at a time."""
        gate = asyncio.Semaphore(PARALLEL)

        async def one(request: tuple[str, str, Json, str]) -> Json:
            async with gate:
                return await self.send(*request)

        return await asyncio.gather(*(one(each) for each in requests))

    async def writes(self) -> Counter[str]:
        """Return how many requests the server has answered that write, by resource and verb."""
        text = (await self.http.get("/metrics")).raise_for_status().text
        found: Counter[str] = Counter()
        for line in text.splitlines():
            if line.startswith("apiserver_request_total{"):
                name, _, value = line.rpartition(" ")
                labels = dict(_LABEL.findall(name))
                if labels["verb"] in WRITES:
                    place = "/".join(filter(None, (labels["resource"], labels["subresource"])))
                    found[f"{place} {labels['verb']}"] += round(float(value))
        return found


class PrefixWatch:
    """Follows all PromptPrefixes of a namespace: how each stands, and how often it was written."""

    def __init__(self, admin: KubeAdmin, namespace: str) -> None:
        self._admin = admin
        self._path = PREFIXES.format(namespace)
        self.objects: dict[str, Json] = {}
        self.modified: Counter[str] = Counter()
        self.changed = asyncio.Event()
        self.opened = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        listed = (await self._admin.http.get(self._path)).raise_for_status().json()
        for found in listed["items"]:
            self.objects[found["metadata"]["name"]] = found
        version = listed["metadata"]["resourceVersion"]
        self.opened.set()
        query = {"watch": "true", "resourceVersion": version}
        timeout = httpx.Timeout(30, read=None)
        async with self._admin.http.stream(
            "GET", self._path, params=query, timeout=timeout
        ) as answer:
            async for line in answer.aiter_lines():
                self._take(json.loads(line))

    def _take(self, event: Json) -> None:
        if event["type"] == "ERROR":
            raise RuntimeError(f"the watch ended: {event['object'].get('message')}")
        found = event["object"]
        name = found["metadata"]["name"]
        found["spec"] = {}  # the text is not needed, and large
        self.objects[name] = found
        if event["type"] == "MODIFIED":
            self.modified[name] += 1
        self.changed.set()

    def ready(self) -> int:
        """Return how many are Ready in their newest generation."""
        return sum(1 for each in self.objects.values() if _ready(each))

    def reasons(self) -> Mapping[str, int]:
        """Return why the others are not."""
        return Counter(_reason(each) for each in self.objects.values() if not _ready(each))

    async def until_ready(self, count: int, seconds: float) -> bool:
        """Wait until so many are Ready; False if that takes longer than ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while self.ready() < count:
                    self.changed.clear()
                    await self.changed.wait()
                    await asyncio.sleep(0.2)  # counting them all at every event would cost more
        except TimeoutError:
            return False
        return True


def _condition(found: Json, kind: str) -> Json:
    conditions = found.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {})


def _ready(found: Json) -> bool:
    ready = _condition(found, "Ready")
    return (
        ready.get("status") == "True"
        and ready.get("observedGeneration") == found["metadata"]["generation"]
    )


def _reason(found: Json) -> str:
    return str(_condition(found, "Ready").get("reason", "no status"))
