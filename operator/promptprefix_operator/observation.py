"""Readings of one namespace: the first one, texts on demand, and a sweep for missed deletions.

kopf brings every later change of resources, pods and ConfigMaps. It lists again after a watch was
cut for long, but says nothing of objects that vanished meanwhile: hence the sweep. Secrets are
never watched: each is read by its name, at once when a resource names it or one that does changes,
and again at times, in turns that all namespaces share.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from urllib.parse import quote

import structlog

from promptprefix.crd import NAME
from promptprefix.resource import GROUP, PLURAL, VERSION
from promptprefix_operator.api_server import ApiError, ApiServer, Json
from promptprefix_operator.backoff import Backoff
from promptprefix_operator.cluster import Cluster, Referrers
from promptprefix_operator.crd_check import is_served
from promptprefix_operator.manifests import uid_of, version_in, version_of
from promptprefix_operator.pace import Pace
from promptprefix_operator.pools import Pools
from promptprefix_operator.sources import (
    Source,
    SourceKind,
    SourceText,
    absent,
    forbidden,
    read_source,
    unreadable,
)
from promptprefix_operator.troubles import Troubles

SWEEP_SECONDS = 300.0
SECRET_SECONDS = 0.5
"""Of Secrets that are read again one has its turn in so many seconds, in all namespaces."""
REFUSALS = (403, 404)
"""Answers that say: not for you, or not there. Others are troubles that pass."""

_FORBIDDEN = 403
_NOT_FOUND = 404
_BROKEN = 500
_TRIES = 3
"""After so many attempts a Secret that can't be given, such as an undecryptable one, is let be."""
_FRESH = "again"

log = structlog.get_logger(__name__)


