"""The ``PromptPrefix`` resource: its spec as models; ``crd`` turns them into the schema.

Field names are the resource's own (camelCase). The ``json_schema_extra`` of a model or field holds
what only Kubernetes reads: CEL rules, list types, int-or-string.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from promptprefix.durations import Duration, duration_rules
from promptprefix.payload import Payload
from promptprefix.peak_window import Window
from promptprefix.schema import Strict, cel, rules
from promptprefix.selector import DNS_NAME
from promptprefix.selector import LabelRequirement as LabelRequirement
from promptprefix.selector import LabelSelector as LabelSelector
from promptprefix.status import MAX_LINT as MAX_LINT
from promptprefix.status import MAX_PROBLEMS as MAX_PROBLEMS
from promptprefix.status import MAX_VERSIONS as MAX_VERSIONS
from promptprefix.status import Condition as Condition
from promptprefix.status import LintFinding as LintFinding
from promptprefix.status import Problem as Problem
from promptprefix.status import PromptPrefixStatus as PromptPrefixStatus
from promptprefix.status import VersionStatus as VersionStatus

GROUP = "promptprefix.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "PromptPrefix"
PLURAL = "promptprefixes"
SINGULAR = "promptprefix"
SHORT_NAMES = ("pp",)
CATEGORIES = ("promptprefix",)

MAX_TEXT = 262_144
"""Characters of one content field; etcd and the API server cap a whole object near 1.5 MB."""
MAX_REPLICAS = 10_000
MAX_PRIORITY = 1_000
MAX_WINDOWS = 16


class Pinning(StrEnum):
    """How a prefix is protected from eviction."""

    HARD = "Hard"
    SOFT = "Soft"
    NONE = "None"


class OnIdle(StrEnum):
    """What happens to the blocks of a prefix that is no longer held."""

    KEEP = "Keep"
    EVICT = "Evict"
    OFFLOAD = "Offload"


class LintPolicy(StrEnum):
    """What lint findings do."""

    WARN = "Warn"
    ENFORCE = "Enforce"
    OFF = "Off"


RuleId = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z][a-z0-9-]*$")]


class InferencePoolRef(Strict):
    """An InferencePool in the resource's namespace."""

    name: str = Field(
        min_length=1,
        max_length=253,
        pattern=rf"^{DNS_NAME}$",
        description="Name of an InferencePool (inference.networking.k8s.io/v1) in the same "
        "namespace; its selector selects the pods, also after it was changed.",
    )


ONE_SELECTION = "pods must have exactly one of selector and inferencePoolRef"


class Pods(Strict):
    """The pods that may hold the prefix: vLLM pods with a warming sidecar, in its namespace."""

    selector: LabelSelector | None = Field(
        default=None,
        description="Selects vLLM pods with a warming sidecar in the resource's own namespace.",
    )
    inferencePoolRef: InferencePoolRef | None = Field(  # noqa: N815
        default=None,
        description="The pods of an InferencePool of the Gateway API Inference Extension.",
    )

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel("has(self.selector) != has(self.inferencePoolRef)", ONE_SELECTION)
        )
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Pods:
        if (self.selector is None) == (self.inferencePoolRef is None):
            raise ValueError(ONE_SELECTION)
        return self


