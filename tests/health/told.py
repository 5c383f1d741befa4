"""The problems found on a server, without the one that every server of the tests has."""

import redis

from django_delayq.health.problem import ServerProblem
from django_delayq.health.problems import find_server_problems


def problems_of(client: redis.Redis, *queues: str) -> list[ServerProblem]:
    found = find_server_problems(client, queues)
    usual = "The append-only file is off"
    return [problem for problem in found if not problem.message.startswith(usual)]


def texts(problems: list[ServerProblem]) -> str:
    return "\n".join(f"{p.level}: {p.message} | {p.hint}" for p in problems)
