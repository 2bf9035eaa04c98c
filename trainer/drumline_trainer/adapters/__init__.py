"""Fine-tuning of few weights beside many that stay: LoRA, and QLoRA with 4-bit weights."""
