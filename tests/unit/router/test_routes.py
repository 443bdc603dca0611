"""The route table as the picker sees it."""

from __future__ import annotations

import pytest

from .samples import MODEL, endpoint, prefix, routes


def test_only_the_tenants_own() -> None:
    table = routes(
        endpoint(1),
        endpoint(2, namespace="other"),
        prefixes=(prefix("mine"), prefix("theirs", tenant="other")),
    )
    assert [e.address for e in table.endpoints] == ["10.0.0.1:8000"]
    assert table.named("mine", MODEL)
    assert not table.named("theirs", MODEL)
    assert table.prefixes == 1


@pytest.mark.parametrize(
    ("address", "port", "written"),
    [("10.0.0.9", 80, "10.0.0.9:80"), ("FD00::1", 80, "[fd00::1]:80")],
)
def test_addresses_are_written_as_envoy_does(address: str, port: int, written: str) -> None:
    (only,) = routes(endpoint(1, address=address, port=port)).endpoints
    assert only.address == written


@pytest.mark.parametrize(
    ("address", "port"), [("vllm.local", 80), ("", 80), ("10.0.0.1", 0), ("10.0.0.1", 70_000)]
)
def test_what_is_no_address_is_left_out(address: str, port: int) -> None:
    table = routes(endpoint(1), endpoint(2, address=address, port=port))
    assert len(table.endpoints) == 1
    assert table.rejected == 1


@pytest.mark.parametrize("ready_first", [True, False])
def test_a_reused_address_belongs_to_the_ready_pod(ready_first: bool) -> None:
    pods = [endpoint(1, pod_uid="new"), endpoint(1, pod_uid="old", ready=False)]
    (only,) = routes(*(pods if ready_first else pods[::-1])).endpoints
    assert only.ready


def test_ready_by_model() -> None:
    table = routes(endpoint(1), endpoint(2, ready=False), endpoint(3, models=("lora", MODEL)))
    assert [e.address for e in table.ready(MODEL)] == ["10.0.0.1:8000", "10.0.0.3:8000"]
    assert [e.address for e in table.ready("lora")] == ["10.0.0.3:8000"]
    assert table.ready("unknown") == ()
    assert table.ready(None) == ()


def test_a_rollout_has_two_versions_of_a_name() -> None:
    old, new = prefix(fingerprint="pp1:old"), prefix(fingerprint="pp1:new", model="n")
    table = routes(prefixes=(old, new))
    assert table.named("p", None) == (old, new)
    assert table.named("p", "n") == (new,)
    assert table.with_fingerprint("pp1:old") == (old,)
    assert table.with_fingerprint("") == ()
