"""relograph tells where a photo was taken."""
