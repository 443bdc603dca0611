"""The scheduler that vLLM loads: ``--scheduler-cls promptprefix_vllm.scheduler.scheduler_class``.

vLLM calls what the name leads to with the scheduler's arguments, so a factory works as well as a
class. It extends whichever class vLLM would choose itself, asynchronous or not.
"""

from __future__ import annotations

import functools
import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from promptprefix_vllm.adapters import adapter_of
from promptprefix_vllm.admissions import Admissions
from promptprefix_vllm.choice import choose
from promptprefix_vllm.commands import ARGUMENT, CommandError
from promptprefix_vllm.connectors import transfer_of
from promptprefix_vllm.desk import Answer, PinDesk, refusal
from promptprefix_vllm.endings import Ending, with_endings
from promptprefix_vllm.lobby import MAX_HELD, Guest, Lobby
from promptprefix_vllm.pins import PinTable
from promptprefix_vllm.settings import Settings, read_settings
from promptprefix_vllm.stall import StallClock
from promptprefix_vllm.support import missing_fields, missing_hooks, prefix_cache, unsupported

if TYPE_CHECKING:
    _Base = Any
else:
    _Base = object

# vLLM configures this logger's level and handlers for the whole engine process.
_log = logging.getLogger("vllm.promptprefix")
_COMPLETED: Final = frozenset({"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"})
_WAITING: Final = "WAITING"
_READY: Final = (_WAITING, "PREEMPTED")
_LOADING: Final = "WAITING_FOR_REMOTE_KVS"
# Where releases keep requests that wait.
_QUEUES: Final = ("waiting", "kv_holding_waiting", "skipped_waiting")
_STATS_SECONDS: Final = 0.1
_STATS_BLOCKS: Final = 4096


def scheduler_class(*arguments: Any, **named: Any) -> Any:
    """Builds the engine's scheduler. Called by vLLM, in whichever way it builds its own.

    A vLLM that is not as expected gets the scheduler that it would run without us.
    """
    choice = choose(arguments, named)
    problem = choice.problem or missing_hooks(choice.base)
    base = choice.base
    if not problem:
        try:
            base = pinning_class(base)
        except TypeError as error:
            problem = f"the scheduler can't be extended ({error})"
    if problem:
        _log.error("promptprefix: pins are off, %s", problem)
    return base(*arguments, **named)


@functools.lru_cache(maxsize=8)
def pinning_class(base: Any) -> Any:
    names = {"__doc__": PinningMixin.__doc__, "__module__": __name__}
    return type(f"Pinning{base.__name__}", (PinningMixin, base), names)


