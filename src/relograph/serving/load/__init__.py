"""What the service holds: a real one is started, asked by many, lied to, and hurt; figures for `relograph bench serve`.

place      a room's map and photos whose poses are known
server     the service as processes of its own, and what they take of the machine
asking     clients that count what they are told, and know what is right
overhead, overload, attacks, hostile, faults    one question each
benchmark  all of them, and the table
"""
