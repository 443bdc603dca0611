"""Whom the sidecar believes to be its engine."""

from __future__ import annotations

import ipaddress
import ssl


def engine_tls(host: str, pod_ip: str) -> ssl.SSLContext:
    """Return the context for an engine at ``host``: verified with the system's CAs.

    Within the pod nothing is verified: the traffic does not leave the pod's network namespace, and
    no certificate names a loopback address or a pod's.
    """
    context = ssl.create_default_context()
    if in_own_pod(host, pod_ip):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def in_own_pod(host: str, pod_ip: str) -> bool:
    """Return whether ``host`` is a loopback address, ``localhost`` or the pod's own address."""
    name = host.removeprefix("[").removesuffix("]")
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
        return address.is_loopback or address == ipaddress.ip_address(pod_ip)
    except ValueError:
        return False
