"""The part of a pod where prefill and decode are apart."""

from __future__ import annotations

import pytest

from promptprefix.fleet import Pod
from promptprefix.roles import apart, decodes

LLM_D = "llm-d.ai/role"
OWN = "promptprefix.dev/role"


def pod(name: str, namespace: str = "ml", *, leaving: bool = False, **labels: str) -> Pod:
    spelled = {LLM_D if key == "llmd" else key: value for key, value in labels.items()}
    spelled = {OWN if key == "own" else key: value for key, value in spelled.items()}
    spelled = {"llm-d.ai/model" if key == "model" else key: v for key, v in spelled.items()}
    return Pod(
        uid=name,
        namespace=namespace,
        name=name,
        labels=spelled,
        address="",
        ready=True,
        leaving=leaving,
        decodes=decodes(spelled),
    )


@pytest.mark.parametrize(
    ("others", "decode"),
    [
        ([], False),
        ([pod("p", llmd="prefill")], True),
        ([pod("p", llmd="encode-prefill")], True),
        ([pod("p", own="prefill")], True),
        ([pod("p", llmd="prefill", leaving=True)], False),
        ([pod("p", "other", llmd="prefill")], False),
        ([pod("p", llmd="prefill", model="other")], False),
        ([pod("p", llmd="decode")], False),
    ],
)
def test_a_foreign_label_counts_beside_a_pod_that_prefills(others: list[Pod], decode: bool) -> None:
    first, *_ = apart([pod("d", llmd="decode"), *others])

    assert first.decodes is decode


def test_our_own_label_is_taken_at_its_word() -> None:
    [found] = apart([pod("d", own="decode")])

    assert found.decodes


def test_pods_that_stay_as_they_are_stay_the_same_objects() -> None:
    pods = [pod("a"), pod("b", own="decode"), pod("c", llmd="prefill")]

    assert all(one is other for one, other in zip(apart(pods), pods, strict=True))