class PinningMixin(_Base):  # type: ignore[misc]
    """vLLM's scheduler with pins. A request without a command takes vLLM's own path throughout."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._desk: PinDesk | None = None
        self._lobby = Lobby()
        self._ending = False
        self._endings: list[Ending] = []
        self._refused_answers: dict[str, Answer] = {}
        self._admissions = Admissions()
        self._stall = StallClock()
        self._pin_only_stale = True
        self._pin_only = 0
        self._pin_only_due = 0.0
        self._unsupported = ""
        try:
            problem = unsupported(self)
            if not problem:
                self._open_desk(read_settings())
        except (AttributeError, TypeError, ValueError) as error:
            problem = f"this vLLM is not as expected ({error})"
        if problem:
            self._switch_off(problem)

    def _switch_off(self, problem: str) -> None:
        _log.error("promptprefix: pins are off, %s", problem)
        self._unsupported = problem
        self._desk = None

    def _open_desk(self, settings: Settings) -> None:
        for problem in settings.problems:
            _log.warning("promptprefix: %s", problem)
        manager = self.kv_cache_manager
        cache = prefix_cache(self)
        budget = int(settings.budget * cache.blocks_total)
        drops = getattr(self, "use_eagle_block_drop", getattr(self, "use_eagle", False))
        table = PinTable(cache, self.block_size, budget, dropped_blocks=int(bool(drops)))
        self._desk = PinDesk(
            table, settings.key, epoch=secrets.token_hex(8), transfer=transfer_of(self)
        )
        self._hold_seconds = settings.hold_seconds
        self._admissions.watch(manager, getattr(self, "connector", None))
        _log.info("promptprefix: pins are on, at most %d of %d blocks", budget, cache.blocks_total)

    # -- requests coming and going

    def add_request(self, request: Any) -> None:
        if not self.requests:
            self._stall.clear()
        self._see_adapter(request)
        text = _command_of(request)
        if text is None or request.request_id in self.requests:
            super().add_request(request)
            self._step_aside()
            return
        missing = missing_fields(request) if self._desk is not None else ""
        if missing:
            self._switch_off(missing)
        desk = self._desk
        if desk is None:
            self._refuse_unsupported(request.request_id)
            super().add_request(request)
            return
        desk.receive(
            request.request_id,
            text,
            request.prompt_token_ids or (),
            tuple(request.block_hashes),
            adapter_of(request),
        )
        self._pin_only_stale = True
        genuine = desk.is_accepted(request.request_id)
        if not (desk.is_warm_up(request.request_id) if genuine else self._is_large(request)):
            super().add_request(request)
            self._step_aside()
            return
        guest = Guest(request, time.monotonic() + self._hold_seconds, genuine)
        if not self._lobby.hold(guest, users_wait=self._users_wait()):
            self._admit(guest)

    def _is_large(self, request: Any) -> bool:
        """A refused command computes its prompt all the same; most have a single token."""
        return bool(getattr(request, "num_tokens", 0) > self.block_size)

    def _see_adapter(self, request: Any) -> None:
        if self._desk is None or getattr(request, "lora_request", None) is None:
            return
        released = self._desk.see_adapter(adapter_of(request))
        if released:
            self._pin_only_stale = True
            _log.warning("promptprefix: a replaced adapter released %d pins", len(released))

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        if self._lobby:
            ids = None if request_ids is None else _as_ids(request_ids)
            for guest in self._lobby.withdraw(ids):
                # vLLM ends only what it knows, so it gets to know the request first.
                super().add_request(guest.request)
            request_ids = request_ids if ids is None else ids
        return super().finish_requests(request_ids, finished_status)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        # Before super(): a connector may delay the freeing of blocks past the response.
        self._drop_outdated(request)
        self._lobby.leave(request.request_id)
        self._stall.clear()
        answer = self._finish_command(request)
        if self._ending:
            self._endings.append(Ending(request, answer))
        return _merged(super()._free_request(request, *args, **kwargs), answer)

    def _finish_command(self, request: Any) -> Answer | None:
        self._pin_only_stale = True
        if self._desk is None:
            return self._refused_answers.pop(request.request_id, None)
        if not self._desk.knows(request.request_id):
            return None
        completed = request.status.name in _COMPLETED
        return self._desk.finish(
            request.request_id, tuple(request.block_hashes), completed, adapter_of(request)
        )

    def _drop_outdated(self, request: Any) -> None:
        """What ran while its adapter was replaced leaves no blocks for those who come after."""
        desk = self._desk
        if desk is not None and desk.adapters.is_outdated(adapter_of(request)):
            desk.table.drop_computed(request.block_hashes, time.monotonic())
            self._pin_only_stale = True

    def _refuse_unsupported(self, request_id: str) -> None:
        if len(self._refused_answers) < MAX_HELD:
            reason = CommandError("Unsupported", f"pins are off: {self._unsupported}")
            self._refused_answers[request_id] = refusal(reason)

    # -- scheduling

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        desk = self._desk
        if desk is None:
            return super().schedule(*args, **kwargs)
        now = time.monotonic()
        if desk.table.release_expired(now):
            self._pin_only_stale = True
        self._admit_warm_ups(now)
        self._admissions.begin_step()
        output = super().schedule(*args, **kwargs)
        resumed = getattr(output.scheduled_cached_reqs, "resumed_req_ids", ())
        if output.scheduled_new_reqs or resumed or self._admissions.blocks_refused:
            self._pin_only_stale = True
            self._record_requests(desk, output.scheduled_new_reqs, now)
        if self._starved(output, now) and not self._end_own_request(desk):
            self._open_valve(desk, now)
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().update_from_output(*args, **kwargs)
        endings, self._endings = self._endings, []
        return self._with_endings(outputs, endings) if endings else outputs

    def _with_endings(self, outputs: Any, endings: Sequence[Ending]) -> Any:
        return with_endings(outputs, endings)

    def _users_wait(self) -> bool:
        return any(getattr(self, name, ()) for name in _QUEUES)

    def _admit_warm_ups(self, now: float) -> None:
        while self._lobby:
            guest = self._lobby.next(now, users_wait=self._users_wait())
            if guest is None:
                return
            self._admit(guest)

    def _admit(self, guest: Guest) -> None:
        self._lobby.enter(guest)
        super().add_request(guest.request)

    def _step_aside(self) -> None:
        """A warm-up that found no blocks to start with lets those who come later go first."""
        if not self._lobby.is_occupied or not callable(
            getattr(self.waiting, "remove_request", None)
        ):
            return
        now = time.monotonic()
        for request in tuple(self.waiting):
            guest = self._lobby.inside(request.request_id)
            if guest and now < guest.deadline and request.status.name == _WAITING:
                self.waiting.remove_request(request)
                self.waiting.add_request(request)

    def _record_requests(self, desk: PinDesk, new_requests: Sequence[Any], now: float) -> None:
        if not desk.table.pins and not desk.table.watchlist.entries:
            return
        for data in new_requests:
            request = self.requests.get(data.req_id)
            # A command is the sidecar's own traffic; a preempted request finds its own blocks.
            if request is None or desk.knows(data.req_id) or request.num_preemptions:
                continue
            desk.table.record_request(request.block_hashes, data.num_computed_tokens, now)

    def _starved(self, output: Any, now: float) -> bool:
        if (
            output.total_num_scheduled_tokens
            or self.running
            or getattr(self, "deferred_frees", ())
            # A connector fills blocks of such a request now: it runs next, and gives them back.
            or any(
                request.status.name == _LOADING
                for request in getattr(self, "kv_holding_waiting", ())
            )
        ):
            self._stall.clear()
            return False
        if self._admissions.blocks_refused:
            self._stall.clear()
            return True
        return self._stalled(now)

    def _stalled(self, now: float) -> bool:
        """The net below: a release may refuse blocks in a place that is not watched."""
        waiting = (request for name in _QUEUES for request in getattr(self, name, ()))
        first = next((each for each in waiting if each.status.name in _READY), None)
        if (
            first is None
            or self._paused()
            or self._admissions.connector_waits
            or self._has_blocks_for(first)
        ):
            self._stall.clear()
            return False
        return self._stall.stood_still(now)

    def _has_blocks_for(self, request: Any) -> bool:
        desk = self._desk
        if desk is None or not desk.table.pins:
            return True
        tokens = request.num_tokens + 1 + getattr(self, "num_lookahead_tokens", 0)
        reserve = getattr(self.kv_cache_manager, "watermark_blocks", 0)
        return desk.table.cache.has_room(tokens, request.block_hashes, reserve)

    def _paused(self) -> bool:
        state = getattr(self, "pause_state", None)
        return state is not None and state.name != "UNPAUSED"

    def _end_own_request(self, desk: PinDesk) -> bool:
        """No user asked for what a command computes, so no pin goes for it: it is answered now."""
        waiting = [request for name in _QUEUES for request in getattr(self, name, ())]
        own = [request for request in waiting if self._lobby.inside(request.request_id)]
        if not own and all(_command_of(request) is not None for request in waiting):
            own = waiting
        for request in own:
            desk.give_up(request.request_id)
            self._ending = True
            try:
                self.finish_requests(request.request_id, type(request.status)["FINISHED_ABORTED"])
            finally:
                self._ending = False
        return bool(own)

    def _open_valve(self, desk: PinDesk, now: float) -> None:
        """The next step tries again, and releases the next pin if one was not enough."""
        pin = desk.table.release_lowest(now)
        if pin is not None:
            self._pin_only_stale = True
            _log.warning(
                "promptprefix: a pin of %d blocks and priority %d was released, "
                "the engine made no progress",
                len(pin.held),
                pin.priority,
            )

    # -- what vLLM asks about

    def get_num_unfinished_requests(self) -> int:
        count: int = super().get_num_unfinished_requests()
        return count if self._paused() else count + len(self._lobby)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        if self._desk is not None:
            count = self._desk.table.release_all(time.monotonic())
            self._pin_only_stale = True
            if count:
                _log.warning("promptprefix: a cache reset released %d pins", count)
        return super().reset_prefix_cache(*args, **kwargs)

    def get_kv_cache_usage(self) -> float:
        usage: float = super().get_kv_cache_usage()
        return self._without_pins(usage)

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        stats = super().make_stats(*args, **kwargs)
        if stats is not None:
            stats.kv_cache_usage = self._without_pins(stats.kv_cache_usage)
        return stats

    def _without_pins(self, usage: float) -> float:
        """Pins are no load: counted as load, an idle warm pod would be shunned and scaled out."""
        if self._desk is None:
            return usage
        table = self._desk.table
        now = time.monotonic()
        if self._pin_only_stale and (not self.running or now >= self._pin_only_due):
            # Counting visits every pinned block, so a busy engine does it a few times a second,
            # and more seldom the more there are; steps that only decode change no reference count.
            self._pin_only = table.pin_only_blocks()
            self._pin_only_stale = False
            share = max(1.0, table.blocks_pinned / _STATS_BLOCKS)
            self._pin_only_due = now + _STATS_SECONDS * share
        return float(max(0.0, usage - self._pin_only / max(1, table.cache.blocks_total)))


def _command_of(request: Any) -> object:
    parameters = getattr(request, "sampling_params", None)
    extra = getattr(parameters, "extra_args", None)
    return extra.get(ARGUMENT) if isinstance(extra, dict) else None


def _as_ids(request_ids: str | Iterable[str]) -> set[str]:
    return {request_ids} if isinstance(request_ids, str) else set(request_ids)


def _merged(result: Any, answer: Answer | None) -> Any:
    """Adds the answer to what a KV connector returned, in either shape that vLLM has used."""
    if answer is None:
        return result
    if isinstance(result, tuple):
        return ({**(result[0] or {}), ARGUMENT: answer}, *result[1:])
    return {**(result or {}), ARGUMENT: answer}
