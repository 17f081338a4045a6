"""Simulates a fleet of agents, and prints the load of its replicas and of their database.

    python evals/fleet/simulate.py [AGENTS] [CORES_OF_A_REPLICA]

Every agent holds conversations without a pause: a request, an answer, a tool, the next request. Quantiles of their
calls, sizes and intervals are those of recorded sessions, and costs of a request those that capacity.py measured; both
are constants below. Requests arrive at random replicas, where they wait for a processor. A replica is added until 99 %
of all requests wait less than 10 ms for one in a simulated minute, with at most 70 % of the processors used. Nothing is
sent; the seed is fixed.
"""

import bisect
import heapq
import random
import sys

SHARES = [0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1]
# Calls of a conversation: 248 recorded conversations with at least ten.
CALLS = [10, 11, 14, 19, 43, 109, 185, 227, 327, 471]
# Bytes that a call adds to the next request; independent of the number of calls (correlation -0.02).
BYTES_OF_A_CALL = [961, 1285, 1500, 2692, 3919, 5512, 7746, 10830, 17880, 24599]
# Seconds between requests: 1,188 intervals of up to five minutes in 18 recorded sessions of two clients.
INTERVALS = [1.5, 2.1, 2.8, 4.6, 9.0, 19.3, 39.2, 73.0, 181.9, 295.2]

# Memory of an idle cached conversation: 47 MB for 1,000 conversations of 200 KB (docs/measurements/proxy-overhead.md).
CACHE_BYTES_OF_A_BYTE = 0.235
# The default of --max-sessions.
MAX_SESSIONS = 1024
CONNECTIONS_OF_A_REPLICA = 8


class Costs:
    """Costs of a request, as capacity.py prints them."""

    def __init__(self, stays, request, megabyte, database, commits, log, stored):
        # True if a conversation stays at its replica, which remembers it.
        self.stays = stays
        # Seconds of a processor of a replica: of a request, and of each megabyte of its body.
        self.request, self.megabyte = request, megabyte
        # Seconds of a processor of the database, its commits, bytes of its log and of its tables.
        self.database, self.commits, self.log, self.stored = database, commits, log, stored

    def seconds(self, size):
        return self.request + self.megabyte * size / 1e6


# Fraction of requests at which something new is folded.
CREASES_OF_A_REQUEST = 217 / 5282
SCENARIOS = {
    # "no conversation remembered": with many more conversations than --max-sessions, a replica remembers none.
    "each request at any replica": Costs(
        stays=False, request=0.00258, megabyte=0.00183, database=0.00124, commits=0.78, log=10.2e3, stored=5.82e3
    ),
    # "one replica": needs a balancer that hashes the session, and --max-sessions for its conversations.
    "a conversation stays at its replica": Costs(
        stays=True, request=0.00046, megabyte=0.00302, database=0.00033, commits=0.25, log=9.9e3, stored=5.66e3
    ),
}

SIMULATED_SECONDS = 60
MAX_WAIT_SECONDS = 0.010
MAX_USE = 0.7


def draw(source, quantiles):
    share = source.random()
    at = bisect.bisect_right(SHARES, share) - 1
    low, high = quantiles[at], quantiles[at + 1]
    return low + (high - low) * (share - SHARES[at]) / (SHARES[at + 1] - SHARES[at])


class Agent:
    """An agent in the middle of its work: a conversation is met in proportion to its length."""

    def __init__(self, source):
        self.source = source
        self.begin()
        longest = CALLS[-1]
        while source.random() * longest > self.calls:
            self.begin()
        self.call = source.randrange(int(self.calls)) + 1

    def begin(self):
        self.call, self.calls = 0, draw(self.source, CALLS)
        self.growth = draw(self.source, BYTES_OF_A_CALL)

    def next_request(self):
        """Returns the bytes of the next request."""
        if self.call >= self.calls:
            self.begin()
        self.call += 1
        return self.call * self.growth


def arrivals(agents, source):
    """Returns all requests of the simulated time in order: seconds, bytes."""
    requests = []
    for _ in range(agents):
        agent = Agent(source)
        # The time until the first request is the rest of an interval, which is met in proportion to its length.
        interval = draw(source, INTERVALS)
        while source.random() * INTERVALS[-1] > interval:
            interval = draw(source, INTERVALS)
        at = source.random() * interval
        while at < SIMULATED_SECONDS:
            requests.append((at, agent.next_request()))
            at += draw(source, INTERVALS)
    requests.sort()
    return requests


def waits(requests, replicas, cores, costs, source):
    """Returns the seconds that each request waits for a processor, in order of length."""
    free = [[0.0] * cores for _ in range(replicas)]
    waited = []
    for at, size in requests:
        queue = free[source.randrange(replicas)]
        start = max(at, heapq.heappop(queue))
        heapq.heappush(queue, start + costs.seconds(size))
        waited.append(start - at)
    return sorted(waited)


def quantile(values, share):
    return values[min(len(values) - 1, int(share * len(values)))]


def main():
    agents = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    cores = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    requests = arrivals(agents, random.Random(1))
    count, sent = len(requests), sum(size for _, size in requests)
    rate, sizes = count / SIMULATED_SECONDS, sorted(size for _, size in requests)
    seconds = [0] * SIMULATED_SECONDS
    for at, _ in requests:
        seconds[int(at)] += 1
    print(f"{agents:,} agents, {cores} processors for each replica")
    print(f"requests: {rate:,.0f} per second, busiest second {max(seconds):,}; creases: {rate * CREASES_OF_A_REQUEST:,.0f}")
    print(
        f"bodies: {sent / count / 1000:.0f} KB on average, p99 {quantile(sizes, 0.99) / 1000:.0f} KB,"
        f" {8 * sent / SIMULATED_SECONDS / 1e9:.1f} Gbit/s"
    )
    for name, costs in SCENARIOS.items():
        used = sum(costs.seconds(size) for size in sizes) / SIMULATED_SECONDS
        replicas = max(1, int(-(-used // (cores * MAX_USE))))
        while quantile(waited := waits(requests, replicas, cores, costs, random.Random(2)), 0.99) >= MAX_WAIT_SECONDS:
            replicas += 1
        print(f"{name}:")
        print(
            f"  replicas: {replicas}, {used:.1f} processors used; wait for one: p50 {1000 * quantile(waited, 0.5):.1f} ms,"
            f" p99 {1000 * quantile(waited, 0.99):.1f} ms, longest {1000 * waited[-1]:.0f} ms"
        )
        remembered = agents / replicas if costs.stays else min(MAX_SESSIONS, agents)
        print(
            f"  conversations that a replica remembers: {remembered:,.0f}, their cache"
            f" {remembered * sent / count * CACHE_BYTES_OF_A_BYTE / 1e6:,.0f} MB"
        )
        print(
            f"  database: {rate * costs.commits:,.0f} commits per second, {rate * costs.database:.1f} processors, at most"
            f" {replicas * CONNECTIONS_OF_A_REPLICA} connections"
        )
        print(
            f"  log {rate * costs.log / 1e6:.1f} MB/s, stored {rate * costs.stored / 1e6:.1f} MB/s,"
            f" {rate * costs.stored * 86_400 / 1e12:.2f} TB per day"
        )


if __name__ == "__main__":
    main()
