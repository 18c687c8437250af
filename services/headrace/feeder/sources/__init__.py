"""Where rows come from: files, procedural data sets, functions of the user's."""
