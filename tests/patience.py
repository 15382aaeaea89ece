"""How long a test waits for what must come: it ends a hang and measures nothing."""

# A machine that shares its cores with others took four times what a quiet one takes.
HANG_S = 60.0
