"""Writes a base with an adapter folded in, as a model that other programs load. Knows models, adapters and formats."""

from typing import BinaryIO, Literal

from workers.export.errors import ExportError
from workers.export.gguf_file import write_gguf
from workers.export.hf_archive import write_hf_archive
from workers.loading import LoadedBase
from workers.lora.adapter import AdapterWeights

__all__ = ["ExportError", "export_merged"]


def export_merged(base: LoadedBase, adapter: AdapterWeights, form: Literal["hf", "gguf"], sink: BinaryIO) -> None:
    """Write the merged model to `sink`, which need not be seekable; the same input gives the same bytes.

    `hf` is a tar of a Hugging Face directory, `gguf` one GGUF file. Raises ExportError naming what the format lacks.
    """
    if form == "hf":
        write_hf_archive(base, adapter, sink)
    else:
        write_gguf(base, adapter, sink)
