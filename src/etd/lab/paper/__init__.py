"""The paper's figures as comparisons, and its claims judged by our runs.
Only what is specific to the paper belongs here."""
