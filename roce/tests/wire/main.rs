//! The wire formats: against packets of Linux' rdma_rxe, and both ways for all that there is.

mod captures;
mod cm;
mod pcap;
mod round_trip;
