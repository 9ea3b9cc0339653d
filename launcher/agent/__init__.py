"""The process of ft_launcher: the elastic agent, generation after generation, until the job ends."""
