"""Model families as data, and loading and saving them."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch

from vantage.checkpoints.adapter_folder import find_adapter, find_with_adapter, is_adapter
from vantage.checkpoints.config import Config
from vantage.checkpoints.config_size import check_config_size
from vantage.checkpoints.folder import Folder, plain_dtype, write_folder
from vantage.checkpoints.gguf_names import GGUFTensors
from vantage.checkpoints.image_processor import ImageProcessor, processor_from_folder
from vantage.checkpoints.model_folder import writing_model
from vantage.checkpoints.run_folder import check_checkpoint, is_checkpoint
from vantage.checkpoints.tensor_names import RenamedTensors
from vantage.checkpoints.tokenizer import Tokenizer, from_folder, from_gguf, from_object
from vantage.checkpoints.training_checkpoint import TrainingCheckpoint
from vantage.checkpoints.transformers_model import TensorsInMemory, is_transformers_model
from vantage.errors import BadInput, CheckpointError, Refused
from vantage.families import built
from vantage.families.family import copies_of, export, fill, with_prefix
from vantage.families.memory_need import OpenedCheckpoint
from vantage.families.packing import BITS, check_dtype, memory_for_blocks, own_dtype, packer
from vantage.families.placing import fill_by_layers, planned
from vantage.families.recurrent import NAME as RECURRENT
from vantage.families.registry import families as families
from vantage.families.registry import family_of as family_of
from vantage.files import SHARD_BYTES
from vantage.model import Model, empty_model, fit_buffers
from vantage.model.lora import adapted
from vantage.model.memory_plan import MemoryPlan
from vantage.model.packed import packed_weights
from vantage.model.patches import PatchVectors
from vantage.parallel import Divide, Divided, TensorParallel
from vantage.spec.model import ModelKind, ModelSpec


def load(
    source: Any,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    kernel: str = "auto",
    tokenizer: Any = None,
    adapter: str | Path | None = None,
    fast: bool = False,
    tensor_parallel: bool = False,
    whole_experts: bool = False,
    max_memory: int | str | None = None,
    context: int | None = None,
) -> Model:
    """A model from a folder in the Hugging Face layout, a ``.gguf`` file, a training run, a name that was pulled, or a
    transformers model in memory.

        model = vt.load("smollm2", dtype="auto")
        model = vt.load("runs/a")
        model = vt.load(AutoModelForCausalLM.from_pretrained(folder), tokenizer=AutoTokenizer.from_pretrained(folder))

    A finished training run gives the model that it saved: its last weights, or with ``evaluate.best`` the best ones. An
    unfinished run gives the best so far or the last checkpoint, a folder of checkpoints the last one.

    ``dtype``: float32 by default. "int8" and "int4" quantise the weights of linear maps and embeddings in blocks of 32.
    "auto" keeps the quantised blocks of a GGUF file and 16-bit weights, which gives the same result in less memory and
    time; it is float32 where there are none or the native kernels cannot run. On a GPU these compute in bfloat16
    ("auto" for a folder: in the dtype of its config). All are for inference, not for training or saving.

    ``fast``: with quantised weights, prefill may use 8-bit activations. That is faster, but a prompt is no longer
    computed exactly as its tokens one by one would be. It can be changed at any time (``model.fast``); ``stats`` show
    what ran.

    A transformers model keeps its own ``dtype`` and ``device`` unless given. No file is written. Weights with the same
    layout in memory are shared, so that training one model changes the other: embeddings, heads, norms, and linear maps
    that are not transposed. Weights with another layout here (q, k and v as one map; gate and up) are copied.

    ``tokenizer``: instead of the checkpoint's own; one of transformers or of the ``tokenizers`` package, or a folder.

    ``tensor_parallel``: every process of ``torch.distributed`` has a share of the heads and columns, reads only that
    share of the files, and calls the model with the same tokens; ``save`` writes the whole model. "auto" is float32
    then. With ``whole_experts`` a process has some of the experts of a layer, instead of some columns of each.

    ``max_memory``: limit of device memory ("6GiB", "800MB", or bytes; "auto": what is free) for the weights, a cache of
    ``context`` tokens (default: 4,096, or the model's own context) and working memory. Layers that do not fit stay in
    host memory and are copied to the GPU one layer ahead of their use; on a CPU they are in a scratch file, and the
    limit is for the whole process. The results have the same bits. If the model does not fit even so, it is refused
    before anything is loaded, and the error says what would fit. For inference, not for training.

    ``adapter``: a folder with a LoRA adapter, written by peft or by ``vantage train``, to apply to the model. A folder
    that contains only an adapter is loaded together with the base model that it names.
    """
    in_memory = is_transformers_model(source)
    path, put_on = Path(), None if adapter is None else find_adapter(adapter)
    if in_memory:
        dtype, device = source.dtype if dtype is None else dtype, source.device if device is None else device
    else:
        path, put_on = find_with_adapter(_path(source), adapter)
    where = torch.device("cpu" if device is None else device)
    dtype, how = check_dtype(dtype, where)
    if tensor_parallel:
        _check_shared(how, put_on, max_memory)
        how = None
    elif whole_experts:
        raise BadInput("whole_experts says how experts lie over processes: give tensor_parallel=True as well")
    if max_memory is not None and in_memory:
        raise Refused("max_memory is for what is loaded from files, and these weights are in memory already")
    if context is not None and max_memory is None:
        raise BadInput(f"context={context} says for how many tokens max_memory keeps room: give that as well")
    checkpoint = TensorsInMemory(source) if in_memory else opened(path, dtype)
    dtype = _computed_in(checkpoint, dtype, how, where)
    divide = functools.partial(TensorParallel, whole_experts=whole_experts) if tensor_parallel else None
    memory = memory_for_blocks(how if max_memory is None else None, checkpoint, where)
    model, weights, parallel = _described(source, checkpoint, divide)
    model.kernel, model.fast = kernel, fast
    fit_buffers(model, dtype)
    plan = None if parallel is not None else planned(model, weights, how, dtype, where, max_memory, context)
    words = None if tokenizer is None else from_object(tokenizer)
    if plan is not None:
        fill_by_layers(model, weights, plan, how, dtype, where)
    else:
        with packer(how, model, checkpoint, weights.tensors, weights.family.prefix, where, memory) as pack:
            fill(model, weights.links, weights.tensors, dtype, weights.family, weights.copies, pack, parallel)
            words = tokenizer_of(checkpoint) if words is None else words
            if words is not None and how is not None:
                words.read_vocabulary()  # native code may still be filling the matrices
        model = model if parallel is None else parallel.connect(model)
        for weight in packed_weights(model) if dtype is not torch.float32 else ():
            weight.to(dtype)
    _add_companions(model, weights, words)
    model = model if device is None or plan is not None else model.to(device)
    if put_on is not None:
        from vantage.families.adapters import load_adapter  # which needs this module

        load_adapter(model, put_on)
    return model.eval()


def load_share(source: str | Path, divide: Divide) -> Model:
    """This process's share of a model, in float32, to be trained over processes. No more of the files is read."""
    path, adapter = find_with_adapter(_path(source), None)
    _check_shared(None, adapter, None)
    model, weights, share = _described(source, opened(path, torch.float32), divide)
    assert share is not None, "it was divided"
    fit_buffers(model, torch.float32)
    fill(model, weights.links, weights.tensors, torch.float32, weights.family, weights.copies, parallel=share)
    _add_companions(model, weights, None)
    return share.connect(model)


def _add_companions(model: Model, weights: OpenedCheckpoint, tokenizer: Tokenizer | None) -> None:
    """What a checkpoint has besides weights."""
    checkpoint: Any = weights.stored
    model.config = weights.family.saved_as(checkpoint.config)
    model.tokenizer = tokenizer_of(checkpoint) if tokenizer is None else tokenizer
    model.image_processor = image_processor_of(checkpoint, model.spec)


def _described(
    source: object, checkpoint: Folder | GGUFTensors | TrainingCheckpoint | TensorsInMemory, divide: Divide | None
) -> tuple[Model, OpenedCheckpoint, Divided | None]:
    """The model without weights, all of it or this process's share, and where they are."""
    family = family_of(checkpoint.config)
    tensors = RenamedTensors(with_prefix(family.unpacked(checkpoint), family.prefix), family.older)
    config = Config(checkpoint.config, tensors=tensors.names())
    try:
        check_config_size(checkpoint.config, tensors)
        spec = family.spec(config)
        weights = OpenedCheckpoint(
            checkpoint, tensors, family, family.links(config, spec), copies_of(family, config, spec, tensors)
        )
        config.settle()
        parallel = None if divide is None else divide(spec)
        return empty_model(spec if parallel is None else parallel.own), weights, parallel
    except CheckpointError:
        raise
    except (BadInput, Refused, RuntimeError, ValueError, TypeError, ArithmeticError) as e:
        # the last four are torch's own: a size that overflows, a dropout of 7
        raise CheckpointError(f"{source if isinstance(source, (str, Path)) else type(source).__name__}: {e}") from e


def memory_plan(
    source: str | Path,
    *,
    max_memory: int | str,
    context: int | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str | None = None,
) -> MemoryPlan:
    """What ``load`` would do with such a ``max_memory``: what each part takes, and which layers are kept elsewhere."""
    where = torch.device(device)
    dtype, how = check_dtype(dtype, where)
    checkpoint = opened(find_with_adapter(_path(source), None)[0], dtype)
    dtype = _computed_in(checkpoint, dtype, how, where)
    model, weights, _ = _described(source, checkpoint, None)
    plan = planned(model, weights, how, dtype, where, max_memory, context)
    assert plan is not None, "a limit was given"
    return plan


def _computed_in(checkpoint: object, dtype: torch.dtype, how: str | None, where: torch.device) -> torch.dtype:
    """ "auto" of a folder on a GPU is what its config says."""
    if how == "auto" and where.type == "cuda" and isinstance(checkpoint, Folder):
        return own_dtype(checkpoint.config, torch.float32)
    return dtype


def _check_shared(how: str | None, adapter: object, max_memory: object) -> None:
    """What a share of a model cannot be."""
    if max_memory is not None:
        raise Refused(
            "max_memory keeps layers off a device, and processes that share a model have no such layers yet: start "
            "more processes, or leave tensor_parallel out"
        )
    if how in BITS:
        raise Refused(f"dtype={how!r} packs whole weights, which no process of several has: use a torch dtype")
    if adapter is not None:
        raise Refused("an adapter is put on a whole model: merge it, save that, and load the folder over processes")


def model_kind(source: str | Path) -> ModelKind:
    """What kind of model stands there (decoder, encoder, …), by its config alone."""
    return read_spec(source).kind


def read_spec(source: str | Path) -> ModelSpec:
    """What the model is, by its config alone."""
    path, _ = find_with_adapter(_path(source), None)
    checkpoint = opened(path, torch.float32)
    family = family_of(checkpoint.config)
    tensors = RenamedTensors(with_prefix(family.unpacked(checkpoint), family.prefix), family.older)
    return family.spec(Config(checkpoint.config, tensors=tensors.names()))


def _path(source: object) -> str | Path:
    if isinstance(source, (str, Path)):
        return source
    if isinstance(source, Model):
        raise BadInput("this is a model of Vantage already: it need not be loaded")
    what = type(source).__name__ if isinstance(source, torch.nn.Module) else f"{source!r:.80}"
    raise BadInput(
        f"a model cannot be loaded from {what}: give a folder, a .gguf file, a name that was pulled, or a model of "
        "transformers (with peft's adapters on it: what its merge_and_unload() returns)"
    )


def opened(path: Path, dtype: torch.dtype) -> Folder | GGUFTensors | TrainingCheckpoint:
    """Whatever kind of checkpoint this is."""
    if path.is_dir():
        return TrainingCheckpoint(path) if is_checkpoint(path) else _folder(path)
    check_checkpoint(path)
    return GGUFTensors(path, dtype)


def _folder(path: Path) -> Folder:
    """A folder with a ``Model``; of what else may be written to one, it is said how that is loaded."""
    if is_adapter(path):
        raise CheckpointError(
            f"{path} holds an adapter, no whole model: vt.load({str(path)!r}) puts it on the model below it, "
            "vantage.model.lora.merge(model) makes it part of the weights, and vt.save writes them"
        )
    checkpoint = Folder(path)
    if checkpoint.config.get("model_type") == RECURRENT:
        raise CheckpointError(
            f"{path} holds a recurrent model, which is no vt.Model: load it with "
            f"vantage.families.recurrent.load_recurrent({str(path)!r})"
        )
    return checkpoint


def tokenizer_of(checkpoint: Folder | GGUFTensors | TrainingCheckpoint | TensorsInMemory) -> Tokenizer | None:
    if isinstance(checkpoint, TensorsInMemory):  # transformers keeps it apart
        return None
    return from_gguf(checkpoint.file) if isinstance(checkpoint, GGUFTensors) else from_folder(checkpoint.path)


def image_processor_of(checkpoint: object, spec: ModelSpec) -> ImageProcessor | None:
    """What prepares images, where the model reads them: as its folder says, or else as transformers would."""
    source = None if spec.vision is None else spec.vision.encoder.embedding.source
    if spec.vision is None or not isinstance(source, PatchVectors):
        return None
    silent = ImageProcessor(source.size, spec.vision.merge, source.frames)
    return processor_from_folder(checkpoint.path, silent) if isinstance(checkpoint, Folder) else silent


def save(model: Model, folder: str | Path, *, shard_bytes: int = SHARD_BYTES, overwrite: bool = False) -> None:
    """Write a model as a folder that ``load`` reads back; transformers as well, if a checkpoint of its was loaded.

    The write is atomic: an interrupted one leaves no folder. ``overwrite`` replaces a model that Vantage saved there,
    once the new one is complete; other files in the folder are never deleted. A model that is divided over processes is
    put together and written by the first of them; all of them must call this.
    """
    if model.parallel is not None:
        whole = model.parallel.whole(model)
        if model.parallel.wire.rank == 0:
            save(whole, folder, shard_bytes=shard_bytes, overwrite=overwrite)
        model.parallel.wire.wait()
        return
    if packed_weights(model):
        raise BadInput("this model's weights are packed, which a folder cannot hold: load it with dtype=torch.float32")
    if adapted(model):
        raise BadInput("this model has adapters: save_adapter writes them, and merge(model) makes them part of it")
    config = built.config_of(model.spec) if model.config is None else json.loads(json.dumps(model.config))
    family = family_of(config)
    links = family.links(Config(config), model.spec)
    config["dtype"] = plain_dtype(model.dtype)
    config.pop("torch_dtype", None)
    with writing_model(folder, overwrite=overwrite) as written:
        write_folder(written, config, export(model, links), shard_bytes=shard_bytes)
        if model.tokenizer is not None:
            model.tokenizer.save(written)
        if model.image_processor is not None:
            model.image_processor.save(written)
