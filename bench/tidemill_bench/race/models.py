"""The built-in model in the forms that other engines read, made once and kept.

Knows file formats: safetensors with configuration and tokenizer for vLLM and transformers, GGUF in other
quantisations for llama.cpp. All come from the one GGUF file of the built-in model, so that everyone computes
with the same weights, up to the format's rounding.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Literal

from tidemill_engine.model_uri import BUILTIN_MODELS, find_model_path

MODEL = "smollm2-135m"
GgufFormat = Literal["BF16", "Q8_0", "Q4_0"]
_HEAD = "token_embd.weight"
_HEAD_OF_Q4 = "Q8_0"
"""llama.cpp's own quantiser keeps a tied output matrix above 4 bits, and so does this one."""


def huggingface_folder(cache: Path) -> Path:
    """Return the folder with the model in bfloat16 as safetensors."""
    folder = cache / "models" / f"{MODEL}-hf"
    if folder.exists():
        return folder
    import torch  # noqa: PLC0415 - heavy, and only wanted once
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    source = find_model_path(BUILTIN_MODELS[MODEL])
    unfinished = _unfinished(folder)
    options: dict[str, Any] = {"gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(str(source.parent), dtype=torch.float32, **options)
    model.config.__dict__.pop("quantization_config", None)
    plain = AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16)  # GGUF models can't be saved
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(unfinished)
    AutoTokenizer.from_pretrained(str(source.parent), **options).save_pretrained(unfinished)
    unfinished.rename(folder)
    return folder


def gguf_file(cache: Path, form: GgufFormat) -> Path:
    """Return the model as GGUF with all matrices in one format; vectors stay as they are."""
    path = cache / "models" / f"{MODEL}-{form.lower()}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        _rewrite(find_model_path(BUILTIN_MODELS[MODEL]), unfinished, form)
        unfinished.rename(path)
    return path


def _rewrite(source: Path, target: Path, form: GgufFormat) -> None:
    """Copy a GGUF file, every matrix quantised anew."""
    import gguf  # noqa: PLC0415 - only wanted once
    from gguf.quants import dequantize, quantize  # noqa: PLC0415

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for name, field in reader.fields.items():
        if name == gguf.Keys.General.ARCHITECTURE or name.startswith("GGUF."):
            continue  # written by the writer itself
        element_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=element_type)
    for tensor in reader.tensors:
        if len(tensor.shape) < 2:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        wanted = _HEAD_OF_Q4 if (form, tensor.name) == ("Q4_0", _HEAD) else form
        kind = gguf.GGMLQuantizationType[wanted]
        writer.add_tensor(
            tensor.name, quantize(dequantize(tensor.data, tensor.tensor_type), kind), raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _unfinished(folder: Path) -> Path:
    """Return an empty folder beside, to be renamed when it is complete."""
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    return unfinished
