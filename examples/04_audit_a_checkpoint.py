"""The health of a model's attention from its files alone: no model code runs, nothing is unpickled.

python examples/04_audit_a_checkpoint.py FOLDER     (config.json and *.safetensors; without one, a small model)
"""

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from rootdk import audit

if len(sys.argv) > 1:
    folder = sys.argv[1]
else:
    torch.manual_seed(0)
    folder = tempfile.mkdtemp()
    GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=4, n_embd=64, vocab_size=100)).save_pretrained(folder)

checkpoint = audit.read_checkpoint(folder, phase="any" if len(sys.argv) > 1 else "init")
print(f"{len(checkpoint.layers)} layers, verdict: {checkpoint.verdict}")
for layer in checkpoint.layers:
    predicted = ", ".join(f"{deviation:.3f}" for deviation in layer.of("predicted_deviation"))
    print(f"  {layer.name}: predicted standard deviation of the logits, head by head: {predicted}")
for finding in checkpoint.findings[:5]:
    print(f"  {finding.severity}: {finding.layer}: {finding.metric} = {finding.value:.3g}; {finding.remedy}")
