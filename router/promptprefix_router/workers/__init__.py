"""Several pickers in one pod, each on a core of its own, behind one port."""
