"""The HTTP service: photos come in, poses go out, from one network for several maps.

messages     what goes over the wire, and its words
config       how the service is set up
app          the addresses that it answers at
bodies       what a request brings, read within limits
answering    the queue, the network, the solver
served_maps  maps that others may change or take away meanwhile
keys         who may ask
guarding     what holds for every request: size, time, headers, origin
metrics      what Prometheus reads
running      processes, sockets, signals
"""
