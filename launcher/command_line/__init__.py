"""From the command line of ft_launcher to what is to be run; nothing is started here."""
