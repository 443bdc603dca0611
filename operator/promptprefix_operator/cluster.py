"""What the operator knows of the cluster: resources, pods and the texts that resources refer to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from promptprefix.fleet import Pod
from promptprefix_operator.manifests import Resource, pod_of, resource_of
from promptprefix_operator.sources import Source, SourceText, sources_of

Referrers = frozenset[tuple[str, int]]
"""Resources that refer to a source: uid and generation."""


class Cluster:
    """Latest readings. ``changed`` is called when one of them differs from the one before.

    Its size follows the watched namespaces. Of ConfigMaps, Secrets and InferencePools only
    those that a resource refers to are kept; `missing` names those that are referred to and not
    read yet.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._resources: dict[str, Resource] = {}
        self._pods: dict[str, Pod] = {}
        self._texts: dict[Source, SourceText] = {}
        self._referred: dict[Source, Referrers] = {}

    @property
    def resources(self) -> Mapping[str, Resource]:
        """The PromptPrefixes by uid."""
        return self._resources

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods by uid."""
        return self._pods

    def is_ready(self, pod_uid: str) -> bool:
        """Return whether Kubernetes says that a pod is Ready, and to stay."""
        pod = self._pods.get(pod_uid)
        return pod is not None and pod.ready and not pod.leaving

    @property
    def missing(self) -> frozenset[Source]:
        """The sources that are referred to and were not read yet."""
        return frozenset(self._referred.keys() - self._texts.keys())

    @property
    def referred(self) -> Mapping[Source, Referrers]:
        """The sources that resources refer to, and who does."""
        return self._referred

    def text(self, source: Source) -> SourceText | None:
        """Return the last reading of a source that is referred to; None before the first."""
        return self._texts.get(source)

    def see_resource(self, body: Mapping[str, Any]) -> None:
        """Take in a reading of a PromptPrefix, unless a newer one is known."""
        resource = resource_of(body)
        known = self._resources.get(resource.uid)
        if known is not None and _older(resource.version, known.version):
            return
        if known != resource:
            self._resources[resource.uid] = resource
            self._refer(known, resource)
            self._changed()

    def forget_resource(self, uid: str) -> None:
        """Drop a PromptPrefix that is gone."""
        if (known := self._resources.pop(uid, None)) is not None:
            self._refer(known, None)
            self._changed()

    def see_pod(self, body: Mapping[str, Any]) -> None:
        """Take in a reading of a pod."""
        pod = pod_of(body)
        if self._pods.get(pod.uid) != pod:
            self._pods[pod.uid] = pod
            self._changed()

    def forget_pod(self, uid: str) -> None:
        """Drop a pod that is gone."""
        if self._pods.pop(uid, None) is not None:
            self._changed()

    def see_text(self, source: Source, text: SourceText) -> None:
        """Take in a reading of a source, if it is referred to and no newer one is known."""
        if source not in self._referred:
            return
        known = self._texts.get(source)
        if known is not None and _older(text.version, known.version):
            return
        if known != text:
            self._texts[source] = text
            self._changed()

    def forget_namespace(self, namespace: str) -> None:
        """Drop everything of a namespace."""
        for uid in [uid for uid, each in self._resources.items() if each.namespace == namespace]:
            self._refer(self._resources.pop(uid), None)
        for uid in [uid for uid, each in self._pods.items() if each.namespace == namespace]:
            del self._pods[uid]
        self._changed()

    def latest(self, namespace: str) -> int:
        """Return the resourceVersion of the latest reading of a namespace's resources, or 0."""
        found = (each for each in self._resources.values() if each.namespace == namespace)
        return max((each.version or 0 for each in found), default=0)

    def rewind(self, namespace: str) -> None:
        """Take the next readings of a namespace for newer than all before, whatever they say."""
        for uid, resource in self._resources.items():
            if resource.namespace == namespace:
                self._resources[uid] = replace(resource, version=None)
        for source, text in self._texts.items():
            if source.namespace == namespace:
                self._texts[source] = replace(text, version=None)

    def _refer(self, before: Resource | None, after: Resource | None) -> None:
        """Take note of what a resource refers to now, and forget what nobody refers to."""
        old, new = _references(before), _references(after)
        for source, referrer in new - old:
            self._referred[source] = self._referred.get(source, frozenset()) | {referrer}
        for source, referrer in old - new:
            self._referred[source] -= {referrer}
            if not self._referred[source]:
                del self._referred[source]
                self._texts.pop(source, None)


def _references(resource: Resource | None) -> frozenset[tuple[Source, tuple[str, int]]]:
    """Return the sources that a resource refers to, with itself as the referrer."""
    if resource is None or resource.spec is None:
        return frozenset()
    referrer = (resource.uid, resource.generation)
    sources = sources_of(resource.namespace, resource.spec)
    return frozenset((source, referrer) for source in sources if source is not None)


def _older(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other
