"""What the operator knows of the cluster: resources, pods and referenced ConfigMaps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from promptprefix.fleet import Pod
from promptprefix_operator.manifests import (
    ConfigMap,
    Resource,
    config_map_of,
    pod_of,
    resource_of,
)

Key = tuple[str, str]
"""Namespace and name."""


class Cluster:
    """Latest readings. ``changed`` is called when one of them differs from the one before.

    Its size follows the watched namespaces. Of ConfigMaps only those that a resource refers to are
    kept; `missing` names those that are referred to and not read yet.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._resources: dict[str, Resource] = {}
        self._pods: dict[str, Pod] = {}
        self._config_maps: dict[Key, ConfigMap | None] = {}
        self._referred: frozenset[Key] = frozenset()

    @property
    def resources(self) -> Mapping[str, Resource]:
        """The PromptPrefixes by uid."""
        return self._resources

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods by uid."""
        return self._pods

    @property
    def missing(self) -> frozenset[Key]:
        """The ConfigMaps that are referred to and were not read yet."""
        return self._referred - self._config_maps.keys()

    @property
    def referred(self) -> frozenset[Key]:
        """The ConfigMaps that resources refer to."""
        return self._referred

    def config_map(self, key: Key) -> ConfigMap | None:
        """Return a ConfigMap that is referred to; None if it does not exist."""
        return self._config_maps.get(key)

    def see_resource(self, body: Mapping[str, Any]) -> None:
        """Take in a reading of a PromptPrefix, unless a newer one is known."""
        resource = resource_of(body)
        known = self._resources.get(resource.uid)
        if known is not None and _older(resource.version, known.version):
            return
        if known != resource:
            self._resources[resource.uid] = resource
            self._refer()
            self._changed()

    def forget_resource(self, uid: str) -> None:
        """Drop a PromptPrefix that is gone."""
        if self._resources.pop(uid, None) is not None:
            self._refer()
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

    def see_config_map(self, key: Key, body: Mapping[str, Any] | None) -> None:
        """Take in a reading of a ConfigMap (None: it does not exist) if it is referred to."""
        if key not in self._referred:
            return
        found = None if body is None else config_map_of(body)
        known = self._config_maps.get(key)
        if found is not None and known is not None and _older(found.version, known.version):
            return
        if key not in self._config_maps or self._config_maps[key] != found:
            self._config_maps[key] = found
            self._changed()

    def _refer(self) -> None:
        self._referred = frozenset(
            (resource.namespace, reference.name)
            for resource in self._resources.values()
            if resource.spec is not None
            and (reference := resource.spec.content.configMapRef) is not None
        )
        for key in self._config_maps.keys() - self._referred:
            del self._config_maps[key]


def _older(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other
