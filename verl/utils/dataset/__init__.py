"""Tasks from parquet and jsonl files in verl's schema, and the order in which they are drawn."""

from verl.utils.data_file import DatasetError
from verl.utils.dataset.build import build_loader
from verl.utils.dataset.files import read_rows, write_rows
from verl.utils.dataset.loader import TaskLoader, collate_fn
from verl.utils.dataset.rl_dataset import PromptMeasure, RLHFDataset

__all__ = [
    "DatasetError",
    "PromptMeasure",
    "RLHFDataset",
    "TaskLoader",
    "build_loader",
    "collate_fn",
    "read_rows",
    "write_rows",
]
