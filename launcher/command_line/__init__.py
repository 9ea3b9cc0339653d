"""Read and check the command lines of ft_launcher and ft_autoresume. No process is started here.

Three modules do more than read: ``early_signals`` handles signals until the launcher has imported everything,
``default_threads`` sets ``OMP_NUM_THREADS`` as torchrun does, and ``addresses`` resolves names in a thread.
"""
