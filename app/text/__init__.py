"""Text to tokens: tokenizer, chat template, training examples and their loss masks. No torch, no HTTP, no database.

One code path for upload validation, preview, prompts and training, so that what a tenant previews is what is trained.
"""
