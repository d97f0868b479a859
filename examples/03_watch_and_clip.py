"""Watch the attention of a model while it trains, and clip W_q and W_k where a logit grows too large."""

import torch

import rootdk

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
model = torch.nn.TransformerEncoder(layer, num_layers=2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
inputs = torch.randn(4, 32, 64)
with torch.no_grad():
    model.layers[1].self_attn.in_proj_weight[:64] *= 40  # a query projection that has gone wrong

with rootdk.watch(model) as watch:
    for step in range(5):
        optimizer.zero_grad()
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()
        largest = max(layer.metrics["max_logit"].max() for layer in watch.readings.values())
        clipped = rootdk.audit.qk_clip_(model, watch, tau=20.0)
        print(f"step {step}: largest logit {largest:5.1f}, clipped: {', '.join(clipped) or 'nothing'}")
