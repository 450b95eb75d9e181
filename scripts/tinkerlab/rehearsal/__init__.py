"""The rehearsal: a loopback service that speaks the Tinker wire protocol and really trains.

``models`` finds or makes the base model, ``engine`` trains and samples it (it knows nothing
of HTTP), ``service`` puts the wire protocol on top.
"""
