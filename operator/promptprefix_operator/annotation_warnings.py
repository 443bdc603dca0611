"""What people must hear of their PromptPrefixes: annotations that can't be understood."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from promptprefix_operator.events import Notice, prefix_subject
from promptprefix_operator.manifests import Resource

INVALID_ANNOTATION = "InvalidAnnotation"


def notices(resources: Mapping[str, Resource]) -> Iterator[Notice]:
    """Yield what there is to say now."""
    for each in resources.values():
        subject = prefix_subject(each.namespace, each.name, each.uid)
        for note in each.notes:
            yield Notice(subject, "Warning", INVALID_ANNOTATION, note, once=note)
