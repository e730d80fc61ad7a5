"""Trials: every spec is compiled once in a process that may hang, crash or grow, before the rest.

Libraries that compile grammars are native code: nothing in their process can stop one that takes
for ever, and a stack that overflows ends the process. So a spec reaches the engine, and takes time
in the front, only after a trial in a process of its own went well. The front starts one trial
process; that one loads the libraries and forks a worker for each trial that runs at the same time,
which costs milliseconds and hardly any memory.
"""
