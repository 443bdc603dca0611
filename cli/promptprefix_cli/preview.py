"""``promptprefix plan``: who holds what, what fits, who loses and why, before anything is applied.

The operator's own planner answers, for empty pods. Sizes are estimated from the texts (four bytes
of UTF-8 to a token), so shared beginnings are not known and count for each prefix. Windows and idle
times are left aside: all prefixes are planned as held at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from promptprefix.annotations import ZONE_LABEL
from promptprefix.budget import budget_of
from promptprefix.fleet import Limits, Override, Pod, Prefix, Sidecar, Snapshot, Version, owner
from promptprefix.placement import Plan, plan
from promptprefix.reasons import ConditionType, Reason
from promptprefix.resource import Pinning, PromptPrefixStatus
from promptprefix.roles import apart, decodes
from promptprefix.selector import LabelSelector
from promptprefix.shortlist import shortlist
from promptprefix.wire import EngineState, SidecarState
from promptprefix_cli.declared import Declared
from promptprefix_cli.input_error import InputError
from promptprefix_cli.pools import PoolSelectors, pool_selector
from promptprefix_cli.report import Output, data_report

_FINE = (Reason.WARMING, Reason.SUSPENDED, Reason.RELEASED)
_ENDED = ("Succeeded", "Failed")
_NAMED = 8


@dataclass(frozen=True)
class Engines:
    """What all pods have: KV blocks, tokens in a block, and how many blocks pins may hold.

    A ``budget`` of 0 is half of all.
    """

    blocks: int
    block_size: int
    budget: int


@dataclass(frozen=True)
class Row:
    """What the plan does with one prefix. ``blocks`` is what it takes on a pod, by estimate."""

    namespace: str
    name: str
    priority: int
    blocks: int
    wanted: int
    pods: tuple[str, ...]
    reason: str
    message: str

    @property
    def loses(self) -> bool:
        """Whether it is on fewer pods than it is wanted on, or on none."""
        return self.reason not in _FINE


@dataclass(frozen=True)
class PodRow:
    """What the plan puts on one pod."""

    namespace: str
    name: str
    zone: str
    budget: int
    used: int
    prefixes: tuple[str, ...]


@dataclass(frozen=True)
class Preview:
    """A plan in rows."""

    prefixes: tuple[Row, ...]
    pods: tuple[PodRow, ...]

    @property
    def losers(self) -> bool:
        """Whether somebody loses."""
        return any(row.loses for row in self.prefixes)


def made_up_pods(
    declared: Iterable[Declared], count: int, zones: int, pools: PoolSelectors
) -> list[Pod]:
    """Return ``count`` pods for each different selector, in turns of so many zones."""
    pods: list[Pod] = []
    seen: set[tuple[str, str]] = set()
    for each in declared:
        if each.spec is None:
            continue
        namespace = _text(each.metadata, "namespace")
        selector = each.spec.pods.selector or pool_selector(each, pools)
        if selector is None:
            continue
        key = (namespace, selector.model_dump_json())
        if key in seen:
            continue
        seen.add(key)
        for _ in range(count):
            number = len(pods)
            zone = f"zone-{number % zones}" if zones > 1 else ""
            name = f"pod-{number}"
            pods.append(
                Pod(name, namespace, name, _labels(selector), "", True, False, node=name, zone=zone)
            )
    return pods


def _labels(selector: LabelSelector) -> dict[str, str]:
    """Return labels that the selector selects."""
    labels = dict(selector.matchLabels)
    for each in selector.matchExpressions:
        if each.operator == "In":
            labels.setdefault(each.key, each.values[0])
        elif each.operator == "Exists":
            labels.setdefault(each.key, "")
    return labels


def described_pods(objects: Iterable[tuple[str, Any]]) -> list[Pod]:
    """Return the pods among labelled documents, as ``kubectl get pods -o yaml`` prints them."""
    found = [
        _pod(label, item)
        for label, item in objects
        if isinstance(item, Mapping) and item.get("kind") == "Pod"
    ]
    return list(apart(found))


def _pod(label: str, item: Mapping[str, Any]) -> Pod:
    metadata, spec, status = (_mapping(item, key) for key in ("metadata", "spec", "status"))
    name = _text(metadata, "name")
    if not name:
        raise InputError(label, "metadata.name", "is missing; add it")
    labels = {str(key): str(value) for key, value in _mapping(metadata, "labels").items()}
    namespace = _text(metadata, "namespace")
    return Pod(
        uid=_text(metadata, "uid") or f"{namespace}/{name}",
        namespace=namespace,
        name=name,
        labels=labels,
        address="",
        ready=True,
        leaving="deletionTimestamp" in metadata or _text(status, "phase") in _ENDED,
        decodes=decodes(labels),
        node=_text(spec, "nodeName"),
        zone=labels.get(ZONE_LABEL, ""),
    )


def preview(
    declared: Sequence[Declared],
    pods: Sequence[Pod],
    engines: Engines,
    limits: Limits,
    now: datetime,
    pools: PoolSelectors,
) -> Preview:
    """Plan the declared prefixes on empty pods; requests among them are left aside."""
    prefixes = [
        _prefix(index, each, now, pools) for index, each in enumerate(declared) if each.spec
    ]
    models = tuple({prefix.spec.model for prefix in prefixes if prefix.spec is not None})
    engine = EngineState(
        healthy=True,
        address="",
        port=0,
        models=models,
        block_size=engines.block_size,
        blocks_total=engines.blocks,
        budget_blocks=engines.budget,
    )
    blocks = {
        prefix.version.id: -(-prefix.version.estimated_tokens // engines.block_size)
        for prefix in prefixes
        if prefix.version is not None
    }
    size = engines.block_size
    snapshot = Snapshot(
        prefixes=tuple(prefixes),
        pods=tuple(pods),
        sidecars={pod.uid: Sidecar(SidecarState(engine=engine)) for pod in pods},
        limits={pod.namespace: limits for pod in pods},
        sizes={id_: ((size, each * size, ()),) for id_, each in blocks.items() if each},
    )
    made = plan(snapshot, now)
    sizes = {owner(id_): each for id_, each in blocks.items()}
    return Preview(
        prefixes=tuple(_rows(prefixes, pods, sizes, made, limits)),
        pods=tuple(_pod_rows(pods, sizes, made, budget_of(engine, limits))),
    )


def _prefix(index: int, declared: Declared, now: datetime, pools: PoolSelectors) -> Prefix:
    """Return a prefix as the planner reads it; those of the same age are served in their order."""
    text, uid = declared.payload, f"{index:06d}"
    return Prefix(
        uid=uid,
        namespace=_text(declared.metadata, "namespace"),
        name=_text(declared.metadata, "name") or _text(declared.metadata, "generateName"),
        generation=1,
        spec=declared.spec,
        version=Version(
            f"{uid}-0",
            declared.model,
            declared.fingerprint,
            text.digest,
            estimated_tokens=text.estimated_tokens,
        ),
        created=_created(declared.metadata, now),
        warm_now=Override(),
        pool_selector=pool_selector(declared, pools),
    )


def _created(metadata: Mapping[str, Any], now: datetime) -> datetime:
    """Return when a resource was applied; one that was not is of ``now``."""
    try:
        created = datetime.fromisoformat(str(metadata.get("creationTimestamp")))
    except ValueError:
        return now
    return created if created.tzinfo is not None else created.replace(tzinfo=UTC)


def _rows(
    prefixes: Sequence[Prefix],
    pods: Sequence[Pod],
    sizes: Mapping[str, int],
    made: Plan,
    limits: Limits,
) -> Iterator[Row]:
    holders: dict[str, list[str]] = {}
    for pod in pods:
        for placement in made.desired.get(pod.uid, ()):
            holders.setdefault(owner(placement.id), []).append(pod.name)
    for prefix in prefixes:
        status, spec = made.statuses[prefix.uid], prefix.spec
        reason, message = _told(status)
        yield Row(
            namespace=prefix.namespace,
            name=prefix.name,
            priority=min(spec.priority, limits.max_priority) if spec is not None else 0,
            blocks=sizes[prefix.uid],
            wanted=status.desiredPods,
            pods=tuple(holders.get(prefix.uid, ())),
            reason=reason,
            message=message if reason not in _FINE else "",
        )


def _told(status: PromptPrefixStatus) -> tuple[str, str]:
    ready = next(each for each in status.conditions if each.type == ConditionType.READY)
    return ready.reason, ready.message


def _pod_rows(
    pods: Sequence[Pod], sizes: Mapping[str, int], made: Plan, budget: int
) -> Iterator[PodRow]:
    for pod in pods:
        held = made.desired.get(pod.uid, ())
        used = sum(sizes[owner(each.id)] for each in held if each.pinning is not Pinning.NONE)
        names = tuple(each.name for each in held)
        yield PodRow(pod.namespace, pod.name, pod.zone, budget, used, names)


def preview_report(made: Preview, output: Output) -> str:
    """Return the preview for people or machines."""
    if output is Output.TEXT:
        return "".join(f"{line}\n" for line in _lines(made))
    rows: dict[str, list[dict[str, Any]]] = {
        "prefixes": [_data(row) | {"loses": row.loses} for row in made.prefixes],
        "pods": [_data(row) for row in made.pods],
    }
    return data_report(rows, output)


def _data(row: Row | PodRow) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(row).items()}


def _lines(made: Preview) -> Iterator[str]:
    table: list[tuple[str, ...]] = [("PREFIX", "PRIORITY", "BLOCKS", "PODS", "HELD ON")]
    table += [
        (
            _name(row),
            str(row.priority),
            str(row.blocks),
            f"{len(row.pods)}/{row.wanted}",
            _named(row.pods),
        )
        for row in made.prefixes
    ]
    yield from _columns(table)
    yield ""
    table = [("POD", "ZONE", "PINNED", "PREFIXES")]
    table += [
        (_name(row), row.zone or "-", f"{row.used}/{row.budget}", _named(row.prefixes))
        for row in made.pods
    ]
    yield from _columns(table)
    losers = [row for row in made.prefixes if row.loses]
    if losers:
        yield ""
    for row in losers:
        yield f"{_name(row)}: {row.reason}: {row.message}"


def _name(row: Row | PodRow) -> str:
    return f"{row.namespace}/{row.name}" if row.namespace else row.name


def _named(names: Sequence[str]) -> str:
    return shortlist(names[:_NAMED], len(names)) or "-"


def _columns(table: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _mapping(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = item.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""
