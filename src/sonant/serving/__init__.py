"""The OpenAI speech API over one engine, for all model families."""
