"""The small trained pairs that make the harness work out of the box, and the recipe that made them."""
