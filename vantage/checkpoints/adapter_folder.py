"""Where a LoRA adapter lies, and which model it is for. The adapter itself is read by ``vantage.families.adapters``."""

from __future__ import annotations

from pathlib import Path

from vantage.checkpoints.file_names import CONFIG as MODEL_CONFIG
from vantage.checkpoints.json_files import read_json
from vantage.checkpoints.pull import find, missing
from vantage.checkpoints.run_folder import check_checkpoint
from vantage.errors import BadInput, CheckpointError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
INSIDE_RUN = "model"  # where a training run keeps what it trained


def is_adapter(path: Path) -> bool:
    """Whether a folder holds an adapter and no model."""
    return (path / CONFIG).is_file() and not (path / MODEL_CONFIG).exists()


def find_with_adapter(source: str | Path, adapter: str | Path | None = None) -> tuple[Path, Path | None]:
    """Where a model is, and the adapter to put on it. A source that is itself an adapter goes on the model it names."""
    path = find(source)
    if not is_adapter(path):
        check_checkpoint(path)
        return path, None if adapter is None else find_adapter(adapter)
    if adapter is not None:
        raise BadInput(f"{path} holds an adapter itself, and one adapter goes on a model: give the model below it")
    base = base_of(path)
    if is_adapter(base):
        raise CheckpointError(
            f"{path} holds an adapter for {base}, which is an adapter itself: give the model below it"
        )
    return base, path


def find_adapter(source: str | Path) -> Path:
    """The folder of an adapter, named itself or by the training run that it came of."""
    path = Path(source).expanduser()
    if not path.exists():
        raise BadInput(f"the adapter {missing(path, str(source), path_like=True)}")
    for folder in (path, path / INSIDE_RUN):
        if (folder / CONFIG).is_file():
            return folder
    raise BadInput(f"{path} holds no adapter: give a folder with {CONFIG} and {WEIGHTS}, as peft writes it")


def base_of(adapter: Path) -> Path:
    """The model that an adapter says it is for."""
    base = read_json(adapter, CONFIG).get("base_model_name_or_path")
    how = f"name it and the adapter: vt.load(MODEL, adapter={str(adapter)!r}), or MODEL --adapter {adapter}"
    if not isinstance(base, str):
        raise CheckpointError(f"{adapter} holds an adapter that does not say which model it is for: {how}")
    try:
        return find(base)
    except BadInput as e:
        raise CheckpointError(f"{adapter} holds an adapter whose base model is missing: {e}. Or {how}") from e
