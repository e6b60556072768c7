"""What techniques are made of where one file would not hold it. Nothing here is a technique."""
