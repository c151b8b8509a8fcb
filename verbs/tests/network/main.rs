//! The software device on the network: queue pairs that reach each other by RoCEv2 over UDP, though they are on one host.
//! What a connection does is the conformance suite's matter, which runs over the network with `QPAIR_NO_SHARED_MEMORY=1`;
//! here is what the network itself brings: strangers, peers that vanish, and a port that processes share.

mod ground;
mod processes;
mod strangers;
mod wire;
