"""Settings from the environment, logs without prompts, and the port for probes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from pydantic import ValidationError

from promptprefix_operator.health import Health, Role, health_application, health_of
from promptprefix_operator.logs import configure_logs
from promptprefix_operator.manifests import explain
from promptprefix_operator.metrics import Metrics, Warmth
from promptprefix_operator.settings import Settings

OWN = {"NAMESPACES": "ml", "OWN_NAMESPACE": "system"}
WEBHOOK = {
    "WEBHOOK_CONFIGURATION": "injector",
    "SIDECAR_IMAGE": "sidecar:1",
    "PLUGIN_IMAGE": "plugin:1",
    "CONTROL_URL": "https://promptprefix-operator.system:8443",
}


def read(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Settings:
    for name, value in environment.items():
        monkeypatch.setenv(f"PROMPTPREFIX_{name}", value)
    return Settings()


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(
        monkeypatch,
        NAMESPACES="ml, other",
        OWN_NAMESPACE="system",
        ROUTER_SERVICE_ACCOUNTS="system/router,",
        LISTEN_PORT="9443",
    )
    assert settings.namespaces == ("ml", "other")
    assert settings.router_service_accounts == ("system/router",)
    assert (settings.listen_port, settings.metrics_port) == (9443, 8081)
    assert settings.service_name == "promptprefix-operator"


def test_without_a_webhook_nothing_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(monkeypatch, **OWN)
    assert settings.webhook_configuration == ""
    assert (settings.leader_election, settings.lease_seconds) == (True, 15)
    assert settings.keeps_authority


def test_what_is_injected_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}}
    settings = read(monkeypatch, **OWN, **WEBHOOK, SIDECAR_RESOURCES=json.dumps(resources))
    options = settings.injection
    assert (options.sidecar_image, options.plugin_image) == ("sidecar:1", "plugin:1")
    assert options.control_url == WEBHOOK["CONTROL_URL"]
    assert options.namespaces == {"ml"}
    assert options.resources == resources
    assert (options.run_as_user, options.ready_timeout_s) == (65532, 600)
    assert options.warm_chunk_tokens == 1024


@pytest.mark.parametrize(("text", "user"), [("", None), (" ", None), ("1000", 1000)])
def test_the_user_of_injected_containers(
    text: str, user: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = read(monkeypatch, **OWN, SIDECAR_RUN_AS_USER=text, SIDECAR_READY_TIMEOUT_S="900")
    assert settings.injection.run_as_user == user
    assert settings.injection.ready_timeout_s == 900


@pytest.mark.parametrize(
    ("files", "kept"),
    [
        ((), True),
        (("TLS",), True),
        (("WEBHOOK",), True),
        (("TLS", "WEBHOOK"), False),
    ],
)
def test_whether_any_certificate_is_our_own(
    monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], kept: bool
) -> None:
    given = {f"{each}_{kind}_FILE": "/x" for each in files for kind in ("CERT", "KEY")}
    assert read(monkeypatch, **OWN, **WEBHOOK, **given).keeps_authority == kept


@pytest.mark.parametrize(
    ("environment", "field"),
    [
        ({"OWN_NAMESPACE": "system"}, "namespaces"),
        ({"NAMESPACES": "", "OWN_NAMESPACE": "system"}, "namespaces"),
        ({"NAMESPACES": "Ml", "OWN_NAMESPACE": "system"}, "namespaces"),
        ({"NAMESPACES": "ml"}, "own_namespace"),
        (
            {"NAMESPACES": "ml", "OWN_NAMESPACE": "s", "ROUTER_SERVICE_ACCOUNTS": "router"},
            "router_service_accounts",
        ),
        ({**OWN, "TLS_CERT_FILE": "/x"}, "tls_key_file"),
        ({**OWN, "WEBHOOK_KEY_FILE": "/x"}, "webhook_cert_file"),
        ({**OWN, "LEASE_SECONDS": "5"}, "lease_seconds"),
        ({**OWN, "LEASE_SECONDS": "soon"}, "lease_seconds"),
        ({**OWN, "IDENTITY": ""}, "identity"),
        ({**OWN, **WEBHOOK, "SIDECAR_IMAGE": ""}, "sidecar_image"),
        ({**OWN, **WEBHOOK, "CONTROL_URL": ""}, "control_url"),
        ({**OWN, **WEBHOOK, "CONTROL_URL": "http://operator:8443"}, "control_url"),
        ({**OWN, **WEBHOOK, "IMAGE_PULL_POLICY": "Sometimes"}, "image_pull_policy"),
        ({**OWN, **WEBHOOK, "SIDECAR_RESOURCES": "{"}, "sidecar_resources"),
        ({**OWN, "SIDECAR_RUN_AS_USER": "0"}, "sidecar_run_as_user"),
        ({**OWN, "SIDECAR_RUN_AS_USER": "root"}, "sidecar_run_as_user"),
        ({**OWN, "SIDECAR_READY_TIMEOUT_S": "0"}, "sidecar_ready_timeout_s"),
        ({**OWN, "SIDECAR_READY_TIMEOUT_S": "inf"}, "sidecar_ready_timeout_s"),
        ({**OWN, **WEBHOOK, "SIDECAR_RESOURCES": '{"cpu": {}}'}, "sidecar_resources"),
        ({**OWN, "WEBHOOK_CONFIGURATION": "../secrets"}, "webhook_configuration"),
    ],
)
def test_bad_settings_are_named(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], field: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        read(monkeypatch, **environment)
    assert field in explain(caught.value, "settings")


@pytest.fixture
def _logs() -> Iterator[None]:
    root = logging.getLogger()
    before, level, configured = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:], root.level = before, level
    structlog.configure(**configured)


@pytest.mark.usefixtures("_logs")
async def test_a_request_that_is_no_http_is_not_quoted_in_the_logs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs("info")
    async with TestServer(web.Application()) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET / HTTP/1.1\r\nAuthorization Bearer secret\r\n\r\n")
        assert b" 400 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("_logs")
def test_debug_logs_do_not_open_those_that_quote_objects(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs("debug")
    logging.getLogger("kopf.objects").info("body: secret")
    logging.getLogger("kopf._core.reactor").debug("body: secret")
    logging.getLogger("promptprefix_operator.x").debug("plain")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["plain"]


@pytest.mark.parametrize(
    ("listening", "led", "age", "expected"),
    [
        (False, None, None, Health(False, Role.STARTING)),
        (True, None, None, Health(True, Role.STANDBY)),
        (False, 1.0, None, Health(False, Role.LEADER)),
        (True, 1.0, None, Health(True, Role.LEADER)),
        (True, 121.0, None, Health(False, Role.LEADER)),
        (True, 500.0, 3.0, Health(True, Role.LEADER, 3.0)),
        (True, 500.0, 121.0, Health(False, Role.LEADER, 121.0)),
    ],
)
def test_who_is_healthy(
    listening: bool, led: float | None, age: float | None, expected: Health
) -> None:
    found = health_of(listening=listening, led_seconds=led, pass_age=age, limit_seconds=120)
    assert found == expected


async def test_health_and_metrics() -> None:
    metrics = Metrics()
    healths = [Health(False, Role.STARTING), Health(True, Role.LEADER, 3.0)]
    warmth = [Warmth("ml", "a", desired=2, warm=1, pinned=0)]
    metrics.watch_warmth(lambda: warmth)
    app = health_application(metrics.registry, lambda: healths[0])
    async with TestClient(TestServer(app)) as client:
        async with client.get("/healthz") as answer:
            assert answer.status == 503
        healths.pop(0)
        async with client.get("/healthz") as answer:
            assert answer.status == 200
            told = {"ok": True, "role": "leader", "pass_age_seconds": 3.0}
            assert await answer.json() == told
        async with client.get("/metrics") as answer:
            text = await answer.text()
        assert 'promptprefix_warm_pods{name="a",namespace="ml"} 1.0' in text
        assert 'promptprefix_desired_pods{name="a",namespace="ml"} 2.0' in text
        warmth.clear()
        async with client.get("/metrics") as answer:
            assert 'name="a"' not in await answer.text()
