"""The program ``promptprefix``, also installed as ``kubectl promptprefix``.

Exit status: 0 fine, 1 findings, 2 bad usage or input.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from promptprefix.annotations import UNPIN, WARM_NOW
from promptprefix.fleet import Limits
from promptprefix.resource import MAX_PRIORITY
from promptprefix_cli.declared import Declared, declared_prefixes, objects_of
from promptprefix_cli.explain_report import explain_report, seen_report
from promptprefix_cli.explanation import FINE, explained, request_bodies
from promptprefix_cli.input_error import InputError
from promptprefix_cli.orders import OrderError, give, order_of, run_kubectl
from promptprefix_cli.pools import PoolSelectors, described_pools, undescribed, with_made_up
from promptprefix_cli.preview import (
    Engines,
    described_pods,
    made_up_pods,
    preview,
    preview_report,
)
from promptprefix_cli.report import Output, fingerprint_report, lint_report
from promptprefix_cli.router_examples import read_router
from promptprefix_cli.stream import read_documents

FINDINGS = 1
BAD_INPUT = 2

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Files = Annotated[
    list[Path],
    typer.Option(
        "-f",
        "--filename",
        metavar="FILE|-",
        help="PromptPrefix manifests (and the ConfigMaps and Secrets that they name) in YAML or "
        "JSON, or request bodies of chat completions, Messages or Responses in JSON; - reads the "
        "standard input. May be given several times.",
    ),
]
OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="text for people, json or yaml for machines.")
]
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of PromptPrefixes.")]
NamespaceOption = Annotated[
    str, typer.Option("-n", "--namespace", help="Their namespace; empty: kubectl's own.")
]
ContextOption = Annotated[str, typer.Option("--context", help="A context of the kubeconfig.")]
LastingOption = Annotated[
    str | None,
    typer.Option("--for", metavar="DURATION", help="How long, such as 2h or 1h30m; else no end."),
]
OffOption = Annotated[bool, typer.Option("--off", help="Take the order back.")]


@app.callback()
def program() -> None:
    """Look at prompt prefixes before they are applied, and give orders to those that are."""


@app.command()
def fingerprint(files: Files, output: OutputOption = Output.TEXT) -> None:
    """Print the fingerprint of each declared prefix or request body."""
    typer.echo(fingerprint_report(_read(files), output), nl=False)


@app.command()
def lint(files: Files, output: OutputOption = Output.TEXT) -> None:
    """Say what keeps declared texts from being reused; exit with 1 if anything does.

    Windows that can't be read are told, too.
    """
    results = [(prefix, prefix.findings()) for prefix in _read(files)]
    typer.echo(lint_report(results, output), nl=False)
    if any(found or prefix.window_errors() for prefix, found in results):
        raise typer.Exit(FINDINGS)


@app.command()
def explain(
    requests: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[REQUEST.json|-]...", help="Request bodies to explain."),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("-f", "--filename", metavar="FILE|-", help="PromptPrefix manifests."),
    ] = None,
    routers: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="Metrics address of a running router, such as http://localhost:9090: print the "
            "near misses that it saw last. May be given several times.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Say why requests match declared prefixes or miss them; exit with 1 if any misses.

    Either of request bodies and manifests, or of what running routers saw.
    """
    if bool(routers) == bool(requests or files) or bool(requests) != bool(files):
        _fail([InputError("", "", "give -f MANIFEST and REQUEST.json, or --from URL")])
    if routers:
        try:
            seen = [read_router(url) for url in routers]
        except InputError as error:
            _fail([error])
        typer.echo(seen_report(seen, output), nl=False)
        if any(each.nearMisses for each in seen):
            raise typer.Exit(FINDINGS)
        return
    try:
        bodies = request_bodies(_documents(requests or []))
    except InputError as error:
        _fail([error])
    prefixes = [each for each in _read(files or []) if each.spec is not None]
    found = [explained(label, body, prefixes) for label, body in bodies]
    typer.echo(explain_report(found, output), nl=False)
    if any(each.verdict not in FINE for each in found):
        raise typer.Exit(FINDINGS)


