"""Scripts are read as far as they can be without running them."""

from __future__ import annotations

import pytest

from promptprefix_operator.injection.shell import POSITIONAL, UNRESOLVED, server_words

VARIABLES = {"PORT": "9000", "MORE": "--a b  --c", "EMPTY": ""}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("vllm serve m --port 1", ["m", "--port", "1"]),
        ("exec vllm serve m\n", ["m"]),
        ("cd /app && /opt/venv/bin/vllm serve m | tee log", ["m"]),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", ["--model", "m"]),
        ("python -m vllm.entrypoints.cli.main serve m", ["m"]),
        (
            "vllm serve m \\\n  --port 1 \\\n  --uds u\necho done",
            ["m", "--port", "1", "--uds", "u"],
        ),
        ("vllm serve m --port $PORT", ["m", "--port", "9000"]),
        ('vllm serve m --port "${PORT}"', ["m", "--port", "9000"]),
        ("vllm serve m --port ${PORT:-8000}", ["m", "--port", "9000"]),
        ("vllm serve m --port ${OTHER:-8000}", ["m", "--port", "8000"]),
        ("vllm serve m --port ${EMPTY:-8000}", ["m", "--port", "8000"]),
        ("vllm serve m --port $OTHER", ["m", "--port", UNRESOLVED]),
        ("PORT=1; vllm serve m --port $PORT", ["m", "--port", UNRESOLVED]),
        ("vllm serve m --host $(hostname -i) -r 1", ["m", "--host", UNRESOLVED, "-r", "1"]),
        ("vllm serve m -dp $((A * B)) -r 1", ["m", "-dp", UNRESOLVED, "-r", "1"]),
        ("vllm serve m --host `hostname -i`", ["m", "--host", UNRESOLVED]),
        ("vllm serve m $MORE", ["m", "--a", "b", "--c"]),
        ('vllm serve m "$MORE"', ["m", "--a b  --c"]),
        ("vllm serve m '$PORT' 'a b'", ["m", "$PORT", "a b"]),
        ("vllm serve m \"it's\" 'a\"b'", ["m", "it's", 'a"b']),
        (r"vllm serve m a\ b \$PORT", ["m", "a b", "$PORT"]),
        ('vllm serve m "$@"', ["m", POSITIONAL]),
        ("vllm serve m ${@}", ["m", POSITIONAL]),
        ("vllm serve m # --port 1", ["m"]),
        ("vllm serve m#1", ["m#1"]),
        ("vllm serve m 2>&1", ["m", "2"]),
        ('bash -c "vllm serve m"', ["m"]),
        ("echo vllm serve; vllm serve m", ["m"]),
        ("my-vllm serve m", None),
        ("ray start --address=a:1 --block", None),
        ("", None),
    ],
)
def test_words_after_the_server(script: str, words: list[str] | None) -> None:
    found = server_words(script, VARIABLES.get)
    assert (None if found is None else [word.strip() for word in found]) == words


def test_a_long_script_is_read_quickly() -> None:
    script = "vllm serve m " + "$((" * 20_000 + "${" * 20_000 + "`$(" * 20_000 + "'" + '"' * 9_999
    found = server_words(script, VARIABLES.get)
    assert found is not None
    assert found[0] == "m"
