"""The HTTP side of injection. It always allows: a pod is never kept from starting.

Nothing of a pod is logged or quoted: its variables may hold secrets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram
from pydantic import ValidationError

from promptprefix.annotations import InjectionResult
from promptprefix_operator.injection.injector import Injection, inject
from promptprefix_operator.injection.options import InjectionOptions
from promptprefix_operator.injection.review import Request, Review, answer

MAX_BODY_BYTES = 3 * 1024 * 1024
"""The API server's own limit of a request."""

MAX_REVIEWS = 8
"""Questions that are read at once: their bodies are held meanwhile."""

BODY_SECONDS = 3.0
"""The API server sends a body at once; who doesn't gives the place back after this long."""

_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)

log = structlog.get_logger(__name__)


class InjectionMetrics:
    """Instruments of the webhook."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.injections = Counter(
            "promptprefix_operator_injections",
            "Pods that were decided about, by result: hard, soft or none.",
            ["result"],
            registry=registry,
        )
        for result in InjectionResult:
            self.injections.labels(result.value)
        self.seconds = Histogram(
            "promptprefix_operator_injection_seconds",
            "Time to decide about one pod.",
            buckets=_BUCKETS_S,
            registry=registry,
        )


@dataclass(frozen=True)
class Limits:
    """What questions may take of a process that also leads, whoever asks them."""

    reviews: int = MAX_REVIEWS
    body_seconds: float = BODY_SECONDS


DEFAULT_LIMITS = Limits()


def injection_application(
    options: InjectionOptions,
    metrics: InjectionMetrics,
    clock: Callable[[], float] = time.perf_counter,
    limits: Limits = DEFAULT_LIMITS,
) -> web.Application:
    """Return the application with ``POST /v1/inject`` and ``GET /healthz``."""
    places = asyncio.Semaphore(limits.reviews)
    turn = asyncio.Lock()

    async def review(request: web.Request) -> web.Response:
        async with places:
            body = await _body(request, limits.body_seconds)
            async with turn:
                # The rest of the operator runs between any two decisions.
                await asyncio.sleep(0)
                return _respond(body, options, metrics, clock)

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post("/v1/inject", review)
    app.router.add_get("/healthz", healthz)
    return app


async def _body(request: web.Request, seconds: float) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body took more than {seconds:g} s") from None


def _respond(
    body: bytes,
    options: InjectionOptions,
    metrics: InjectionMetrics,
    clock: Callable[[], float],
) -> web.Response:
    try:
        asked = Review.model_validate_json(body).request
    except ValidationError as error:
        raise web.HTTPBadRequest(text=_complaint(error)) from None
    begin = clock()
    injection = _decide(asked, options)
    metrics.seconds.observe(clock() - begin)
    if injection is not None:
        metrics.injections.labels(injection.result.value).inc()
        _report(asked, injection)
    return web.json_response(answer(asked, injection))


def _decide(asked: Request, options: InjectionOptions) -> Injection | None:
    if not asked.creates_pod or asked.object is None:
        return None
    return inject(asked.object, asked.namespace, options)


def _complaint(error: ValidationError) -> str:
    """Return what is wrong with a body, by places only."""
    places = {".".join(str(part) for part in each["loc"]) for each in error.errors()}
    return f"not an AdmissionReview of admission.k8s.io/v1: {', '.join(sorted(places)[:5])}"


def _report(asked: Request, injection: Injection) -> None:
    """Log where and with what result; sentences hold no value of the pod."""
    log.info(
        "decided about a pod",
        namespace=asked.namespace,
        uid=asked.uid,
        result=injection.result.value,
        message=injection.message,
    )
