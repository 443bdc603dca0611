"""The control API's HTTP side: sidecars ask for their set, routers for the routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from promptprefix.payload import Payload
from promptprefix.wire import (
    CONTENT_PATH,
    LONG_POLL_S,
    MATCHES_PATH,
    ROUTES_PATH,
    SALT_PATH,
    STANDBY_STATUS,
    SYNC_PATH,
    MatchAnswer,
    MatchReport,
    Revision,
    RouteTable,
    Salt,
    SyncRequest,
)
from promptprefix_operator.api_server import ApiError
from promptprefix_operator.identity import Caller, Reviewer
from promptprefix_operator.manifests import explain
from promptprefix_operator.matches import Matches
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.publication import Publication
from promptprefix_operator.routers import Routers
from promptprefix_operator.sidecars import Poll, Sidecars, TooManySidecarsError

MAX_BODY_BYTES = 8 * 1024 * 1024
"""A report of `MAX_REPORTED` placements has this room; who asks is known before it is read."""
BODY_SECONDS = 15.0
"""A body must come within this time."""

Message = TypeVar("Message", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Access:
    """Who may ask: pods of ``namespaces``, and the ServiceAccounts ``namespace/name``.

    A router that stands in a served namespace is that tenant's: it gets nothing of the others. In
    ``own_namespace``, the operator's, it is the installation's.
    """

    namespaces: Collection[str]
    routers: Collection[str]
    own_namespace: str = ""

    def tenant_of(self, router: Caller) -> str | None:
        """Return the one tenant that ``router`` may serve; None for all."""
        own = router.namespace == self.own_namespace
        return None if own or router.namespace not in self.namespaces else router.namespace

    def may_serve(self, router: Caller, tenant: str) -> bool:
        """Return whether ``router`` may serve ``tenant``."""
        return self.tenant_of(router) in (None, tenant)


class ControlApi:
    """Handlers of the paths.

    ``content`` returns a text by its content digest, ``salt`` a cache salt by the id of its
    placements; ``known`` tells whether the published plan
    knows what is in a namespace, ``settling`` whether sidecars may still report for the first time.
    A question without news is held for ``hold_seconds``.
    """

    def __init__(
        self,
        *,
        reviewer: Reviewer,
        access: Access,
        sidecars: Sidecars,
        publication: Publication,
        known: Callable[[str], bool],
        content: Callable[[str], Payload | None],
        salt: Callable[[str], str | None],
        matches: Matches,
        routers: Routers,
        metrics: Metrics,
        settling: Callable[[], bool] = lambda: False,
        hold_seconds: float = LONG_POLL_S,
    ) -> None:
        self._reviewer = reviewer
        self._access = access
        self._sidecars = sidecars
        self._publication = publication
        self._known = known
        self._content = content
        self._salt = salt
        self._matches = matches
        self._routers = routers
        self._metrics = metrics
        self._settling = settling
        self._hold_seconds = hold_seconds
        self._ended = False

    def end(self) -> None:
        """Hold no question any longer: who asks has to find another operator."""
        self._ended = True
        self._publication.wake()

    async def sync(self, request: web.Request) -> web.StreamResponse:
        """Answer a sidecar's question for its desired set."""
        try:
            response = await self._answer_sync(request)
        except web.HTTPException as error:
            self._metrics.sync_requests.labels(str(error.status)).inc()
            raise
        self._metrics.sync_requests.labels("unchanged" if response.status == 204 else "set").inc()
        return response

    async def _answer_sync(self, request: web.Request) -> web.Response:
        pod = await self._pod(request)
        question = await _read(request, SyncRequest)
        self._check_term(question.revision)
        if self._sidecars.overtaken(pod.pod_uid, question.asked):
            return web.Response(status=204)
        passes = self._publication.passes
        try:
            news = self._sidecars.report(
                pod.pod_uid, question.state, question.revision, question.sent
            )
        except TooManySidecarsError as error:
            raise web.HTTPServiceUnavailable(text=str(error)) from error
        # What the report changes is in the next plan: an answer before it could tell a sidecar
        # to release what it was just found to hold.
        after = passes + 1 if news or passes == 0 else passes
        with self._sidecars.polling(pod.pod_uid, question.asked) as poll:
            await self._until(
                lambda: (
                    self._known(pod.namespace)
                    and self._publication.passes >= after
                    and self._publication.set_of(pod.pod_uid).revision != question.revision
                ),
                poll,
            )
        if poll.over:
            return web.Response(status=204)  # nobody waits for it any longer
        if self._publication.passes < after:
            raise web.HTTPServiceUnavailable(text="no plan was made in time; ask again")
        if not self._known(pod.namespace):
            return web.Response(status=204)  # the pod keeps what it holds
        answer = self._publication.answer_to(pod.pod_uid, pod.namespace)
        return _json(answer) if answer.revision != question.revision else web.Response(status=204)

    async def payload(self, request: web.Request) -> web.StreamResponse:
        """Answer a content that the asking pod was told to hold, or a router to match."""
        caller = await self._caller(request)
        digest = request.match_info["digest"]
        if not (self._is_router(caller) and digest in self._routes_of(caller).contents):
            self._check_pod(caller)
            if self._publication.placement(caller.pod_uid, digest) is None:
                raise web.HTTPForbidden(text="this pod was not told to hold that content")
        payload = self._content(digest)
        if payload is None:
            raise web.HTTPNotFound(text="that content is no longer declared")
        return _secret(payload)

    async def salt(self, request: web.Request) -> web.StreamResponse:
        """Answer the cache salt of a placement that the asking pod was told to hold."""
        pod = await self._pod(request)
        placement = request.match_info["placement"]
        if not self._publication.holds(pod.pod_uid, placement):
            raise web.HTTPForbidden(text="this pod was not told to hold that placement")
        salt = self._salt(placement)
        if salt is None:
            raise web.HTTPNotFound(text="that placement has no cache salt")
        return _secret(Salt(salt=salt))

    async def routes(self, request: web.Request) -> web.StreamResponse:
        """Answer a router's question for the route table."""
        caller = await self._router(request)
        tenant = request.query.get("tenant", "")
        if tenant in self._access.namespaces and self._access.may_serve(caller, tenant):
            self._routers.see(tenant, _instance(caller))
        revision = _revision(request)
        self._check_term(revision)
        await self._until(lambda: self._has_routes_for(revision))
        if self._publication.passes == 0:
            raise web.HTTPServiceUnavailable(text="no plan was made in time; ask again")
        if not self._has_routes_for(revision):
            return web.Response(status=204)
        return _json(self._routes_of(caller))

    async def matches(self, request: web.Request) -> web.StreamResponse:
        """Take in what a router has matched."""
        try:
            report = await self._answer_matches(request)
        except web.HTTPException as error:
            self._metrics.match_reports.labels(str(error.status)).inc()
            raise
        whole = report.term == self._publication.term
        self._metrics.match_reports.labels("taken" if whole else "asked-again").inc()
        return _json(MatchAnswer(term=self._publication.term))

    async def _answer_matches(self, request: web.Request) -> MatchReport:
        caller = await self._router(request)
        report = await _read(request, MatchReport)
        tenant, instance = report.tenant, _instance(caller)
        if tenant not in self._access.namespaces:
            raise web.HTTPForbidden(text=_unserved(tenant))
        if not self._access.may_serve(caller, tenant):
            raise web.HTTPForbidden(
                text=f"a router in the namespace {caller.namespace} serves that tenant alone"
            )
        self._matches.take(report)
        if report.term != self._publication.term:
            self._routers.see(tenant, instance)
        elif report.leaving:
            self._routers.leave(tenant, instance)
        else:
            self._routers.hear(tenant, instance)
        return report

    def _has_routes_for(self, revision: Revision | None) -> bool:
        """Whether there is a table for a router that has another leader's, ours, or none.

        The last leader's is better than ours until the sidecars had their time to report: a pool of
        the few that were first would get all the traffic.
        """
        if self._publication.passes == 0 or self._publication.routes.revision == revision:
            return False
        inherits = revision is not None and revision.term != self._publication.term
        return not (inherits and self._settling())

    async def _until(self, ready: Callable[[], bool], poll: Poll | None = None) -> None:
        """Return when ``ready`` holds, the time to hold a question is over, or it gives way."""
        held = poll or Poll()
        try:
            async with asyncio.timeout(self._hold_seconds) as held.limit:
                while not (ready() or held.over or self._ended):
                    await self._publication.wait()
        except TimeoutError:
            pass
        finally:
            held.limit = None
        if self._ended:
            raise web.HTTPServiceUnavailable(text="this operator ends; ask again")

    def _check_term(self, revision: Revision | None) -> None:
        if revision is not None and revision.term > self._publication.term:
            raise web.HTTPConflict(
                text=f"term {revision.term} is newer than this operator's "
                f"{self._publication.term}: another one leads"
            )

    async def _pod(self, request: web.Request) -> Caller:
        caller = await self._caller(request)
        self._check_pod(caller)
        return caller

    def _check_pod(self, caller: Caller) -> None:
        if caller.namespace not in self._access.namespaces:
            raise web.HTTPForbidden(text=_unserved(caller.namespace))
        if not caller.pod_uid:
            raise web.HTTPForbidden(
                text="the token is not bound to a pod: use a projected serviceAccountToken volume"
            )

    async def _router(self, request: web.Request) -> Caller:
        caller = await self._caller(request)
        if not self._is_router(caller):
            raise web.HTTPForbidden(
                text=f"ServiceAccount {caller.namespace}/{caller.account} is no router: "
                "add it to the operator's ROUTER_SERVICE_ACCOUNTS"
            )
        return caller

    def _routes_of(self, router: Caller) -> RouteTable:
        tenant = self._access.tenant_of(router)
        whole = self._publication.routes
        return whole if tenant is None else whole.of(tenant)

    def _is_router(self, caller: Caller) -> bool:
        return f"{caller.namespace}/{caller.account}" in self._access.routers

    async def _caller(self, request: web.Request) -> Caller:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        try:
            caller = await self._reviewer.review(token) if scheme.lower() == "bearer" else None
        except ApiError as error:
            raise web.HTTPServiceUnavailable(
                text="the token can't be checked just now", headers={"Retry-After": "2"}
            ) from error
        if caller is None:
            raise web.HTTPUnauthorized(
                text="no valid ServiceAccount token for the audience promptprefix.dev/control",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return caller


def control_application(leading: Callable[[], ControlApi | None]) -> web.Application:
    """Return the control port's application.

    While ``leading`` answers None this replica is a standby: every path is refused alike, before
    anything of the request is looked at, and the connection is closed, so that the client dials
    anew and meets another replica. What was asked of a leader that lost the lead is refused too.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if leading() is None:
            return _misdirected()
        response = await handler(request)
        return _misdirected() if leading() is None else response

    def of(handle: Callable[[ControlApi, web.Request], Awaitable[web.StreamResponse]]) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            api = leading()
            return _misdirected() if api is None else await handle(api, request)

        return handler

    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[guard, _plain_errors])
    app.router.add_post(SYNC_PATH, of(ControlApi.sync))
    app.router.add_get(CONTENT_PATH + "/{digest:[0-9a-f]{64}}", of(ControlApi.payload))
    app.router.add_get(SALT_PATH + "/{placement:[-0-9A-Za-z]{1,128}}", of(ControlApi.salt))
    app.router.add_get(ROUTES_PATH, of(ControlApi.routes))
    app.router.add_post(MATCHES_PATH, of(ControlApi.matches))
    return app


def _misdirected() -> web.Response:
    response = web.json_response(
        {"message": "this operator does not lead: connect again"}, status=STANDBY_STATUS
    )
    response.force_close()
    return response


def _instance(caller: Caller) -> str:
    """Return what tells a router from others: its pod, or its account where no token has one."""
    return caller.pod_uid or f"{caller.namespace}/{caller.account}"


def _unserved(namespace: str) -> str:
    return f"namespace {namespace} is not served: add it to the operator's NAMESPACES"


async def _read(request: web.Request, model: type[Message]) -> Message:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.read()
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(
            text=f"the body did not come in {BODY_SECONDS:g} s", headers={"Connection": "close"}
        ) from error
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise web.HTTPBadRequest(text=explain(error, "body")) from error


def _revision(request: web.Request) -> Revision | None:
    query = request.query
    if not query.get("term") and not query.get("number"):
        return None
    try:
        return Revision(term=int(query.get("term", "")), number=int(query.get("number", "")))
    except ValueError as error:
        raise web.HTTPBadRequest(text="term and number must be given, as integers") from error


def _json(model: BaseModel) -> web.Response:
    return web.Response(body=model.model_dump_json().encode(), content_type="application/json")


def _secret(model: BaseModel) -> web.Response:
    answer = _json(model)
    answer.headers["Cache-Control"] = "no-store"
    return answer


@web.middleware
async def _plain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer refusals as JSON with a message."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        headers = {k: v for k, v in error.headers.items() if k.lower() not in _BODY_HEADERS}
        return web.json_response({"message": error.text}, status=error.status, headers=headers)


_BODY_HEADERS = ("content-type", "content-length")