@app.command()
def warm(
    names: Names,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    lasting: LastingOption = None,
    off: OffOption = False,
) -> None:
    """Hold prefixes warm now, whatever their windows and idle times say."""
    _give(WARM_NOW, names, namespace, context, lasting, off)


@app.command()
def unpin(
    names: Names,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    lasting: LastingOption = None,
    off: OffOption = False,
) -> None:
    """Give the pins of prefixes up now; their blocks are left to the engine's LRU."""
    _give(UNPIN, names, namespace, context, lasting, off)


def _give(
    annotation: str, names: list[str], namespace: str, context: str, lasting: str | None, off: bool
) -> None:
    options = [
        *([f"--namespace={namespace}"] if namespace else []),
        *([f"--context={context}"] if context else []),
    ]
    try:
        order = order_of(annotation, lasting, off, datetime.now(UTC))
        for line in give(order, names, options, run_kubectl):
            typer.echo(line)
    except OrderError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error


@app.command()
def plan(
    files: Files,
    blocks: Annotated[
        int,
        typer.Option(
            min=2,
            help="KV blocks of each engine: vLLM logs the tokens of its cache; over --block-size.",
        ),
    ],
    block_size: Annotated[int, typer.Option(min=1, help="Tokens in a block.")] = 16,
    budget: Annotated[
        int, typer.Option(min=0, help="Blocks that pins may hold on a pod; 0: half of all.")
    ] = 0,
    pods: Annotated[
        int, typer.Option(min=0, help="Pods to make up for each selector; 0: those of the input.")
    ] = 0,
    zones: Annotated[int, typer.Option(min=1, help="Zones of the pods that are made up.")] = 1,
    budget_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the budget that a namespace may use.")
    ] = 1.0,
    max_priority: Annotated[
        int, typer.Option(help="Highest priority that a namespace may use.")
    ] = MAX_PRIORITY,
    output: OutputOption = Output.TEXT,
) -> None:
    """Say who would hold what, what fits and who loses, on empty pods; exit with 1 if anyone does.

    The pods are those of the input (``kubectl get pods -o yaml``), or ``--pods`` made-up ones.
    InferencePools that manifests name belong to the input, too.
    """
    documents = _documents(files)
    declared = _declared(documents)
    try:
        found = described_pods(objects_of(documents)) if not pods else []
        selectors: PoolSelectors = described_pools(objects_of(documents))
    except InputError as error:
        _fail([error])
    if pods:
        selectors = with_made_up(declared, selectors)
    elif missing := undescribed(declared, selectors):
        _fail(missing)
    members = made_up_pods(declared, pods, zones, selectors) if pods else found
    if not members:
        _fail([InputError("", "", "no pods: give their manifests with -f, or --pods N")])
    engines = Engines(blocks, block_size, budget)
    limits = Limits(budget_share, max_priority)
    made = preview(declared, members, engines, limits, datetime.now(UTC), selectors)
    typer.echo(preview_report(made, output), nl=False)
    if made.losers:
        raise typer.Exit(FINDINGS)


def _read(files: list[Path]) -> list[Declared]:
    """Return what the files declare, or print what is wrong with them and end the program."""
    return _declared(_documents(files))


def _documents(files: list[Path]) -> list[tuple[str, Any]]:
    try:
        return [d for file in files for d in read_documents(str(file), _bytes(file))]
    except InputError as unreadable:
        _fail([unreadable])


def _declared(documents: list[tuple[str, Any]]) -> list[Declared]:
    prefixes, errors = declared_prefixes(documents)
    if errors:
        _fail(errors)
    return prefixes


def _fail(errors: Iterable[InputError]) -> NoReturn:
    for error in errors:
        typer.echo(f"error: {error}", err=True)
    raise typer.Exit(BAD_INPUT)


def _bytes(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise InputError(str(file), "", f"can't be read: {error.strerror}") from error
