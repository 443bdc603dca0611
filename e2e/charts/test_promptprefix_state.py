"""What outlives an upgrade: the CRD, and what others fill in (certificates, CA bundle)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from e2e.charts.installation import (
    CERT_MANAGER,
    TWO_TEAMS,
    changed,
    container,
    environment,
    objects,
    pods,
)
from e2e.charts.render import CHARTS, NAMESPACE, Object, Values, named, of_kind
from promptprefix.annotations import INJECT
from promptprefix.crd import FILE_NAME
from promptprefix_operator.certificates import service_names
from promptprefix_operator.credentials import SECRET

CRD = "promptprefixes.promptprefix.dev"
FILLED = {
    ("Secret", "promptprefix-operator-tls", NAMESPACE),
    ("ConfigMap", "promptprefix-ca", NAMESPACE),
    ("ConfigMap", "promptprefix-ca", "ml"),
    ("ConfigMap", "promptprefix-ca", "chat"),
}


def test_what_the_operator_fills_is_rendered_empty() -> None:
    found = [each for each in objects(TWO_TEAMS) if each["kind"] in ("Secret", "ConfigMap")]
    places = {
        (each["kind"], each["metadata"]["name"], each["metadata"]["namespace"]) for each in found
    }
    assert places == FILLED
    for each in found:
        assert each.keys() - {"type"} == {"apiVersion", "kind", "metadata"}
    assert SECRET in {name for _, name, _ in FILLED}


def webhook(values: Values | None = None, **options: Any) -> Object:
    name = f"promptprefix-injector-{NAMESPACE}"
    (found,) = named(objects(values, **options), "MutatingWebhookConfiguration", name)["webhooks"]
    return dict(found)


@pytest.mark.parametrize("source", ["operator", "certManager"])
def test_the_webhook_asks_for_labelled_new_pods_and_never_blocks_one(source: str) -> None:
    values = changed(TWO_TEAMS, "webhook.certificate.source", source)
    assert webhook(values) == {
        "name": "inject.promptprefix.dev",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "service": {
                "name": "promptprefix-webhook",
                "namespace": NAMESPACE,
                "path": "/v1/inject",
                "port": 443,
            }
        },
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ],
        "namespaceSelector": {
            "matchExpressions": [
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "In",
                    "values": ["ml", "chat"],
                }
            ]
        },
        "objectSelector": {"matchLabels": {INJECT: "true"}},
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "timeoutSeconds": 5,
    }


@pytest.mark.parametrize(
    ("source", "api_versions", "expected"),
    [
        ("auto", [], False),
        ("auto", [CERT_MANAGER], True),
        ("operator", [CERT_MANAGER], False),
        ("certManager", [], True),
    ],
)
def test_who_keeps_the_certificate(source: str, api_versions: list[str], expected: bool) -> None:
    values = changed({}, "webhook.certificate.source", source)
    rendered = objects(values, api_versions=api_versions)
    (configuration,) = of_kind(rendered, "MutatingWebhookConfiguration")
    annotations = configuration["metadata"].get("annotations", {})
    spec = pods(values, api_versions=api_versions)["promptprefix-operator"]
    variables = environment(container(spec, "operator"))
    assert ("cert-manager.io/inject-ca-from" in annotations) == expected
    assert ("PROMPTPREFIX_WEBHOOK_CERT_FILE" in variables) == expected
    assert ("webhook-certificate" in {each["name"] for each in spec["volumes"]}) == expected
    assert len(of_kind(rendered, "Certificate")) == (2 if expected else 0)
    assert "caBundle" not in configuration["webhooks"][0]["clientConfig"]


def test_cert_manager_makes_what_the_operator_mounts() -> None:
    values = {"webhook": {"certificate": {"source": "certManager"}}}
    rendered = objects(values)
    certificate = named(rendered, "Certificate", "promptprefix-webhook")["spec"]
    spec = pods(values)["promptprefix-operator"]
    (volume,) = (each for each in spec["volumes"] if each["name"] == "webhook-certificate")
    (mount,) = (
        each
        for each in container(spec, "operator")["volumeMounts"]
        if each["name"] == volume["name"]
    )
    variables = environment(container(spec, "operator"))
    assert volume["secret"] == {"secretName": certificate["secretName"], "optional": True}
    assert variables["PROMPTPREFIX_WEBHOOK_CERT_FILE"] == f"{mount['mountPath']}/tls.crt"
    assert variables["PROMPTPREFIX_WEBHOOK_KEY_FILE"] == f"{mount['mountPath']}/tls.key"
    assert set(certificate["dnsNames"]) <= set(service_names("promptprefix-webhook", NAMESPACE))
    issuer = named(rendered, "Issuer", certificate["issuerRef"]["name"])["spec"]
    authority = named(rendered, "Certificate", "promptprefix-webhook-ca")["spec"]
    assert issuer == {"ca": {"secretName": authority["secretName"]}}
    assert authority["isCA"] is True


def test_an_issuer_of_ones_own_replaces_ours() -> None:
    issuer = {"name": "vault", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    values = {"webhook": {"certificate": {"source": "certManager", "issuerRef": issuer}}}
    rendered = objects(values)
    assert of_kind(rendered, "Issuer") == []
    (certificate,) = of_kind(rendered, "Certificate")
    assert certificate["spec"]["issuerRef"] == issuer


@pytest.mark.parametrize("keep", [True, False])
def test_the_definition_is_the_generated_one(keep: bool) -> None:
    found = named(objects({"crds": {"keep": keep}}), "CustomResourceDefinition", CRD)
    annotations = found["metadata"].pop("annotations", {})
    assert annotations == ({"helm.sh/resource-policy": "keep"} if keep else {})
    found["metadata"].pop("labels")
    assert found == yaml.safe_load((CHARTS.parent / "crds" / FILE_NAME).read_text())


def test_nothing_but_the_definition_outlives_the_release() -> None:
    kept = [
        each["metadata"]["name"]
        for each in objects(TWO_TEAMS)
        if "helm.sh/resource-policy" in each["metadata"].get("annotations", {})
    ]
    assert kept == [CRD]