class Observer:
    """Reads ``namespace`` into ``cluster``.

    ``slots`` bounds the sources that are read at once, in all namespaces together. Secrets are read
    again after ``reread_seconds``, or later where ``pace`` has no turn for so many. ``clock`` is
    monotonic seconds.
    """

    def __init__(
        self,
        *,
        api: ApiServer,
        cluster: Cluster,
        namespace: str,
        slots: asyncio.Semaphore,
        pace: Pace,
        pools: Pools,
        reread_seconds: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._namespace = namespace
        self._slots = slots
        self._pace = pace
        self._pools = pools
        self._sleep = sleep
        self._reread_seconds = reread_seconds
        self._clock = clock
        self._broken: dict[str, int] = {}
        self._troubles = Troubles(log, clock, "texts can't be read", "texts are read again")
        self._secrets: dict[Source, tuple[Referrers, float]] = {}

    async def read(self) -> None:
        """Read everything and drop what is gone. Raises `ApiError`. No watch may be running."""
        if not await is_served(self._api):
            raise ApiError(_NOT_FOUND, f"the CRD {NAME} is not served yet")
        known, pods = self._known_resources(), self._known_pods()
        for body in await self._list_resources():
            self._cluster.see_resource(body)
            known.discard(uid_of(body))
        for body in (await self._api.list_all(self._pods)).items:
            self._cluster.see_pod(body)
            pods.discard(uid_of(body))
        self._forget(known, pods)
        await self._read_each(self._sources(SourceKind.CONFIG_MAP, SourceKind.POOL))
        await self.read_texts()

    async def read_texts(self) -> None:
        """Read the sources that are due, until none is. Raises `ApiError`."""
        while due := self._due():
            await self._read_each(due)

    async def keep_texts(self, passed: Callable[[], Awaitable[None]]) -> None:
        """Read after each pass the sources that are due, for ever. Raises `ApiError` if refused."""
        backoff = Backoff()
        while True:
            try:
                await self.read_texts()
            except ApiError as error:
                if error.status in REFUSALS:
                    raise
                self._troubles.failed("", error, namespace=self._namespace)
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            self._troubles.worked("")
            await passed()

    async def keep_fresh(self) -> None:
        """Read Secrets again, one in each turn, for ever.

        Every other turn is first for one that gave nothing: somebody may wait for it to be made.
        """
        backoff, sick = Backoff(), True
        while True:
            name, wait = self._stale(sick)
            if wait > 0:
                await self._sleep(wait)
                continue
            await self._pace.turn()
            try:
                await self._read_secret(name, self._held(name))
            except ApiError as error:
                self._troubles.failed(_FRESH, error, namespace=self._namespace)
                self._postpone(name)
                await self._sleep(backoff.next())
            else:
                backoff.reset()
                self._troubles.worked(_FRESH)
            sick = not sick

    async def keep_swept(self) -> None:
        """Drop now and then what is gone, for ever. Raises `ApiError` if refused."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except ApiError as error:
                if error.status in REFUSALS:
                    raise
                log.warning("namespace not swept", namespace=self._namespace, error=str(error))

    async def sweep(self) -> None:
        """Drop what was known before this reading and what it does not find."""
        resources, pods = self._known_resources(), self._known_pods()
        resources -= {uid_of(each) for each in await self._list_resources()}
        pods -= {uid_of(each) for each in (await self._api.list_all(self._pods)).items}
        self._forget(resources, pods)
        await self._read_each(self._sources(SourceKind.CONFIG_MAP, SourceKind.POOL))

    async def keep_pools(
        self, stop: Callable[[], None], passed: Callable[[], Awaitable[None]]
    ) -> None:
        """Follow the InferencePools that resources name, for ever."""
        await self._pools.keep(stop, passed)

    async def _list_resources(self) -> Sequence[Json]:
        """Read the resources; where their versions went back, all that was read before is old.

        A collection is never older than what was known before it was asked for, unless etcd was
        restored from a backup.
        """
        before = self._cluster.latest(self._namespace)
        listing = await self._api.list_all(self._resources)
        version = version_in(listing.version)
        if version is not None and version < before:
            log.warning(
                "resourceVersions went back, as after a restored etcd: everything is read anew",
                namespace=self._namespace,
            )
            self._cluster.rewind(self._namespace)
            self._secrets = {}
            for body in listing.items:
                self._cluster.see_resource(body)
        return listing.items

    def _due(self) -> set[Source]:
        """Return the sources that were never read, and Secrets of resources that have changed."""
        due = {each for each in self._cluster.missing if each.namespace == self._namespace}
        secrets = self._sources(SourceKind.SECRET, SourceKind.SALT)
        self._secrets = {each: self._secrets[each] for each in secrets & self._secrets.keys()}
        names = {each.name for each in secrets}
        self._broken = {name: self._broken[name] for name in names & self._broken.keys()}
        for source in secrets:
            referrers, _ = self._secrets.get(source, (frozenset(), 0.0))
            if referrers != self._cluster.referred[source]:
                due.add(source)
        return due

    def _held(self, name: str) -> Sequence[Source]:
        """Return what was read from a Secret."""
        return [source for source in self._secrets if source.name == name]

    def _stale(self, sick: bool) -> tuple[str, float]:
        """Return the Secret to read again next, and in how many seconds.

        ``sick``: of those that are due one that gave nothing comes first.
        """
        limit = self._clock() - self._reread_seconds
        read_at: dict[str, float] = {}
        nothing: set[str] = set()
        for source, (_, at) in self._secrets.items():
            read_at[source.name] = min(at, read_at.get(source.name, at))
            text = self._cluster.text(source)
            if text is not None and text.reason is not None and read_at[source.name] <= limit:
                nothing.add(source.name)
        names = nothing if sick and nothing else read_at
        if not names:
            return "", self._reread_seconds
        name = min(names, key=lambda each: (read_at[each], each))
        return name, max(0.0, read_at[name] - limit)

    def _postpone(self, name: str) -> None:
        """Let others come first after a Secret that could not be read."""
        for source, (referrers, _) in self._secrets.items():
            if source.name == name:
                self._secrets[source] = (referrers, self._clock())

    async def _read_each(self, sources: set[Source]) -> None:
        secrets = _by_name(each for each in sources if each.secret)
        broken: list[ApiError] = []

        async def read_secret(name: str, held: Sequence[Source]) -> None:
            try:
                await self._read_secret(name, held)
            except ApiError as error:
                if error.status != _BROKEN:
                    raise
                broken.append(error)

        try:
            async with asyncio.TaskGroup() as group:
                for name, held in secrets.items():
                    group.create_task(read_secret(name, held))
                for source in sorted(sources):
                    if source.kind is SourceKind.POOL:
                        group.create_task(self._read_pool(source))
                    elif not source.secret:
                        group.create_task(self._read_config_map(source))
        except* ApiError as errors:
            raise _first(errors) from errors
        if broken:
            raise broken[0]

    async def _read_secret(self, name: str, sources: Sequence[Source]) -> None:
        """Take in what one Secret holds: a text, or salts under some of its keys, or both."""
        referred = self._cluster.referred
        referrers = {source: referred.get(source, frozenset()) for source in sources}
        async with self._slots:
            read = await self._secret(name)
        for source in sources:
            self._cluster.see_text(source, read(source))
            self._secrets[source] = (referrers[source], self._clock())

    async def _secret(self, name: str) -> Callable[[Source], SourceText]:
        """Ask for a Secret; return what tells the reading of each of its sources."""
        path = f"/api/v1/namespaces/{quote(self._namespace)}/secrets/{quote(name)}"
        try:
            body = await self._api.get(path)
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return absent
            if error.status == _FORBIDDEN:
                return forbidden
            if error.status == _BROKEN and self._is_broken(name, error):
                cause = str(error)
                return lambda source: self._cluster.text(source) or unreadable(source, cause)
            raise
        self._broken.pop(name, None)
        return lambda source: self._reading(source, body)

    def _is_broken(self, name: str, error: ApiError) -> bool:
        """Whether a Secret alone fails, for good, so that its namespace must not wait for it."""
        tries = self._broken[name] = self._broken.get(name, 0) + 1
        if tries == _TRIES:
            where = {"namespace": self._namespace, "secret": name}
            log.warning("a Secret can't be read, others go on", error=str(error), **where)
        return tries >= _TRIES

    def _reading(self, source: Source, body: Json) -> SourceText:
        known = self._cluster.text(source)
        if known is not None and known.version is not None and known.version == version_of(body):
            return known
        return read_source(source, body)

    async def _read_pool(self, source: Source) -> None:
        async with self._slots:
            await self._pools.read(source)

    async def _read_config_map(self, source: Source) -> None:
        """Take in one ConfigMap, unless the watch brought something while it was being read.

        Absence has no version, so nothing else tells whether it is older than what came meanwhile.
        """
        async with self._slots:
            before = self._cluster.text(source)
            found = await self._config_map(source)
        if self._cluster.text(source) is before:
            self._cluster.see_text(source, absent(source) if found is None else found)

    async def _config_map(self, source: Source) -> SourceText | None:
        """Find one by name in the list: the right to list is enough, and absence no error."""
        query = {"fieldSelector": f"metadata.name={source.name}"}
        path = f"/api/v1/namespaces/{quote(source.namespace)}/configmaps"
        items: list[Json] = list((await self._api.get(path, query)).get("items") or ())
        found = [each for each in items if each["metadata"]["name"] == source.name]
        return read_source(source, found[0]) if found else None

    def _sources(self, *kinds: SourceKind) -> set[Source]:
        return {
            each
            for each in self._cluster.referred
            if each.kind in kinds and each.namespace == self._namespace
        }

    def _known_resources(self) -> set[str]:
        resources = self._cluster.resources.items()
        return {uid for uid, each in resources if each.namespace == self._namespace}

    def _known_pods(self) -> set[str]:
        pods = self._cluster.pods.items()
        return {uid for uid, each in pods if each.namespace == self._namespace}

    def _forget(self, resources: set[str], pods: set[str]) -> None:
        for uid in resources:
            self._cluster.forget_resource(uid)
        for uid in pods:
            self._cluster.forget_pod(uid)

    @property
    def _resources(self) -> str:
        return f"/apis/{GROUP}/{VERSION}/namespaces/{quote(self._namespace)}/{PLURAL}"

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{quote(self._namespace)}/pods"


def _by_name(sources: Iterable[Source]) -> Mapping[str, Sequence[Source]]:
    found: dict[str, list[Source]] = defaultdict(list)
    for source in sorted(sources):
        found[source.name].append(source)
    return dict(found)


def _first(errors: BaseExceptionGroup[ApiError]) -> ApiError:
    """Return the error that says most: a refusal before a trouble."""
    found = [each for each in errors.exceptions if isinstance(each, ApiError)]
    return min(found, key=lambda each: each.status not in REFUSALS)
