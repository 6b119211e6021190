"""A page on this machine that shows what trained networks see in an image, and how the answer changes."""
