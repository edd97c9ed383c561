"""The chapters of `penstock demo`, each a module with `play(stage)`."""
