"""A whole run in one thread: real rules, small models of everybody else, and faults by seed.

    scenario   what a seed means: settings, data set, how often what goes wrong
    engine     the scheduler: one transition at a time, chosen by the seed
    network    calls between parties: lost, repeated, late
    replay     the real replay buffer - rules and service - over a journal that can lose its tail
    store · feeder · worker · trainer · coordinator · storage · user    the others
    faults     crashes, zombies, losses
    model      what the durable events say, folded by the judge's own small model
    judge      the invariants of faults.md, checked against model, replies, rows and weights
    mutants    bugs put back on purpose

Nothing here reads a clock, opens a file or starts a thread: a seed replays bit by bit.

    python -m simulation 42            one seed
    python -m simulation 42 --trace    with every transition
"""
