"""The leader's parts as they are wired."""

from __future__ import annotations

from types import SimpleNamespace

import kopf
import pytest
from kubernetes.aio.client.configuration import Configuration

from promptprefix_operator import leader
from promptprefix_operator.api_server import ApiServer
from promptprefix_operator.leader import assemble
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.settings import Settings
from promptprefix_operator.settling import RECONNECT_S, SILENCE_S


async def login() -> kopf.ConnectionInfo:
    return kopf.ConnectionInfo(server="http://127.0.0.1:1")


@pytest.mark.parametrize(("after_silence", "seconds"), [(False, RECONNECT_S), (True, SILENCE_S)])
async def test_sidecars_have_longer_to_report_after_a_leader_that_went_silent(
    monkeypatch: pytest.MonkeyPatch, after_silence: bool, seconds: float
) -> None:
    now = 100.0
    monkeypatch.setattr(leader, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    api = ApiServer(Configuration())
    settings = Settings(namespaces=("ml",), own_namespace="system")
    try:
        made = assemble(settings, api, Metrics(), login, term=1, after_silence=after_silence)
        while now < 100.0 + seconds - 0.5:
            now += 0.5
            made.attention.look()
        now += 0.4
        assert made.controller.settling
        now += 0.2
        assert not made.controller.settling
    finally:
        await api.close()