class InlineContent(Strict):
    """Declared text in the resource itself. Sensitive text belongs in a Secret."""

    systemInstructions: str = Field(  # noqa: N815
        default="",
        repr=False,
        max_length=MAX_TEXT,
        description="Text of the system message: persona, guardrails, formats. Kept byte for byte.",
    )
    toolDefinitions: str = Field(  # noqa: N815
        default="[]",
        repr=False,
        max_length=MAX_TEXT,
        description='JSON text of an OpenAI "tools" array, exactly as clients send it. A string, '
        "because the API server would reorder keys, and bytes decide cache hits.",
        json_schema_extra=rules(
            cel(
                r"self.matches('(?s)^\\s*(\\[.*\\]\\s*)?$')",
                "toolDefinitions must be the JSON text of an array of tools: [ … ]",
            )
        ),
    )
    defaultModeSpecs: str = Field(  # noqa: N815
        default="",
        repr=False,
        max_length=MAX_TEXT,
        description="Appended to the system text after a blank line.",
    )
    chatTemplateOptions: str = Field(  # noqa: N815
        default="{}",
        repr=False,
        max_length=16_384,
        description="JSON text of the chat template's arguments (chat_template_kwargs) that "
        "change the rendering.",
        json_schema_extra=rules(
            cel(
                r"self.matches('(?s)^\\s*(\\{.*\\}\\s*)?$')",
                "chatTemplateOptions must be the JSON text of an object: { … }",
            )
        ),
    )

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "(has(self.systemInstructions) && size(self.systemInstructions) > 0) "
                "|| (has(self.defaultModeSpecs) && size(self.defaultModeSpecs) > 0) "
                "|| (has(self.toolDefinitions) && "
                r"!self.toolDefinitions.matches('^\\s*(\\[\\s*\\]\\s*)?$'))",
                "inline content must declare systemInstructions, defaultModeSpecs "
                "or toolDefinitions",
            )
        )
    )

    def payload(self) -> Payload:
        """Return the declared text."""
        return Payload(**self.model_dump())


class ConfigMapRef(Strict):
    """A ConfigMap in the resource's namespace."""

    name: str = Field(
        min_length=1,
        max_length=253,
        pattern=rf"^{DNS_NAME}$",
        description="Name of a ConfigMap in the same namespace; its keys are the names of the four "
        "inline fields. A change of its data is a new version of the prefix.",
    )


class SecretRef(Strict):
    """A Secret in the resource's namespace."""

    name: str = Field(
        min_length=1,
        max_length=253,
        pattern=rf"^{DNS_NAME}$",
        description="Name of a Secret in the same namespace that the operator was allowed to get; "
        "its keys are the names of the four inline fields. A change of its data is a new version "
        "of the prefix.",
    )


class CacheSaltRef(Strict):
    """A key of a Secret in the resource's namespace."""

    name: str = Field(
        min_length=1,
        max_length=253,
        pattern=rf"^{DNS_NAME}$",
        description="Name of a Secret in the same namespace that the operator was allowed to get.",
    )
    key: str = Field(
        default="salt",
        min_length=1,
        max_length=253,
        pattern=r"^[-._a-zA-Z0-9]+$",
        description="Key of its data; the value is UTF-8 text of 16 to 128 characters.",
    )


ONE_SOURCE = "content must have exactly one of inline, configMapRef and secretRef"


class Content(Strict):
    """Where the declared text stands: exactly one place."""

    inline: InlineContent | None = Field(
        default=None,
        description="Declared text in the resource itself; whoever may read the resource reads it.",
    )
    configMapRef: ConfigMapRef | None = Field(  # noqa: N815
        default=None, description="Text in a ConfigMap."
    )
    secretRef: SecretRef | None = Field(  # noqa: N815
        default=None,
        description="Text in a Secret: for text that readers of the resource must not see.",
    )

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "[has(self.inline), has(self.configMapRef), has(self.secretRef)]"
                ".exists_one(given, given)",
                ONE_SOURCE,
            )
        )
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Content:
        if [self.inline, self.configMapRef, self.secretRef].count(None) != 2:
            raise ValueError(ONE_SOURCE)
        return self


