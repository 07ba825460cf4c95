"""Several servers as one: who gets a request, and what happens to it when a server is busy, restarts or is gone.

The HTTP client is httpx2, which huggingface_hub brings: the `openai` package would be one more, and does not know
vLLM's endpoint for token ids.
"""
import asyncio
import json
import os
import time
from dataclasses import dataclass

import httpx2

from common.errors import BadInput
from engines.base import EngineDead, in_short

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30  # seconds between two tries of one server
PASSING = {408, 425, 429, 500, 502, 503, 504}  # a status that may be another one in a while


@dataclass
class Server:
    url: str
    model: str = ""          # the name that it serves the model under
    in_flight: int = 0
    pause: float = 0.0       # seconds that it rested when it failed last
    rests_until: float = 0.0


class Unanswered(Exception):
    """This try has got no answer."""


class Servers:
    """They share the requests by what they have in flight. One that fails rests, longer each time, and another gets the
    request, the same to the seed; its first answer is the only one.

    patience: seconds without any answer after which the run ends.
    """

    def __init__(self, urls, patience):
        key = os.environ.get("OPENAI_API_KEY", "")
        if not key.isascii():
            raise BadInput("OPENAI_API_KEY holds characters that no key has: set it to the server's own.")
        self.client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(None, connect=10), limits=httpx2.Limits(max_connections=None),
            headers={"Authorization": f"Bearer {key}"} if key else {})
        self.all = [Server(url.rstrip("/")) for url in urls]
        self.patience, self.last_answer = patience, time.time()

    async def models(self, server):
        """What it serves: the list of /v1/models. Errors: BadInput."""
        try:
            answer = await asyncio.wait_for(self.ready(f"{server.url}/v1/models"), self.patience)
            if answer.status_code not in (401, 403):
                answer.raise_for_status()
                return [model for model in answer.json()["data"] if isinstance(model["id"], str)]
        except TimeoutError:
            raise BadInput(f"--server {server.url} has not answered for {self.patience:g} s: start it again, or leave "
                           "it out.") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError, TypeError, OverflowError) as error:
            raise BadInput(f"--server {server.url} is no server of OpenAI's API ({in_short(error)}): give the address "
                           "before /v1, such as http://host:8000.") from None
        raise BadInput(f"--server {server.url} refuses the API key: set OPENAI_API_KEY to its own.")

    async def ready(self, url):
        """The answer of a server that may still be starting."""
        while (answer := await self.client.get(url)).status_code in PASSING:
            await asyncio.sleep(FIRST_PAUSE)
        return answer

    async def answer(self, path, body, model=None):
        """The JSON of the first answer. model: default each server's own name for it.

        Errors: BadInput, if a server refuses the request; EngineDead, if none answers.
        """
        begin = time.time()
        while True:
            server = await self.free()
            server.in_flight += 1
            try:
                body = body | {"model": model or server.model}
                content = json.loads(await self.post(server, path, body, begin))
            except (Unanswered, ValueError, RecursionError) as error:
                self.rest(server, error, begin)
            else:
                self.last_answer, server.pause = time.time(), 0.0
                return content
            finally:
                server.in_flight -= 1

    async def free(self):
        """The one that has the least to do of those that do not rest."""
        while True:
            now = time.time()
            awake = [server for server in self.all if server.rests_until <= now]
            if awake:
                return min(awake, key=lambda server: server.in_flight)
            await asyncio.sleep(min(server.rests_until for server in self.all) - now)

    def silence(self, begin):
        """Seconds without any answer since a request began: before it, nobody may have asked."""
        return time.time() - max(self.last_answer, begin)

    def rest(self, server, error, begin):
        if self.silence(begin) > self.patience:
            raise EngineDead(f"no server has answered for {self.patience:g} s ({server.url}: {error}): start it again; "
                             "what is graded is kept, and the same command goes on.")
        now = time.time()
        if server.rests_until <= now:  # of requests that fail together one counts
            server.pause = min(max(2 * server.pause, FIRST_PAUSE), LONGEST_PAUSE)
            server.rests_until = now + server.pause

    async def post(self, server, path, body, begin=None):
        """-> the text of a server's answer to what was first asked at `begin`, by default now.

        Errors: Unanswered; BadInput, if it refuses the request.
        """
        begin = begin or time.time()
        task = asyncio.ensure_future(self.client.post(server.url + path, json=body))
        try:
            # A response may take an hour, so there is no other limit than patience with all servers together.
            while not (await asyncio.wait([task], timeout=1))[0]:
                if self.silence(begin) > self.patience:
                    raise Unanswered("it is silent")
            answer = task.result()
            if answer.status_code == 200:
                return answer.text
        except httpx2.HTTPError as error:  # no connection, or one that was cut
            raise Unanswered(in_short(error)) from None
        finally:
            task.cancel()
        if answer.status_code in PASSING:
            raise Unanswered(f"status {answer.status_code}")
        raise BadInput(f"{server.url} refuses {path} with status {answer.status_code} ({in_short(answer.text)}): its "
                       "log may say more.")
