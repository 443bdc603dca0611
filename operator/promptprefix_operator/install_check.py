"""``python -m promptprefix_operator.install_check``: what ``helm test`` runs.

Applies a PromptPrefix, waits until it is Ready and deletes it. Without a model the resource is
suspended: that proves the schema, the operator, its rights and its leader, and touches no engine.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from promptprefix.reasons import ConditionType
from promptprefix.resource import (
    API_VERSION,
    KIND,
    LintPolicy,
    PromptPrefixSpec,
    PromptPrefixStatus,
)
from promptprefix_operator.api_server import ApiError, ApiServer, Json, load_configuration
from promptprefix_operator.manifests import explain

POLL_SECONDS = 1.0
TEXT = " ".join(f"Rule {n}: answer question {n} in one plain sentence." for n in range(1, 61))
"""Long enough for whole KV blocks of any usual size."""
_NO_PODS = {"matchLabels": {"promptprefix.dev/install-check": "no-pod"}}
_UNANSWERED = "The operator has written no status: does it run, and does it serve the namespace?"
_NOT_FOUND = 404
_SERVER_ERROR = 500

Pause = Callable[[float], Awaitable[None]]
Tell = Callable[[str], None]


class InstallError(Exception):
    """The installation does not work; the message says what to look at."""


class CheckSettings(BaseSettings):
    """What is applied; environment variables with the prefix ``PROMPTPREFIX_TEST_``."""

    model_config = SettingsConfigDict(env_prefix="PROMPTPREFIX_TEST_", frozen=True)

    namespace: str = Field(min_length=1)
    """A served namespace."""
    name: str = Field(default="promptprefix-install-check", min_length=1)
    model: str = ""
    """Served model; empty: the resource is suspended."""
    selector: dict[str, Any] = {}
    """Label selector of the pods that serve the model."""
    timeout_seconds: float = Field(default=120.0, gt=0)

    @model_validator(mode="after")
    def _model_has_pods(self) -> Self:
        if self.model and not self.selector:
            raise ValueError("selector: give the label selector of the pods that serve the model")
        return self

    @property
    def collection(self) -> str:
        """Path of the resources of the namespace."""
        return f"/apis/{API_VERSION}/namespaces/{self.namespace}/promptprefixes"

    def resource(self) -> Json:
        """Return the PromptPrefix. Raises `ValidationError` for a selector that is none."""
        spec = {
            "model": self.model or "none",
            "pods": {"selector": self.selector or _NO_PODS},
            "content": {"inline": {"systemInstructions": TEXT}},
            "replicas": 1,
            "lint": {"policy": LintPolicy.OFF.value},
            "suspend": not self.model,
        }
        PromptPrefixSpec.model_validate(spec)
        metadata = {"name": self.name, "namespace": self.namespace}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


class Api(Protocol):
    """What the check needs of the API server; each raises `ApiError`."""

    async def get(self, path: str) -> Json:
        """Read an object."""

    async def create(self, path: str, body: Json) -> Json:
        """Create an object."""

    async def delete(self, path: str) -> None:
        """Delete an object."""


class InstallCheck:
    """Runs the check; ``clock`` is in seconds."""

    def __init__(
        self,
        api: Api,
        settings: CheckSettings,
        clock: Callable[[], float],
        pause: Pause,
        tell: Tell,
    ) -> None:
        self._api = api
        self._settings = settings
        self._clock = clock
        self._pause = pause
        self._tell = tell
        self._path = f"{settings.collection}/{settings.name}"

    async def run(self) -> None:
        """Apply, wait, delete. Raises `InstallError`."""
        body = self._settings.resource()
        try:
            await self._delete()
            begin = self._clock()
            await self._api.create(self._settings.collection, body)
            try:
                status = await self._ready(begin)
            finally:
                await self._delete()
        except ApiError as error:
            raise InstallError(_told(error)) from error
        self._tell(f"Ready after {self._clock() - begin:.1f} s: {_reached(status)}")

    async def _ready(self, begin: float) -> PromptPrefixStatus:
        said = ""
        while True:
            status, now = await self._look()
            if status is not None:
                return status
            if now != said:
                self._tell(now)
                said = now
            if self._clock() - begin >= self._settings.timeout_seconds:
                limit = self._settings.timeout_seconds
                raise InstallError(f"not Ready after {limit:g} s. {now}")
            await self._pause(POLL_SECONDS)

    async def _look(self) -> tuple[PromptPrefixStatus | None, str]:
        """Return the status if it is Ready, else what stands in the way."""
        try:
            found = await self._api.get(self._path)
            status = PromptPrefixStatus.model_validate(found.get("status") or {})
        except ValidationError as error:
            raise InstallError(f"the status can't be read: {explain(error, 'status')}") from error
        except ApiError as error:
            if 0 < error.status < _SERVER_ERROR:
                raise
            return None, str(error)
        ready = next((each for each in status.conditions if each.type == ConditionType.READY), None)
        if ready is None:
            return None, _UNANSWERED
        if ready.status == "True" and ready.observedGeneration == found["metadata"]["generation"]:
            return status, ""
        return None, f"Ready={ready.status}, {ready.reason}: {ready.message}"

    async def _delete(self) -> None:
        try:
            await self._api.delete(self._path)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise


def _reached(status: PromptPrefixStatus) -> str:
    if not status.desiredPods:
        return "the operator answers; no engine was asked (give test.model to warm one)"
    pods = f"{status.warmPods} of {status.desiredPods} pods"
    return f"{status.tokens} tokens warm on {pods}, pinned on {status.pinnedPods}"


def _told(error: ApiError) -> str:
    if error.status == _NOT_FOUND:
        return f"{error}. Is the CustomResourceDefinition installed (crds.enabled)?"
    return str(error)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def _run(settings: CheckSettings) -> None:
    api = ApiServer(await load_configuration())
    try:
        await InstallCheck(api, settings, time.monotonic, asyncio.sleep, _say).run()
    finally:
        await api.close()


def main() -> int:
    """Run the check; return the exit status."""
    try:
        settings = CheckSettings()
        settings.resource()
    except ValidationError as error:
        _say(f"settings (environment variables PROMPTPREFIX_TEST_…): {explain(error, '')}")
        return 2
    try:
        asyncio.run(_run(settings))
    except InstallError as error:
        _say(f"Failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
