"""How an injected sidecar comes to read the engine's KV events."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from promptprefix import annotations as marks
from promptprefix_operator.injection.injector import inject
from promptprefix_sidecar.settings import Settings

from .pods import OPTIONS, SCHEDULER, Json, container, patched, pod
from .views import assert_kept, engine, injected, sidecar, variables

FOLDER = "/run/promptprefix/kv-events"
ASKS = {marks.KV_EVENTS: "true"}
VOLUME = {"name": "run", "emptyDir": {}}
MOUNT = {"name": "run", "mountPath": "/run/engine"}
IPC: Json = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "ipc:///run/engine/events",
    "replay_endpoint": "ipc:///run/engine/replay",
    "topic": "kv@pod",
}


def asking(**fields: Any) -> Json:
    return pod(container(**fields), annotations=ASKS, securityContext={"runAsUser": 2000})


def publishing(config: object, mounts: list[Json] | None = None, **spec: Any) -> Json:
    text = config if isinstance(config, str) else json.dumps(config)
    words = ["vllm", "serve", "m", "--kv-events-config", text]
    fields = {"command": words, "volumeMounts": [MOUNT] if mounts is None else mounts}
    given = {"volumes": [VOLUME], "securityContext": {"runAsUser": 2000}, **spec}
    return pod(container(**fields), annotations=ASKS, **given)


def settings(container: Json) -> Settings:
    named = {name: value for name, value in variables(container).items() if "KV_EVENTS" in name}
    given = {name.removeprefix("PROMPTPREFIX_").lower(): value for name, value in named.items()}
    return Settings.model_validate({"control_url": "https://o", "pod_ip": "::1", **given})


def events_of(after: Json) -> tuple[str | None, str | None, str | None]:
    found = settings(sidecar(after))
    return found.kv_events_endpoint, found.kv_events_replay_endpoint, found.kv_events_topic


def test_who_asks_gets_a_socket_that_engine_and_sidecar_share() -> None:
    before = asking()
    injection, after = injected(before)
    assert_kept(before, after)
    assert injection.message == ""
    command = engine(after)["command"]
    assert command[3:6] == [*SCHEDULER, "--kv-events-config"]
    config = json.loads(command[6])
    assert config["enable_kv_cache_events"] is True
    assert (config["endpoint"], config["replay_endpoint"], config["topic"]) == events_of(after)
    assert config["endpoint"] == f"ipc://{FOLDER}/events"
    mount = {"name": "promptprefix-kv-events", "mountPath": FOLDER}
    assert mount in engine(after)["volumeMounts"]
    assert {**mount, "readOnly": True} in sidecar(after)["volumeMounts"]
    assert after["spec"]["volumes"][-1] == {
        "name": "promptprefix-kv-events",
        "emptyDir": {"sizeLimit": "1Mi"},
    }
    assert sidecar(after)["securityContext"]["runAsUser"] == 2000
    assert "ports" not in engine(after)


def test_who_does_not_ask_gets_none() -> None:
    _, after = injected(pod())
    assert events_of(after) == (None, None, None)
    assert engine(after)["command"] == ["vllm", "serve", "m", *SCHEDULER]
    assert sidecar(after)["securityContext"]["runAsUser"] == OPTIONS.run_as_user


def test_an_engine_that_publishes_by_itself_is_read_at_its_own_socket() -> None:
    before = publishing(IPC)
    del before["metadata"]["annotations"]
    injection, after = injected(before)
    assert injection.message == ""
    assert events_of(after) == (IPC["endpoint"], IPC["replay_endpoint"], IPC["topic"])
    assert {**MOUNT, "readOnly": True} in sidecar(after)["volumeMounts"]
    assert engine(after)["command"] == [*before["spec"]["containers"][0]["command"], *SCHEDULER]
    assert sidecar(after)["securityContext"]["runAsUser"] == 2000


def test_the_containers_own_user_counts() -> None:
    before = publishing(IPC)
    before["spec"]["containers"][0]["securityContext"] = {"runAsUser": 3000}
    assert sidecar(injected(before)[1])["securityContext"]["runAsUser"] == 3000


def test_a_port_is_dialled_on_loopback_by_any_user() -> None:
    config = {"enable_kv_cache_events": True, "endpoint": "tcp://*:5557"}
    _, after = injected(publishing(config, mounts=[], securityContext={}))
    assert events_of(after) == ("tcp://127.0.0.1:5557", None, None)
    assert sidecar(after)["securityContext"]["runAsUser"] == OPTIONS.run_as_user


BLOCKS = {"name": "blocks", "containerPort": 8091, "protocol": "TCP"}


def test_a_sidecar_that_reads_events_tells_routers_of_blocks() -> None:
    for before in (asking(), publishing(IPC)):
        found = sidecar(injected(before)[1])
        assert variables(found)["PROMPTPREFIX_BLOCKS_PORT"] == "8091"
        assert BLOCKS in found["ports"]
    found = sidecar(injected(pod())[1])
    assert "PROMPTPREFIX_BLOCKS_PORT" not in variables(found)
    assert BLOCKS not in found["ports"]


@pytest.mark.parametrize("who", ["another container", "the engine", "the events"])
def test_a_port_that_others_use_is_left_to_them(who: str) -> None:
    before = publishing(IPC)
    match who:
        case "another container":
            before["spec"]["containers"].append(
                {"name": "exporter", "ports": [{"containerPort": 8091}]}
            )
        case "the engine":
            before["spec"]["containers"][0]["command"] += ["--port", "8091"]
        case "the events":
            config = {"enable_kv_cache_events": True, "endpoint": "tcp://*:8091"}
            before = publishing(config, mounts=[])
    found = sidecar(injected(before)[1])
    assert variables(found)["PROMPTPREFIX_BLOCKS_PORT"] == "0"
    assert BLOCKS not in found["ports"]


def test_a_rank_has_a_port_of_its_own() -> None:
    config = {"enable_kv_cache_events": True, "endpoint": "tcp://*:5557"}
    before = publishing(config, mounts=[])
    command = before["spec"]["containers"][0]["command"]
    command += ["--data-parallel-size", "4", "--data-parallel-rank", "3"]
    assert events_of(injected(before)[1])[0] == "tcp://127.0.0.1:5560"
    command[-1] = "$(RANK)"
    injection, after = injected(before)
    assert events_of(after)[0] is None
    assert "data-parallel rank" in injection.message


def test_where_the_cluster_chooses_users_they_are_the_same() -> None:
    before = publishing(IPC, securityContext={})
    options = replace(OPTIONS, run_as_user=None)
    after = patched(before, inject(before, "ml", options).operations)
    assert events_of(after)[0] == IPC["endpoint"]
    assert "runAsUser" not in sidecar(after)["securityContext"]


REFUSED: dict[str, tuple[Json, str]] = {
    "root": (publishing(IPC, securityContext={"runAsUser": 0}), "runs as root"),
    "an unknown user": (publishing(IPC, securityContext={}), "set runAsUser"),
    "no volume": (publishing(IPC, mounts=[]), "emptyDir"),
    "a claim": (
        publishing(IPC, volumes=[{"name": "run", "persistentVolumeClaim": {"claimName": "c"}}]),
        "emptyDir",
    ),
    "a part of a volume": (publishing(IPC, mounts=[{**MOUNT, "subPath": "x"}]), "emptyDir"),
    "the sidecar's own folder": (
        publishing(
            {**IPC, "endpoint": "ipc:///tmp/events"}, [{"name": "run", "mountPath": "/tmp"}]
        ),
        "emptyDir",
    ),
    "the root folder": (publishing(IPC, mounts=[{"name": "run", "mountPath": "/"}]), "emptyDir"),
    "another address": (publishing({**IPC, "endpoint": "tcp://10.0.0.1:1"}), "tcp://*:port"),
    "no JSON": (publishing("{"), "can't be read"),
    "nested JSON": (publishing("[" * 10_000), "can't be read"),
    "another shape": (publishing({"endpoint": []}), "can't be read"),
    "off": (publishing({**IPC, "enable_kv_cache_events": False}), "switches them off"),
    "to nobody": (publishing({**IPC, "publisher": "null"}), "switches them off"),
    "fixed arguments": (
        asking(command=["sh", "-c", "vllm serve m"]),
        "can't be extended",
    ),
    "asked, as an unknown user": (
        pod(annotations=ASKS),
        "the pod doesn't say as which user",
    ),
}


@pytest.mark.parametrize(("before", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_can_not_be_read_is_left_alone_and_said_where_it_was_asked_for(
    before: Json, why: str
) -> None:
    injection, after = injected(before)
    assert events_of(after) == (None, None, None)
    assert why in injection.message
    assert marks.KV_EVENTS in injection.message
    assert sidecar(after)["securityContext"]["runAsUser"] == OPTIONS.run_as_user
    del before["metadata"]["annotations"]
    quiet, _ = injected(before)
    assert "KV events" not in quiet.message
