"""Studies: arms × seeds, run to the end and answered with intervals.

    definition   study.yaml, read strictly
    plan         what a study comes to: arms, runs, and where that is kept
    resolution   recipes -> plan, and the proof that nothing undeclared differs (imports torch)
    store        the folder of runs that studies share: states and locks
    engines      where a run's process is started: this machine, Ray, Modal, Slurm
    runner       the loop that brings every run to its end
    progress     what a person sees of it
    estimate     time, GPU-hours and disk before the start; probing measures for it
    outline      a plan for a person to read
    cleaning     what can be removed
    curves       run directories and published CSV files -> runs in memory; what a collapse is
    stats        intervals, paired differences, verdicts
    analysis     runs -> tables of numbers
    pictures     runs -> PNG, with lines and labels
    sections     numbers -> sentences and tables; background: samples, machine, commands
    document     the blocks of a report; markdown, page: blocks -> text
    report       the files of an answer

All but `resolution` work without torch, so that reading results costs a second, anywhere.
"""
