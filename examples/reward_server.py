"""A reward service with the standard library alone: a start for one of your own.

    python examples/reward_server.py --port 9000
    headrace run examples/sort_digits.yaml run.name=asked 'reward={kind: http, url: "http://127.0.0.1:9000/score"}'

It gets a JSON list of responses and answers a list of scores, in the same order; docs/rewards.md
describes both. `score` is what you would change.
"""

from __future__ import annotations

import argparse
import hmac
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Item = dict[str, Any]


def score(item: Item) -> Item:
    """Give 1 for the right answer, and a little for one of the right length."""
    exact = float(item["response"].strip() == item["answer"].strip())
    length = float(len(item["response"]) == len(item["answer"]))
    return {"reward": 0.9 * exact + 0.1 * length, "parts": {"exact": exact, "length": length}}


class Handler(BaseHTTPRequestHandler):
    """Answers POSTs. A connection is kept for the next one."""

    protocol_version = "HTTP/1.1"
    token = ""

    def do_POST(self) -> None:
        """Score a batch. What raises here is one response's error, never a reward of zero."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        given = self.headers.get("Authorization", "").encode()
        if self.token and not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            self.answer(401, {"error": "another token is needed"})
            return
        try:
            items: list[Item] = json.loads(body)
        except ValueError as error:
            self.answer(400, {"error": str(error)})
            return
        self.answer(200, [self.score(item) for item in items])

    def score(self, item: Item) -> Item:
        """Score one response."""
        try:
            return score(item)
        except Exception as error:  # whatever is wrong with this one, the others have their scores
            return {"error": f"{type(error).__name__}: {error}"}

    def answer(self, status: int, value: object) -> None:
        """Send JSON."""
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000, help="0 = any free one")
    parser.add_argument("--token-file", type=Path, help="the bearer token that callers must send")
    options = parser.parse_args()
    if options.token_file is not None:
        Handler.token = options.token_file.read_text().strip()
    try:
        server = ThreadingHTTPServer((options.host, options.port), Handler)
    except OSError as error:
        parser.error(f"cannot listen on {options.host}:{options.port}: {error.strerror}")
    print(f"serving http://{options.host}:{server.server_port}/score", flush=True)  # noqa: T201
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
