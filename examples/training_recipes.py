"""Train on an audit's soft targets: the same ten lines for PyTorch, Lightning, Hugging Face, scikit-learn and xrv.

Split by patient before you train, and test on labels that people read. A target is NaN where nobody knows: each recipe
leaves such a pair out of the loss.
"""

import numpy as np
import torch


def soft_loss(logits, target):
    """Give the log loss over the pairs that have a target."""
    known = torch.isfinite(target)
    each = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.nan_to_num(target), reduction="none")
    return (each * known).sum() / known.sum()


def pytorch(network, images, soft, epochs=3):
    """Train a network of yours in a plain loop; `images` is a tensor in the order of `soft.image_ids`."""
    data = torch.utils.data.TensorDataset(images, soft.to_torch())
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(epochs):
        for inputs, target in torch.utils.data.DataLoader(data, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            soft_loss(network(inputs), target).backward()
            optimizer.step()
    return network


def lightning(network, images, soft, epochs=3):
    """Do the same as a Lightning module."""
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network

        def training_step(self, batch, _number):
            inputs, target = batch
            return soft_loss(self.network(inputs), target)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, soft.to_torch()), batch_size=16)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    pl.Trainer(max_epochs=epochs, accelerator="cpu", **quiet).fit(Module(), loader)
    return network


def hugging_face(network, images, soft, folder, epochs=3):
    """Do the same with a Hugging Face Trainer; for a model of theirs, take `.logits` of what it gives."""
    from bpals.optional import import_silent

    transformers = import_silent("transformers")  # `import transformers`, without its telemetry

    class Trainer(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **_more):  # noqa: FBT002  as theirs
            logits = model(inputs["pixel_values"])
            loss = soft_loss(logits, inputs["labels"])
            return (loss, logits) if return_outputs else loss

    rows = [{"pixel_values": image, "labels": target} for image, target in zip(images, soft.to_torch(), strict=True)]
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    # The Trainer drops columns that a model's forward does not name: ours has none of those names.
    settings = transformers.TrainingArguments(
        folder, num_train_epochs=epochs, learning_rate=1e-2, remove_unused_columns=False, **quiet
    )
    Trainer(model=network, args=settings, train_dataset=rows).train()
    return network


def scikit_learn(features, soft, penalty=10.0):
    """Fit a line per finding on features of yours; the root keeps rare findings from drowning (docs/probe.md)."""
    from sklearn.linear_model import Ridge

    models = []
    for column in soft.values.T:
        known = np.isfinite(column)
        models.append(Ridge(alpha=penalty).fit(features[known], np.sqrt(column[known])))
    return models


def torchxrayvision(network, dataset, soft, epochs=3):
    """Loop over a dataset of TorchXRayVision whose items carry the targets."""
    import bpals

    films = bpals.with_targets(dataset, soft)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(epochs):
        for item in torch.utils.data.DataLoader(films, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            soft_loss(network(item["img"].float()), item["lab"].float()).backward()
            optimizer.step()
    return network
