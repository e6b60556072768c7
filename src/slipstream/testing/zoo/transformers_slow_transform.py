"""Planted: a Hugging Face Trainer whose dataset masks its tokens one by one in Python."""

import argparse
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randint(1, 500, (16, 16384), generator=generator).tolist()

    def __len__(self):
        return 8192

    def __getitem__(self, index):
        tokens = self.rows[index % 16]
        hashed = [(token * 2654435761 + place) % 499 + 1 for place, token in enumerate(tokens)]  # <- planted
        ids = torch.tensor(hashed[:32])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": index % 2}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=500, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=args.steps,
            per_device_train_batch_size=32,
            dataloader_num_workers=2,
            dataloader_persistent_workers=True,
            logging_steps=20,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=0,
        )
        Trainer(model=model, args=arguments, train_dataset=Reviews()).train()
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
