"""Asks the release's Service which models it serves, and fails unless ours is among them."""

import json
import os
import sys
import time
import urllib.error
import urllib.request

ATTEMPTS = 30
PAUSE_SECONDS = 2.0
ANSWER_SECONDS = 10.0


def main() -> int:
    """Return the exit status; its reason is printed in one line."""
    url, wanted = os.environ["API_URL"] + "/v1/models", os.environ["SERVED_MODEL"]
    request = urllib.request.Request(url)  # noqa: S310 - the chart writes an http URL
    if key := os.environ.get("API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_SECONDS)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
                served = [model["id"] for model in json.load(answer)["data"]]
        except urllib.error.HTTPError as error:
            print(f"{url} answers {error.code} {error.reason}")
            return 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"{type(error).__name__}: {error}"
            continue
        found = wanted in served
        print(f"{url} serves {served}" + ("" if found else f", but not {wanted!r}"))
        return 0 if found else 1
    print(f"{url} gives no answer; is a pod Ready? Last problem: {problem}")
    return 1


sys.exit(main())
