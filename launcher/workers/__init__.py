"""How ft_launcher starts the workers of a generation, holds them, and ends them."""
