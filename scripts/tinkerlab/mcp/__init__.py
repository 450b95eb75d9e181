"""Training as tools: the MCP server's sessions, the jobs that do their work, and its tools.

A tool never trains in the server's process. It starts one of the project's scripts in the
session's folder and waits for it, so that the server answers at once, a long step blocks
nothing, and everything that a session did is on the disk, where the next server finds it.
"""
