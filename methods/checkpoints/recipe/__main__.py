"""`python -m methods.checkpoints.recipe`: see `run.py`."""

from methods.checkpoints.recipe.run import main

if __name__ == "__main__":
    main()
