"""What test_libraries.py runs where wandb, mlflow and datasets are installed. Prints what they hold as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vantage as vt
from tests.training.runs import losses, tiny
from vantage.cli.main import main
from vantage.errors import BadInput
from vantage.training import read_log

SAID = tiny(loop={"steps": 6}, evaluate={"every": 3}, save={"every": 2})


def trained_twice(folder: Path, name: str) -> None:
    """A run that is stopped, goes on, and fails once in between."""

    def fails(record: Any) -> None:
        raise ZeroDivisionError

    vt.train(SAID, out=folder, track=name, device="cpu", callbacks=Stops(4))
    with contextlib.suppress(ZeroDivisionError):
        vt.train(SAID, out=folder, track=[name], resume=True, device="cpu", callbacks=fails)
    vt.train(SAID, out=folder, track=name, resume=True, device="cpu")


class Stops:
    def __init__(self, step: int):
        self.step = step

    def on_begin(self, run: Any) -> None:
        self.run = run

    def on_step(self, record: Any) -> None:
        if record.step == self.step - 1:
            self.run.stop()


def stored(data: bytes, header: int = 7, block: int = 2**15) -> Iterator[bytes]:
    """The records of a file of an offline run: LevelDB's log after a header, in blocks, each piece with 7 bytes before
    it (checksum, length, kind). wandb itself reads it in Go."""
    at, whole = header, b""
    while at + 7 <= len(data):
        left = block - at % block
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # all of it, or its last piece
            yield whole
            whole = b""


def wandb(folder: Path) -> dict[str, Any]:
    import wandb as library
    from wandb.proto import wandb_internal_pb2

    os.environ["WANDB_MODE"] = "offline"
    trained_twice(folder, "wandb")
    library.teardown()  # its service writes the end of the last run after that run has returned
    history: list[dict[str, Any]] = []
    ids, config = set(), {}
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in stored(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                ids.add(record.run.run_id)
                config = {u.key: json.loads(u.value_json) for u in record.run.config.update} or config
            if record.HasField("history"):
                items = record.history.item
                history.append({i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items})
    return {
        "runs": len(ids),
        "loss": {row["train/global_step"]: row["train/loss"] for row in history if "train/loss" in row},
        "eval": {row["train/global_step"]: row["eval/length 5/loss"] for row in history if "eval/length 5/loss" in row},
        "width": config["model"]["width"],
    }


def mlflow(folder: Path) -> dict[str, Any]:
    import mlflow as library

    uri = f"sqlite:///{folder.parent / 'mlflow.db'}"
    os.environ["MLFLOW_TRACKING_URI"] = uri
    library.set_tracking_uri(uri)
    trained_twice(folder, "mlflow")
    client = library.MlflowClient()
    runs = client.search_runs([e.experiment_id for e in client.search_experiments(filter_string="name = 'vantage'")])
    run = runs[0]

    def figures(name: str) -> dict[int, float]:
        return {m.step: m.value for m in client.get_metric_history(run.info.run_id, name)}

    return {
        "runs": len(runs),
        "status": run.info.status,
        "loss": figures("train/loss"),
        "eval": figures("eval/length 5/loss"),
        "width": int(run.data.params["model.width"]),
    }


def datasets(folder: Path) -> dict[str, Any]:
    import datasets as library

    rows = [list(range(start, start + 5)) for start in range(1, 9)]
    spec = vt.decoder(vocab=32, width=16, layers=1, heads=2)
    short: dict[str, Any] = {"steps": 4, "batch_size": 2, "device": "cpu"}
    dataset = library.Dataset.from_dict({"input_ids": rows})
    vt.train(spec, rows, out=folder / "lists", **short)
    vt.train(spec, dataset, out=folder / "dataset", **short)
    vt.train(spec, dataset.with_format("torch"), out=folder / "torch", **short)
    vt.train(spec, dataset.to_iterable_dataset(), out=folder / "stream", **short)
    split = library.DatasetDict({"train": dataset, "test": dataset})
    try:
        vt.train(spec, split, out=folder / "split", **short)
        refused = ""
    except BadInput as e:
        refused = str(e)
    texts = library.Dataset.from_dict({"text": ["hello", "", "there"]})
    bytes_spec = vt.decoder(vocab=256, width=16, layers=1, heads=2)
    vt.train(bytes_spec, texts, tokenizer="bytes", epochs=1, batch_size=3, device="cpu", out=folder / "text")
    return {
        "losses": [losses(folder / name) for name in ("lists", "dataset", "torch")],
        "stream": len(losses(folder / "stream")),
        "refused": refused,
        "targets": [record.targets for record in read_log(folder / "text")[0]],
    }


def command_line(folder: Path) -> dict[str, Any]:
    os.environ["WANDB_MODE"] = "offline"
    short = ["loop.steps=2", "loop.batch=4", "schedule={}", "data.test_examples=2", "model.width=16"]
    code = main(["train", "copy", *short, "--device", "cpu", "--track", "wandb", "--out", str(folder)])
    return {"code": code, "tracked": json.loads((folder / "tracking.json").read_text())}


if __name__ == "__main__":
    which, where = {"wandb": wandb, "mlflow": mlflow, "datasets": datasets, "cli": command_line}, Path(sys.argv[2])
    print("\n" + json.dumps(which[sys.argv[1]](where)))
