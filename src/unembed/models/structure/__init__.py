"""What a decoder is made of, read off its module tree and checked by running it."""
