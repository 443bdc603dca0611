"""Where a warm-up's tokens came from, and how it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix_sidecar.engine_api import Prefilled
from promptprefix_sidecar.prefilling import chunk_ends
from promptprefix_sidecar.provenance import Origin, Progress, origin


@pytest.mark.parametrize(
    ("progress", "moved", "expected"),
    [
        (Progress(96, 0, 64), {"device": 64}, Origin(96, {})),
        (Progress(96, 96, 160), {"device": 160}, Origin(0, {"device": 96})),
        (Progress(96, 32, 64), {"device": 64}, Origin(64, {"device": 32})),
        # users' hits at the same time, from the same source and from another
        (Progress(96, 96, 96), {"device": 5000}, Origin(0, {"device": 96})),
        (Progress(96, 96, 96), {"device": 5000, "host": 96}, Origin(0, {"unattributed": 96})),
        # a tier gave it, and later chunks found it in GPU memory
        (Progress(96, 96, 160), {"device": 64, "host": 96}, Origin(0, {"host": 96})),
        (
            Progress(96, 96, 160),
            {"device": 128, "host": 32},
            Origin(0, {"device": 64, "host": 32}),
        ),
        (Progress(96, 96, 96), {}, Origin(0, {"unattributed": 96})),
        # users' hits fill up exactly what own chunks found of each other: a tier gave too much
        (Progress(96, 32, 160), {"device": 96, "host": 64}, Origin(64, {"unattributed": 32})),
    ],
)
def test_origins(progress: Progress, moved: dict[str, int], expected: Origin) -> None:
    before = {"device": 7, "host": 11}
    after = {source: count + moved.get(source, 0) for source, count in before.items()}
    assert origin(progress, before, after) == expected


def test_what_an_earlier_chunk_computed_is_not_found() -> None:
    progress = Progress()
    for end, cached in ((64, 0), (128, 64), (160, 128)):
        progress = progress.plus(end, Prefilled(prompt_tokens=end + 1, cached_tokens=cached))
    assert progress == Progress(160, 0, 192)
    again = Progress()
    for end in (64, 128, 160):
        again = again.plus(end, Prefilled(prompt_tokens=end + 1, cached_tokens=end))
    assert again == Progress(160, 160, 352)


def test_words_are_for_what_was_not_computed() -> None:
    assert Origin(96, {}).words == ""
    assert Origin(32, {"device": 64}).words == (
        "tokens of the last warm-up: 64 from device, 32 computed"
    )


@given(st.integers(1, 200), st.sampled_from([1, 16, 32]), st.integers(1, 3000))
def test_chunks_are_whole_blocks_and_never_longer_than_asked(
    blocks: int, block_size: int, chunk: int
) -> None:
    tokens = blocks * block_size
    ends = list(chunk_ends(tokens, block_size, chunk))
    assert ends == sorted(set(ends))
    assert ends[-1] == tokens
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert all(size % block_size == 0 for size in sizes)
    assert max(sizes) <= max(chunk, block_size)


def test_without_a_known_block_size_there_is_one_chunk() -> None:
    assert list(chunk_ends(100, 0, 10)) == [100]
