import http.client
import json
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from e2e.cluster.control_plane import Credentials
from e2e.cluster.network import Network


@dataclass(frozen=True)
class Api:
    """The few questions that starting a cluster asks its API server, as administrator."""

    address: str
    context: ssl.SSLContext

    @classmethod
    def create(cls, network: Network, credentials: Credentials) -> "Api":
        context = ssl.create_default_context(cafile=str(credentials.authority.files.certificate))
        context.load_cert_chain(credentials.admin.certificate, credentials.admin.key)
        return cls(network.node_address, context)

    def healthy(self, path: str = "/readyz") -> bool:
        return self._get(path) is not None

    def node_ready(self, name: str) -> bool:
        node = self._object(f"/api/v1/nodes/{name}")
        conditions = {c["type"]: c["status"] for c in node.get("status", {}).get("conditions", [])}
        # The taint "not ready" goes a moment after the condition comes; no pod starts before.
        return conditions.get("Ready") == "True" and not node["spec"].get("taints")

    def exists(self, path: str) -> bool:
        return bool(self._object(path))

    def _object(self, path: str) -> dict[str, Any]:
        body = self._get(path)
        return dict(json.loads(body)) if body else {}

    def _get(self, path: str) -> bytes | None:
        connection = http.client.HTTPSConnection(
            self.address, 6443, timeout=5, context=self.context
        )
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return body if response.status == http.client.OK else None


def wait_until(
    what: str, condition: Callable[[], bool], check_running: Callable[[], None], timeout: float
) -> None:
    """Wait for a condition; `check_running` raises when waiting has become pointless."""
    deadline = time.monotonic() + timeout
    while not condition():
        check_running()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout:.0f} s")
        time.sleep(0.1)
