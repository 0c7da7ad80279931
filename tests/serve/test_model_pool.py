"""Several models under a limit, and the parts of the server that need no process."""

from __future__ import annotations

import asyncio
import io
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.generation.folder import chat_model
from vantage.errors import Refused
from vantage.generation import Sampling, Stop
from vantage.serve.engine_jobs import Submission, sample_events
from vantage.serve.errors import ApiError, failed
from vantage.serve.logs import ServerLog
from vantage.serve.metrics import MetricCounter, MetricHistogram, Metrics, MetricsPage
from vantage.serve.model_pool import ModelPool
from vantage.serve.settings import Batching, Limits, Logs, ServedModel, ServerSettings
from vantage.serve.status import page
from vantage.serve.worker import Worker

BATCHING = Batching(rows=4, queue=4, capacity=512)


def model_pool(memory: int = 0, load=lambda served: chat_model(int(served.source))) -> ModelPool:
    models = tuple(ServedModel(name, str(seed)) for seed, name in enumerate("abc"))
    settings = ServerSettings(models, batching=BATCHING, limits=Limits(memory_bytes=memory))
    return ModelPool(settings, ServerLog(Logs(), io.StringIO()), Metrics(), load)


async def used(it: ModelPool, *names: str) -> list[str]:
    for name in names:
        async with it.lease(name):
            pass
    return [one.name for one in it.loaded()]


@pytest.mark.sampled
def test_loaded_when_asked_for_and_the_least_used_goes_first():
    async def main():
        one = model_pool()
        assert one.loaded() == []
        await used(one, "a")
        size = one.loaded()[0].bytes
        await one.close()
        two = model_pool(2 * size + 10)
        assert await used(two, "a", "b", "a", "c") == ["a", "c"]
        async with two.lease("a"), two.lease("c"):
            with pytest.raises(ApiError, match="no room") as caught:
                await used(two, "b")
            assert (caught.value.status, caught.value.code) == (503, "models_busy")
            assert caught.value.retry is not None
        assert await used(two, "b") == ["a", "b"]  # the lease of c ended first
        text = page(Metrics(), two)
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        shown = {sample.labels["model"] for sample in samples if "model" in sample.labels}
        assert shown == {"a", "b"}
        await two.close()
        small = model_pool(size - 1)
        with pytest.raises(ApiError) as caught:
            await used(small, "a")
        assert caught.value.code == "model_too_large"
        assert small.loaded() == []
        await small.close()

    asyncio.run(main())


def test_one_load_for_all_who_wait_and_its_failure_is_theirs_alone():
    loads, broken = [], threading.Event()
    broken.set()

    def load(served):
        loads.append(served.name)
        if broken.is_set():
            raise FileNotFoundError("/secret/path")
        return chat_model()

    async def main():
        it = model_pool(load=load)
        told = await asyncio.gather(*(used(it, "a") for _ in range(3)), return_exceptions=True)
        assert [one.code for one in told] == ["model_load_failed"] * 3
        assert "secret" not in str(told[0])
        assert loads == ["a"]
        broken.clear()
        assert await used(it, "a") == ["a"]
        it.draining = True
        with pytest.raises(ApiError) as caught:
            await used(it, "a")
        assert caught.value.status == 503
        await it.close()

    asyncio.run(main())


def test_a_worker_with_prefixes_gives_every_block_back():
    """Left early, cut off by a backlog, or read to the end: what stays is the prefixes, and they can be let go."""
    backlog = 40  # above what is read, however late a busy machine reads it; below what nobody reads

    async def main():
        worker = Worker(
            "tiny", chat_model(), Batching(rows=4, queue=9, capacity=512), backlog, ServerLog(Logs(), io.StringIO())
        )
        worker.start()
        loop = asyncio.get_running_loop()

        def order(n: int, tokens: int) -> Submission:
            return Submission((5, 6, 7, n), tokens, Sampling(), Stop(), tenant="t")

        async def read(n: int, tokens: int, most: int) -> int:
            news, got = asyncio.Event(), 0
            with worker.seats(1):
                job = worker.submit(order(n, tokens), news)
                async for batch in sample_events([job], news, loop.time() + 30):
                    got += len(batch)
                    if got >= most:
                        break
                job.end()
            return got

        told = await asyncio.gather(*(read(n, 30, 30 if n % 2 else 5) for n in range(9)))
        assert all(told)
        news = asyncio.Event()
        stalled = worker.submit(order(99, 100), news)
        while not stalled.over:  # nobody takes its events
            await asyncio.sleep(0.01)
        assert stalled.error is not None
        assert stalled.error.code == "slow_reader"
        assert stalled.take() == []
        while worker.snapshot.running or worker.snapshot.waiting:
            await asyncio.sleep(0.01)
        await worker.stop()
        engine = worker._engine
        assert engine.stats.prefixes > 0
        engine.forget()
        assert engine.stats.blocks_used == 0

    asyncio.run(main())


def test_errors_of_a_step():
    assert failed(Refused("no token is left"), own=True).status == 400
    assert failed(Refused("no token is left"), own=False).status == 500
    assert failed(MemoryError(), own=False).code == "out_of_memory"


def test_metrics_are_prometheus():
    made, counter, histogram = MetricsPage(), MetricCounter(), MetricHistogram()
    counter.add(2, route='a"\\\n', status="200")
    counter.add(1, route='a"\\\n', status="200")
    for value in (0.001, 0.1, 0.11, 1e9):
        histogram.observe(value, model="m")
    made.counter("x_total", "Some", counter)
    made.histogram("y_seconds", "Some", histogram)
    families = {family.name: family for family in text_string_to_metric_families(str(made))}
    (sample,) = families["x"].samples
    assert sample.labels["route"] == 'a"\\\n'
    assert sample.value == 3
    buckets = {s.labels["le"]: s.value for s in families["y_seconds"].samples if s.name.endswith("_bucket")}
    assert (buckets["0.005"], buckets["0.1"], buckets["0.25"], buckets["+Inf"]) == (1, 2, 3, 4)
