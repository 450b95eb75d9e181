"""What runs inside a grader's worker process, and nothing else: standard library first.

main        the loop: read a frame of attempts, answer each with a frame
framing     length-framed JSON over a pipe (both sides)
limits      memory, processes, file size; die when the host dies
functions   a user's scoring function
verifiers   math, regex, JSON schema, reasoning-gym's own scorers
code_tests  unit tests of generated code, each in a process of its own
isolation   what keeps generated code from the network, from keys, and from staying alive
"""
