"""The same work on both sides: the ratio should be 1. What differs is the noise of this machine today."""

from bench.harness import PEERS, Bench, Contestant

BENCH = Bench(
    name="selftest",
    title="The same matrix product in our environment and in the peers'",
    contestants=(Contestant("here", "matmul.py"), Contestant("peers", "matmul.py", PEERS)),
    memory=True,
)
