"""The rules, a file for each part of a job's life: `decide_*` reads, returns `(outcome, changes)`, writes nothing."""
