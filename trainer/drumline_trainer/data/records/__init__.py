"""Records of fine-tuning data: conversations and texts in lines of JSON, as tokens that count."""
