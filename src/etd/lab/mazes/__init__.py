"""The maze studies: distances learned from random walks, compared with exact ones.
Learners, exact solutions, scores, plots and the interactive page of those studies belong here."""
