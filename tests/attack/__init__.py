"""The attack: hostile input for every door of the library, with one rule.

The outcome of every case is a right answer, or an error of treefold (of a command: the exit code 1 or 2 and one line). A signal, a hang,
another exception or a different answer without a word is a finding. `make attack MINUTES=60` runs it, `python -m tests.attack
--help` explains it; `make test` runs a few cases of each target.

`case` says what a target is and has the mutations, `child` runs cases in a process of their own; `readers`, `files`, `calls` and `commands`
have the targets; `kill` interrupts trainings and sweeps.
"""
