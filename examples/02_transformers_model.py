"""A model of the transformers library on rootdk's attention: the same logits, with its own masks and cache."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rootdk.torch

torch.manual_seed(0)
small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=100, num_key_value_heads=2, **small)).eval()
tokens = torch.randint(3, 100, (2, 12))

with torch.no_grad():
    before = model(tokens).logits
    model.set_attn_implementation(rootdk.torch.register_transformers())
    after = model(tokens).logits
print(f"largest difference between the logits: {(after - before).abs().max():.1e}")
generated = model.generate(tokens, max_new_tokens=5, do_sample=False)
print(f"generated with a key cache: {tuple(generated.shape)}")
