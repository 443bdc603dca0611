"""What the build stages of the images run: only pip and the standard library are there."""
