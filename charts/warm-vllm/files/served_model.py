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
    """Write one line that says what was found, and return the exit status."""
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
            problem = f"{error.code} {error.reason}"
            if error.code < 500:  # it won't change: no key, or no vLLM
                break
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            found = wanted in served
            missing = "" if found else f", but not {wanted!r}"
            sys.stdout.write(f"{url} serves {served}{missing}\n")
            return 0 if found else 1
    sys.stdout.write(f"{url} does not say what it serves; the last problem: {problem}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
