"""The endpoints file, and the configuration that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from promptprefix_router.envoy.bootstrap import bootstrap, write_bootstrap
from promptprefix_router.envoy.endpoints_file import EndpointsFile
from promptprefix_router.settings import RouterSettings

from .samples import endpoint, routes


def settings(**changes: Any) -> RouterSettings:
    """Return settings that no environment changes."""
    return RouterSettings.model_validate({"tenant": "ml", **changes})


def health(folder: Path) -> dict[str, str]:
    """Return the health of each endpoint as Envoy reads it."""
    (resource,) = json.loads((folder / "endpoints.json").read_bytes())["resources"]
    (group,) = resource["endpoints"]
    return {
        e["endpoint"]["address"]["socket_address"]["address"]: e["health_status"]
        for e in group["lb_endpoints"]
    }


def test_it_changes_only_when_the_endpoints_do(tmp_path: Path) -> None:
    file = EndpointsFile(tmp_path)
    pods = routes(endpoint(1), endpoint(2, ready=False)).endpoints
    assert file.write(pods)
    inode = (tmp_path / "endpoints.json").stat().st_ino
    assert not file.write(routes(endpoint(2, ready=False), endpoint(1, warm=("d",))).endpoints)
    assert (tmp_path / "endpoints.json").stat().st_ino == inode
    assert health(tmp_path) == {"10.0.0.1": "HEALTHY", "10.0.0.2": "UNHEALTHY"}
    assert [path.name for path in tmp_path.iterdir()] == ["endpoints.json"]


def test_groups_are_metadata_by_which_envoy_balances(tmp_path: Path) -> None:
    pods = routes(endpoint(1), endpoint(2)).endpoints
    file = EndpointsFile(tmp_path)
    assert file.write(pods, lambda each: ("g", "h") if each.host == "10.0.0.1" else ())
    (resource,) = json.loads((tmp_path / "endpoints.json").read_bytes())["resources"]
    assert [each.get("metadata") for each in resource["endpoints"][0]["lb_endpoints"]] == [
        {"filter_metadata": {"envoy.lb": {"group": ["g", "h"]}}},
        None,
    ]


def test_the_version_tells_contents_apart(tmp_path: Path) -> None:
    file, versions = EndpointsFile(tmp_path), []
    for pods in ((endpoint(1),), (endpoint(2),), (endpoint(1),)):
        file.write(routes(*pods).endpoints)
        versions.append(json.loads((tmp_path / "endpoints.json").read_bytes())["version_info"])
    assert versions[0] == versions[2] != versions[1]


def test_an_old_file_stays_in_force(tmp_path: Path) -> None:
    file = EndpointsFile(tmp_path)
    assert file.empty
    assert file.create()
    assert file.empty
    file.write(routes(endpoint(1)).endpoints)
    assert not file.empty
    assert not file.create()
    write_bootstrap(settings(), tmp_path)
    assert health(tmp_path) == {"10.0.0.1": "HEALTHY"}


def test_the_bootstrap_follows_the_settings(tmp_path: Path) -> None:
    made = settings(
        envoy_admin="http://127.0.0.1:19901",
        listen_port=18080,
        stats_port=19902,
        decision_port=19002,
        decision_timeout_ms=50,
        max_request_bytes=2048,
    )
    config = bootstrap(made, tmp_path)
    text = json.dumps(config)
    assert config["admin"]["address"]["socket_address"] == {
        "address": "127.0.0.1",
        "port_value": 19901,
    }
    for piece in (
        '"port_value": 18080',
        '"port_value": 19902',
        '"port_value": 19002',
        '"timeout": "0.05s"',
        '"max_request_bytes": 2048',
        f'"path": "{tmp_path}/endpoints.json"',
    ):
        assert piece in text


def test_envoy_asks_at_a_unix_socket_unless_a_port_is_set(tmp_path: Path) -> None:
    made = settings(envoy_dir=tmp_path)
    (_, picker, *_) = bootstrap(made, tmp_path)["static_resources"]["clusters"]
    assert made.decision_sockets == (tmp_path / "picker.sock",)
    assert f'{{"pipe": {{"path": "{tmp_path}/picker.sock"}}}}' in json.dumps(picker)
    assert settings(decision_port=19002).decision_sockets == ()


def test_envoy_asks_each_worker_in_turn(tmp_path: Path) -> None:
    made = settings(envoy_dir=tmp_path, workers=3)
    (_, picker, *_) = bootstrap(made, tmp_path)["static_resources"]["clusters"]
    (locality,) = picker["load_assignment"]["endpoints"]
    paths = [each["endpoint"]["address"]["pipe"]["path"] for each in locality["lb_endpoints"]]
    assert paths == [str(each) for each in made.decision_sockets]
    assert [each.name for each in made.decision_sockets] == [
        "picker.sock",
        "picker-1.sock",
        "picker-2.sock",
    ]
    assert "outlier_detection" in picker
    assert picker["common_lb_config"] == {"update_merge_window": "0s"}


@pytest.mark.parametrize(
    "changes",
    [
        {"tenant": ""},
        {"envoy_admin": "http://10.0.0.1:9901"},
        {"envoy_admin": "http://127.0.0.1"},
        {"envoy_admin": "https://127.0.0.1:9901"},
        {"decision_host": "10.0.0.1"},
        {"decision_host": "localhost"},
        {"decision_port": -1},
        {"envoy_dir": "/" + 90 * "x"},
        {"max_request_bytes": 10},
        {"log_level": "loud"},
    ],
)
def test_settings_that_can_not_work_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(**changes)
