"""Films of trained policies as GIF or MP4: the level, the bonus, and what the model has learned.
Code that plays an episode in order to show it belongs here."""
