"""Ways to go faster or use less memory, one file each. Only the catalogue knows which techniques exist."""