class LintSettings(Strict):
    """What the linter does with the declared text."""

    policy: LintPolicy = Field(
        default=LintPolicy.WARN,
        description="Warn reports findings in the status; Enforce also refuses to warm while there "
        "are findings; Off does not lint.",
    )
    ignore: list[RuleId] = Field(
        default=[],
        max_length=32,
        description="Ids of rules whose findings are dropped.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )


REPLICAS_RULE = (
    f"replicas must be a number from 1 to {MAX_REPLICAS}, a percentage from 1% to 100% "
    "or the word All"
)
_PERCENTAGE = re.compile(r"([1-9][0-9]?|100)%", re.ASCII)


def _number_share_or_all(value: object) -> object:
    if value == "All" or (type(value) is int and 1 <= value <= MAX_REPLICAS):
        return value
    if isinstance(value, str) and _PERCENTAGE.fullmatch(value):
        return value
    raise ValueError(REPLICAS_RULE)


class PromptPrefixSpec(Strict):
    """Desired state: which text, on which pods, protected how."""

    model: str = Field(
        min_length=1,
        max_length=512,
        description="Served model name, as clients send it.",
    )
    pods: Pods = Field(description="The pods that may hold the prefix.")
    content: Content = Field(description="The declared text.")
    tenant: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="Only requests of this tenant match the prefix, as the gateway in front of the "
        "router names it in the router's tenant header. Absent: all requests in the namespace.",
    )
    cacheSaltRef: CacheSaltRef | None = Field(  # noqa: N815
        default=None,
        description="Isolates this prefix's KV blocks: the router gives the cache salt to the "
        "requests that match it, and blocks are shared only where it is equal.",
    )
    replicas: Annotated[int | str, BeforeValidator(_number_share_or_all)] = Field(
        default="All",
        description="On how many of the selected pods the prefix is held: a number, a percentage "
        "(rounded up) or All.",
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            **rules(
                cel(
                    f"type(self) == int ? self >= 1 && self <= {MAX_REPLICAS} : "
                    "self == 'All' || self.matches('^([1-9][0-9]?|100)%$')",
                    REPLICAS_RULE,
                )
            ),
        },
    )
    priority: int = Field(
        default=0,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="Who keeps its place when the pin budget is short: the higher number. Capped "
        "for the namespace by the operator's settings.",
    )
    pinning: Pinning = Field(
        default=Pinning.HARD,
        description="Hard: can't be evicted (needs the engine plugin, else soft with a reason). "
        "Soft: kept recent by regular touches. None: warmed once and left to the engine's LRU.",
    )
    idleTTL: Duration | None = Field(  # noqa: N815
        default=None,
        description="Outside peak windows the prefix is held for this long after its latest match; "
        "each match starts the time anew. Absent: released at a window's end; without windows "
        "always held.",
        json_schema_extra=duration_rules("idleTTL"),
    )
    onIdle: OnIdle = Field(  # noqa: N815
        default=OnIdle.KEEP,
        description="What happens to the blocks when the prefix is released. Keep: left to the "
        "engine's LRU. Evict: dropped from the cache at once. Offload: dropped from GPU memory "
        "while the engine's offload tier holds a copy.",
    )
    windows: list[Window] = Field(
        default=[],
        max_length=MAX_WINDOWS,
        description="Peak windows in which the prefix is held; overlaps unite. Without any it is "
        "held always, or as long as idleTTL says.",
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
    )
    normalizeRequests: bool = Field(  # noqa: N815
        default=False,
        description="True lets the router rewrite a request with the same fingerprint and other "
        "bytes, such as another Unicode form or order of keys, to the declared bytes, so that it "
        "hits the cache.",
    )
    lint: LintSettings = Field(
        default=LintSettings(), description="What the linter does with the declared text."
    )
    suspend: bool = Field(
        default=False,
        description="True releases the prefix on all pods and stops warming until false again.",
    )

    @field_validator("windows")
    @classmethod
    def _named_apart(cls, windows: list[Window]) -> list[Window]:
        if len({window.name for window in windows}) < len(windows):
            raise ValueError("two windows have the same name")
        return windows

    def pods_wanted(self, eligible: int) -> int:
        """Return on how many of so many ``eligible`` pods the prefix is wanted."""
        if isinstance(self.replicas, int):
            return self.replicas
        if self.replicas == "All":
            return eligible
        return -(-eligible * int(self.replicas.removesuffix("%")) // 100)
