"""What engines have cached by their own word: tokens of requests, blocks of pods."""
