"""Ways to go faster or use less memory, one file each. The catalogue (`_core/catalogue.py`) lists them."""
